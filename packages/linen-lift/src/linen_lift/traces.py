"""Which trace a tracer belongs to: the one place here that depends on JAX's inside.

What is looked at has no documented form: `_trace` of a tracer, `parent_trace` of a
trace and `_trace_ref` of JAX's token of a trace. It is as here in JAX 0.8 to 0.12.
Where it is missing nothing is known, and callers do what is safe then. The file would
be a part of `graphcore._jax`, but nothing else needs it, and what graphcore offers to
other packages is kept small.
"""

from __future__ import annotations

from typing import Any


def is_within(tracer: Any, trace: Any) -> bool | None:
    """Whether a tracer belongs to a trace, or to one around it.

    Such a tracer may be kept as long as the trace runs. One of a transform inside of it
    may not.

    Args:
        tracer: a tracer.
        trace: a token, from `graphcore.authors.current_trace`.

    Returns:
        None where this version of JAX does not tell.
    """
    own = getattr(tracer, "_trace", None)
    around = getattr(trace, "_trace_ref", lambda: None)()
    if own is None or around is None:
        return None
    while around is not None and around is not own:
        around = getattr(around, "parent_trace", None)  # the outermost has none
    return around is own
