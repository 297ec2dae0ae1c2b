"""Ready-made graph nodes: `Object` to subclass, `List` and `Dict` to hold things."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, MutableMapping, MutableSequence
from typing import TYPE_CHECKING, Any, ClassVar, Self, overload

from typing_extensions import TypeVar

from graphcore.display.printing import Parts, label, mapping_parts, text, treescope_repr
from graphcore.nodes.callables import callables_last
from graphcore.nodes.copying import deepcopy_node, reduce_node
from graphcore.nodes.owned import OwnedNode, plans_of
from graphcore.nodes.pytrees import register_as_pytree
from graphcore.nodes.registry import UnsortableKeys, register_graph_node_type
from graphcore.state.nesting import key_order

__all__ = ["Dict", "List", "Object"]

T = TypeVar("T", default=Any)  # so that `List` alone is a list of anything
_MISSING = object()
_NOTHING: Any = ()  # which says nothing about types
# A class that defines or inherits one of these is copied as it says.
_COPY_METHODS = (
    *("__getstate__", "__setstate__", "__reduce__", "__reduce_ex__"),
    *("__deepcopy__", "__copy__", "__getnewargs__", "__getnewargs_ex__"),
)


class Object(OwnedNode):
    """Base class of objects that are graph nodes.

    Subclasses are ordinary Python classes; they register themselves. Attributes are
    the children, in sorted order: nodes, variables and static values. Dataclasses,
    `copy.deepcopy`, `pickle` and `cloudpickle` work, and keep sharing.

    JAX takes an object as a pytree, by value; `class Model(Object, pytree=False)` turns
    that off for a class and its subclasses.

    Raises:
        TypeError: If a subclass stores attributes in `__slots__`, where they would
            not be seen.
        TraceContextError: If an attribute is set or deleted from another JAX trace
            than the one that the object was made in.

    Example:
        >>> import graphcore as gc, jax.numpy as jnp
        >>> class Linear(gc.Object):
        ...     def __init__(self, n):
        ...         self.kernel = gc.Param(jnp.ones((n, n)))
        ...         self.features = n
        >>> gc.state(Linear(2)).kernel.value.shape
        (2, 2)
    """

    __slots__ = ()

    _node__is_pytree: ClassVar[bool] = True

    def __init_subclass__(cls, pytree: bool | None = None, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if cls.__dict__.get("__slots__") and cls.__module__ != __name__:
            raise TypeError(
                f"{cls.__name__} declares __slots__ {cls.__dict__['__slots__']}: the "
                "attributes of an Object must be in its `__dict__` to be found, so "
                "leave the declaration out."
            )
        others = [c for c in cls.__mro__ if c.__module__ != __name__ and c not in _OURS]
        if any(name in vars(c) for c in others for name in _COPY_METHODS):
            cls._node__is_copied_plainly = False
            if cls.__deepcopy__ is Object.__deepcopy__:
                cls.__deepcopy__ = None  # type: ignore[method-assign, assignment]
        if pytree is not None:
            cls._node__is_pytree = pytree
        _register(cls)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "__orig_class__":  # `Layer[int]()`: typing's note to itself
            raise AttributeError(name)
        self._node__check_writable()
        is_planned = plans_of(self) is not None
        if is_planned and self.__dict__.get(name, _MISSING) is not value:
            self._node__structure_changed()
        object.__setattr__(self, name, value)

    def __delattr__(self, name: str) -> None:
        self._node__check_writable()
        object.__delattr__(self, name)
        self._node__structure_changed()

    def __getstate__(self) -> Any:
        return dict(self.__dict__)

    def __setstate__(self, state: Any) -> None:
        self.__dict__.update(state)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return reduce_node(self, protocol)

    def __copy__(self) -> Any:
        twin = type(self).__new__(type(self))
        twin.__setstate__(self.__getstate__())
        return twin

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return deepcopy_node(self, memo)

    __repr__ = text
    __treescope_repr__ = treescope_repr

    # How the registry handles a node. Emptying and filling go past `__setattr__`:
    # whoever calls them has checked the trace.

    @classmethod
    def _node__create_empty(cls, metadata: Any) -> Any:
        return OwnedNode.__new__(cls)

    def _node__flatten(self) -> tuple[list[tuple[Any, Any]], Any]:
        items = self.__dict__.items()
        try:
            return callables_last(sorted(items)), None
        except TypeError:  # integers among the keys
            pass
        try:
            in_order = sorted(items, key=lambda item: key_order(item[0]))
            return callables_last(in_order), None
        except TypeError:
            raise UnsortableKeys(type(self).__name__, self.__dict__) from None

    def _node__set_key(self, key: Any, value: Any) -> None:
        self._node__check_writable()
        self._node__structure_changed()
        self.__dict__[key] = value

    def _node__pop_key(self, key: Any) -> Any:
        self._node__check_writable()
        self._node__structure_changed()
        return self._node__container_of(key).pop(key)

    def _node__clear(self) -> None:
        self._node__structure_changed()
        for container in self._node__containers():
            container.clear()

    def _node__init(self, pairs: Iterable[tuple[Any, Any]]) -> None:
        self.__dict__.update(pairs)


def _register(kind: type[Object]) -> None:
    register_graph_node_type(
        kind,
        flatten=kind._node__flatten,
        set_key=kind._node__set_key,
        pop_key=kind._node__pop_key,
        create_empty=kind._node__create_empty,
        clear=kind._node__clear,
        init=kind._node__init,
    )
    if kind._node__is_pytree:
        register_as_pytree(kind)


_register(Object)
_OURS = Object.__mro__


class Dict(Object, MutableMapping[Any, Any]):
    """A graph node that holds a mapping, with attribute access to string keys.

    Keys are strings or integers; iteration follows the order of insertion, the graph
    the sorted order with integers first. A key that is also the name of a method hides
    the method on attribute access.

    Args:
        mapping_or_pairs: The contents.
        **items: More of them.

    Example:
        >>> import graphcore as gc
        >>> d = gc.Dict({'a': 1}, b=2); d.c = 3
        >>> d['c'], d.b, list(d)
        (3, 2, ['a', 'b', 'c'])
    """

    def __init__(
        self,
        mapping_or_pairs: Mapping[Any, Any] | Iterable[tuple[Any, Any]] = (),
        /,
        **items: Any,
    ) -> None:
        self._node__check_writable()
        self.__dict__.update(mapping_or_pairs, **items)

    if TYPE_CHECKING:  # what it holds are attributes

        def __getattr__(self, name: str) -> Any: ...

    def __getitem__(self, key: Any) -> Any:
        return self.__dict__[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        self._node__set_key(key, value)

    def __delitem__(self, key: Any) -> None:
        self._node__pop_key(key)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.__dict__)

    def __len__(self) -> int:
        return len(self.__dict__)

    def __parts__(self) -> Parts:
        inside = mapping_parts(type(self).__name__, self._node__flatten()[0])
        return inside._replace(has_identity=True)


class List(Object, MutableSequence[T]):
    """A graph node that holds a sequence.

    Args:
        items: The contents.

    Example:
        >>> import graphcore as gc
        >>> layers = gc.List([gc.Param(1)]); layers.append(gc.Param(2))
        >>> gc.state(layers).flat_state().paths
        ((0,), (1,))
    """

    __slots__ = ("_node__items",)

    _node__items: list[T]
    _node__has_only_attributes = False

    def __new__(cls, /, *args: Any, **kwargs: Any) -> Self:
        node = super().__new__(cls)
        object.__setattr__(node, "_node__items", [])
        return node

    def __init__(self, items: Iterable[T] = _NOTHING, /) -> None:
        self._node__check_writable()
        self._node__items.extend(items)

    def _node__containers(self) -> tuple[Any, ...]:
        return self.__dict__, self._node__items

    def _node__container_of(self, key: Any) -> Any:
        return self._node__items if isinstance(key, int) else self.__dict__

    def _node__change(self) -> list[T]:
        self._node__check_writable()
        self._node__structure_changed()
        return self._node__items

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> list[T]: ...
    def __getitem__(self, index: int | slice) -> Any:
        return self._node__items[index]

    def __setitem__(self, index: Any, value: Any) -> None:
        self._node__change()[index] = value

    def __delitem__(self, index: int | slice) -> None:
        del self._node__change()[index]

    def insert(self, index: int, value: T) -> None:
        """Inserts a child before a position.

        Args:
            index: The position.
            value: The child.

        Example:
            >>> layers = List([1, 3]); layers.insert(1, 2); list(layers)
            [1, 2, 3]
        """
        self._node__change().insert(index, value)

    def __len__(self) -> int:
        return len(self._node__items)

    def __iter__(self) -> Iterator[T]:
        return iter(self._node__items)

    def __add__(self, other: Iterable[T]) -> Self:
        return type(self)([*self._node__items, *other])

    def __parts__(self) -> Parts:
        # The positions go without saying; attributes beside them don't.
        children = [
            ("" if isinstance(key, int) else label(key), child)
            for key, child in self._node__flatten()[0]
        ]
        return Parts(type(self).__name__, children, ("([", "])"), has_identity=True)

    def __getstate__(self) -> Any:
        return dict(self.__dict__), list(self._node__items)

    def __setstate__(self, state: Any) -> None:
        attributes, items = state
        self.__dict__.update(attributes)
        self._node__items.extend(items)

    def _node__flatten(self) -> tuple[list[tuple[Any, Any]], Any]:
        pairs: list[tuple[Any, Any]] = list(enumerate(self._node__items))
        if self.__dict__:
            pairs += super()._node__flatten()[0]
        return pairs, None

    def _node__set_key(self, key: Any, value: Any) -> None:
        if not isinstance(key, int):
            super()._node__set_key(key, value)
        elif key == len(self._node__items):
            self._node__change().append(value)
        elif 0 <= key < len(self._node__items):
            self._node__change()[key] = value
        else:
            raise ValueError(
                f"Cannot set position {key} of a {type(self).__name__} of length "
                f"{len(self._node__items)}: positions are filled in order."
            )

    @classmethod
    def _node__create_empty(cls, metadata: Any) -> Any:
        return List.__new__(cls)

    def _node__init(self, pairs: Iterable[tuple[Any, Any]]) -> None:
        for key, value in pairs:
            if isinstance(key, int):
                self._node__items.append(value)
            else:
                self.__dict__[key] = value
