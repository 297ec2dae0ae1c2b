"""`Sequential` and `BatchApply`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from ..module import Module, compact

__all__ = ["BatchApply", "Sequential"]


class Sequential(Module):
    """Calls one layer after the other.

    A layer that returns a tuple passes it on as positional arguments, one that returns
    a dict as keyword arguments. Modules that a function among the layers makes belong
    to this one.

    Args:
        layers: modules, or any functions.

    Example:
        >>> import linen_lift as nn, jax, jax.numpy as jnp
        >>> model = nn.Sequential([nn.Dense(4), nn.relu, nn.Dense(2)])
        >>> variables = model.init(jax.random.key(0), jnp.ones(3))
        >>> sorted(variables['params'])
        ['layers_0', 'layers_2']
    """

    layers: Sequence[Callable[..., Any]]

    def __post_init__(self) -> None:
        if not isinstance(self.layers, Sequence):
            raise ValueError(
                "Sequential needs a sequence of layers; found a "
                f"{type(self.layers).__name__}."
            )
        super().__post_init__()

    @compact
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the layers.

        Args:
            *args: for the first layer.
            **kwargs: for the first layer.

        Returns:
            What the last layer returns.

        Raises:
            ValueError: if there are no layers.
        """
        if not self.layers:
            raise ValueError("Sequential has no layers to call.")
        first, *rest = self.layers
        out = first(*args, **kwargs)
        for layer in rest:
            if isinstance(out, tuple):
                out = layer(*out)
            elif isinstance(out, dict):
                out = layer(**out)
            else:
                out = layer(out)
        return out


class BatchApply:
    """Calls a function with the first axes of arrays merged into one.

    Arrays with fewer axes are passed as they are.

    Args:
        f: a function, often a bound module.
        num_dims: how many axes are merged.

    Example:
        >>> import linen_lift as nn, jax.numpy as jnp
        >>> frames = jnp.ones((2, 3, 8, 8, 1))  # (batch, time, height, width, channels)
        >>> nn.BatchApply(lambda x: nn.avg_pool(x, (8, 8)))(frames).shape
        (2, 3, 1, 1, 1)
    """

    def __init__(self, f: Callable[..., Any], num_dims: int = 2) -> None:
        self._f = f
        self.num_dims = num_dims

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the function.

        Args:
            *args: for the function.
            **kwargs: for the function.

        Returns:
            What the function returns, with the first axis of each array split.

        Raises:
            ValueError: if no argument has `num_dims` axes.
        """
        shapes = [jnp.shape(x) for x in jax.tree.leaves((args, kwargs))]
        merged = [s[: self.num_dims] for s in shapes if len(s) >= self.num_dims]
        if not merged:
            raise ValueError(
                f"BatchApply merges the first {self.num_dims} axes and requires at "
                f"least one input that has them; found the shapes {shapes}."
            )

        def merge(x: Any) -> Any:
            wide = jnp.ndim(x) >= self.num_dims
            return x.reshape(-1, *x.shape[self.num_dims :]) if wide else x

        args, kwargs = jax.tree.map(merge, (args, kwargs))
        out = self._f(*args, **kwargs)
        return jax.tree.map(lambda x: x.reshape(*merged[0], *x.shape[1:]), out)
