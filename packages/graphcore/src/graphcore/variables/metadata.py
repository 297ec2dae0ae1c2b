"""Metadata that an initializer attaches to the variable made from its result."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeAlias, TypeVar

from graphcore.adapters.loading import load_adapters
from graphcore.display.printing import Parts, call_parts
from graphcore.hashable_mapping import HashableMapping, as_hashable

__all__ = ["VariableMetadata", "register_creation_hook", "with_metadata"]

A = TypeVar("A")
Hooks: TypeAlias = Callable[..., Any] | Sequence[Callable[..., Any]]


# Names of metadata that are functions to call.
HOOKS = (
    "on_set_value",
    "on_get_value",
    "on_create_value",
    "on_add_axis",
    "on_remove_axis",
)
# Names of one entry, of which a variable has at most one. It is stored by the name that
# was given, except that the last one, an old name, is stored as the second.
SHARDINGS = ("sharding", "out_sharding", "sharding_names")


def stored_name(name: str, metadata: Mapping[str, Any]) -> str:
    """The name by which an entry is stored in metadata.

    Args:
        name: Any name for it.
        metadata: The metadata.

    Returns:
        The name there; the given one if there is no such entry.

    Example:
        >>> stored_name('sharding', {'out_sharding': ('data',)})
        'out_sharding'
    """
    if name in metadata or name not in SHARDINGS:
        return name
    return next((other for other in SHARDINGS if other in metadata), name)


def as_stored(metadata: Mapping[str, Any]) -> HashableMapping[str, Any]:
    """Metadata in its stored form: one name each, and hooks in hashable tuples.

    Args:
        metadata: Any mapping from names.

    Returns:
        The mapping.

    Example:
        >>> as_stored({'on_get_value': [abs], 'unit': 'm'})['on_get_value']
        (<built-in function abs>,)
    """
    if not metadata or isinstance(metadata, HashableMapping):
        return as_hashable(metadata)
    stored: dict[str, Any] = {}
    for name, value in metadata.items():
        if name in SHARDINGS:
            for other in SHARDINGS:
                stored.pop(other, None)
            name = "out_sharding" if name == "sharding_names" else name
        hooks = name in HOOKS and isinstance(value, list)
        stored[name] = tuple(value) if hooks else value
    return HashableMapping(stored, copy=False)


# By name of metadata: makes the value to store in a new variable that is given them.
CREATION: dict[str, Callable[..., Any]] = {}


def register_creation_hook(name: str, hook: Callable[..., Any]) -> None:
    """Registers a function that makes the values of new variables with some metadata.

    Args:
        name: The name by which the metadata are given; the stored name may differ.
        hook: `hook(variable, value)` returns the value to store. It runs after the
            variable's own creation hooks.

    Example:
        >>> import graphcore as gc
        >>> register_creation_hook('doubled', lambda variable, value: 2 * value)
        >>> gc.Param(1, doubled=True).value
        2
    """
    CREATION[name] = hook


@dataclass(frozen=True)
class VariableMetadata(Generic[A]):
    """A value on its way into a variable, with the metadata it brings along.

    Args:
        raw_value: The value.
        set_value_hooks: Becomes `on_set_value`.
        get_value_hooks: Becomes `on_get_value`.
        create_value_hooks: Becomes `on_create_value`.
        add_axis_hooks: Becomes `on_add_axis`.
        remove_axis_hooks: Becomes `on_remove_axis`.
        metadata: The rest.

    Example:
        >>> import graphcore as gc
        >>> gc.Param(VariableMetadata(1.0, metadata={'unit': 'm'})).unit
        'm'
    """

    raw_value: A
    set_value_hooks: Hooks = ()
    get_value_hooks: Hooks = ()
    create_value_hooks: Hooks = ()
    add_axis_hooks: Hooks = ()
    remove_axis_hooks: Hooks = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)

    def as_metadata(self) -> dict[str, Any]:
        """Returns everything but the value under the names a variable uses.

        Returns:
            Keyword arguments for a variable; hooks that are not set are left out.

        Example:
            >>> VariableMetadata(1.0, metadata={'unit': 'm'}).as_metadata()
            {'unit': 'm'}
        """
        found: dict[str, Any] = {}
        for name in HOOKS:
            hooks = getattr(self, f"{name.removeprefix('on_')}_hooks")
            if hooks:
                found[name] = (hooks,) if callable(hooks) else tuple(hooks)
        return {**found, **self.metadata}

    def __parts__(self) -> Parts:
        return call_parts(self, [self.raw_value], self.as_metadata())


# What makes one of the above of what initializers of another library return.
_carriers: dict[type[Any], Callable[[Any], VariableMetadata[Any]]] = {}


def add_carrier_type(
    kind: type[Any], convert: Callable[[Any], VariableMetadata[Any]]
) -> None:
    """Has variables take their metadata from what another library brings them in.

    Args:
        kind: Its type.
        convert: Makes a `VariableMetadata` of one.
    """
    _carriers[kind] = convert


def carried(value: Any) -> Any:
    """A value; a `VariableMetadata` if it comes with metadata, of whatever library.

    Args:
        value: What a variable is to be made of.

    Returns:
        The same, or what stands for it here.

    Example:
        >>> carried((1, 2))
        (1, 2)
    """
    kind = type(value)
    convert = _carriers.get(kind)
    if convert is None and load_adapters(kind):
        convert = _carriers.get(kind)
    return value if convert is None else convert(value)


def with_metadata(
    initializer: Callable[..., A],
    set_value_hooks: Hooks = (),
    get_value_hooks: Hooks = (),
    create_value_hooks: Hooks = (),
    add_axis_hooks: Hooks = (),
    remove_axis_hooks: Hooks = (),
    **metadata: Any,
) -> Callable[..., VariableMetadata[A]]:
    """Wraps an initializer so that variables made from its results carry metadata.

    Args:
        initializer: Any callable that returns a value, such as those of
            `jax.nn.initializers`.
        set_value_hooks: Called as `hook(variable, value)` when the value is set.
        get_value_hooks: Likewise when it is read.
        create_value_hooks: Likewise when the variable is made.
        add_axis_hooks: Called as `hook(variable, index, name)`.
        remove_axis_hooks: Likewise.
        **metadata: Any further metadata.

    Returns:
        An initializer with the same arguments that returns a `VariableMetadata`.

    Example:
        >>> import graphcore as gc, jax
        >>> init = with_metadata(jax.nn.initializers.zeros, sharding=('data', None))
        >>> gc.Param(init(jax.random.key(0), (2, 3))).sharding
        ('data', None)
    """
    around = VariableMetadata[Any](
        *(None, set_value_hooks, get_value_hooks, create_value_hooks),
        *(add_axis_hooks, remove_axis_hooks, metadata),
    )

    @functools.wraps(initializer)
    def wrapper(*args: Any, **kwargs: Any) -> VariableMetadata[A]:
        return replace(around, raw_value=initializer(*args, **kwargs))

    return wrapper
