"""A griffe extension for the reference: how this repository words its docstrings.

Griffe knows the heading ``Examples`` alone; one example reads better in the singular.
And it knows the arguments of functions and of decorated dataclasses, but not those that
a base class makes of annotated fields (NamedTuple, linen_lift's Module): these it lists
among the attributes. Nor does it know the signature of a function that a decorator
makes of another one: ``(*_, **__)`` is written there, and Python is asked; so it is for
the options of a class that are those of the ``transform`` in its first line.
"""

import importlib
import inspect
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
        if not member.is_alias and "property" not in member.labels
    )
    return "__init__" not in cls.members and any(fields)


def annotation(found: Any) -> str | None:
    """An annotation as text; most are text in the sources already."""
    if found is inspect.Parameter.empty:
        return None
    text = found if isinstance(found, str) else inspect.formatannotation(found)
    return re.sub(r"\b(\w+\.)+", "", text)  # names without their modules


def known_to_python(obj: griffe.Object, *path: str) -> griffe.Parameters:
    """The parameters of a function in a module as Python knows them."""
    found = importlib.import_module(obj.module.path)
    for name in path:
        found = getattr(found, name)
    return griffe.Parameters(
        *(
            griffe.Parameter(
                p.name,
                kind=griffe.ParameterKind(p.kind.description),
                annotation=annotation(p.annotation),
                default=None if p.default is p.empty else repr(p.default),
            )
            for p in inspect.signature(found).parameters.values()
        )
    )


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

    def on_class_members(self, *, node: Any, cls: griffe.Class, **_: Any) -> None:
        """Show the options of a class that are those of a transformation."""
        keywords = [keyword.arg for keyword in getattr(node, "keywords", ())]
        if "transform" in keywords:
            parameters = known_to_python(cls, cls.name, "__init__")
            cls.set_member(
                "__init__", griffe.Function("__init__", parameters=parameters)
            )

    def on_function(self, *, func: griffe.Function, **_: Any) -> None:
        """Show the parameters of a function that a decorator makes."""
        if [p.name for p in func.parameters] == ["_", "__"]:
            func.parameters = known_to_python(func, func.name)
