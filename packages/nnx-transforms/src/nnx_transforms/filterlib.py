"""The filters of graphcore."""

from graphcore import (
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

__all__ = [
    "All",
    "Any",
    "Everything",
    "Filter",
    "Not",
    "Nothing",
    "OfType",
    "PathContains",
    "PathIn",
    "Predicate",
    "WithTag",
    "filters_to_predicates",
    "to_predicate",
]
