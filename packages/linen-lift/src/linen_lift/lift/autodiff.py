"""Lifted derivatives: `vjp`, `jvp`, `value_and_grad`, `grad` and `custom_vjp`.

Variables of some collections are differentiated together with the arguments. Their
tangents and cotangents are one dict of collections, or a list of such dicts, one per
scope in order: where several scopes are packed, and wherever `multi_scope` asks for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from graphcore import api_boundary
from graphcore.authors import psum_cotangents

from ..errors import MultipleScopesError
from ..filters import CollectionFilter, StreamFilter
from ..frozen_dict import unfreeze
from ..scope import describe_place
from ..signatures import parameters_of
from ..tree import joined
from .pack import Boundary, checked_pair, leaf_paths, packed
from .statics import as_tuple
from .variables import path_offsets

__all__ = ["custom_vjp", "grad", "jvp", "value_and_grad", "vjp"]

_AUX_RULE = "With has_aux=True the function must return a pair (out, aux)"
_FORWARD_RULE = "The forward function must return a pair (out, residuals)"


def _per_scope(given: Any, roots: Sequence[Any], what: str) -> tuple[Any, ...]:
    """One dict for each scope, of what a user gives."""
    lists = (list, tuple)
    if len(roots) == 1 and not isinstance(given, lists):
        return (given,)
    fits = isinstance(given, lists) and len(given) == len(roots)
    if not fits or any(isinstance(one, lists) for one in given):
        raise ValueError(
            f"{what} must be a list with one dict for each of the scopes at paths "
            f"{_paths(roots)}, in this order; found {jax.tree.structure(given)}."
        )
    return tuple(given)


def _paths(scopes: Sequence[Any]) -> str:
    return ", ".join(f'"{scope.path_text}"' for scope in scopes)


def _without(tree: Any, known: Any) -> dict[str, Any]:
    """The entries of a nested mapping that another one has not."""
    if not (isinstance(tree, Mapping) and isinstance(known, Mapping)):
        return {}
    rest = {k: _without(v, known[k]) if k in known else v for k, v in tree.items()}
    return {k: v for k, v in rest.items() if not (isinstance(v, Mapping) and not v)}


def _restricted(tree: Any, known: Any) -> Any:
    if not (isinstance(tree, Mapping) and isinstance(known, Mapping)):
        return tree
    return {k: _restricted(v, known[k]) for k, v in tree.items() if k in known}


def _pull_back(vjp_fn: Callable[..., Any], *cotangent: Any) -> tuple[Any, ...]:
    (variables,), *inputs = vjp_fn(*cotangent)
    return (variables, *inputs)


def _pull_back_list(vjp_fn: Callable[..., Any], *cotangent: Any) -> tuple[Any, ...]:
    variables, *inputs = vjp_fn(*cotangent)
    return (list(variables), *inputs)


def vjp(
    fn: Callable[..., Any],
    scope: Any,
    *primals: Any,
    has_aux: bool = False,
    reduce_axes: Sequence[Any] = (),
    vjp_variables: CollectionFilter = "params",
    variables: CollectionFilter = True,
    rngs: StreamFilter = True,
    multi_scope: bool = False,
) -> Any:
    """Lifted `jax.vjp`, with respect to variables and arguments.

    Args:
        fn: a function `(scope, *primals)`.
        scope: a scope, or a pytree of scopes.
        *primals: the arguments to differentiate at.
        has_aux: whether `fn` returns a pair `(out, aux)`.
        reduce_axes: named axes to sum cotangents over, for what is not mapped over
            them.
        vjp_variables: the collections to differentiate.
        variables: further collections that `fn` sees.
        rngs: the streams that it sees.
        multi_scope: whether several scopes may take part. The cotangents of the
            variables are then a list with one dict per scope, also for one scope.

    Returns:
        `(out, pull_back)`, or `(out, pull_back, aux)`. `pull_back(cotangent)` gives
        `(variable_cotangents, *primal_cotangents)`; it is a pytree.

    Raises:
        MultipleScopesError: if there are several scopes and `multi_scope` is False.

    Example:
        >>> import linen_lift as nn
        >>> def scale(scope, x):
        ...     return x * scope.get_variable('params', 'w')
        >>> def run(scope, x):
        ...     out, pull_back = nn.lift.vjp(scale, scope, x)
        ...     return pull_back(1.0)
        >>> params, x = nn.scope.apply(run)({'params': {'w': 3.0}}, 2.0)
        >>> float(params['params']['w']), float(x)
        (2.0, 3.0)
    """

    def inner(call: Boundary, *args: Any) -> Any:
        if len(call.roots) != 1 and not multi_scope:
            raise MultipleScopesError(_paths(call.roots))
        wanted, others = call.variables

        def pure(wanted: Any, *args: Any) -> Any:
            if reduce_axes:
                wanted, args = psum_cotangents((wanted, args), reduce_axes)
            out, left = call.run(fn, (wanted, others), call.streams, args)
            out, aux = checked_pair(out, _AUX_RULE) if has_aux else (out, ())
            return out, (aux, left)

        # Variables that are just made have cotangents too: they are differentiated
        # again, now that they exist. But those that are also written are made anew,
        # because their initial values are not known.
        none: tuple[dict[str, Any], ...] = ({},) * len(wanted)
        made = none
        while True:
            known = tuple(map(joined, wanted, made))
            out, vjp_fn, (aux, left) = jax.vjp(pure, known, *args, has_aux=True)
            written = tuple(map(_without, left[0], wanted))
            kept = written if made is none else tuple(map(_without, made, written))
            if jax.tree.structure(kept) == jax.tree.structure(made):
                break
            made = kept
        left = (tuple(map(joined, made, left[0])), *left[1:])
        form = _pull_back_list if multi_scope else _pull_back
        pull_back = jax.tree_util.Partial(form, vjp_fn)
        return ((out, pull_back, aux) if has_aux else (out, pull_back)), left

    filters = (vjp_variables, variables)
    return packed(inner, filters, filters, (rngs,), name="vjp")(scope, *primals)


def value_and_grad(
    fn: Callable[..., Any],
    scope: Any,
    *primals: Any,
    has_aux: bool = False,
    reduce_axes: Sequence[Any] = (),
    variables: CollectionFilter = True,
    rngs: StreamFilter = True,
) -> Any:
    """The value of a scope function and its gradients with respect to arguments.

    Args:
        fn: a function `(scope, *primals)` with a scalar result.
        scope: a scope, or a pytree of scopes.
        *primals: the arguments to differentiate at.
        has_aux: whether `fn` returns a pair `(out, aux)`.
        reduce_axes: named axes to sum cotangents over, for what is not mapped over
            them.
        variables: the collections that `fn` sees.
        rngs: the streams that it sees.

    Returns:
        `(out, grads)`, or `((out, aux), grads)`; `grads` is a tuple with one entry per
        argument.

    Raises:
        ValueError: if the result is not a scalar.

    Example:
        >>> import linen_lift as nn
        >>> def scale(scope, x):
        ...     return x * scope.get_variable('params', 'w')
        >>> def run(scope, x):
        ...     return nn.lift.value_and_grad(scale, scope, x)
        >>> out, (x_grad,) = nn.scope.apply(run)({'params': {'w': 3.0}}, 2.0)
        >>> float(out), float(x_grad)
        (6.0, 3.0)
    """
    options: Any = {"reduce_axes": reduce_axes, "variables": variables, "rngs": rngs}
    options |= {"vjp_variables": False, "multi_scope": True}
    out, pull_back, *aux = vjp(fn, scope, *primals, has_aux=has_aux, **options)
    leaves = jax.tree.leaves(out)
    if len(leaves) != 1 or jnp.shape(leaves[0]) != ():
        shapes = jax.tree.map(jnp.shape, out)
        raise ValueError(
            "Gradients need a scalar result; the function of the scope at "
            f"{_paths(jax.tree.leaves(scope))} returned shape {shapes}. Reduce it, or "
            "use vjp."
        )
    _, *grads = pull_back(jax.tree.map(jnp.ones_like, out))
    return ((out, *aux) if has_aux else out), tuple(grads)


@parameters_of(value_and_grad)
def grad(*_args: Any, has_aux: bool = False, **_options: Any) -> Any:
    """The gradients of a scope function with respect to arguments.

    Args:
        fn: a function `(scope, *primals)` with a scalar result.
        scope: a scope, or a pytree of scopes.
        *primals: the arguments to differentiate at.
        has_aux: whether `fn` returns a pair `(out, aux)`.
        reduce_axes: named axes to sum cotangents over, for what is not mapped over
            them.
        variables: the collections that `fn` sees.
        rngs: the streams that it sees.

    Returns:
        `grads`, or `(grads, aux)`; `grads` is a tuple with one entry per argument.

    Raises:
        ValueError: if the result is not a scalar.

    Example:
        >>> import linen_lift as nn
        >>> def scale(scope, x):
        ...     return x * scope.get_variable('params', 'w')
        >>> def run(scope, x):
        ...     return nn.lift.grad(scale, scope, x)
        >>> (x_grad,) = nn.scope.apply(run)({'params': {'w': 3.0}}, 2.0)
        >>> float(x_grad)
        3.0
    """
    out, grads = value_and_grad(*_args, has_aux=has_aux, **_options)
    return (grads, out[1]) if has_aux else grads


def _check_tangents(variables: Any, tangents: Any, path: str) -> None:
    """Refuses tangents that do not stand for each variable of the same collections."""
    have = leaf_paths(variables)
    if wrong := have ^ leaf_paths(tangents):
        key_path: Any = min(wrong, key=str)
        col, name, path = describe_place(key_path, path)
        finding, advice = "a tangent", "There is no such variable: leave it out."
        if key_path in have:
            finding = "no tangent"
            advice = "Give one, which may be zero, or leave the whole collection out."
        raise ValueError(
            f'variable_tangents has {finding} for variable "{name}" in collection '
            f'"{col}" at path "{path}" ({path.rstrip("/")}/{name}). {advice}'
        )


def jvp(
    fn: Callable[..., Any],
    scope: Any,
    primals: Sequence[Any],
    tangents: Sequence[Any],
    variable_tangents: Any,
    variables: CollectionFilter = True,
    rngs: StreamFilter = True,
) -> tuple[Any, Any]:
    """Lifted `jax.jvp`, along variables and arguments.

    Args:
        fn: a function `(scope, *primals)`.
        scope: a scope, or a pytree of scopes.
        primals: the arguments.
        tangents: their tangents.
        variable_tangents: `{collection: tangents}`, or a list of such dicts where
            several scopes are packed. Collections that are left out are constant.
        variables: the collections that `fn` sees.
        rngs: the streams that it sees.

    Returns:
        `(out, out_tangent)`.

    Raises:
        ValueError: if `variable_tangents` does not fit the scopes.

    Example:
        >>> import linen_lift as nn
        >>> def scale(scope, x):
        ...     return x * scope.get_variable('params', 'w')
        >>> def run(scope, x):
        ...     return nn.lift.jvp(scale, scope, (x,), (1.0,), {'params': {'w': 1.0}})
        >>> out, tangent = nn.scope.apply(run)({'params': {'w': 3.0}}, 2.0)
        >>> float(out), float(tangent)
        (6.0, 5.0)
    """

    def inner(call: Boundary, *args: Any) -> Any:
        (found,) = call.variables
        roots = call.roots
        given = _per_scope(variable_tangents, roots, "variable_tangents")
        moving, directions = [], []
        for cols, known, root in zip(found, given, roots, strict=True):
            # Plain dicts, as the tangents are.
            moving.append({c: unfreeze(t) for c, t in cols.items() if c in known})
            _check_tangents(moving[-1], unfreeze(known), root.path_text)
            directions.append({c: unfreeze(t) for c, t in known.items() if c in cols})
        if len(tangents) != len(args):
            raise TypeError(
                "jvp needs one tangent per primal; found "
                f"{len(tangents)} for {len(args)}."
            )
        # What has no arrays, such as a module, is its own tangent.
        along = tuple(
            tangent if jax.tree.leaves(arg) else arg
            for arg, tangent in zip(args, tangents, strict=True)
        )

        def pure(moving: Any, args: Any) -> Any:
            return call.run(fn, (found, moving), call.streams, args)

        out, out_tangent, left = jax.jvp(
            pure, (moving, args), (directions, along), has_aux=True
        )
        return (out, out_tangent), left

    lifted = packed(inner, (variables,), (variables,), (rngs,), name="jvp")
    result: tuple[Any, Any] = lifted(scope, *primals)
    return result


def custom_vjp(
    fn: Callable[..., Any],
    forward_fn: Callable[..., Any],
    backward_fn: Callable[..., Any],
    grad_vars: CollectionFilter = "params",
    nondiff_argnums: int | Sequence[int] = (),
) -> Callable[..., Any]:
    """Lifted `jax.custom_vjp`: a scope function with its own backward rule.

    Args:
        fn: a function `(scope, *args)`; it runs where nothing is differentiated.
        forward_fn: the same arguments; returns `(out, residuals)`.
        backward_fn: a function `(*nondiff_args, residuals, cotangent)` that returns
            `(variable_cotangents, *argument_cotangents)`. The cotangents of the
            variables are one dict, or a list with one dict per scope.
        grad_vars: the collections that have cotangents.
        nondiff_argnums: the positions of arguments that have none, the scope being 0.

    Returns:
        A function with the arguments of `fn`.

    Raises:
        ValueError: if `nondiff_argnums` names the scope, or if `backward_fn` returns
            cotangents that do not fit the scopes and the arguments.

    Example:
        >>> import linen_lift as nn, jax
        >>> def scale(scope, x):
        ...     return x * scope.get_variable('params', 'w')
        >>> def fwd(scope, x):
        ...     return nn.lift.vjp(scale, scope, x)
        >>> def bwd(pull_back, g):
        ...     params, x = pull_back(g)
        ...     return jax.tree.map(jax.numpy.sign, params), x
        >>> run = nn.scope.apply(nn.lift.custom_vjp(scale, fwd, bwd))
        >>> grads = jax.grad(run)({'params': {'w': 3.0}}, 2.0)
        >>> float(grads['params']['w'])
        1.0
    """
    nondiff_argnums = as_tuple(nondiff_argnums)
    if 0 in nondiff_argnums:
        raise ValueError(
            "nondiff_argnums counts the scope or module as argument 0, which is "
            "always differentiated; found 0."
        )
    fixed = {i - 1 if i > 0 else i for i in nondiff_argnums}

    def inner(call: Boundary, *args: Any) -> Any:
        count = len(args)
        static = {i % count if i < 0 else i for i in fixed}
        static_args = tuple(arg for i, arg in enumerate(args) if i in static)
        wanted, others = call.variables
        # Plain dicts, as the cotangents are.
        wanted = tuple(map(unfreeze, wanted))
        known = jax.tree.map(lambda _: None, wanted)

        def whole(moving: Sequence[Any]) -> list[Any]:
            """All arguments, those without cotangents among them."""
            rest, still = iter(moving), iter(static_args)
            return [next(still if i in static else rest) for i in range(count)]

        # JAX keeps these functions, and may trace `forward` when everything here is
        # over. So they hold no scope with variables, and what has no cotangent is
        # passed as well.
        kept = call.detached()

        @jax.custom_vjp
        def pure(groups: Any, rngs: Any, offsets: Any, moving: Any) -> Any:
            return kept.run(fn, groups, rngs, whole(moving), {}, offsets)

        def forward(groups: Any, rngs: Any, offsets: Any, moving: Any) -> Any:
            both, left = kept.run(forward_fn, groups, rngs, whole(moving), {}, offsets)
            out, residuals = checked_pair(both, _FORWARD_RULE)
            return (out, left), residuals

        @api_boundary  # JAX calls it later than the function
        def backward(residuals: Any, cotangents: Any) -> Any:
            out_cotangent, _ = cotangents
            found = backward_fn(*static_args, residuals, out_cotangent)
            if not isinstance(found, (tuple, list)):
                raise TypeError(
                    "The backward function must return a tuple (variable_cotangents, "
                    f"*argument_cotangents); found {type(found).__name__}."
                )
            wanted = 1 + count - len(static)
            if len(found) != wanted:
                raise ValueError(
                    f"backward_fn must return {wanted} values, the cotangents of the "
                    "variables and one for each differentiated argument; found "
                    f"{len(found)}."
                )
            variables, *inputs = found
            per_scope = _per_scope(variables, kept.roots, "The variable cotangents")
            # Variables that were made just now have no place among the arguments.
            per_scope = tuple(map(_restricted, per_scope, known))
            return (per_scope, None), None, None, tuple(inputs)

        pure.defvjp(forward, backward)
        moving = tuple(arg for i, arg in enumerate(args) if i not in static)
        offsets = None
        if any(root._tree.origin.number is not None for root in call.roots):
            offsets = path_offsets(call.roots)
        result = pure((wanted, others), call.streams, offsets, moving)
        call.replay(kept.effects())
        return result

    filters: tuple[CollectionFilter, ...] = (grad_vars, True)
    return packed(inner, filters, filters, (True,), "custom_vjp", False)
