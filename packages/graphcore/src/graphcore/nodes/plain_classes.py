"""Plain classes of arrays as nodes: dataclasses, attrs classes, and the like."""

from __future__ import annotations

import types
from collections.abc import Iterable
from typing import Any, TypeVar

from graphcore.content_key import content_base, slots_of
from graphcore.errors import check_class
from graphcore.nodes.registry import GraphNodeImpl, add_node_impl

__all__ = ["register_dataclass"]

T = TypeVar("T")


def register_dataclass(cls: type[T], /) -> type[T]:
    """Makes the instances of a plain class graph nodes; also a decorator.

    What an instance holds in its `__dict__` and in the `__slots__` of its class are its
    children: arrays are leaves by their place, nodes and variables are what they are,
    and all else is static. Nothing of the class is run where an instance is made in a
    transformation, and a frozen class is written like any other. That holds for
    subclasses as well.

    Args:
        cls: The class: a dataclass, an attrs class, or any that keeps its state in its
            attributes.

    Returns:
        The class itself, unchanged.

    Raises:
        ValueError: If it is a type of nodes or variables already, or if its instances
            hold something besides attributes, as those of a subclass of `list` do.

    Example:
        >>> import graphcore as gc, dataclasses, jax.numpy as jnp
        >>> @gc.register_dataclass
        ... @dataclasses.dataclass
        ... class Scale:
        ...     weight: jnp.ndarray
        ...     name: str = 'scale'
        >>> scale = Scale(jnp.ones(2))
        >>> gc.state(scale).flat_state().paths, gc.clone(scale).name
        ((('weight',),), 'scale')
    """
    check_class(cls, "register_dataclass")
    add_node_impl(_impl_of(cls), _impl_of)
    return cls


def _impl_of(cls: type[Any]) -> GraphNodeImpl:
    if content_base(cls) is not object or issubclass(cls, types.SimpleNamespace):
        raise ValueError(
            f"Instances of {cls.__name__} hold more than attributes, or are made in a "
            "way of their own, as those of a subclass of list are. Keep that in an "
            "attribute, or say with `register_graph_node_type` what the children are."
        )
    slots = slots_of(cls)
    has_dict = cls.__dictoffset__ != 0

    def flatten(node: Any) -> tuple[list[tuple[str, Any]], None]:
        found = {name: getattr(node, name) for name in slots if hasattr(node, name)}
        if has_dict:
            found.update(node.__dict__)
        return sorted(found.items()), None

    def pop_key(node: Any, key: str) -> Any:
        value = getattr(node, key)
        object.__delattr__(node, key)
        return value

    def clear(node: Any) -> None:
        for key, _ in flatten(node)[0]:
            object.__delattr__(node, key)

    def init(node: Any, pairs: Iterable[tuple[str, Any]]) -> None:
        for key, value in pairs:
            object.__setattr__(node, key, value)

    return GraphNodeImpl(
        cls,
        flatten,
        set_key=object.__setattr__,
        pop_key=pop_key,
        create_empty=lambda metadata: object.__new__(cls),
        clear=clear,
        init=init,
        containers=("__dict__",) if has_dict and not slots else (),
    )
