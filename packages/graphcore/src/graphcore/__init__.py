# ruff: noqa: F403
"""Graphs of Python objects as a hashable definition and a pytree, and back.

Objects with shared references, cycles and static attributes meet a world of pure
functions over pytrees here. `split` takes a graph apart, `merge` puts it together, and
`update_context` keeps the identity of its objects across a functional boundary.
"""

import inspect
import typing

from graphcore.adapters.loading import *
from graphcore.comparison import *
from graphcore.content import *
from graphcore.context import *
from graphcore.display.display import *
from graphcore.divided.filtered_types import *
from graphcore.editing import *
from graphcore.errors import *
from graphcore.functional import *
from graphcore.graphdef.definition import *
from graphcore.hashable_mapping import *
from graphcore.nodes.objects import *
from graphcore.nodes.plain_classes import *
from graphcore.nodes.pytrees import *
from graphcore.nodes.registry import *
from graphcore.nodes.traversal import *
from graphcore.prefixes import *
from graphcore.refmap import *
from graphcore.state.filters import *
from graphcore.state.state import *
from graphcore.tracebacks import *
from graphcore.trees import *
from graphcore.variables.impl import *
from graphcore.variables.metadata import *
from graphcore.variables.names import *
from graphcore.variables.state import *
from graphcore.variables.variable import *

__version__ = "1.0.0"

# Names are listed where they are defined. Type checkers follow the imports.
if not typing.TYPE_CHECKING:
    __all__ = [
        name
        for name, value in vars().items()
        if not (name.startswith("_") or inspect.ismodule(value))
    ]
