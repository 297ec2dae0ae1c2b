"""A griffe extension for the reference: how this repository words its docstrings.

Griffe knows the heading ``Examples`` alone; one example reads better in the singular.
And it knows the arguments of functions and of decorated dataclasses, but not those that
a base class makes of annotated fields (NamedTuple, linen_lift's Module): these it lists
among the attributes.
"""

import re
from typing import Any

import griffe

EXAMPLE = re.compile(r"^([ \t]*)Example:[ \t]*$", re.M)
ARGS = re.compile(r"^([ \t]*)Args:[ \t]*$", re.M)


def has_fields_for_arguments(cls: griffe.Class) -> bool:
    """Whether a class has annotated fields and no constructor of its own."""
    fields = (
        member.is_attribute and member.annotation is not None
        for member in cls.members.values()
        if not member.is_alias
    )
    return "__init__" not in cls.members and any(fields)


class RepositoryDocstrings(griffe.Extension):
    """Rewrite headings into those that griffe knows."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the heading of the examples."""
        if obj.docstring:
            obj.docstring.value = EXAMPLE.sub(r"\1Examples:", obj.docstring.value)

    def on_class(self, *, cls: griffe.Class, **_: Any) -> None:
        """Rewrite the heading of arguments that are fields."""
        if cls.docstring and has_fields_for_arguments(cls):
            cls.docstring.value = ARGS.sub(r"\1Attributes:", cls.docstring.value)
