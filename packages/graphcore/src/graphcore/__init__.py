"""Graphs of Python objects as a hashable definition and a pytree, and back.

Objects with shared references, cycles and static attributes meet a world of pure
functions over pytrees here. `split` takes a graph apart, `merge` puts it together, and
`update_context` keeps the identity of its objects across a functional boundary.
"""

from graphcore.adapters.loading import AdapterError, register_adapter
from graphcore.boundary.divided import register_filtered_type
from graphcore.comparison import diff
from graphcore.content_key import register_immutable_type
from graphcore.context import (
    MergeContext,
    SplitContext,
    UpdateContext,
    current_update_context,
    merge_context,
    split_context,
    update_context,
)
from graphcore.display.display import display, to_dot, to_mermaid
from graphcore.duplicates import find_duplicates
from graphcore.editing import pop, update
from graphcore.errors import TraceContextError
from graphcore.functional import (
    GraphState,
    PureState,
    call,
    clone,
    flatten,
    graphdef,
    merge,
    split,
    state,
    unflatten,
    variables,
)
from graphcore.graphdef.definition import (
    GraphDef,
    LeafAttribute,
    NodeDef,
    NodeRef,
    Static,
    StaticAttribute,
    SubGraphAttribute,
    VariableDef,
)
from graphcore.hashable_mapping import HashableMapping
from graphcore.nodes.objects import Dict, List, Object
from graphcore.nodes.plain_classes import register_dataclass
from graphcore.nodes.pytrees import by_value
from graphcore.nodes.registry import (
    GraphNodeImpl,
    PytreeNodeImpl,
    get_node_impl,
    get_node_impl_for_type,
    is_graph_node,
    is_node,
    is_node_type,
    is_pytree_node,
    register_graph_node_type,
    register_pytree_node_type,
)
from graphcore.nodes.traversal import iter_graph
from graphcore.prefixes import PrefixMapping, broadcast_prefix
from graphcore.refmap import RefMap, compose_mapping, compose_mapping_reversed
from graphcore.state.filters import (
    All,
    Any,
    Everything,
    Filter,
    Not,
    Nothing,
    OfType,
    PathContains,
    PathIn,
    Predicate,
    WithTag,
    filters_to_predicates,
    to_predicate,
)
from graphcore.state.pytree import register_states
from graphcore.state.state import FlatState, State, create_path_filters
from graphcore.trees import (
    NodeStates,
    broadcast_state,
    clear_non_graph_nodes,
    from_tree,
    get_broadcast_state,
    to_tree,
)
from graphcore.variables.impl import (
    is_variable,
    register_counterparts,
    register_variable_type,
)
from graphcore.variables.metadata import (
    VariableMetadata,
    register_creation_hook,
    with_metadata,
)
from graphcore.variables.names import (
    register_variable_name_type_pair,
    variable_name_from_type,
    variable_type_from_name,
)
from graphcore.variables.state import VariableState
from graphcore.variables.variable import (
    BatchStat,
    Cache,
    Intermediate,
    Param,
    Perturbation,
    Variable,
)

register_states()

__version__ = "1.0.0"

__all__ = [  # noqa: RUF022 (grouped)
    # Variables
    "Variable",
    "Param",
    "BatchStat",
    "Cache",
    "Intermediate",
    "Perturbation",
    "VariableState",
    "VariableMetadata",
    "with_metadata",
    "is_variable",
    "register_variable_type",
    "register_counterparts",
    "register_creation_hook",
    "register_variable_name_type_pair",
    "variable_name_from_type",
    "variable_type_from_name",
    # Filters
    "Filter",
    "All",
    "Any",
    "Everything",
    "Not",
    "Nothing",
    "OfType",
    "PathContains",
    "PathIn",
    "Predicate",
    "WithTag",
    "filters_to_predicates",
    "to_predicate",
    # States
    "State",
    "FlatState",
    "create_path_filters",
    # Nodes
    "Object",
    "by_value",
    "List",
    "Dict",
    "GraphNodeImpl",
    "PytreeNodeImpl",
    "get_node_impl",
    "get_node_impl_for_type",
    "is_graph_node",
    "is_node",
    "is_node_type",
    "is_pytree_node",
    "register_dataclass",
    "register_filtered_type",
    "register_graph_node_type",
    "register_pytree_node_type",
    "register_immutable_type",
    "register_adapter",
    "AdapterError",
    # Definitions
    "GraphDef",
    "GraphState",
    "PureState",
    "NodeDef",
    "NodeRef",
    "VariableDef",
    "SubGraphAttribute",
    "StaticAttribute",
    "LeafAttribute",
    "HashableMapping",
    "Static",
    # Graphs to values and back
    "flatten",
    "unflatten",
    "split",
    "merge",
    "update",
    "state",
    "graphdef",
    "variables",
    "pop",
    "clone",
    "call",
    "iter_graph",
    "find_duplicates",
    # Identity across a functional boundary
    "RefMap",
    "compose_mapping",
    "compose_mapping_reversed",
    "update_context",
    "current_update_context",
    "UpdateContext",
    "split_context",
    "merge_context",
    "SplitContext",
    "MergeContext",
    "TraceContextError",
    # Pytrees that contain graph nodes
    "to_tree",
    "from_tree",
    "NodeStates",
    "PrefixMapping",
    "broadcast_prefix",
    "clear_non_graph_nodes",
    "broadcast_state",
    "get_broadcast_state",
    # Looking at a graph
    "display",
    "diff",
    "to_dot",
    "to_mermaid",
]
