"""Adapters are loaded when a type of their library is first met.

An adapter is a module that makes the types of another library known here. The program
need not name it, nor import anything in some order: whoever asks how a type is handled
ends here as long as there is an adapter that was not needed yet. It is loaded if one of
the bases of the type comes from its library, which the program has imported then.
"""

from __future__ import annotations

import importlib
import sys
import threading
import weakref
from typing import Any

__all__ = ["AdapterError", "register_adapter"]


class AdapterError(RuntimeError):
    """Objects of another library can't be handled.

    Example:
        >>> import graphcore as gc
        >>> issubclass(gc.AdapterError, RuntimeError)
        True
    """


class _Registrations:
    """Counts what may make a type known, for those who keep that one is not."""

    count = 0
    # Whether types of nodes of others are among it.
    has_nodes = False


registrations = _Registrations()

# The modules of each library whose adapters were not needed so far.
_waiting: dict[str, list[str]] = {
    "equinox": ["graphcore.adapters.equinox"],
    "flax.nnx": ["graphcore.adapters.flax"],
}
_loaded: set[str] = set()
# What went wrong. Not the error, whose traceback would keep objects of callers alive.
_failed: dict[str, str] = {}
# Types that come from none of these: each is looked at once.
_unconcerned: weakref.WeakSet[type[Any]] = weakref.WeakSet()
_lock = threading.RLock()
_loading: set[str] = set()


def register_adapter(library: str, module: str) -> None:
    """Has a module imported as soon as a type of a library is met.

    Of the adapters of one library, those that were added first are loaded first. If an
    adapter raises, so does everything that meets a type of the library.

    Args:
        library: The dotted name of the package that the types come from.
        module: The dotted name of the adapter: a module that registers them.

    Example:
        >>> from graphcore import register_adapter
        >>> register_adapter('a_framework', 'my_package.adapters.a_framework')
    """
    with _lock:
        registrations.count += 1
        # A new list: another thread may be going through the old one.
        _waiting[library] = [*_waiting.get(library, ()), module]
        _unconcerned.clear()
        if library in _loaded:
            _load(library)


def may_have_nodes() -> bool:
    """Tells whether there may be nodes of others, which JAX may know as pytrees."""
    return registrations.has_nodes or not sys.modules.keys().isdisjoint(_waiting)


def load_adapters(kind: type[Any]) -> bool:
    """Loads the adapters that wait for a type.

    Args:
        kind: Any class.

    Returns:
        Whether there were any; if so, the type may be known by now.

    Raises:
        AdapterError: If an adapter could not be loaded.
    """
    if kind in _unconcerned:
        return False
    found = concerned = False
    for library in [*_waiting]:
        if library in sys.modules and _comes_from(kind, library):
            concerned = True
            found = _load(library) or found
    if not concerned:
        _unconcerned.add(kind)
    return found


def _comes_from(kind: type[Any], library: str) -> bool:
    modules = [base.__module__ for base in kind.__mro__]
    return any(type(m) is str and f"{m}.".startswith(f"{library}.") for m in modules)


def _load(library: str) -> bool:
    with _lock:  # Another thread waits here until the types are known.
        if library in _failed:
            raise AdapterError(_failed[library])
        if library in _loading or library not in _waiting:
            return library not in _loading
        _loading.add(library)
        try:
            while _waiting[library]:
                importlib.import_module(_waiting[library][0])
                _waiting[library] = _waiting[library][1:]
            del _waiting[library]
            _loaded.add(library)
        except Exception as error:
            _failed[library] = str(error)
            raise
        finally:
            _loading.discard(library)
        return True
