"""Finding out whether a pytree holds objects, without Python for each leaf.

Variables and objects are pytrees for JAX, so flattening goes past them. While this
thread probes, they stop it instead.
"""

from __future__ import annotations

import threading
from typing import Any

import jax

__all__ = ["probe", "probing"]


class ObjectFound(Exception):
    """There is an object in the pytree that is being probed."""


class _Probing(threading.local):
    active = False

    def stop(self) -> None:
        """Ends the flattening; called where `active` says that this is a probe."""
        raise ObjectFound


probing = _Probing()


def probe(tree: Any) -> tuple[list[Any], Any] | None:
    """Flattens a pytree that holds no variable or object which JAX takes apart.

    Args:
        tree: Any pytree.

    Returns:
        Leaves and structure; None if there is an object.

    Example:
        >>> import graphcore as gc
        >>> probe([1, gc.Param(2)]) is None, probe([1])[0]
        (True, [1])
    """
    probing.active = True
    try:
        return jax.tree.flatten(tree)
    except ObjectFound:
        return None
    finally:
        probing.active = False
