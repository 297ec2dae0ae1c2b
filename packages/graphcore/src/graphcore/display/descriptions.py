"""What stands inside nodes and variables of any type, for `printing`.

Importing this module makes it known there. Variables are shown with their raw values:
a hook may fail, and a look at an object must not.
"""

from __future__ import annotations

import functools
from types import MethodType
from typing import Any

from graphcore.display import printing
from graphcore.display.printing import Parts, call_parts, label
from graphcore.nodes.registry import GraphNodeImpl, find_impl
from graphcore.variables.impl import VariableImpl


def _parts(x: Any) -> Parts | None:
    own = getattr(type(x), "__parts__", None)
    if own is not None:
        return own(x)  # type: ignore[no-any-return]
    impl = find_impl(x)
    if isinstance(impl, VariableImpl):
        inside = call_parts(x, [impl.get_value(x)], impl.get_metadata(x))
        return inside._replace(has_identity=True)
    if impl is None:
        return None
    if isinstance(x, MethodType):
        return call_parts(x, [x.__func__, x.__self__], {})
    if isinstance(x, functools.partial):
        return call_parts(x, [x.func, *x.args], x.keywords)
    pairs, _ = impl.flatten(x)
    is_graph_node = isinstance(impl, GraphNodeImpl)
    if not pairs and not is_graph_node:
        return None  # all there is to it is static
    children = [(label(key), child) for key, child in pairs]
    return Parts(type(x).__name__, children, has_identity=is_graph_node)


printing.parts_of_object = _parts
