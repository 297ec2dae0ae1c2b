"""A hashable stand-in for static values that Python can't hash.

A model's configuration is often a dataclass that is not frozen, with lists and dicts.
It decides what a compiled function does, so it has to be compared with what it was:
by everything that it holds, at any depth, also after a change in place.
"""

from __future__ import annotations

import copy
import gc
import struct
import types
import weakref
from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from jax.tree_util import PyTreeDef

from graphcore.content import (
    is_declared_immutable,
    is_immutable,
    method_of,
    static_key,
    values_equal,
)
from graphcore.holding import attributes_of, reached
from graphcore.trails import path_text

# Built-in types whose content is compared. Others may have content that no one sees.
_KNOWN = (dict, list, tuple, set, frozenset, deque, bytearray, np.ndarray, jax.Array)
_BASES = {
    *(object, *_KNOWN, OrderedDict, defaultdict, types.SimpleNamespace, slice),
    types.MappingProxyType,
    *(int, float, complex, str, bytes),
}
# The flag of a type in CPython that types written in C have.
_IMMUTABLE_TYPE = 1 << 8
_POINTER = struct.calcsize("P")
# Named so, a part is at the place of the whole.
_ITSELF = None
# Equal instances of these have different hashes, or `==` gives no answer for them, so
# the content has to tell.
_told_by_content: set[weakref.ref[type[Any]]] = set()
# As nearly all are. A descriptor of a slot would keep its class alive.
_without_slots: weakref.WeakSet[type[Any]] = weakref.WeakSet()


class UnhashableContent(TypeError):
    """There is something in a static value that can be neither hashed nor looked into.

    Args:
        value: What it is.
    """

    def __init__(self, value: Any) -> None:
        self.value = value
        self.path: tuple[Any, ...] = ()

    def __str__(self) -> str:
        where = f"at {path_text(self.path)!r} in it " if self.path else "it "
        return (
            f"{where}is a {type(self.value).__name__}, which can be neither hashed nor "
            "compared by its content"
        )


