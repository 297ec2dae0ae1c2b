"""What stands inside the objects of this package, for `printing`.

Importing this module registers it. Variables are shown with their raw values: a hook
may fail, and a look at an object must not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from graphcore.display.printing import (
    Parts,
    leaf_text,
    mapping_parts,
    one_line,
    parts,
    treescope_repr,
)
from graphcore.graphdef.definition import (
    LeafAttribute,
    NodeDef,
    NodeRef,
    Static,
    StaticAttribute,
    SubGraphAttribute,
    VariableDef,
)
from graphcore.hashable_mapping import HashableMapping
from graphcore.nodes.objects import Dict, List
from graphcore.nodes.registry import GraphNodeImpl, find_node_impl, get_node_impl
from graphcore.refmap import RefMap
from graphcore.state.state import FlatState, State
from graphcore.trees import NodeStates
from graphcore.variables.impl import find_variable_impl
from graphcore.variables.metadata import VariableMetadata
from graphcore.variables.state import VariableState


def _label(key: Any) -> str:
    is_name = isinstance(key, str) and key.isidentifier()
    return f"{key}=" if is_name else f"{leaf_text(key)}: "


def _fields(pairs: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return [(_label(key), value) for key, value in pairs.items()]


# Nodes and variables


@parts.register(object)
def _node_or_variable_parts(x: Any) -> Parts | None:
    name = type(x).__name__
    variable_impl = find_variable_impl(type(x))
    if variable_impl is not None:
        metadata = _fields(variable_impl.get_metadata(x))
        children = [("", variable_impl.get_value(x)), *metadata]
        return Parts(name, children, has_identity=True)
    node_impl = find_node_impl(x)
    if node_impl is None:
        return None
    pairs, _ = node_impl.flatten(x)
    is_graph_node = isinstance(node_impl, GraphNodeImpl)
    if not pairs and not is_graph_node:
        return None  # all there is to it is static
    children = [(_label(key), child) for key, child in pairs]
    return Parts(name, children, has_identity=is_graph_node)


@parts.register(List)
def _list_parts(x: List) -> Parts | None:
    pairs, _ = get_node_impl(x).flatten(x)
    # The positions go without saying; attributes beside them don't.
    children = [("" if isinstance(k, int) else _label(k), child) for k, child in pairs]
    return Parts(type(x).__name__, children, ("([", "])"), has_identity=True)


@parts.register(Dict)
def _dict_parts(x: Dict) -> Parts | None:
    pairs, _ = get_node_impl(x).flatten(x)
    inside = mapping_parts(type(x).__name__, pairs, ("({", "})"))
    return inside._replace(has_identity=True)


# States


class _Nested:
    """A state inside a state: shown by its braces alone."""

    def __init__(self, mapping: Mapping[Any, Any]) -> None:
        self.mapping = mapping

    __treescope_repr__ = treescope_repr


def _nested_items(mapping: Mapping[Any, Any]) -> list[tuple[Any, Any]]:
    return [
        (key, _Nested(value) if isinstance(value, State) else value)
        for key, value in mapping.items()
    ]


@parts.register(_Nested)
def _nested_parts(x: _Nested) -> Parts:
    return mapping_parts("", _nested_items(x.mapping), ("{", "}"))


@parts.register(State)
def _state_parts(x: State[Any, Any]) -> Parts:
    return mapping_parts("State", _nested_items(x), ("({", "})"))


@parts.register(FlatState)
def _flat_state_parts(x: FlatState[Any]) -> Parts:
    return mapping_parts("FlatState", x, ("({", "})"))


@parts.register(VariableState)
def _variable_state_parts(x: VariableState[Any]) -> Parts:
    children = [("", x.type), ("", x.value), *_fields(x.get_metadata())]
    return Parts("VariableState", children)


@parts.register(NodeStates)
def _node_states_parts(x: NodeStates[Any]) -> Parts:
    children: list[tuple[str, Any]] = []
    if x._graphdef is not None:
        children.append(("graphdef=", x._graphdef))
    states: Any = x.states  # JAX may put anything there on its way
    if isinstance(states, tuple) and len(states) == 1:
        children.append(("state=", states[0]))
    else:
        children.append(("states=", states))
    if x.metadata is not None:
        children.append(("metadata=", x.metadata))
    return Parts("NodeStates", children)


@parts.register(VariableMetadata)
def _variable_metadata_parts(x: VariableMetadata[Any]) -> Parts:
    return Parts("VariableMetadata", [("", x.raw_value), *_fields(x.as_metadata())])


# Definitions


@parts.register(NodeDef)
def _node_def_parts(x: NodeDef[Any]) -> Parts:
    head = f"({leaf_text(x.type)}, index={x.index}"
    for name in ("metadata", "index_mapping"):
        value = getattr(x, name)
        if value is not None:
            head += f", {name}={one_line(value)}"
    children = [
        (f"{leaf_text(attribute.key)}: ", attribute.value) for attribute in x.attributes
    ]
    return Parts("NodeDef", children, (f"{head}, {{", "})"))


@parts.register(NodeRef)
def _node_ref_parts(x: NodeRef[Any]) -> Parts:
    return Parts("NodeRef", [("", x.type), ("index=", x.index)])


@parts.register(VariableDef)
def _variable_def_parts(x: VariableDef[Any]) -> Parts:
    children = [("", x.type), ("index=", x.index), *_fields(x.metadata)]
    return Parts("VariableDef", children)


@parts.register(SubGraphAttribute)
@parts.register(StaticAttribute)
@parts.register(LeafAttribute)
def _attribute_parts(x: SubGraphAttribute | StaticAttribute | LeafAttribute) -> Parts:
    return Parts(type(x).__name__, [("", x.key), ("", x.value)])


@parts.register(Static)
def _static_parts(x: Static[Any]) -> Parts:
    return Parts("Static", [("", x.value)])


# Mappings


@parts.register(HashableMapping)
def _hashable_mapping_parts(x: HashableMapping[Any, Any]) -> Parts:
    return mapping_parts("HashableMapping", x.items(), ("({", "})"))


@parts.register(RefMap)
def _ref_map_parts(x: RefMap[Any, Any]) -> Parts:
    # As pairs, because a key may have as much inside as a value.
    return Parts("RefMap", [("", pair) for pair in x.items()], ("([", "])"))
