"""What must not grow from program to program: memory, arrays, and the library's own."""

from __future__ import annotations

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
    """

    arrays: int
    objects: Counter[str]
    bytes: int

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
        return cls(len(jax.live_arrays()), Counter(objects), _resident())

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
        if later.arrays > self.arrays + 16:
            grown["arrays"] = self.arrays, later.arrays
        if later.bytes > self.bytes + _SLACK_BYTES:
            grown["bytes"] = self.bytes, later.bytes
        if grown:
            raise Grown(f"These are more than before, as (before, now): {grown}")

    def __str__(self) -> str:
        return (
            f"{self.arrays} arrays, {self.objects.total()} objects of the library, "
            f"{self.bytes >> 20} MiB"
        )


def _resident() -> int:
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:  # not on Linux: the most that it ever was
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return pages * resource.getpagesize()
