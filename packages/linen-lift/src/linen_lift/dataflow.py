"""Which outputs of a function depend on which inputs, and the rest evaluated.

Used where a variable must not depend on something: on an argument of `lazy_init` that
is known by its shape only, or on one iteration of a scan that all iterations share.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def evaluate_independent(fn: Callable[..., Any], *unknown: Any) -> tuple[Any, Any]:
    """Evaluates the outputs of `fn` that do not depend on its arguments.

    Args:
        fn: a function of pytrees of arrays that returns one.
        *unknown: its arguments, or `jax.ShapeDtypeStruct` for arrays; only their shapes
            and dtypes are used.

    Returns:
        The output tree, with None in the place of each leaf that depends on an
        argument, and the key path of the first such leaf, or None.
    """
    closed, out_shape = jax.make_jaxpr(fn, return_shape=True)(*unknown)
    inputs = [_UNKNOWN] * len(closed.jaxpr.invars)
    places, treedef = jax.tree_util.tree_flatten_with_path(out_shape)
    found = _evaluate(closed.jaxpr, closed.consts, inputs, range(len(places)))
    values = [None if x is _UNKNOWN else settled(x) for x in found]
    dependent = (p for (p, _), x in zip(places, found, strict=True) if x is _UNKNOWN)
    return treedef.unflatten(values), next(dependent, None)


def settled(x: Any) -> jax.Array:
    """A result of a traced function as an array of JAX.

    Args:
        x: the result. JAX may return a constant as an array of numpy, which `+=`
            changes in place.
    """
    return x if isinstance(x, jax.Array) else jnp.asarray(x)


_UNKNOWN: Any = object()

# Calls whose content is looked into, like that of loops and branches: one unknown
# argument must not hide that some of the results are known. Other equations are known
# or unknown as wholes.
_CALLS = frozenset(
    {"jit", "closed_call", "remat2", "custom_jvp_call", "custom_vjp_call"}
)


def _called(eqn: Any) -> tuple[Any, Sequence[Any]]:
    """The jaxpr that an equation calls, and its constants."""
    inner = eqn.params.get("jaxpr", eqn.params.get("call_jaxpr"))
    return getattr(inner, "jaxpr", inner), getattr(inner, "consts", ())


def _dependent(eqn: Any, unknown: list[bool]) -> list[bool]:
    """Which results of an equation depend on its unknown operands."""
    params = eqn.params
    if eqn.primitive.name in _CALLS:
        return _dependent_outputs(_called(eqn)[0], unknown)
    everything = [True] * len(eqn.outvars)
    if eqn.primitive.name == "scan":
        consts, carry, xs = _parts(unknown, *_scan_sizes(eqn))
        body = params["jaxpr"].jaxpr
        return _settled(lambda c: _dependent_outputs(body, consts + c + xs), carry)
    if eqn.primitive.name == "while":
        cond_consts, body_consts, carry = _parts(
            unknown, params["cond_nconsts"], params["body_nconsts"]
        )
        cond, body = params["cond_jaxpr"].jaxpr, params["body_jaxpr"].jaxpr
        carry = _settled(lambda c: _dependent_outputs(body, body_consts + c), carry)
        stops = _dependent_outputs(cond, cond_consts + carry)
        return everything if any(stops) else carry
    if eqn.primitive.name == "cond":
        per_branch = [
            _dependent_outputs(branch.jaxpr, unknown[1:])
            for branch in params["branches"]
        ]
        return [
            any(outs)
            or (unknown[0] and not _is_same(params["branches"], i, unknown[1:]))
            for i, outs in enumerate(zip(*per_branch, strict=True))
        ]
    return everything


def _is_same(branches: Sequence[Any], place: int, unknown: Sequence[bool]) -> bool:
    """Whether all branches compute one result alike, as where they declare one name."""

    def result(branch: Any) -> Any:
        def compute(known: dict[int, Any]) -> Any:
            inputs = [known.get(i, _UNKNOWN) for i in range(len(unknown))]
            return _evaluate(branch.jaxpr, branch.consts, inputs, [place])

        known = {i: v.aval for i, v in enumerate(branch.jaxpr.invars) if not unknown[i]}
        return jax.make_jaxpr(compute)(known)

    first, *others = map(result, branches)
    return all(
        str(first) == str(other)
        and all(
            a is b or np.array_equal(a, b)
            for a, b in zip(_untold(first), _untold(other), strict=True)
        )
        for other in others
    )


def _untold(jaxpr: Any) -> Iterator[Any]:
    """What a jaxpr as text does not tell: values of constants, and what is called."""
    yield from getattr(jaxpr, "consts", ())
    for eqn in getattr(jaxpr, "eqns", ()):
        yield eqn.params.get("callback")
        for part in jax.tree.leaves([*eqn.params.values()]):
            yield from _untold(part)


def _settled(
    iteration: Callable[[list[bool]], list[bool]], carry: list[bool]
) -> list[bool]:
    """What depends after any number of iterations: the carry, then other results."""
    while True:
        outs = iteration(carry)
        new = [a or b for a, b in zip(carry, outs, strict=False)]
        if new == carry:
            return new + outs[len(carry) :]
        carry = new


def _scan_sizes(eqn: Any) -> tuple[int, int]:
    """How many constants and carried values a scan has; JAX' parameters vary."""
    body = eqn.params["jaxpr"].jaxpr

    def stacked(outside: Sequence[Any], inside: Sequence[Any]) -> int:
        pairs = zip(outside, inside, strict=True)
        return sum(len(a.aval.shape) > len(b.aval.shape) for a, b in pairs)

    carried = len(body.outvars) - stacked(eqn.outvars, body.outvars)
    consts = len(body.invars) - stacked(eqn.invars, body.invars) - carried
    return consts, carried


