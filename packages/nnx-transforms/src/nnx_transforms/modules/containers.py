"""Lists and dicts of modules, which are modules themselves."""

from __future__ import annotations

from typing import Any

from typing_extensions import TypeVar

import graphcore
from nnx_transforms.modules.module import Module

__all__ = ["Dict", "List"]

T = TypeVar("T", default=Any)


class Dict(Module, graphcore.Dict):
    """A `graphcore.Dict` with the methods of modules.

    Example:
        >>> import nnx_transforms as nnx
        >>> branches = nnx.Dict(drop=nnx.Dropout(0.5, deterministic=False))
        >>> branches.eval(); branches.drop.deterministic
        True
    """


class List(Module, graphcore.List[T]):
    """A `graphcore.List` with the methods of modules.

    Example:
        >>> import nnx_transforms as nnx
        >>> layers = nnx.List([nnx.Dropout(0.5, deterministic=False)])
        >>> layers.eval(); layers[0].deterministic
        True
    """
