"""Which outputs of a function depend on which inputs, and the rest evaluated.

Used where a variable must not depend on something: on an argument of `lazy_init` that
is known by its shape only, or on one iteration of a scan that all iterations share.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax


def evaluate_independent(
    fn: Callable[..., Any], known: Sequence[Any], unknown: Sequence[Any]
) -> tuple[Any, Any]:
    """Evaluates the outputs of `fn` that do not depend on some of its arguments.

    Args:
        fn: a function of the known and then the unknown arguments; pytrees of arrays
            go in and out.
        known: pytrees of arrays.
        unknown: pytrees of arrays or `jax.ShapeDtypeStruct`; only their shapes and
            dtypes are used.

    Returns:
        The output tree, with None in the place of each leaf that depends on an
        unknown argument, and the key path of the first such leaf, or None.
    """
    known, unknown = tuple(known), tuple(unknown)
    closed, out_shape = jax.make_jaxpr(fn, return_shape=True)(*known, *unknown)
    inputs = jax.tree.leaves(known)
    inputs += [_UNKNOWN] * (len(closed.jaxpr.invars) - len(inputs))
    wanted = [True] * len(closed.jaxpr.outvars)
    leaves = _evaluate(closed.jaxpr, closed.consts, inputs, wanted)
    places, treedef = jax.tree_util.tree_flatten_with_path(out_shape)
    unknowns = (p for (p, _), x in zip(places, leaves, strict=True) if x is _UNKNOWN)
    first = next(unknowns, None)
    return treedef.unflatten(None if x is _UNKNOWN else x for x in leaves), first


_UNKNOWN: Any = object()

# Calls whose content is looked into: one unknown argument must not hide that some of
# the results are known. Other equations are known or unknown as wholes.
_CALLS = frozenset(
    {
        "jit",
        "pjit",
        "closed_call",
        "core_call",
        "checkpoint",
        "remat",
        "remat2",
        "custom_jvp_call",
        "custom_vjp_call",
    }
)


def _called(eqn: Any) -> tuple[Any, Sequence[Any]] | None:
    """The jaxpr that an equation calls and its constants, if it is such a call."""
    if eqn.primitive.name not in _CALLS:
        return None
    inner = eqn.params.get("jaxpr", eqn.params.get("call_jaxpr"))
    if inner is None:
        return None
    jaxpr = getattr(inner, "jaxpr", inner)
    if len(jaxpr.invars) != len(eqn.invars):
        return None
    return jaxpr, getattr(inner, "consts", ())


def _taint(jaxpr: Any, unknown: Sequence[bool]) -> set[Any]:
    """The variables of a jaxpr that depend on unknown inputs."""
    tainted = {v for v, bad in zip(jaxpr.invars, unknown, strict=True) if bad}
    for eqn in jaxpr.eqns:
        bad = [_is_var(v) and v in tainted for v in eqn.invars]
        if not any(bad):
            continue
        call = _called(eqn)
        if call is None:
            tainted.update(eqn.outvars)
            continue
        inner = _taint(call[0], bad)
        for v, result in zip(eqn.outvars, call[0].outvars, strict=True):
            if _is_var(result) and result in inner:
                tainted.add(v)
    return tainted


def _evaluate(
    jaxpr: Any, consts: Sequence[Any], inputs: Sequence[Any], wanted: Sequence[bool]
) -> list[Any]:
    """The outputs that are wanted and known; `_UNKNOWN` for the others."""
    tainted = _taint(jaxpr, [x is _UNKNOWN for x in inputs])
    needed = {
        v
        for v, want in zip(jaxpr.outvars, wanted, strict=True)
        if want and _is_var(v) and v not in tainted
    }
    kept = []
    for eqn in reversed(jaxpr.eqns):
        if needed.intersection(eqn.outvars):
            kept.append(eqn)
            needed.update(v for v in eqn.invars if _is_var(v) and v not in tainted)

    values: dict[Any, Any] = dict(zip(jaxpr.constvars, consts, strict=True))
    values.update(zip(jaxpr.invars, inputs, strict=True))

    def read(v: Any) -> Any:
        return values.get(v, _UNKNOWN) if _is_var(v) else v.val

    for eqn in reversed(kept):
        operands = list(map(read, eqn.invars))
        if any(x is _UNKNOWN for x in operands):
            call = _called(eqn)
            assert call is not None, eqn  # else all of its results were tainted
            wants = [v in needed for v in eqn.outvars]
            outs = _evaluate(*call, operands, wants)
        else:
            outs = _bind(eqn, operands)
        values.update(zip(eqn.outvars, outs, strict=True))
    return [
        read(v) if want and not (_is_var(v) and v in tainted) else _UNKNOWN
        for v, want in zip(jaxpr.outvars, wanted, strict=True)
    ]


def _bind(eqn: Any, operands: Sequence[Any]) -> Any:
    params = eqn.primitive.get_bind_params(eqn.params)
    # JAX before 0.10 gives functions among the parameters separately.
    subfuns, params = params if isinstance(params, tuple) else ((), params)
    out = eqn.primitive.bind(*subfuns, *operands, **params)
    return out if eqn.primitive.multiple_results else [out]


def _is_var(v: Any) -> bool:
    # A literal is the other kind of atom in a jaxpr; only it carries a value.
    return not hasattr(v, "val")
