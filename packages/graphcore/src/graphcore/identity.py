"""A number of an object that no other one has while both live.

`id` gives such a number as well. CPython derives both from the address; but addresses
are multiples of 16 or more, so ids crowd in few places of a dict or set, where looking
one up then takes several times as long. The hash of an object is its address with the
four low bits moved to the top, out of the way: no bit is lost.
"""

from __future__ import annotations

from collections.abc import Callable

identity: Callable[[object], int] = object.__hash__
