"""What must not grow from program to program: memory, arrays, and the library's own."""

from __future__ import annotations

import bisect
import dataclasses
import gc
import resource
from collections import Counter
from pathlib import Path

import jax

__all__ = ["Grown", "Usage"]

_LIBRARY = ("graphcore", "nnx_transforms")
# What bounded caches hold depends on the graphs that were met last. A leak of one
# object a step is a thousand from one check to the next.
_SLACK_OBJECTS = 1000
# JAX 0.12 keeps what a function closed over if it raised while it was traced, with
# `jax.jit` alone as well, since a finalizer of each traced value holds the trace: an
# array for every sixty steps or so of these programs, of which there are thousands.
_SLACK_ARRAYS = 500
# Errors that users' code raises cost JAX some, on Python 3.12.
_SLACK_DEPTH = 200
# What XLA and the allocator keep for themselves settles late.
_SLACK_BYTES = 800 << 20


class Grown(AssertionError):
    """Something that is kept grew from one check to the next."""


@dataclasses.dataclass
class Usage:
    """What is in use when no program runs.

    Args:
        arrays: The number of live arrays.
        objects: The number of objects of each type of the library.
        bytes: Resident memory.
        depth: How deep a list may be nested for `repr`: what is left of the recursion
            of C code, some of which is lost where an error goes through JAX's
            flattening.
    """

    arrays: int
    objects: Counter[str]
    bytes: int
    depth: int

    @classmethod
    def now(cls) -> Usage:
        """Measures, after all that can go is gone."""
        jax.clear_caches()
        gc.collect()
        kinds = Counter(map(type, gc.get_objects()))
        objects = {
            f"{kind.__module__}.{kind.__qualname__}": count
            for kind, count in kinds.items()
            if str(kind.__module__).startswith(_LIBRARY)
        }
        return cls(len(jax.live_arrays()), Counter(objects), _resident(), _depth())

    def check_not_below(self, later: Usage) -> None:
        """Compares with a later measurement.

        Raises:
            Grown: If that is larger than a bounded cache explains.
        """
        grown = {
            name: (self.objects[name], count)
            for name, count in later.objects.items()
            if count > self.objects[name] + _SLACK_OBJECTS
        }
        if later.arrays > self.arrays + _SLACK_ARRAYS:
            grown["arrays"] = self.arrays, later.arrays
        if later.bytes > self.bytes + _SLACK_BYTES:
            grown["bytes"] = self.bytes, later.bytes
        if later.depth < self.depth - _SLACK_DEPTH:
            grown["depth of recursion"] = self.depth, later.depth
        if grown:
            raise Grown(f"These are more than before, as (before, now): {grown}")

    def __str__(self) -> str:
        return (
            f"{self.arrays} arrays, {self.objects.total()} objects of the library, "
            f"{self.bytes >> 20} MiB, recursion {self.depth} deep"
        )


def _resident() -> int:
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:  # not on Linux: the most that it ever was
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return pages * resource.getpagesize()


def _depth() -> int:
    return bisect.bisect_left(range(20_000), True, key=_is_too_deep)


def _is_too_deep(depth: int) -> bool:
    nested: list[object] = []
    for _ in range(depth):
        nested = [nested]
    try:
        repr(nested)
    except RecursionError:
        return True
    return False
