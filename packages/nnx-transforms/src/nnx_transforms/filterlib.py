# ruff: noqa: F403, F405
"""The filters of graphcore."""

from graphcore import *

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
