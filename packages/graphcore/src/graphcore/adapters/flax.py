"""Flax NNX: its modules are graph nodes here, and its variables variables.

Its objects stay what they are: their own `split`, `merge`, `state` and `jit` work on
them before and after. Children of a module are its attributes; the state that Flax
keeps in each (in which trace it was made) is none, and belongs to the object.

Flax's modules and variables are JAX pytrees as well. They are registered here with
their base classes, so none is ever taken for a pytree.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import Any

import flax
import numpy as np
from flax import nnx

import graphcore as gc
from graphcore._jax import current_trace
from graphcore.adapters.checking import checked, require
from graphcore.adapters.loading import AdapterError
from graphcore.getters import consume
from graphcore.nodes.callables import callables_last
from graphcore.state.filters import add_filter_type
from graphcore.state.nesting import key_order
from graphcore.variables.bare_arrays import is_array
from graphcore.variables.impl import (
    VariableImpl,
    add_variable_impl,
    register_counterparts,
)
from graphcore.variables.metadata import add_carrier_type

TESTED = ("0.11.", "0.12.")
"""What the releases that this was tested with begin with."""

Module: Any = getattr(nnx, "Pytree", None) or nnx.Object
Pairs = Iterable[tuple[Any, Any]]


def _slot(*names: str) -> Any:
    """The first slot of these names that Flax's variables have."""
    found = (vars(nnx.Variable).get(name) for name in names)
    slot = next((s for s in found if hasattr(s, "__set__")), None)
    if slot is None:
        raise AdapterError(f"its variables have no {names[0]!r}")
    return slot


# Variables. Reads and writes go past Flax's properties, which run hooks and, in some
# releases, warn.


# By the name of the slot; comprehensions, because a call for each is slow.
_READ_ALL: dict[str, Any] = {
    "_raw_value": lambda variables: [variable._raw_value for variable in variables],
    "raw_value": lambda variables: [variable.raw_value for variable in variables],
}


def _variable_impl() -> VariableImpl:
    """How variables are handled."""
    value, metadata = _slot("_raw_value", "raw_value"), _slot("_var_metadata")
    return VariableImpl(
        get_value=value.__get__,
        set_value=value.__set__,
        get_metadata=attrgetter("_var_metadata"),
        create=lambda kind, x, new: kind.from_metadata(x, dict(new)),
        set_metadata=lambda variable, new: metadata.__set__(variable, dict(new)),
        get_trace=attrgetter("_trace_state._jax_trace"),
        # One call into C, which can't be interrupted halfway through.
        set_values=lambda variables, xs: consume(map(value.__set__, variables, xs)),
        get_values=_READ_ALL[value.__name__],
        get_all_metadata=lambda variables: [x._var_metadata for x in variables],
        refuse=_refuse,
        give_state=_give_variable,
        flags=frozenset(("hijax", "ref", "eager_sharding")),
    )


def _refuse(variable: Any) -> str | None:
    if not variable._var_metadata.get("ref"):
        return None
    return (
        "holds a `Ref`, which JAX mutates itself: make it with `ref=False` to have a "
        "transform carry its value."
    )


def _give_variable(state: Any) -> Any:
    # An empty `State` stands for a variable whose gradient is at another place.
    return _give_state(state) if isinstance(state, gc.State) else state.to_variable()


# Modules


