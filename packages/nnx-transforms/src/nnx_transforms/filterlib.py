# ruff: noqa: F403, F405
"""The filters of graphcore."""

from graphcore import *
from nnx_transforms.graph import Path as PathParts

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
