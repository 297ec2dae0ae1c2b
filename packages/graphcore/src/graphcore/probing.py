"""Finding out whether a pytree holds objects, without Python for each leaf.

Variables and objects are pytrees for JAX, so flattening goes past them. While this
thread probes, they stop it instead.
"""

from __future__ import annotations

import threading

__all__ = ["ObjectFound", "probing"]


class ObjectFound(Exception):
    """There is an object in the pytree that is being probed."""


class _Probing(threading.local):
    active = False

    def stop(self) -> None:
        """Ends the flattening; called where `active` says that this is a probe."""
        raise ObjectFound


probing = _Probing()
