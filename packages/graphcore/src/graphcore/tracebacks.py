"""Tracebacks that show the frames of users, as those of JAX do."""

from __future__ import annotations

import functools
import traceback
import types
from collections.abc import Callable
from typing import Any, TypeVar

import jax

__all__ = ["api_boundary", "shorten_traceback"]

F = TypeVar("F", bound=Callable[..., Any])

_libraries: tuple[str, ...] = ()
"""How the names of files begin whose frames are left out."""


def leave_out_of_tracebacks(path: str) -> None:
    """Has `shorten_traceback` leave out the frames of files.

    Args:
        path: How the names of these files begin.

    Example:
        >>> leave_out_of_tracebacks("/nowhere/library/")
    """
    global _libraries
    _libraries = (*_libraries, path)


def api_boundary(f: F) -> F:
    """Makes the errors of a library's function show the frames of users.

    Args:
        f: A function that calls what its users wrote.

    Returns:
        The same function; an error that it raises goes through `shorten_traceback`.

    Example:
        >>> import graphcore as gc
        >>> @gc.api_boundary
        ... def twice(f, x):
        ...     return f(f(x))
        >>> twice(abs, -1)
        1
    """

    @functools.wraps(f)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        try:
            return f(*args, **kwargs)
        except Exception as error:
            shorten_traceback(error)
            raise

    return wrapper  # type: ignore[return-value]


def shorten_traceback(error: BaseException) -> None:
    """Takes the frames of libraries out of the traceback of an error.

    For the place where a library lets go of an error, before it is raised again by
    `raise`: the frame of that place goes, too. What goes are the frames of graphcore,
    and of what `leave_out_of_locations` was called for, but for the one that raised the
    error; of its cause likewise. `api_boundary` does this around a function, and
    `graphcore.authors.lifted` for what it makes.

    As for JAX's own frames, `jax.config.jax_traceback_filtering` says whether it is
    done: with `"off"` the traceback stays as it is, and with `"tracebackhide"` all
    frames stay, but IPython and pytest are told not to show these.

    Args:
        error: The error.

    Example:
        >>> import graphcore as gc
        >>> def run(f):
        ...     try:
        ...         return f()
        ...     except Exception as error:
        ...         gc.shorten_traceback(error)
        ...         raise
        >>> run(lambda: 1 / 0)
        Traceback (most recent call last):
            ...
        ZeroDivisionError: division by zero
    """
    mode = jax.config.jax_traceback_filtering
    if mode == "off":
        return
    seen: set[int] = set()
    at: BaseException | None = error
    while at is not None and id(at) not in seen:
        seen.add(id(at))
        if mode == "tracebackhide":
            for frame, _ in traceback.walk_tb(at.__traceback__):
                if _is_of_library(frame):
                    frame.f_locals["__tracebackhide__"] = True
        else:
            at.with_traceback(_shortened(at.__traceback__))  # whatever its type sets
        # With this mode, the cause is JAX's record of all frames.
        at = None if mode == "remove_frames" else at.__cause__


def _shortened(all_frames: types.TracebackType | None) -> types.TracebackType | None:
    entries = []
    while all_frames is not None:
        entries.append(all_frames)
        all_frames = all_frames.tb_next
    kept = None
    for entry in reversed(entries):
        # The last one raised the error: without it, nobody could say where.
        if kept is None or not _is_of_library(entry.tb_frame):
            of = entry.tb_frame, entry.tb_lasti, entry.tb_lineno
            kept = types.TracebackType(kept, *of)
    return kept


def _is_of_library(frame: types.FrameType) -> bool:
    return frame.f_code.co_filename.startswith(_libraries)
