"""Values that must not be differentiated.

Where a function has no derivative with respect to some of its inputs, an attempt to
take one must not pass for a derivative of zero, nor fail far away without a word.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax.custom_derivatives import SymbolicZero

from nnx_transforms.transforms.derivatives.zeros import is_inexact


def without_tangents(tree: Any, message: str) -> Any:
    """Returns the same values, which raise an error when they are differentiated.

    Args:
        tree: A pytree of arrays.
        message: What the error says, a `TypeError`.

    Returns:
        The same pytree; what is no tracer can't be differentiated, and stays as it is.

    Example:
        >>> import jax
        >>> f = lambda x: without_tangents(x, 'not by x') * 2
        >>> try: jax.grad(f)(1.0)
        ... except TypeError as e: print(e)
        not by x
    """

    @jax.custom_jvp
    def guarded(xs: Any) -> Any:
        return xs

    def rule(primals: Any, tangents: Any) -> Any:
        if any(type(t) is not SymbolicZero for t in tangents[0]):
            raise TypeError(message)
        return primals[0], tangents[0]

    guarded.defjvp(rule, symbolic_zeros=True)
    return on_tracers(guarded, tree)


def on_tracers(f: Callable[[Any], Any], tree: Any) -> Any:
    """Applies a function to the list of the inexact leaves, if any can have a tangent.

    Args:
        f: A function from list to list.
        tree: A pytree.

    Returns:
        The pytree with the leaves that `f` returned.
    """
    leaves, structure = jax.tree.flatten(tree)
    places = [i for i, x in enumerate(leaves) if is_inexact(jax.typeof(x))]
    chosen = [leaves[i] for i in places]
    if not any(isinstance(x, jax.core.Tracer) for x in chosen):
        return tree
    for i, x in zip(places, f(chosen), strict=True):
        leaves[i] = x
    return jax.tree.unflatten(structure, leaves)
