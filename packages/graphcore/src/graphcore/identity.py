"""A number of an object that no other one has while both live.

`id` gives such a number as well. CPython derives both from the address; but addresses
are multiples of 16 or more, so ids crowd in few places of a dict or set, where looking
one up then takes several times as long. The hash of an object is its address with the
low bits moved out of the way.
"""

from __future__ import annotations

import sys
from collections.abc import Callable


def _is_rotated_address(x: object) -> bool:
    """Whether hashes have all bits of the address, so that no two are the same."""
    bits = sys.maxsize.bit_length() + 1
    rotated = id(x) >> 4 | id(x) << (bits - 4) & (1 << bits) - 1
    return object.__hash__(x) % (1 << bits) == rotated


identity: Callable[[object], int] = id
if sys.implementation.name == "cpython" and _is_rotated_address(object()):
    identity = object.__hash__