class _Modules:
    """How modules, and all other nodes, are handled."""

    def __init__(self) -> None:
        names = vars(nnx.Module())
        self.state_name = next(n for n in names if n.endswith("__state"))
        self._new_state = type(names[self.state_name])
        # In each module: which of its attributes JAX takes for data.
        self.marks_name = self.state_name.replace("__state", "__nodes")
        self._new_marks = type(names[self.marks_name])
        # Each is one object: where nobody tells, a child that is another one is new.
        self._known: dict[tuple[Any, ...], tuple[Any, ...]] = {}
        # The flag of modules whose integer names are positions, as in a `List`.
        self._positions = self.state_name.replace("__state", "__has_int_keys")

    def has_positions(self, node: Any) -> bool:
        # Asked of the class, which has the flag since 0.12.1. An instance without it
        # may search its parts, and one that is being made has no parts yet.
        return bool(getattr(type(node), self._positions, False))

    # Of the marks only those are described that don't follow from what is marked. So
    # a variable that a function adds changes nothing but the place where it stands.

    def _unusual_marks(self, marks: Any, items: Mapping[Any, Any]) -> tuple[Any, ...]:
        if isinstance(marks, Mapping):  # since 0.12
            marks = {key for key, is_marked in marks.items() if is_marked}
        unusual = [k for k, x in items.items() if (k in marks) != _is_data(x)]
        names = tuple(sorted(unusual, key=key_order))
        return self._known.setdefault(names, names)

    def _marks(self, items: Mapping[Any, Any], unusual: Sequence[Any]) -> Any:
        marks = {self.state_name: True, self.marks_name: False}
        marks.update((k, _is_data(x) != (k in unusual)) for k, x in items.items())
        if issubclass(self._new_marks, Mapping):
            return self._new_marks(marks)  # type: ignore[call-arg]
        return self._new_marks(key for key, is_marked in marks.items() if is_marked)

    def flatten(self, node: Any) -> tuple[list[tuple[Any, Any]], Any]:
        items = dict(vars(node))
        items.pop(self.state_name, None)
        marks = items.pop(self.marks_name, None)
        if marks is not None:
            marks = self._unusual_marks(marks, items)
        if self.has_positions(node):
            items = {int(k) if k.isdigit() else k: x for k, x in items.items()}
        if marks is not None:
            items[self.marks_name] = marks
        try:
            pairs = sorted(items.items())
        except TypeError:  # names and positions
            pairs = sorted(items.items(), key=lambda pair: key_order(pair[0]))
        return callables_last(pairs), None

    def _stored(self, node: Any, key: Any) -> Any:
        # Before 0.12.1, a `List` has numbers for keys.
        return str(key) if self.has_positions(node) else key

    def set_key(self, node: Any, key: Any, child: Any) -> None:
        attributes, key = vars(node), self._stored(node, key)
        if key not in attributes and self.marks_name in attributes:
            unusual = self._unusual_marks(attributes[self.marks_name], attributes)
            marks = self._marks({**attributes, key: child}, unusual)
            attributes[self.marks_name] = marks
        attributes[key] = child

    def pop_key(self, node: Any, key: Any) -> Any:
        return vars(node).pop(self._stored(node, key))

    def create_empty(self, metadata: Any, type: type[Any]) -> Any:
        node = object.__new__(type)
        vars(node)[self.state_name] = self._new_state()
        return node

    def clear(self, node: Any) -> None:
        attributes = vars(node)
        for key in attributes.keys() - {self.state_name}:
            del attributes[key]

    def init(self, node: Any, pairs: Pairs) -> None:
        items = {self._stored(node, key): child for key, child in pairs}
        unusual = items.pop(self.marks_name, None)
        if unusual is not None:
            vars(node)[self.marks_name] = self._marks(items, unusual)
        vars(node).update(items)

    def get_trace(self, node: Any) -> Any:
        return vars(node)[self.state_name].trace_state.jax_trace


class _FlaggedModules(_Modules):
    """How modules are handled whose state says more than in which trace they were made.

    While Linen's variables are made, and once `setup` has run, it says so. That is a
    child where it is not as usual.
    """

    _names = "_initializing", "_is_setup"
    _usual = False, False

    def _set_flags(self, node: Any, flags: Sequence[bool]) -> None:
        for name, flag in zip(self._names, flags, strict=True):
            setattr(vars(node)[self.state_name], name, flag)

    def flatten(self, node: Any) -> tuple[list[tuple[Any, Any]], Any]:
        pairs, metadata = super().flatten(node)
        flags = attrgetter(*self._names)(vars(node)[self.state_name])
        if flags != self._usual:
            pairs.append((self.state_name, self._known.setdefault(flags, flags)))
        return pairs, metadata

    def set_key(self, node: Any, key: Any, child: Any) -> None:
        if key == self.state_name:
            self._set_flags(node, child)
        else:
            super().set_key(node, key, child)

    def pop_key(self, node: Any, key: Any) -> Any:
        if key != self.state_name:
            return super().pop_key(node, key)
        flags = attrgetter(*self._names)(vars(node)[key])
        self._set_flags(node, self._usual)
        return flags

    def clear(self, node: Any) -> None:
        super().clear(node)
        self._set_flags(node, self._usual)

    def init(self, node: Any, pairs: Pairs) -> None:
        items = dict(pairs)
        self._set_flags(node, items.pop(self.state_name, self._usual))
        super().init(node, items.items())


def _is_data(x: Any) -> bool:
    """Whether Flax marks an attribute as data, if nobody says what it is."""
    return is_array(x) or isinstance(x, nnx.Variable | Module)


def _give_state(state: gc.State[Any, Any]) -> Any:
    """A `State` as Flax has it, of variables."""

    def given(item: Any) -> Any:
        if isinstance(item, Mapping):
            return {key: given(child) for key, child in item.items()}
        return item.to_variable() if isinstance(item, gc.VariableState) else item

    return nnx.State(given(state.raw_mapping))


# Flax's own `State` is a pytree; its contents are in a dict.


def _flatten_state(state: Any) -> tuple[list[tuple[Any, Any]], Any]:
    pairs = [*state.raw_mapping.items()]
    return sorted(pairs, key=lambda pair: key_order(pair[0])), None


