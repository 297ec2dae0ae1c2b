"""Whether `==` between nodes and variables means `is`, for a moment, in this thread.

A plan compares what containers hold with what they held. Two dicts or lists are
compared much faster than by a call for each entry, as long as they hold the same
objects; but `==` must not find an object equal to another one that took its place.
"""

from __future__ import annotations

import threading


class _Comparing(threading.local):
    by_identity = False


comparing = _Comparing()
