"""The one place that depends on parts of JAX that are not in its stable API.

Everything else in the repository uses the documented `jax` namespace. What is
needed beyond it is one question: *which trace is running right now?* The answer
tells whether a mutable object may be written, because a value of an inner trace
that is stored in an object of an outer one leaks a tracer. Besides, JAX is told whose
lines are not those of users.

`current_trace()` returns a token that equals another one exactly if both were taken
under the same trace, of this thread. It refers to the trace weakly.

Example:
    >>> import jax
    >>> outside = current_trace()
    >>> outside == current_trace()
    True
    >>> jax.make_jaxpr(lambda: [outside == current_trace()] and ())().jaxpr.eqns
    []
"""

from __future__ import annotations

import os
import weakref
from typing import Any, TypeAlias

import jax
from jax.extend.source_info_util import register_exclusion

from graphcore.tracebacks import leave_out_of_tracebacks

try:
    from jax.extend.core import find_top_trace, get_opaque_trace_state
except ImportError:  # JAX before 0.9
    # The type checker sees the newest JAX, which has no such names here.
    from jax.core import (  # type: ignore[attr-defined,no-redef]
        find_top_trace,
        get_opaque_trace_state,
    )

__all__ = [
    "OUTSIDE",
    "TraceState",
    "current_trace",
    "has_ended",
    "leave_out_of_locations",
]

TraceState: TypeAlias = Any
"""An opaque token of a trace. Compare with `==`; it keeps no tracer alive."""

with jax.core.eval_context():  # so that it holds also if imported in a trace
    _outside, _evaluation = get_opaque_trace_state(), find_top_trace(())
OUTSIDE: TraceState = _outside
"""The token of what runs outside of all transformations.

Example:
    >>> import jax
    >>> OUTSIDE == current_trace()
    True
    >>> jax.eval_shape(lambda: print(OUTSIDE == current_trace()))
    False
"""


def current_trace() -> TraceState:
    """The token of the running trace; `OUTSIDE` itself where no transformation runs.

    Example:
        >>> current_trace() is OUTSIDE
        True
    """
    # JAX makes a token at each call, and compares two of them in Python. This runs at
    # each call of a compiled function and each write, mostly outside.
    if find_top_trace(()) is _evaluation:
        return OUTSIDE
    return get_opaque_trace_state()


def has_ended(trace: TraceState) -> bool:
    """Whether a trace is known to be over.

    Args:
        trace: A token.

    Returns:
        True once JAX has let go of what the token refers to. A JAX whose tokens refer
        to it in a way that is not known here never tells, and False is the answer on
        which nothing is lost.
    """
    reference = getattr(trace, "_trace_ref", None)
    return isinstance(reference, weakref.ref) and reference() is None


def leave_out_of_locations(module: str, *parts: str) -> None:
    """Has JAX go past a package where it tells from which line an operation comes.

    Profiles, compiled code and errors about leaked tracers name the innermost line
    that is not in JAX. Without this, that of `model.w * x` is an operator of
    `Variable`, and that of a loop the transformation of which it is made.
    `graphcore.shorten_traceback` leaves out the frames of the package, too.

    Args:
        module: The file of the package, its `__file__`.
        *parts: How the paths in it begin that are meant, if not all; a folder ends
            with `/`.

    Example:
        >>> leave_out_of_locations(__file__)
    """
    folder = os.path.join(os.path.dirname(module), "")
    for part in parts or ("",):
        path = os.path.join(folder, *part.split("/"))
        register_exclusion(path)
        leave_out_of_tracebacks(path)


leave_out_of_locations(__file__)
