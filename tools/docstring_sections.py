"""A griffe extension for the reference: sections called ``Example`` hold doctests.

Griffe knows the heading ``Examples`` alone; one example reads better in the singular.
"""

import re
from typing import Any

import griffe

HEADING = re.compile(r"^([ \t]*)Example:[ \t]*$", re.M)


class ExampleSections(griffe.Extension):
    """Read ``Example:`` as ``Examples:``."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the heading in one docstring."""
        if obj.docstring:
            obj.docstring.value = HEADING.sub(r"\1Examples:", obj.docstring.value)
