"""Whether anybody sees a write to an object that JAX put together.

Variables and modules are pytrees, taken by value: JAX takes them apart where they are
passed to one of its transformations, and puts others together for the function that it
traces. What that function writes to those is lost unless it returns them, so such a
write is refused. What JAX puts together in the trace in which it was taken apart, or
outside of it (`jax.tree.map`, the output of a transformation), is an object like any
other.

So a pytree remembers its `Origin`, the trace in which it was flattened, and an object
that is made of it in a trace below gets `ByValue` in the place of the trace that it
belongs to. That equals no token: whoever does not know of it refuses the write.

Other libraries map such objects once more inside of the trace, to put in what is theirs
(Flax NNX's transforms) or what they had left out (Equinox's `combine`). A copy without
another value, of an object that may not be written, is by value, too: what is written
to it would be as lost.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from graphcore._jax import OUTSIDE, TraceState, current_trace, has_ended
from graphcore.errors import TraceContextError
from graphcore.trails import path_text


@dataclass(slots=True, unsafe_hash=True)
class Origin:
    """Where a pytree was flattened: part of its treedef that makes no difference.

    Args:
        trace: The token of the trace.
        read_only: The object, weakly, if it may not be written there.
    """

    trace: TraceState = field(compare=False, repr=False)
    read_only: weakref.ref[Any] | None = field(default=None, compare=False, repr=False)

    def __reduce__(self) -> tuple[Any, ...]:
        return _of_outside, ()


OF_OUTSIDE = Origin(OUTSIDE)


def _of_outside() -> Origin:
    return OF_OUTSIDE


def origin(x: Any, trace: Any) -> Origin:
    """The origin of what is flattened now.

    Args:
        x: The object.
        trace: What it belongs to.
    """
    here = running_trace()
    if here == OUTSIDE:
        return OF_OUTSIDE
    return Origin(here, None if trace == here else weakref.ref(x))


def as_before(old: Any, new: Any) -> bool:
    """Whether a leaf of a copy is no other value: the same, left out or put in."""
    return new is old or old is None or new is None


def running_trace() -> TraceState:
    """The token of the running trace; None where JAX is between two of them.

    There it takes apart what a function returned (`jax.jvp`), so whoever puts that
    together is not below; or it asks the rule of a primitive for shapes.
    """
    try:
        return current_trace()
    except (AssertionError, AttributeError):
        return None


@dataclass(slots=True)
class ByValue:
    """Stands for the trace of objects whose changes nobody would see.

    Args:
        trace: The token of the trace in which they were put together.
    """

    trace: TraceState


def trace_of_rebuilt(origin: Origin, is_copy: Callable[[Any], bool]) -> Any:
    """What an object that is put together now belongs to.

    Args:
        origin: Where it was taken apart.
        is_copy: Whether it has no other value than the object that was taken apart.

    Returns:
        The token of the running trace; or `ByValue`, if that is below the origin, or if
        it is a copy of an object that may not be written. Of two traces that are not
        over, the one that is running is below the other.
    """
    here, there = running_trace(), origin.trace
    if here is None:
        return OUTSIDE
    if here == there and origin.read_only is not None:
        source = origin.read_only()
        return ByValue(here) if source is not None and is_copy(source) else here
    if there is None or here in (there, OUTSIDE) or has_ended(there):
        return here
    return ByValue(here)


def belongs(trace: Any, here: TraceState) -> bool:
    """Whether an object may be used, if not written, in the running trace.

    Args:
        trace: What the object belongs to.
        here: The token of the running trace.
    """
    if type(trace) is ByValue:
        trace = trace.trace
    return bool(trace == here)


def wrong_trace(trace: Any, kind: type[Any], path: Any = None) -> TraceContextError:
    """The error for a write to an object from a trace that may not write it.

    Args:
        trace: What the object belongs to.
        kind: Its type.
        path: Where it is, if that is known.
    """
    where = "" if path is None else f" at {path_text(path)!r}"
    if type(trace) is ByValue and trace.trace == current_trace():
        return TraceContextError(
            f"Cannot mutate the {kind.__name__}{where}: JAX put it together for the "
            "function that it is tracing, so the caller would not see the change. "
            "Transform the function with a transformation of live objects (such as "
            "`nnx_transforms.jit`), or return what it changes and declare that: "
            "`x = by_value(x)`."
        )
    return TraceContextError(
        f"Cannot mutate {kind.__name__}{where} from a different trace level: it "
        "was made outside the JAX transformation that is running (or inside one "
        "that has ended). Pass it, or the object that holds it, to the transformed "
        "function as an argument."
    )
