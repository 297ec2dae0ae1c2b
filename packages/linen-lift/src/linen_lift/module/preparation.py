"""What a call of a module from outside means: which method, and how to run it."""

from __future__ import annotations

from collections.abc import Callable
from inspect import CO_VARARGS
from typing import Any, TypeVar

from .. import errors
from ..filters import DenyList, union_filters
from ..scope_tree import Scope
from .containers import find
from .context import context
from .module_base import ModuleBase

F = TypeVar("F")

INIT_MUTABLE = DenyList("intermediates")
CaptureFilter = bool | Callable[[Any, str], bool]


def method_of(module: ModuleBase, method: Any) -> Callable[..., Any]:
    """The function of a module that `method=` stands for.

    Args:
        module: a module.
        method: None, a name, a method of it or of its class, or a function of it.

    Raises:
        ApplyModuleInvalidMethodError: if it is none of these.
    """
    cls = type(module)
    if method is None:
        method = "__call__"
    if isinstance(method, str):
        name = method

        # Perhaps setup makes it: a submodule, for example.
        def call(module: Any, /, *args: Any, **kwargs: Any) -> Any:
            target = getattr(module, name, None)
            if not callable(target):
                raise errors.ApplyModuleInvalidMethodError(cls.__name__, name)
            return target(*args, **kwargs)

        return call
    if isinstance(method, (ModuleBase, type)) or not callable(method):
        raise errors.ApplyModuleInvalidMethodError(cls.__name__, method)
    unbound: Callable[..., Any] = getattr(method, "__func__", method)
    code = getattr(unbound, "__code__", None)
    if code is not None and not (code.co_argcount or code.co_flags & CO_VARARGS):
        raise errors.ApplyModuleInvalidMethodError(cls.__name__, method)
    return unbound


def check_instance(module: Any, method: str) -> None:
    """Refuses what is no instance of a module.

    Raises:
        InvalidInstanceModuleError: if it is none.
    """
    if not isinstance(module, ModuleBase):
        raise errors.InvalidInstanceModuleError(module, method)


def _call_only(_: Any, method_name: str) -> bool:
    return method_name == "__call__"


def _in_use(module: Any) -> bool:
    """Whether a module is bound, or holds one that is."""
    fields = (module.__dict__.get(name) for name in module._module__field_names)
    return module.scope is not None or any(
        _in_use(child) for field in fields for child in find(field, (ModuleBase,))
    )


def pure(
    make: Callable[..., F],
    method: Any,
    module: Any,
    mutable: Any,
    capture: CaptureFilter = False,
) -> F:
    """Makes a pure function of a method of a module.

    Args:
        make: `init`, `apply` or `lazy_init` of scope functions.
        method: see `method_of`.
        module: the module.
        mutable: as for `make`.
        capture: see `Module.apply`.
    """
    check_instance(module, make.__name__)
    fn = method_of(module, method)
    flags: dict[str, Any] = {}
    if capture is not False:
        flags["capture_intermediates"] = _call_only if capture is True else capture
        mutable = union_filters(mutable, "intermediates")

    def run(scope: Scope, /, *args: Any, **kwargs: Any) -> Any:
        # A call from inside of another module's method starts a tree of its own.
        with context.having(modules=[]):
            bound = module.clone(parent=scope, _deep_clone=_in_use(module))
            return fn(bound, *args, **kwargs)

    return make(run, mutable, flags)
