"""Equality and hash by content, where Python's own are too loose or too strict.

Python says `1 == True == 1.0` and `0.0 == -0.0`, and refuses to answer for arrays. A
definition that decides whether a compiled function may be reused needs to tell the
first apart, and a variable that is compared needs an answer for the second.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import enum
import fractions
import functools
import pathlib
import re
import types
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter, is_
from typing import Any

import jax
import numpy as np

from graphcore.errors import check_class

__all__ = ["register_immutable_type"]


def static_key(value: Any) -> Any:
    """Returns a stand-in for a static value that compares as strictly as needed.

    Args:
        value: Any static value.

    Returns:
        Something that is hashable if the value is, and equal to the stand-in of
        another value only if the two are equal, of the same type, and so is all that
        is in tuples, frozensets, mappings and dataclasses: numbers of different types
        differ, `0.0` and `-0.0` differ, a NaN equals itself. Partial functions of the
        same function are equal if what they bind is, in the same order of names.

    Example:
        >>> static_key(1) == static_key(True), static_key((1, 2)) == static_key((1, 2))
        (False, True)
    """
    kind = type(value)
    if kind in _COMPARED_STRICTLY:
        return kind, value
    if kind is float:
        return float, value.hex()
    if kind is complex:
        return complex, value.real.hex(), value.imag.hex()
    if isinstance(value, np.generic) and not isinstance(value, np.void):
        return kind, value.dtype, value.tobytes()
    if kind is jax.tree_util.PyTreeDef:
        return StrictTreeDef(value)
    if kind is slice or kind is range:
        bounds = value.start, value.stop, value.step
        return kind, tuple(map(static_key, bounds))
    if kind is functools.partial and not vars(value):
        return _key_of_partial(value)
    equal = method_of(kind, "__eq__")
    if equal is object.__eq__ or method_of(kind, "__hash__") is None:
        return kind, value  # itself, or of no use in a key
    if issubclass(kind, tuple) and equal is tuple.__eq__:
        return kind, tuple(map(static_key, tuple.__iter__(value)))
    if issubclass(kind, frozenset) and equal is frozenset.__eq__:
        return kind, frozenset(map(static_key, frozenset.__iter__(value)))
    if issubclass(kind, float) and equal is float.__eq__:
        return kind, value, float.hex(value)
    try:
        apart = _held_apart(kind, value)
        hash(apart)
    except Exception:  # A stranger raised, or a field that has no part in the hash.
        return kind, value
    return kind, value, apart


def _key_of_partial(f: functools.partial[Any]) -> Any:
    """Tells of a partial what it does: Python says that each equals itself only."""
    named = [(name, static_key(x)) for name, x in f.keywords.items()]
    key = functools.partial, static_key(f.func), static_key(f.args), *named
    try:
        hash(key)
    except Exception:  # It holds a list, or an array.
        return functools.partial, f
    return key


# Two of one of these types that are equal are the same for every purpose.
_COMPARED_STRICTLY = frozenset(
    (bool, int, str, bytes, type(None), type, types.FunctionType, np.dtype)
)


def _held_apart(kind: type[Any], value: Any) -> Any:
    """What tells a value from others that it equals."""
    if issubclass(kind, decimal.Decimal):
        return str(value)
    if issubclass(kind, dt.datetime | dt.time):
        return value.tzinfo, value.utcoffset(), value.fold
    if isinstance(value, Mapping):
        return frozenset([(static_key(k), static_key(x)) for k, x in value.items()])
    held = _compared_fields(kind)(value)
    others = [static_key(x) for x in held if type(x) not in _COMPARED_STRICTLY]
    return tuple(map(type, held)), tuple(others)


_fields_of: weakref.WeakKeyDictionary[type[Any], Any] = weakref.WeakKeyDictionary()


def unusual_keys(keys: Iterable[Any]) -> list[Any]:
    """Stand-ins for the keys of a container that may equal others: `1`, and `True`.

    Args:
        keys: The keys.

    Returns:
        As `static_key`, for those that are neither strings nor integers.

    Example:
        >>> unusual_keys([0, 'a']) == unusual_keys([False, 'a'])
        False
    """
    return [static_key(key) for key in keys if type(key) not in _USUAL_KEYS]


_USUAL_KEYS = frozenset((str, int))


def _compared_fields(kind: type[Any]) -> Callable[[Any], Sequence[Any]]:
    """What returns the fields of a dataclass that it compares by `==`.

    Of what is none, or says itself what it equals, it returns nothing.
    """
    if not hasattr(kind, "__dataclass_fields__"):
        return _nothing
    if kind not in _fields_of:
        # What `dataclass` makes is in no file.
        methods = [method_of(kind, name) for name in ("__eq__", "__hash__")]
        codes = [getattr(method, "__code__", None) for method in methods]
        is_made = all(code and code.co_filename == "<string>" for code in codes)
        fields = dataclasses.fields(kind) if is_made else ()
        names = [f.name for f in fields if f.compare]
        get = attrgetter(*names) if names else _nothing
        _fields_of[kind] = (lambda x: (get(x),)) if len(names) == 1 else get
    found: Callable[[Any], Sequence[Any]] = _fields_of[kind]
    return found


def _nothing(_: Any) -> Sequence[Any]:
    return ()


class StrictTreeDef:
    """The structure of a pytree, compared as strictly as static values are.

    JAX compares by `==` what the nodes of a pytree hold besides their children, such as
    the static fields of a dataclass.

    Args:
        treedef: The structure as JAX has it.

    Example:
        >>> import jax, dataclasses, functools
        >>> register = functools.partial(
        ...     jax.tree_util.register_dataclass, data_fields=[], meta_fields=['by'])
        >>> @register
        ... @dataclasses.dataclass
        ... class Scale:
        ...     by: float
        >>> one, other = (jax.tree.structure(Scale(x)) for x in (1, 1.0))
        >>> one == other, StrictTreeDef(one) == StrictTreeDef(other)
        (True, False)
    """

    def __init__(self, treedef: jax.tree_util.PyTreeDef) -> None:
        self.treedef = treedef

    @functools.cached_property
    def held(self) -> list[Any]:
        """What the nodes hold besides their children."""
        held, pending = [], [self.treedef]
        for each in pending:  # grows during the loop
            data: Any = each.node_data()
            if data is not None:
                kind, more = data
                held.append(_Keys(more) if kind is dict else _fields(more))
                pending += each.children()
        return held

    @functools.cached_property
    def has_names_alone(self) -> bool:
        """Whether nothing there may equal another type, as `1` equals `True`."""
        return all(map(_is_name, self.held))

    def is_of(self, treedef: jax.tree_util.PyTreeDef) -> bool:
        """Whether this is the structure of an equal treedef, too."""
        return self.has_names_alone or _same_held(
            self.held, StrictTreeDef(treedef).held
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, StrictTreeDef):
            return NotImplemented
        if self is other or self.treedef is other.treedef:
            return True
        return self.treedef == other.treedef and self.is_of(other.treedef)

    def __hash__(self) -> int:
        return hash(self.treedef)

    def __repr__(self) -> str:
        return repr(self.treedef)


def _fields(held: Any) -> Any:
    # Equinox 0.13.0 has a class of its own around the static fields of a module.
    names = getattr(type(held), "__slots__", ())
    return tuple([getattr(held, name, None) for name in names]) if names else held


class _Keys(tuple[Any, ...]):
    """The keys of a dict in the structure of a pytree."""

    __slots__ = ()


def _is_name(x: Any) -> bool:
    """Whether it is what a container holds: nothing, or the keys of a dict.

    Elsewhere a name may equal what is none: a dtype equals its name, and its class.
    """
    if type(x) is _Keys:
        return {*map(type, x)} <= {str}
    return x is None or (type(x) is tuple and not x)


def _same_held(a: Any, b: Any) -> bool:
    """Whether what is equal is of the same types, too."""
    if a is b:
        return True
    if type(a) is type(b) and isinstance(a, tuple | list):
        return all(map(is_, a, b)) or all(map(_same_held, a, b))
    return bool(static_key(a) == static_key(b))


# Types whose instances always equal the same things.
_VALUES = (int, float, complex, str, bytes, range)
_IMMUTABLE = (
    *(type(None), type(...), *_VALUES),
    *(type, types.ModuleType, types.MethodType, types.BuiltinFunctionType),
    *(enum.Enum, decimal.Decimal, fractions.Fraction, pathlib.PurePath, re.Pattern),
    *(dt.date, dt.time, dt.timedelta, dt.tzinfo),
    *(np.dtype, np.generic, jax.ShapeDtypeStruct, jax.Device),
    *(jax.sharding.Sharding, jax.sharding.Mesh, jax.sharding.PartitionSpec),
)
# No class is kept alive for that.
_immutable_types: set[weakref.ref[type[Any]]] = set()
_declared: set[type[Any]] = set()


def register_immutable_type(type: type[Any], /) -> type[Any]:
    """Declares that instances of a type never change, as far as a function can tell.

    One that can't be hashed may be static in a graph then; it equals only itself.

    Args:
        type: The class; its subclasses count as well.

    Returns:
        The class, so that this can be a decorator.

    Example:
        >>> import graphcore as gc
        >>> @gc.register_immutable_type
        ... class Table:
        ...     def __eq__(self, other): return NotImplemented
        >>> len({gc.graphdef(gc.Dict(table=Table()))})
        1
    """
    check_class(type, "register_immutable_type")
    _declared.add(type)
    return type


def is_declared_immutable(kind: type[Any]) -> bool:
    """Whether a type, or a base of it, was declared so."""
    return bool(_declared) and not _declared.isdisjoint(kind.__mro__)


def is_immutable(value: Any) -> bool:
    """Tells whether a value surely keeps comparing as it does now.

    Args:
        value: Any hashable value.

    Returns:
        True for values of well-known immutable types, for those that compare by
        identity, since a change in place does not alter that, and for tuples,
        frozensets, frozen dataclasses, and structures of pytrees, of such values.

    Example:
        >>> is_immutable('text'), is_immutable(len), is_immutable(([],))
        (True, True, False)
    """
    kind = type(value)
    if weakref.ref(kind) in _immutable_types:
        return True
    for base in (tuple, frozenset):
        if issubclass(kind, base) and (kind is base or _adds_nothing(kind, base)):
            return all(map(is_immutable, base.__iter__(value)))
    if kind is jax.tree_util.PyTreeDef:
        return all(map(is_immutable, StrictTreeDef(value).held))
    if (
        is_declared_immutable(kind)
        or _compares_like(kind, object)
        or (
            # A subclass of a value type may compare by something that changes.
            issubclass(kind, _IMMUTABLE)
            and not issubclass(kind, np.void)  # whose fields can be set
            and all(
                _compares_like(kind, base) for base in _VALUES if issubclass(kind, base)
            )
        )
    ):
        _immutable_types.add(weakref.ref(kind, _immutable_types.discard))
        return True
    if not getattr(getattr(kind, "__dataclass_params__", None), "frozen", False):
        return False
    try:
        held = _compared_fields(kind)(value)
    except AttributeError:  # a field that nobody has set
        return False
    return bool(held) and all(map(is_immutable, held))


def _adds_nothing(kind: type[Any], base: type[Any]) -> bool:
    """Whether instances of a class have no attributes, and compare as those of a base.

    So it is of a `NamedTuple`.
    """
    return not kind.__dictoffset__ and _compares_like(kind, base)


def _compares_like(kind: type[Any], base: type[Any]) -> bool:
    names = "__eq__", "__hash__"
    return all(method_of(kind, name) is method_of(base, name) for name in names)


def method_of(kind: type[Any], name: str) -> Any:
    """A special method of a class, as it stands there.

    To ask for it by attribute would call descriptors: a mock makes another mock then.

    Example:
        >>> method_of(bool, '__eq__') is int.__eq__
        True
    """
    return next(vars(base)[name] for base in kind.__mro__ if name in vars(base))


def _leaves_equal(a: Any, b: Any) -> bool:
    if a is b:
        return True
    if not all(isinstance(x, jax.Array | np.ndarray) for x in (a, b)):
        return bool(static_key(a) == static_key(b))
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if jax.dtypes.issubdtype(a.dtype, jax.dtypes.prng_key):
        a, b = jax.random.key_data(a), jax.random.key_data(b)
    return bool(np.array_equal(np.asarray(a), np.asarray(b)))


def values_equal(
    a: Any, b: Any, leaves_equal: Callable[[Any, Any], bool] = _leaves_equal
) -> bool:
    """Compares two values, arrays in pytrees included, by content.

    Args:
        a: An array, or a pytree of arrays and other values.
        b: Likewise.
        leaves_equal: Compares two leaves; by content if left out.

    Returns:
        Whether structure, shapes, dtypes and elements are the same.

    Example:
        >>> import numpy as np
        >>> values_equal({'x': np.ones(2)}, {'x': np.ones(2)})
        True
        >>> values_equal(np.ones(2), np.ones(3))
        False
    """
    if a is b:
        return True
    a_leaves, a_structure = jax.tree.flatten(a)
    b_leaves, b_structure = jax.tree.flatten(b)
    if StrictTreeDef(a_structure) != StrictTreeDef(b_structure):
        return False
    return all(map(leaves_equal, a_leaves, b_leaves))