class _Same:
    """Stands for one object of a type that never changes."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return type(other) is _Same and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


class _Content:
    """What a value holds, as part of a stand-in.

    The parts of a configuration may be in several places each, and so may theirs. To
    hash or compare all that way would take time for each way to each of them.

    Args:
        parts: Something hashable.
        kept: Whether later changes in place don't reach it.
    """

    __slots__ = ("_hash", "_held")

    def __init__(self, parts: Any, kept: bool) -> None:
        self._held = parts, kept  # replaced at once: other threads may be comparing
        self._hash = hash(parts)

    def __eq__(self, other: object) -> bool:
        if type(other) is not _Content or self._hash != other._hash:
            return False
        mine, theirs = self._held, other._held
        if mine[0] is not theirs[0]:
            if mine[0] != theirs[0]:
                return False
            # The next time, one look tells; and what is kept stays so.
            if theirs[1]:
                self._held = theirs
            else:
                other._held = mine
        return True

    def __hash__(self) -> int:
        return self._hash


def content_key(value: Any, *, keep: bool = False) -> Any:
    """Returns a stand-in for a static value that tells what it holds.

    Args:
        value: Any static value.
        keep: Whether the stand-in must outlast changes in place of what is hashable.

    Returns:
        As `static_key`, if the value can be hashed. Otherwise something hashable that
        is equal for values of the same type with equal content: the items of
        containers, in order where there is one; the elements of arrays; and what
        `__dict__` and `__slots__` hold.

    Raises:
        UnhashableContent: If something in it is neither hashable nor known.

    Example:
        >>> content_key([1, {'a': 2.0}]) == content_key([1, {'a': 2}])
        False
    """
    return _key(value, {}, _Copies({}) if keep else None)


def same_content(a: Any, b: Any) -> bool:
    """Tells whether two static values have the same stand-in.

    Args:
        a: Any value.
        b: Likewise.

    Returns:
        The same for values without one: whether they are equal, arrays by content.

    Example:
        >>> same_content([float("nan")], [float("nan")]), same_content([1], [True])
        (True, False)
    """
    if a is b:
        return True
    try:
        return bool(content_key(a) == content_key(b))
    except UnhashableContent:
        try:
            return bool(static_key(a) == static_key(b))
        except ValueError:  # There is an array, which has no truth value.
            return values_equal(a, b)
    except ValueError:  # There is one in the structure of a pytree.
        return False


def snapshot(value: Any) -> Any:
    """Returns a static value in a form that later changes in place don't reach.

    Args:
        value: Any value.

    Returns:
        The value itself if it is immutable; else a copy, as deep as its content is
        compared, if one can be made with the same content.

    Example:
        >>> words = ['a']; kept = snapshot(words); words.append('b'); kept
        ['a']
    """
    return _Copies({}).snapshot(value)


def copied(value: Any, memo: dict[int, Any]) -> Any:
    """Copies a static value, as deep as its content is compared.

    Args:
        value: Any value that can be copied.
        memo: What was copied before, as `copy.deepcopy` takes it; extended.

    Returns:
        The copy.

    Example:
        >>> part = ['a']; memo = {}
        >>> one, other = copied([part], memo), copied((part,), memo)
        >>> one[0] is part, one[0] is other[0]
        (False, True)
    """
    return _Copies(memo).copy(value)


class _Copies:
    """Copies of values that may hold each other.

    Each part of a configuration may refer to the whole, so what was walked or copied
    for one value is not again for the next.

    Args:
        memo: As for `copied`.
    """

    def __init__(self, memo: dict[int, Any]) -> None:
        self._memo = memo
        self._walked: dict[int, Any] = {}

    def snapshot(self, value: Any) -> Any:
        """As the function `snapshot`."""
        if is_immutable(value):
            return value
        try:
            duplicate = self.copy(value)
            return duplicate if same_content(duplicate, value) else value
        except Exception:  # The `__deepcopy__` or `__eq__` of an unknown type.
            return value

    def copy(self, value: Any) -> Any:
        """As the function `copied`."""
        memo, views = self._memo, False
        for part in reached([value], below, self._walked):
            # A copy has in common with it what compares by identity: an object that is
            # reached through that may hold half of the program. Of an array of JAX, a
            # copy that is made in a trace would be a traced value.
            if is_immutable(part) or isinstance(part, jax.Array):
                memo.setdefault(id(part), part)
            views = views or is_view(part)
        try:
            if views:
                _copy_views(value, memo)
            if type(value) is PyTreeDef:
                return _copied_structure(value, memo)
            return copy.deepcopy(value, memo)
        except BaseException:
            # Some of the copies are unfinished.
            memo.clear()
            self._walked.clear()
            raise


def _copied_structure(structure: PyTreeDef, memo: dict[int, Any]) -> PyTreeDef:
    data = structure.node_data()
    if data is None:
        return structure
    copied = copy.deepcopy(data, memo)
    children = [_copied_structure(child, memo) for child in structure.children()]
    registry = jax.tree_util.default_registry
    return PyTreeDef.from_node_data_and_children(registry, copied, children)


def _copy_views(value: Any, memo: dict[int, Any]) -> None:
    """Copies read-only views, as Python does not, the inner ones first."""
    for part in reached([value], lambda x: [] if is_view(x) else below(x)):
        if is_view(part) and id(part) not in memo:
            memo[id(part)] = part  # as long as what it shows is copied, it may be there
            mapping = shown(part)
            _copy_views(mapping, memo)
            memo[id(part)] = types.MappingProxyType(copy.deepcopy(mapping, memo))


def is_view(x: Any) -> bool:
    """Whether something is a read-only view of a mapping."""
    return type(x) is types.MappingProxyType


def shown(view: Any) -> Any:
    """The mapping behind a view, which may look items up in a way of its own."""
    (mapping,) = gc.get_referents(view)
    return mapping


def below(part: Any) -> list[Any]:
    """What a static value holds, as far as its content is compared."""
    if is_immutable(part) or isinstance(part, jax.Array):
        return []
    if isinstance(part, np.ndarray) and not part.dtype.hasobject:
        return []
    try:
        return [below for _, below in _parts(part)]
    except UnhashableContent:
        return []


def content_parts(value: Any) -> dict[Any, Any] | None:
    """What a static value holds that can be changed or named, by name.

    Args:
        value: Any value.

    Returns:
        The items of a dict or list, and the attributes of an instance; None for what is
        no more than itself, such as a number, a tuple, a function or an array, or an
        object that says itself what it equals.

    Example:
        >>> import dataclasses
        >>> Point = dataclasses.make_dataclass('Point', ['x', 'y'])
        >>> content_parts(Point(1, 2)), content_parts([3]), content_parts('text')
        ({'x': 1, 'y': 2}, {0: 3}, None)
    """
    whole = type, tuple, slice, range, set, frozenset, np.ndarray, jax.Array
    if isinstance(value, whole) or callable(value):
        return None
    parameters = getattr(type(value), "__dataclass_params__", None)
    if parameters is None or not parameters.eq:
        try:
            hash(value)
        except Exception:
            pass
        else:
            return None
    try:
        # A dict has its keys among its parts, too; nobody can change one.
        found = {k: x for k, x in _parts(value) if type(k) is not tuple}
    except UnhashableContent:
        return None
    return found or None


def _key(value: Any, known: dict[int, Any], copies: _Copies | None) -> Any:
    try:
        if _told_by_content and weakref.ref(type(value)) in _told_by_content:
            raise TypeError
        if type(value) is PyTreeDef and not is_immutable(value):
            raise TypeError  # Others would equal it as it is now, not as it was.
        key = static_key(value)
        found = hash(key)
        # Only now: to copy takes longer than to learn that there is no hash.
        if copies is not None:
            kept = copies.snapshot(value)
            key = static_key(kept)
            if hash(key) != found or (kept is value and not _has_equality(value)):
                kind = type(value)
                if kind not in _BASES:  # Else it is a part of the value that has it.
                    _told_by_content.add(weakref.ref(kind, _told_by_content.discard))
                raise TypeError
    except Exception:  # of a stranger's `__hash__` as well
        # A class is one, whatever its metaclass says.
        if isinstance(value, type) or is_declared_immutable(type(value)):
            return _Same(value)
    else:
        return key
    number = id(value)
    if number not in known:
        # What contains itself is named by its number there.
        known[number] = ("same as", len(known))
        parts = []
        for name, part in _parts(value):
            try:
                parts.append((name, _key(part, known, copies)))
            except UnhashableContent as error:
                error.path = error.path if name is _ITSELF else (name, *error.path)
                raise
        is_set = isinstance(value, set | frozenset)
        held = type(value), (frozenset if is_set else tuple)(parts)
        known[number] = _Content(held, copies is not None)
    return known[number]


def _has_equality(value: Any) -> bool:
    """Whether a value may say what it equals: not with an error, or by an array."""
    kind = type(value)
    if is_immutable(value) or _hides_something(kind, len(slots_of(kind))):
        return True
    try:
        duplicate = copied(value, {})
    except Exception:  # of a stranger's `__deepcopy__`
        return True
    try:
        bool(static_key(duplicate) == static_key(value))
    except Exception:
        return False
    return True


def slots_of(kind: type[Any]) -> dict[str, Any]:
    """The slots of a class and its bases, by the names that instances know them by.

    Args:
        kind: Any class.

    Returns:
        The descriptors. Of a private slot the name is the mangled one.

    Example:
        >>> class Pair:
        ...     __slots__ = ('first', '__second')
        >>> list(slots_of(Pair))
        ['_Pair__second', 'first']
    """
    if kind in _without_slots:
        return {}
    found = {
        name: slot
        for base in reversed(kind.__mro__)
        for name, slot in vars(base).items()
        if isinstance(slot, types.MemberDescriptorType)
    }
    if not found:
        _without_slots.add(kind)
    return found


def _parts(value: Any) -> Iterator[tuple[Any, Any]]:
    """What a value holds, with names; all that matters is in it."""
    kind = type(value)
    if kind is PyTreeDef:
        yield "node", value.node_data()
        yield from enumerate(value.children())
        return
    is_array = isinstance(value, jax.Array) and not isinstance(value, jax.core.Tracer)
    slots = slots_of(kind)
    if not is_array and _hides_something(kind, len(slots)):
        raise UnhashableContent(value)
    if is_array or isinstance(value, np.ndarray):
        yield from _parts_of_array(value)
        if is_array:
            return
    elif is_view(value):
        yield _ITSELF, shown(value)
    elif isinstance(value, dict):
        for number, (key, item) in enumerate(value.items()):
            yield ("key", number), key
            yield key if isinstance(key, str | int) else ("item", number), item
        if isinstance(value, defaultdict):  # Others may say so of any name.
            yield "default_factory", value.default_factory
    elif isinstance(value, set | frozenset):
        for item in value:
            yield "member", item
    elif isinstance(value, list | tuple | deque):
        yield from enumerate(value)
        if isinstance(value, deque):
            yield "maxlen", value.maxlen
    elif isinstance(value, bytearray):
        yield "bytes", bytes(value)
    attributes = dict(attributes_of(value) or {})
    for name, slot in slots.items():
        try:
            attributes[name] = slot.__get__(value)
        except AttributeError:  # it is empty
            continue
    yield from sorted(attributes.items())


def content_base(kind: type[Any]) -> type[Any] | None:
    """The type of Python's that says what instances hold besides their attributes.

    Args:
        kind: Any class.

    Returns:
        A container's type, `object` for attributes alone; None if one can't tell, or
        instances have ways of their own to list and compare their items.

    Example:
        >>> from collections import Counter, namedtuple
        >>> pair = namedtuple('pair', 'x y')
        >>> [content_base(kind) for kind in (pair, type('A', (), {}), Counter, int)]
        [<class 'tuple'>, <class 'object'>, None, None]
    """
    try:
        return _content_bases[kind]
    except KeyError:
        base: type[Any] | None = _written_in_c(kind)[0]
        if base is types.SimpleNamespace:
            base = object
        is_known = base is object or kind in _CONTAINERS
        if not is_known and base in _CONTAINERS and base not in _COPIED_BY_SUBCLASSES:
            names = ["__eq__"] if issubclass(base, dict) else ["__eq__", "__iter__"]
            is_known = all(method_of(kind, x) is method_of(base, x) for x in names)
        if not is_known or _hides_something(kind, len(slots_of(kind))):
            base = None
        _content_bases[kind] = base
        return base


_CONTAINERS = {dict, OrderedDict, defaultdict, list, set, deque, tuple, frozenset}
# A copy of a subclass's instance is made by a call of the subclass.
_COPIED_BY_SUBCLASSES = {defaultdict, deque}
_content_bases: weakref.WeakKeyDictionary[type[Any], type[Any] | None] = (
    weakref.WeakKeyDictionary()
)


def _written_in_c(kind: type[Any]) -> list[type[Any]]:
    return [base for base in kind.__mro__ if base.__flags__ & _IMMUTABLE_TYPE]


def _hides_something(kind: type[Any], slots: int) -> bool:
    """Whether instances hold more than attributes and the content of known bases."""
    written_in_c = _written_in_c(kind)
    if not _BASES.issuperset(written_in_c):
        return True
    # A type written in C may look like one of Python; the size of instances tells.
    own = sum(
        any(name in vars(base) for base in kind.__mro__)
        for name in ("__dict__", "__weakref__")
    )
    size: int = written_in_c[0].__basicsize__
    return kind.__basicsize__ > size + _POINTER * (slots + own)


def _parts_of_array(array: Any) -> Iterator[tuple[Any, Any]]:
    if jax.dtypes.issubdtype(array.dtype, jax.dtypes.prng_key):
        yield "impl", str(jax.random.key_impl(array))
        with jax.ensure_compile_time_eval():  # in a trace it would be a traced value
            array = jax.random.key_data(array)
    elements = np.asarray(array)
    yield "shape", elements.shape
    yield "dtype", elements.dtype
    if elements.dtype.hasobject:
        yield from enumerate(elements.ravel().tolist())
    else:
        yield "elements", elements.tobytes()
