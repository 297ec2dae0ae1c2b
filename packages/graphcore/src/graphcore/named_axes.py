"""Gradients that are summed over named axes on the way back.

Under ``jax.vmap(..., axis_name='batch')`` a gradient taken inside the map is a
gradient *per index*: an input ``w`` shared by all indices gets one gradient for
each of them, although the program holds a single ``w``. The gradient of the loss
summed over the axis is the sum of those. `psum_cotangents` asks for it from inside
the differentiated function::

    jax.grad(lambda w, x: loss(psum_cotangents(w, 'batch'), x))

It does nothing on the way forward. On the way back it sums the cotangent of each
array over every listed axis the array is *not mapped* over. Where the array is
mapped, each index owns its own value, and its gradient stays its own.

So one question has to be answered: is this array mapped over this axis? Nothing in
the type of a value tells. The batching rule of a `jax.custom_batching.custom_vmap`
function does see it, since the rule is told which operands are batched. It runs once
for every `vmap` level around it, named or not; `lax.axis_index(name)` travels along
as a second operand, and the level at which *it* is batched is the level of that
name. At any other level the rule only asks again, one level further out.

The answer comes at one of two times.

*Now*, if the innermost trace is the mapping itself: the rule has run before the call
returns, and the answer is a plain NumPy bool. A mapped array is returned as it is,
an unmapped one gets an identity whose backward pass is one `lax.psum`.

*Later*, if the function is being staged out (by `jit`, `scan`, `cond`, `remat`, …)
and the map will be applied to the resulting jaxpr. Then the answer is a traced
value, and the backward pass must be right for both. It must also be *unbatched* when
the array is unmapped, and not merely hold equal numbers: a training step sums its
gradient and updates the parameters with it, and if these came out batched, the next
step would take them for mapped. A `where` between the sum and the cotangent is
always batched. So the candidates of all indices are gathered in a stack, which is
unbatched, and a row of it is picked: row 0 (a constant) of a stack of sums, or row
``axis_index`` (batched) of a stack of cotangents. The answer therefore consists of a
flag, which fills the stack, and of a row. Everything here but the question itself is
ordinary JAX, so that a summed gradient can be differentiated and mapped again, in
any mode and order; XLA folds the constant flag and row away. (Where JAX's collectives
do not work over a `vmap`, a batching rule does the sum as well as the asking.)

The axes of a `shard_map` (or `pmap`) are another matter: JAX tracks in the type of a
value which of these it varies over, and its own differentiation rules already sum the
gradient of an unvarying input. Nothing is left to do, listed or not. Without the
tracking (``check_vma=False``) a mapped and an unmapped input cannot be told apart, so
that case is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import partial
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.custom_batching import custom_vmap

__all__ = ["psum_cotangents"]

T = TypeVar("T")
_Sum = Callable[..., Any]


def psum_cotangents(tree: T, axis_names: Hashable) -> T:
    """Return `tree` unchanged, with its gradient summed over named axes.

    The cotangent of every array is summed over each listed axis the array is not
    mapped over. Over an axis that is not listed, or that the array is mapped over,
    the cotangent stays per index. Call it inside the differentiated function, on the
    argument to differentiate.

    An array counts as mapped where JAX batches it. Besides ``in_axes`` this includes
    what was computed from mapped values, and the operands of a `cond` whose
    predicate is mapped.

    Axes of `shard_map` with ``check_vma=True`` are accepted and need no work: there
    JAX sums the gradients of unvarying arrays itself.

    The identity has a reverse rule only, so forward mode over the *function* raises
    the `TypeError` of `jax.custom_vjp`. Its *gradient* can be differentiated in every
    mode, inside and outside the map. One case is missing: with explicitly sharded
    types, or inside a `shard_map`, reverse mode over the gradient within the `vmap`
    raises `NotImplementedError`; use forward mode there.

    Args:
      tree: a pytree. Leaves that are not JAX arrays of an inexact dtype (integers,
        bools, random keys, other objects) pass through untouched.
      axis_names: the name of an axis, or a tuple of names. A repeated name counts
        once. An empty tuple returns `tree` itself.

    Returns:
      A tree like `tree`, with equal values.

    Raises:
      NameError: a name is not bound by a surrounding `vmap` or `shard_map`; on the
        way back, if the differentiation is outside the map that binds the name.
      ValueError: a name is an axis of `pmap`, or of `shard_map` without
        ``check_vma=True``; or it is an integer.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> def loss(w, x):
      ...     return psum_cotangents(w, 'batch') * x
      >>> xs = jnp.arange(1.0, 5.0)
      >>> grad = jax.vmap(jax.grad(loss), in_axes=(None, 0), axis_name='batch')
      >>> grad(2.0, xs).tolist()
      [10.0, 10.0, 10.0, 10.0]
    """
    # Single names: JAX reads a tuple of names as their product.
    found = jax.tree.leaves(
        axis_names, is_leaf=lambda x: not isinstance(x, tuple | list)
    )
    names = tuple(dict.fromkeys(found))
    # Indices first: an unbound name is an error whatever the tree holds.
    indices = {name: lax.axis_index(name) for name in names}
    # A map may have an integer for a name; collectives can't use it.
    for name in names:
        if isinstance(name, int):
            raise ValueError(
                f"cannot sum gradients over an axis named {name!r}: jax.lax.psum reads"
                " an integer as the position of an array axis. Give the map another"
                " axis_name, such as a string."
            )
    mapped = [name for name in names if not _sums_itself(name)]
    leaves, treedef = jax.tree.flatten(tree)
    places = [i for i, leaf in enumerate(leaves) if _is_inexact(leaf)]
    if not mapped or not places:
        return tree
    # JAX has no collectives over a map within a `shard_map` that tracks variation, and
    # they fail over a map of arrays whose types are sharded.
    mesh = jax.sharding.get_abstract_mesh()
    no_collectives = bool(_varying_axes() or mesh.explicit_axes)
    for name in mapped:
        # What the question is asked about must not carry a tangent, or it would be
        # traced by the differentiation instead of answered by the map.
        asked = [lax.stop_gradient(leaves[i]) for i in places]
        flags, rows, index = _is_mapped(asked, indices[name])
        for i, flag, row in zip(places, flags, rows, strict=True):
            answered = not isinstance(flag, jax.core.Tracer)
            if answered and flag:
                continue
            if no_collectives:
                summed: _Sum = _sum_by_rule
                operands: tuple[Any, ...] = (row, index)
            elif answered:  # and not mapped
                summed, operands = lax.psum, ()
            else:
                summed, operands = _sum_later, (flag, row)
            leaves[i] = _identity(leaves[i], operands, name, summed)
    result: T = jax.tree.unflatten(treedef, leaves)
    return result


def _is_inexact(leaf: Any) -> bool:
    # The type is asked too, because a traced reference passes for an array.
    return (
        isinstance(leaf, jax.Array)
        and isinstance(jax.typeof(leaf), jax.core.ShapedArray)
        and bool(jnp.issubdtype(leaf.dtype, jnp.inexact))
    )


def _varying_axes() -> frozenset[Any]:
    """The axes of surrounding `shard_map`s over which JAX tracks variation."""
    # An index differs from device to device, so it varies over its axis wherever
    # variation is tracked at all.
    found: set[Any] = set()
    for name in jax.sharding.get_abstract_mesh().manual_axes:
        kind: Any = jax.typeof(lax.axis_index(name))
        manual = getattr(kind, "manual_axis_type", None)
        found.update(kind.vma if manual is None else manual.varying)
    return frozenset(found)


def _sums_itself(name: Hashable) -> bool:
    """Whether JAX sums gradients over the axis: a `shard_map` axis that it tracks."""
    if name not in jax.sharding.get_abstract_mesh().manual_axes:
        return False
    if name in _varying_axes():
        return True
    raise ValueError(
        f"cannot sum gradients over the axis {name!r}: it is an axis of jax.pmap, or"
        " of jax.shard_map with check_vma=False, where inputs that are mapped over"
        " the axis and inputs that are not look alike. Use jax.shard_map with"
        " check_vma=True, which sums the gradients of unmapped inputs by itself, or"
        f" leave {name!r} out and apply jax.lax.psum to the gradients that need it."
    )


@custom_vmap
def _is_mapped(xs: list[Any], index: Any) -> tuple[list[Any], list[Any], Any]:
    """For each array: is it mapped where `index` is, and which row is its result.

    The index comes back too. Within `shard_map`, JAX gives the index of a map the type
    of a value that varies over a mesh axis, of which there is none; the type of this
    result is sound.

    This body only gives the types. Every call sits under the map that binds the
    index, so what runs in the end is the rule.
    """
    return [np.False_ for _ in xs], [np.int32(0) for _ in xs], np.int32(0)


@_is_mapped.def_vmap
def _is_mapped_rule(
    axis_size: int, in_batched: list[Any], xs: list[Any], index: Any
) -> tuple[Any, Any]:
    xs_mapped, is_this_axis = in_batched
    unmapped = [False for _ in xs]
    if not is_this_axis:
        return _is_mapped(xs, index), (unmapped, unmapped, False)
    # NumPy bools, and the rows of unmapped arrays unbatched: see the module's
    # docstring for what hangs on both.
    flags = [np.bool_(mapped) for mapped in xs_mapped]
    rows = [index if mapped else np.int32(0) for mapped in xs_mapped]
    return (flags, rows, index), (unmapped, list(xs_mapped), True)


@partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def _identity(x: Any, operands: Any, name: Hashable, summed: _Sum) -> Any:
    """`x`, whose cotangent is ``summed(cotangent, name, *operands)``."""
    return x


def _identity_fwd(
    x: Any, operands: Any, name: Hashable, summed: _Sum
) -> tuple[Any, Any]:
    # The backward pass needs the answer and not the array, which need not stay alive.
    return x, operands


def _identity_bwd(
    name: Hashable, summed: _Sum, operands: Any, cotangent: Any
) -> tuple[Any, None]:
    # Differentiation around the map comes here once the map is left. Its cotangents
    # are summed over the map already, and a second sum would multiply them.
    try:
        lax.axis_size(name)
    except NameError as error:
        raise NameError(
            f"unbound axis name: {name}. A gradient that psum_cotangents should sum"
            f" over {name!r} was taken outside the map that binds the name. There JAX"
            " sums the gradients of unmapped inputs by itself: leave the name out, or"
            " differentiate inside the map."
        ) from error
    return summed(cotangent, name, *operands), None


_identity.defvjp(_identity_fwd, _identity_bwd)


def _sum_later(cotangent: Any, name: Hashable, flag: Any, row: Any) -> Any:
    """The sum or the cotangent itself, as a traced answer says."""
    each = lax.all_gather(cotangent, name)
    total = jnp.broadcast_to(jnp.sum(each, axis=0), each.shape)
    stack = lax.select(flag, each, total)
    # Unsigned, which spares the treatment of negative rows.
    row = lax.convert_element_type(row, jnp.uint32)
    return lax.dynamic_index_in_dim(stack, row, axis=0, keepdims=False)


@jax.custom_jvp
def _sum_linear(cotangent: Any, row: Any, index: Any) -> Any:
    return _sum_if_unmapped(cotangent, row, index)


@_sum_linear.defjvp
def _sum_linear_jvp(primals: Any, tangents: Any) -> tuple[Any, Any]:
    # Said by hand, because the derivative of a `custom_vmap` function asks the rule
    # with an index that is not batched at any level.
    _, row, index = primals
    return _sum_linear(*primals), _sum_linear(tangents[0], row, index)


def _sum_by_rule(cotangent: Any, name: Hashable, row: Any, index: Any) -> Any:
    """As `_sum_later`, by a batching rule, where there are no collectives to use.

    It cannot be transposed inside the map: `custom_vmap` has no reverse mode.
    """
    return _sum_linear(cotangent, row, index)


@custom_vmap
def _sum_if_unmapped(cotangent: Any, row: Any, index: Any) -> Any:
    """The cotangent, summed over the map of `index` if `row` is not mapped there."""
    return cotangent


@_sum_if_unmapped.def_vmap
def _sum_if_unmapped_rule(
    axis_size: int, in_batched: list[bool], cotangent: Any, row: Any, index: Any
) -> tuple[Any, bool]:
    differs, is_mapped, is_this_axis = in_batched
    if not is_this_axis:
        return _sum_if_unmapped(cotangent, row, index), differs
    if is_mapped:
        return cotangent, differs
    return jnp.sum(cotangent, axis=0) if differs else cotangent * axis_size, False
