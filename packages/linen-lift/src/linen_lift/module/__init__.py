"""Modules: dataclasses whose methods own variables."""

from ..scope import Variable
from .base import Module
from .context import (
    InterceptorContext,
    disable_named_call,
    enable_named_call,
    intercept_methods,
    override_named_call,
)
from .decorators import compact, compact_name_scope, nowrap
from .functional import apply, init, init_with_output, merge_param, share_scope

__all__ = [
    "InterceptorContext",
    "Module",
    "Variable",
    "apply",
    "compact",
    "compact_name_scope",
    "disable_named_call",
    "enable_named_call",
    "init",
    "init_with_output",
    "intercept_methods",
    "merge_param",
    "nowrap",
    "override_named_call",
    "share_scope",
]
