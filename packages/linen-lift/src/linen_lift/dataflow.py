"""Which outputs of a function depend on which inputs, and the rest evaluated.

Used where a variable must not depend on something: on an argument of `lazy_init` that
is known by its shape only, or on one iteration of a scan that all iterations share.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

__all__ = ["evaluate_independent"]


def evaluate_independent(
    fn: Callable[..., Any], known: Sequence[Any], unknown: Sequence[Any]
) -> tuple[Any, list[bool]]:
    """Evaluates the outputs of `fn` that do not depend on some of its arguments.

    Args:
        fn: a function of the known and then the unknown arguments; pytrees of arrays
            go in and out.
        known: pytrees of arrays.
        unknown: pytrees of arrays or `jax.ShapeDtypeStruct`; only their shapes and
            dtypes are used.

    Returns:
        The output tree, with None in the place of each leaf that depends on an
        unknown argument, and for each leaf in order whether it depends.
    """
    known, unknown = tuple(known), tuple(unknown)
    closed, out_shape = jax.make_jaxpr(fn, return_shape=True)(*known, *unknown)
    jaxpr = closed.jaxpr
    known_leaves = jax.tree.leaves(known)

    tainted = set(jaxpr.invars[len(known_leaves) :])
    for eqn in jaxpr.eqns:
        if any(_is_var(v) and v in tainted for v in eqn.invars):
            tainted.update(eqn.outvars)
    depends = [_is_var(v) and v in tainted for v in jaxpr.outvars]

    needed = {
        v
        for v, bad in zip(jaxpr.outvars, depends, strict=True)
        if not bad and _is_var(v)
    }
    kept = []
    for eqn in reversed(jaxpr.eqns):
        if needed.intersection(eqn.outvars):
            kept.append(eqn)
            needed.update(v for v in eqn.invars if _is_var(v))

    values: dict[Any, Any] = dict(zip(jaxpr.constvars, closed.consts, strict=True))
    values.update(zip(jaxpr.invars, known_leaves, strict=False))

    def read(v: Any) -> Any:
        return values[v] if _is_var(v) else v.val

    for eqn in reversed(kept):
        params = eqn.primitive.get_bind_params(eqn.params)
        # JAX before 0.10 gives functions among the parameters separately.
        subfuns, params = params if isinstance(params, tuple) else ((), params)
        out = eqn.primitive.bind(*subfuns, *map(read, eqn.invars), **params)
        outs = out if eqn.primitive.multiple_results else [out]
        values.update(zip(eqn.outvars, outs, strict=True))

    leaves = [
        None if bad else read(v) for v, bad in zip(jaxpr.outvars, depends, strict=True)
    ]
    return jax.tree.unflatten(jax.tree.structure(out_shape), leaves), depends


def _is_var(v: Any) -> bool:
    # A literal is the other kind of atom in a jaxpr; only it carries a value.
    return not hasattr(v, "val")
