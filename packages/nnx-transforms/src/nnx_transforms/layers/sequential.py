"""Layers one after the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from graphcore import List
from nnx_transforms.module import Module


class Sequential(Module):
    """Applies layers in order.

    Args:
        *layers: Modules or other callables, such as those of `jax.nn`. The first takes
            the arguments of the call. What a layer returns is the argument of the
            next: a tuple as several, a dict as keyword arguments.

    Raises:
        TypeError: If a layer can't be called.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from nnx_transforms.layers.linear import Linear
        >>> from nnx_transforms.rngs import Rngs
        >>> rngs = Rngs(0)
        >>> model = Sequential(Linear(2, 4, rngs=rngs), jax.nn.relu)
        >>> model(jnp.ones(2)).shape, len(model.layers)
        ((4,), 2)
    """

    layers: List

    def __init__(self, *layers: Callable[..., Any]) -> None:
        for position, layer in enumerate(layers):
            if not callable(layer):
                raise TypeError(
                    f"layers/{position} of Sequential is a {type(layer).__name__}, "
                    "expected something callable. Several layers are given as several "
                    "arguments, `Sequential(*layers)`."
                )
        self.layers = List(layers)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Applies the layers.

        Args:
            *args: For the first layer.
            **kwargs: For the first layer.

        Returns:
            What the last layer returns; without layers, the one argument.

        Raises:
            TypeError: If there are no layers and not exactly one argument.

        Example:
            >>> Sequential(lambda x: (x, 1), lambda x, y: x + y)(2)
            3
        """
        layers = iter(self.layers)
        first = next(layers, _identity)
        out = first(*args, **kwargs)
        for layer in layers:
            if isinstance(out, tuple):
                out = layer(*out)
            elif isinstance(out, dict):
                out = layer(**out)
            else:
                out = layer(out)
        return out


def _identity(x: Any, /) -> Any:
    return x
