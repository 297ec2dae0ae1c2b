"""Layers one after the other."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from nnx_transforms.modules.containers import List
from nnx_transforms.modules.module import Module

__all__ = ["Sequential"]


class Sequential(Module):
    """Applies layers in order.

    Args:
        *layers: Modules or other callables, such as those of `jax.nn`, or one list of
            them. The first takes the arguments of the call. What a layer returns is the
            argument of the next: a tuple as several, a dict as keyword arguments.

    Raises:
        TypeError: If a layer can't be called.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from nnx_transforms.layers.linear import Linear
        >>> from nnx_transforms.randomness.rngs import Rngs
        >>> rngs = Rngs(0)
        >>> model = Sequential(Linear(2, 4, rngs=rngs), jax.nn.relu)
        >>> model(jnp.ones(2)).shape, len(model.layers)
        ((4,), 2)
    """

    layers: List

    def __init__(
        self, *layers: Callable[..., Any] | Sequence[Callable[..., Any]]
    ) -> None:
        if len(layers) == 1 and isinstance(layers[0], list | tuple | List):
            layers = tuple(layers[0])
        for position, layer in enumerate(layers):
            if not callable(layer):
                raise TypeError(
                    f"layers/{position} of Sequential is a {type(layer).__name__}, "
                    "expected something callable. Layers are given as several "
                    "arguments or as one list."
                )
        self.layers = List(layers)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.layers)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Applies the layers.

        Args:
            *args: For the first layer.
            **kwargs: Each layer gets those that it takes, such as `deterministic`.

        Returns:
            What the last layer returns; without layers the arguments, None for none.

        Raises:
            TypeError: If a layer gets one keyword from the call and the layer before.

        Example:
            >>> Sequential(lambda x: (x, 1), lambda x, y: x + y)(2)
            3
        """
        out: Any = args[0] if len(args) == 1 else args or kwargs or None
        passed: dict[str, Any] = {}
        for position, layer in enumerate(self.layers):
            if position:
                args = out if isinstance(out, tuple) else (out,)
                if isinstance(out, dict):
                    args, passed = (), out
            own = _taken(layer, len(args), kwargs) if kwargs else {}
            if twice := passed.keys() & own.keys():
                raise TypeError(
                    f"layers/{position} of Sequential gets {sorted(twice)} from the "
                    "call and from the layer before: name one of them otherwise."
                )
            out = layer(*args, **passed, **own)
            passed = {}
        return out


def _taken(
    layer: Callable[..., Any], positional: int, given: dict[str, Any]
) -> dict[str, Any]:
    """The keyword arguments that a layer takes beside its positional ones."""
    try:
        parameters = inspect.signature(layer).parameters.values()
    except (TypeError, ValueError):  # some callables written in C don't say
        return {}
    kinds = inspect.Parameter
    by_place = (kinds.POSITIONAL_ONLY, kinds.POSITIONAL_OR_KEYWORD)
    free = [p for p in parameters if p.kind in by_place][positional:]
    taken = {p.name for p in free if p.kind is not kinds.POSITIONAL_ONLY}
    taken |= {p.name for p in parameters if p.kind is kinds.KEYWORD_ONLY}
    if any(p.kind is kinds.VAR_KEYWORD for p in parameters):
        taken |= given.keys() - {p.name for p in parameters}
    return {name: value for name, value in given.items() if name in taken}
