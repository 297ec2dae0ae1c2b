"""Finding out whether a pytree holds objects, without Python for each leaf.

Variables and objects are pytrees for JAX, so flattening goes past them. While this
thread probes, they say that they are there, and show nothing of themselves. They don't
raise an error: one that goes through JAX's flattening costs the thread some of the
depth that Python's recursion may have, for good.
"""

from __future__ import annotations

import threading


class _Probing(threading.local):
    """What a thread is looking for.

    Attributes:
        active: Whether it probes.
        found: Whether there was an object; of use while `active`.
    """

    active = False
    found = False


probing = _Probing()
