"""Flax NNX: its modules are graph nodes here, and its variables variables.

Its objects stay what they are: their own `split`, `merge`, `state` and `jit` work on
them before and after. Children of a module are its attributes; the state that Flax
keeps in each (in which trace it was made) is none, and belongs to the object.

Flax's modules and variables are JAX pytrees as well. They are registered here with
their base classes, so none is ever taken for a pytree.
"""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any

import flax
import jax.numpy as jnp
from flax import nnx

import graphcore as gc
from graphcore._jax import current_trace
from graphcore.adapters.loading import AdapterError
from graphcore.state.filters import add_filter_type
from graphcore.state.nesting import key_order

TESTED = ("0.11", "0.12")
"""The releases that this was tested with."""

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


# Without a call for each; by the name of the slot.
_READ_ALL: dict[str, Any] = {
    "_raw_value": lambda variables: [variable._raw_value for variable in variables],
    "raw_value": lambda variables: [variable.raw_value for variable in variables],
}


class _Variables:
    """How variables are handled."""

    def __init__(self) -> None:
        value = _slot("_raw_value", "raw_value")
        metadata = _slot("_var_metadata")
        self.get_value = value.__get__
        self.get_values = _READ_ALL[value.__name__]
        self.set_value = value.__set__
        self.get_metadata = attrgetter("_var_metadata")
        self._replace_metadata = metadata.__set__
        self.get_trace = attrgetter("_trace_state._jax_trace")

    def get_all_metadata(self, variables: Sequence[Any]) -> list[Any]:
        return [variable._var_metadata for variable in variables]

    def set_values(self, variables: Sequence[Any], values: Sequence[Any]) -> None:
        # One call into C, which can't be interrupted halfway through.
        deque(map(self.set_value, variables, values), maxlen=0)

    def set_metadata(self, variable: Any, metadata: Mapping[str, Any]) -> None:
        self._replace_metadata(variable, dict(metadata))

    @staticmethod
    def create(kind: type[Any], value: Any, metadata: Mapping[str, Any]) -> Any:
        return kind.from_metadata(value, dict(metadata))

    def refuse(self, variable: Any) -> str | None:
        if self.get_metadata(variable).get("ref"):
            return (
                "holds a `Ref`, which JAX mutates itself: make it with `ref=False` to "
                "have a transform carry its value."
            )
        return None


def _give_variable(state: Any) -> Any:
    # A variable that has its gradient elsewhere has an empty state.
    return _give_state(state) if isinstance(state, gc.State) else state.to_variable()


# Modules


class _Modules:
    """How modules, and all other nodes, are handled."""

    def __init__(self) -> None:
        names = vars(nnx.Module())
        self.state_name = next(n for n in names if n.endswith("__state"))
        self._new_state = type(names[self.state_name])
        # Whose numbers stand for positions, as in a `List`.
        self._has_positions = attrgetter(
            self.state_name.replace("__state", "__has_int_keys")
        )

    def has_positions(self, node: Any) -> bool:
        try:
            return bool(self._has_positions(node))
        except AttributeError:  # before 0.12.1
            return False

    def flatten(self, node: Any) -> tuple[list[tuple[Any, Any]], Any]:
        items = dict(vars(node))
        items.pop(self.state_name, None)
        if not self.has_positions(node):
            return sorted(items.items()), None
        pairs = ((int(k) if k.isdigit() else k, x) for k, x in items.items())
        return sorted(pairs, key=lambda pair: key_order(pair[0])), None

    def set_key(self, node: Any, key: Any, child: Any) -> None:
        vars(node)[str(key)] = child

    def pop_key(self, node: Any, key: Any) -> Any:
        return vars(node).pop(str(key))

    def create_empty(self, metadata: Any, type: type[Any]) -> Any:
        node = object.__new__(type)
        vars(node)[self.state_name] = self._new_state()
        return node

    def clear(self, node: Any) -> None:
        attributes = vars(node)
        for key in attributes.keys() - {self.state_name}:
            del attributes[key]

    def init(self, node: Any, pairs: Pairs) -> None:
        vars(node).update((str(key), child) for key, child in pairs)

    def get_trace(self, node: Any) -> Any:
        return vars(node)[self.state_name].trace_state.jax_trace


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


def _unflatten_state(pairs: Pairs, metadata: Any) -> Any:
    return nnx.State(dict(pairs))


