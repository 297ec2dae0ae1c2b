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
    "PathParts",
    "Predicate",
    "WithTag",
    "filters_to_predicates",
    "to_predicate",
]

PathParts = tuple[object, ...]
"""A path, as a predicate is given it."""
