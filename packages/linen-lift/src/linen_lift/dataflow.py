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

# Calls whose content is looked into, like that of loops and branches: one unknown
# argument must not hide that some of the results are known. Other equations are known
# or unknown as wholes.
_CALLS = frozenset(
    {"jit", "closed_call", "remat2", "custom_jvp_call", "custom_vjp_call"}
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


def _dependent(eqn: Any, unknown: list[bool]) -> list[bool]:
    """Which results of an equation depend on its unknown operands."""
    call, params = _called(eqn), eqn.params
    if call is not None:
        return _dependent_outputs(call[0], unknown)
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
        depends = [any(outs) for outs in zip(*per_branch, strict=True)]
        if not unknown[0]:
            return depends
        return [
            d or not _is_same(params["branches"], i, unknown[1:])
            for i, d in enumerate(depends)
        ]
    return everything


def _is_same(branches: Sequence[Any], place: int, unknown: Sequence[bool]) -> bool:
    """Whether all branches compute one result alike, as where they declare one name."""
    wanted = [i == place for i in range(len(branches[0].jaxpr.outvars))]

    def result(branch: Any) -> str:
        def compute(*operands: Any) -> Any:
            inputs = _all(operands, [_UNKNOWN if u else 0 for u in unknown])
            return _evaluate(branch.jaxpr, branch.consts, inputs, wanted)[place]

        known = zip(branch.jaxpr.invars, unknown, strict=True)
        return str(jax.make_jaxpr(compute)(*(v.aval for v, u in known if not u)))

    # A jaxpr as text does not tell the values of constants.
    if any(branch.consts for branch in branches):
        return False
    return len({result(branch) for branch in branches}) == 1


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
            outs = _evaluate_partly(eqn, operands, [v in needed for v in eqn.outvars])
        else:
            outs = _bind(eqn, operands)
        values.update(zip(eqn.outvars, outs, strict=True))
    return [
        read(v) if want and not (_is_var(v) and v in tainted) else _UNKNOWN
        for v, want in zip(jaxpr.outvars, wanted, strict=True)
    ]


def _evaluate_partly(
    eqn: Any, operands: list[Any], wanted: Sequence[bool]
) -> Sequence[Any]:
    """The wanted results of an equation some of whose operands are unknown."""
    call, params = _called(eqn), eqn.params
    if call is not None:
        return _evaluate(*call, operands, wanted)
    known = [not d for d in _dependent(eqn, [x is _UNKNOWN for x in operands])]
    if eqn.primitive.name == "cond":
        index, *operands = operands
        if index is _UNKNOWN:  # what is known is the same in all branches
            index = 0

        def chosen(branch: Any) -> Callable[..., Any]:
            return lambda xs: _some(
                _evaluate(branch.jaxpr, branch.consts, _all(xs, operands), known), known
            )

        branches = [chosen(branch) for branch in params["branches"]]
        some = jax.lax.switch(index, branches, _known(operands))
        return _all(some, [0 if k else _UNKNOWN for k in known])
    if eqn.primitive.name == "while":
        cond, body = params["cond_jaxpr"], params["body_jaxpr"]
        cond_consts, body_consts, carry = _parts(
            operands, params["cond_nconsts"], params["body_nconsts"]
        )
        carry = [x if k else _UNKNOWN for x, k in zip(carry, known, strict=True)]

        def goes_on(state: Any) -> Any:
            inputs = cond_consts + _all(state, carry)
            return _evaluate(cond.jaxpr, cond.consts, inputs, [True])[0]

        def step(state: Any) -> Any:
            inputs = body_consts + _all(state, carry)
            return _some(_evaluate(body.jaxpr, body.consts, inputs, known), known)

        return _all(jax.lax.while_loop(goes_on, step, _known(carry)), carry)
    assert eqn.primitive.name == "scan", eqn  # else all results depend
    body, sizes = params["jaxpr"], _scan_sizes(eqn)
    consts, carry, xs = _parts(operands, *sizes)
    size = len(carry)
    carry = [x if k else _UNKNOWN for x, k in zip(carry, known[:size], strict=True)]

    def iteration(state: Any, slices: Any) -> Any:
        inputs = consts + _all(state, carry) + _all(slices, xs)
        outs = _evaluate(body.jaxpr, body.consts, inputs, known)
        return _some(outs[:size], known[:size]), _some(outs[size:], known[size:])

    last, ys = jax.lax.scan(
        iteration,
        _known(carry),
        _known(xs),
        length=params["length"],
        reverse=params["reverse"],
    )
    stacked = [0 if k else _UNKNOWN for k in known[size:]]
    return _all(last, carry) + _all(ys, stacked)


def _some(values: Sequence[Any], known: Sequence[bool]) -> list[Any]:
    return [x for x, k in zip(values, known, strict=True) if k]


def _known(values: Sequence[Any]) -> list[Any]:
    return [x for x in values if x is not _UNKNOWN]


def _all(some: Sequence[Any], like: Sequence[Any]) -> list[Any]:
    """The values of `some` in the places of `like` that are known."""
    rest = iter(some)
    return [x if x is _UNKNOWN else next(rest) for x in like]


def _bind(eqn: Any, operands: Sequence[Any]) -> Any:
    params = eqn.primitive.get_bind_params(eqn.params)
    # JAX before 0.10 gives functions among the parameters separately.
    subfuns, params = params if isinstance(params, tuple) else ((), params)
    out = eqn.primitive.bind(*subfuns, *operands, **params)
    return out if eqn.primitive.multiple_results else [out]


def _is_var(v: Any) -> bool:
    # A literal is the other kind of atom in a jaxpr; only it carries a value.
    return not hasattr(v, "val")
