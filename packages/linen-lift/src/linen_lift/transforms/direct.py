"""Helpers for transforms that are only called, not used as decorators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..errors import TransformTargetError
from ..module.base import Module
from .frame import Frame
from .targets import Core, as_body, make_core

__all__ = ["call_lifted", "check_function"]


def check_function(transform: str, fn: Any) -> None:
    """Refuses what is no function of a module.

    Args:
        transform: the name of the transform.
        fn: what it was given.

    Raises:
        TransformTargetError: if `fn` is a class, a module or cannot be called.
    """
    if not callable(fn) or isinstance(fn, (type, Module)):
        raise TransformTargetError(transform, fn)


def call_lifted(
    transform: str,
    fns: Sequence[Callable[..., Any]],
    module: Any,
    args: tuple[Any, ...],
    lift: Callable[..., Any],
    kept: bool = False,
) -> Any:
    """Calls functions of a module in a transform.

    Args:
        transform: the name of the transform.
        fns: the functions that the transform takes.
        module: the module.
        args: further arguments; modules among them take part.
        lift: calls the transform: `lift(cores, scopes, args)`, with a function of
            scopes for each of `fns`.
        kept: whether JAX keeps the functions beyond the call.

    Raises:
        TransformTargetError: if a function is none, or `module` is no module.
    """
    for fn in fns:
        check_function(transform, fn)
    if not isinstance(module, Module):
        raise TransformTargetError(transform, module)
    frame = Frame(module, args, {}, transform)
    inner = frame.detached() if kept else frame
    cores: list[Core] = [
        make_core(as_body(fn), inner, getattr(fn, "__name__", transform)) for fn in fns
    ]
    out = lift(cores, frame.scopes, frame.args)
    naming = inner.naming()
    if naming:
        frame.publish(naming)
    return out