def check(modules: _Modules, variables: _Variables) -> None:
    """Makes sure that Flax's objects are built as this adapter takes them to be.

    Raises:
        AdapterError: If something does not come out as it must.
    """
    node = nnx.Module()
    node.weight = nnx.Param(jnp.zeros(()), unit="m")
    (pair,) = [p for p in modules.flatten(node)[0] if p[0] == "weight"]
    variable = pair[1]
    metadata = variables.get_metadata(variable)
    twin = variables.create(nnx.Param, 1.0, metadata)
    variables.set_values([variable], [2.0])
    variables.set_metadata(variable, {**metadata, "unit": "km"})
    other = modules.create_empty(None, type=type(node))
    modules.init(other, modules.flatten(node)[0])
    checks = {
        "a write is not seen": _value(variable) == 2.0,
        "a change of metadata is not seen": variable.unit == "km",
        "a new variable is another one": type(twin) is nnx.Param
        and _value(twin) == 1.0
        and twin.unit == "m",
        "the trace is not known": variables.get_trace(twin) == current_trace()
        and modules.get_trace(other) == current_trace(),
        "a round trip loses a child": other.weight is variable
        and nnx.state(other)["weight"].unit == "km",
    }
    for problem, holds in checks.items():
        if not holds:
            raise AdapterError(problem)


def _value(variable: Any) -> Any:
    get = getattr(variable, "get_value", None)
    return variable.value if get is None else get()


def _add_filters() -> None:
    theirs: Any = nnx.filterlib
    convert: dict[str, Any] = {
        "WithTag": lambda f: gc.WithTag(f.tag),
        "OfType": lambda f: gc.OfType(f.type),
        "PathContains": lambda f: gc.PathContains(f.key) if _is_exact(f) else f,
        "PathIn": lambda f: gc.PathIn(*f.paths),
        "Any": lambda f: gc.Any(*f.predicates),
        "All": lambda f: gc.All(*f.predicates),
        "Not": lambda f: gc.Not(f.predicate),
        "Everything": lambda f: gc.Everything(),
        "Nothing": lambda f: gc.Nothing(),
    }
    for name, function in convert.items():
        add_filter_type(getattr(theirs, name), function)


def _is_exact(filter: Any) -> bool:
    return bool(getattr(filter, "exact", True))


def install() -> None:
    """Registers the types of Flax NNX.

    Raises:
        AdapterError: If the installed release is built in another way.
    """
    try:
        modules, variables = _Modules(), _Variables()
        check(modules, variables)
    except Exception as error:
        raise AdapterError(
            f"Flax {flax.__version__} can't be used with graphcore {gc.__version__}: "
            f"{error}. This was tested with Flax {', '.join(TESTED)}: install one of "
            "those, or a newer graphcore."
        ) from error
    if not flax.__version__.startswith(TESTED):
        warnings.warn(
            f"graphcore {gc.__version__} was tested with Flax {', '.join(TESTED)}, not "
            f"with {flax.__version__}. What it relies on was checked and holds.",
            stacklevel=2,
        )
    names = ("Variable", "Param", "BatchStat", "Cache", "Intermediate", "Perturbation")
    gc.register_variable_type(
        nnx.Variable,
        get_value=variables.get_value,
        set_value=variables.set_value,
        get_metadata=variables.get_metadata,
        create=variables.create,
        set_metadata=variables.set_metadata,
        get_trace=variables.get_trace,
        set_values=variables.set_values,
        get_values=variables.get_values,
        get_all_metadata=variables.get_all_metadata,
        refuse=variables.refuse,
        give_state=_give_variable,
        counterparts={getattr(nnx, name): getattr(gc, name) for name in names},
    )
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
    gc.register_graph_node_type(
        Module,
        flatten=modules.flatten,
        set_key=modules.set_key,
        pop_key=modules.pop_key,
        create_empty=modules.create_empty,
        clear=modules.clear,
        init=modules.init,
        subclasses=True,
        containers=["__dict__"],
        get_trace=modules.get_trace,
        give_state=_give_state,
    )
    _add_filters()
    # Which attributes are data, kept in each module.
    gc.register_immutable_type(
        type(vars(nnx.Module())[modules.state_name.replace("__state", "__nodes")])
    )
    gc.register_pytree_node_type(
        nnx.State, _flatten_state, _unflatten_state, containers=["_mapping"]
    )


install()