def check(modules: _Modules, variables: Any) -> None:
    """Makes sure that Flax's objects are built as this adapter takes them to be.

    Raises:
        AdapterError: If something does not come out as it must.
    """
    node = nnx.Module()
    # NumPy: where the first module appears, JAX may be forbidden to make arrays.
    node.weight = nnx.Param(np.zeros(()), unit="m")
    (pair,) = [p for p in modules.flatten(node)[0] if p[0] == "weight"]
    variable = pair[1]
    metadata = variables.get_metadata(variable)
    twin = variables.create(nnx.Param, 1.0, metadata)
    variables.set_values([variable], [2.0])
    variables.set_metadata(variable, {**metadata, "unit": "km"})
    other = modules.create_empty(None, type=type(node))
    modules.init(other, modules.flatten(node)[0])
    require(
        {
            "a write is not seen": _value(variable) == 2.0,
            "a change of metadata is not seen": variable.unit == "km",
            "a new variable is another one": type(twin) is nnx.Param
            and _value(twin) == 1.0
            and twin.unit == "m",
            "the trace is not known": variables.get_trace(twin) == current_trace()
            and modules.get_trace(other) == current_trace(),
            "a round trip loses a child": other.weight is variable
            and vars(other)[modules.marks_name] == vars(node)[modules.marks_name]
            and other.weight.unit == "km",
        }
    )


def _value(variable: Any) -> Any:
    get = getattr(variable, "get_value", None)
    return variable.value if get is None else get()


def _add_filters() -> None:
    theirs: Any = nnx.filterlib
    convert: dict[str, Any] = {
        "WithTag": lambda f: gc.WithTag(f.tag),
        "OfType": lambda f: gc.OfType(f.type),
        "PathContains": lambda f: gc.PathContains(f.key, getattr(f, "exact", True)),
        "PathIn": lambda f: gc.PathIn(*f.paths),
        "Any": lambda f: gc.Any(*f.predicates),
        "All": lambda f: gc.All(*f.predicates),
        "Not": lambda f: gc.Not(f.predicate),
        "Everything": lambda f: gc.Everything(),
        "Nothing": lambda f: gc.Nothing(),
    }
    for name, function in convert.items():
        add_filter_type(getattr(theirs, name), function)


def _add_modules(kind: Any, how: _Modules, containers: Sequence[str]) -> None:
    gc.register_graph_node_type(
        kind,
        flatten=how.flatten,
        set_key=how.set_key,
        pop_key=how.pop_key,
        create_empty=how.create_empty,
        clear=how.clear,
        init=how.init,
        subclasses=True,
        containers=containers,
        get_trace=how.get_trace,
        give_state=_give_state,
    )


def _carried(given: Any) -> gc.VariableMetadata[Any]:
    """What brings metadata into a variable, as ours, which older releases resemble."""
    found: dict[str, Any] = {}
    for name in ("set_value", "get_value", "create_value", "add_axis", "remove_axis"):
        hooks = getattr(given, f"on_{name}", None) or getattr(
            given, f"{name}_hooks", ()
        )
        found[f"{name}_hooks"] = hooks
    known = {name: x for name, x in given.metadata.items() if x is not None}
    return gc.VariableMetadata(given.raw_value, metadata=known, **found)


def install() -> None:
    """Registers the types of Flax NNX.

    Raises:
        AdapterError: If the installed release is built in another way.
    """
    with checked("Flax", flax.__version__, TESTED):
        modules, variables = _Modules(), _variable_impl()
        check(modules, variables)
    add_variable_impl(nnx.Variable, variables)
    names = ("Variable", "Param", "BatchStat", "Cache", "Intermediate", "Perturbation")
    for name in names:
        register_counterparts(getattr(nnx, name), getattr(gc, name))
    hijax = getattr(nnx.variablelib, "HijaxVariable", None)
    if hijax is not None:
        gc.register_variable_type(
            hijax,
            get_value=variables.get_value,
            set_value=variables.set_value,
            get_metadata=variables.get_metadata,
            create=variables.create,
            refuse=lambda variable: (
                "is a hijax variable, which JAX carries itself: make it with "
                "`hijax=False` to have a transform carry its value."
            ),
        )
    _add_modules(Module, modules, ["__dict__"])
    # Flags do not show in a container.
    for name in filter(partial(hasattr, nnx.bridge), ("Module", "ToNNX")):
        _add_modules(getattr(nnx.bridge, name), _FlaggedModules(), [])
    _add_filters()
    add_carrier_type(nnx.VariableMetadata, _carried)
    gc.register_pytree_node_type(
        nnx.State,
        _flatten_state,
        lambda pairs, metadata: nnx.State(dict(pairs)),
        containers=["_mapping"],
    )


install()
