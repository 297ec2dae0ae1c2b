"""`eval_shape`: what a function would return, without computing it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from graphcore import RefMap
from graphcore.build import Builder
from graphcore.graphdef import GraphDef
from graphcore.walk import Visit, walk
from nnx_transforms.transforms.lifting import Callee, Skeleton, remove_objects, take

__all__ = ["eval_shape"]


class _Returned:
    """The objects that a function returned, without their values."""

    def __init__(
        self,
        definitions: tuple[GraphDef[Any], ...],
        indices: tuple[int, ...],
        skeleton: Skeleton,
    ) -> None:
        self.definitions = definitions
        self.indices = indices
        self.skeleton = skeleton


jax.tree_util.register_static(_Returned)


def eval_shape(f: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Returns what a function would return, with shapes and dtypes for arrays.

    The function runs on stand-ins; the caller's objects are left alone.

    Args:
        f: A function of any pytrees with objects in them.
        *args: Its arguments; arrays and values of variables may be
            `jax.ShapeDtypeStruct`s.
        **kwargs: Likewise.

    Returns:
        The output with `jax.ShapeDtypeStruct`s in the place of arrays. Objects in it
        are new; those that share something with each other still do.

    Raises:
        ValueError: If an object belongs to a different trace level.

    Example:
        >>> import nnx_transforms as nnx
        >>> model = nnx.eval_shape(lambda: nnx.Linear(2, 3, rngs=nnx.Rngs(0)))
        >>> model.kernel.value
        ShapeDtypeStruct(shape=(2, 3), dtype=float32)
    """
    callee = Callee(f)
    inputs = take((args, kwargs), bound=callee.bound)

    def pure(values: list[Any], plain: Any) -> Any:
        _, function, (inner_args, inner_kwargs) = inputs.enter(callee, values, plain)
        out = function(*inner_args, **inner_kwargs)
        tree, skeleton, returned = remove_objects(out)
        refs: RefMap[Any, int] = RefMap()
        visit = Visit()
        definitions = tuple(walk(x, refs, visit) for x in returned)
        leaves = visit.leaves
        return (
            [leaf.impl.get_value(leaf.variable) for leaf in leaves],
            tree,
            _Returned(
                definitions, tuple(leaf.definition.index for leaf in leaves), skeleton
            ),
        )

    values, tree, returned = jax.eval_shape(pure, inputs.values(), inputs.plain)
    leaves = {
        index: (value, None)
        for index, value in zip(returned.indices, values, strict=True)
    }
    builder = Builder(leaves, {}, {})
    objects = [builder.build(definition) for definition in returned.definitions]
    return returned.skeleton.fill(tree, objects)
