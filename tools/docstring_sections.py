"""A griffe extension for the reference: how this repository words its docstrings.

Griffe knows the heading ``Examples`` alone; one example reads better in the singular.
And it knows the arguments of functions and dataclasses, but not those of a NamedTuple,
which it lists among the attributes.
"""

import re
from typing import Any

import griffe

EXAMPLE = re.compile(r"^([ \t]*)Example:[ \t]*$", re.M)
ARGS = re.compile(r"^([ \t]*)Args:[ \t]*$", re.M)


def is_named_tuple(obj: griffe.Object) -> bool:
    """Whether an object is a class that names NamedTuple among its bases."""
    bases = obj.bases if isinstance(obj, griffe.Class) else []
    return any(str(base).rpartition(".")[2] == "NamedTuple" for base in bases)


class RepositoryDocstrings(griffe.Extension):
    """Rewrite headings into those that griffe knows."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the headings in one docstring."""
        if obj.docstring:
            text = EXAMPLE.sub(r"\1Examples:", obj.docstring.value)
            if is_named_tuple(obj):
                text = ARGS.sub(r"\1Attributes:", text)
            obj.docstring.value = text
