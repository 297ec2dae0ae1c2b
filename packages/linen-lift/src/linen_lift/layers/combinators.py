"""`Sequential`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..module import Module

__all__ = ["Sequential"]


class Sequential(Module):
    """Calls one layer after the other.

    A layer that returns a tuple passes it on as positional arguments, one that returns
    a dict as keyword arguments.

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