def _parts(items: Sequence[Any], first: int, second: int) -> tuple[list[Any], ...]:
    middle = first + second
    return list(items[:first]), list(items[first:middle]), list(items[middle:])


def _taint(jaxpr: Any, unknown: Sequence[bool]) -> set[Any]:
    """The variables of a jaxpr that depend on unknown inputs."""
    tainted = {v for v, bad in zip(jaxpr.invars, unknown, strict=True) if bad}
    for eqn in jaxpr.eqns:
        bad = [_is_var(v) and v in tainted for v in eqn.invars]
        if any(bad):
            depends = _dependent(eqn, bad)
            tainted.update(v for v, d in zip(eqn.outvars, depends, strict=True) if d)
    return tainted


def _dependent_outputs(jaxpr: Any, unknown: Sequence[bool]) -> list[bool]:
    tainted = _taint(jaxpr, unknown)
    return [_is_var(v) and v in tainted for v in jaxpr.outvars]


def _evaluate(
    jaxpr: Any, consts: Sequence[Any], inputs: Sequence[Any], wanted: Sequence[int]
) -> list[Any]:
    """The outputs at some places; those that depend on an unknown input are unknown."""
    tainted = _taint(jaxpr, [x is _UNKNOWN for x in inputs])

    def untainted(atoms: Iterable[Any]) -> set[Any]:
        return {v for v in atoms if _is_var(v) and v not in tainted}

    needed = untainted(jaxpr.outvars[i] for i in wanted)
    kept = []
    for eqn in reversed(jaxpr.eqns):
        if needed.intersection(eqn.outvars):
            kept.append(eqn)
            needed |= untainted(eqn.invars)

    values: dict[Any, Any] = dict(zip(jaxpr.constvars, consts, strict=True))
    values.update(zip(jaxpr.invars, inputs, strict=True))

    def read(v: Any) -> Any:
        return values.get(v, _UNKNOWN) if _is_var(v) else v.val

    for eqn in reversed(kept):
        operands = list(map(read, eqn.invars))
        places = [i for i, v in enumerate(eqn.outvars) if v in needed]
        known = {i: x for i, x in enumerate(operands) if x is not _UNKNOWN}
        if len(known) == len(operands):
            outs = _bind(eqn, known, places)
        elif eqn.primitive.name in _CALLS:
            outs = _evaluate(*_called(eqn), operands, places)
        else:
            # What does not depend on the others is the same whatever they are.
            # Compiled, only this is computed, and no array is made for them.
            outs = jax.jit(lambda known: _bind(eqn, known, places))(known)
        values.update((eqn.outvars[i], x) for i, x in zip(places, outs, strict=True))
    return [read(jaxpr.outvars[i]) for i in wanted]


def _bind(eqn: Any, known: dict[int, Any], places: Sequence[int]) -> Any:
    """Some results of an equation, with zeros for operands that are not known."""
    operands = (
        known[i] if i in known else jax.lax.full(v.aval.shape, 0, v.aval.dtype)
        for i, v in enumerate(eqn.invars)
    )
    params = eqn.primitive.get_bind_params(eqn.params)
    # JAX before 0.10 gives functions among the parameters separately.
    subfuns, params = params if isinstance(params, tuple) else ((), params)
    out = eqn.primitive.bind(*subfuns, *operands, **params)
    outs = out if eqn.primitive.multiple_results else [out]
    return [outs[i] for i in places]


def _is_var(v: Any) -> bool:
    # A literal is the other kind of atom in a jaxpr; only it carries a value.
    return not hasattr(v, "val")
