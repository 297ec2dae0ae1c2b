"""What happens inside a model, collected beside the result of a call."""

from __future__ import annotations

import contextlib
import functools
import inspect
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from graphcore import State, VariableState, api_boundary, state
from graphcore.authors import is_variable_type, raw_value_of
from nnx_transforms.modules.libraries import library_of, recording
from nnx_transforms.modules.module import CAPTURED, is_module
from nnx_transforms.modules.views import iter_modules
from nnx_transforms.statelib import to_flat_state

Kind = type[Any]
# Methods are wrapped by changing their class, which all threads share.
_wrapping = threading.RLock()


def capture(
    fn: Any,
    *variable_types: Kind,
    init: Mapping[Any, Any] | None = None,
    method_outputs: Kind | None = None,
) -> Any:
    """Has a function return what `sow` and `perturb` record while it runs.

    Nothing stays in the model: what other types of variables are sown is dropped.

    Args:
        fn: A function whose first argument is a module, a module, or one of its
            methods. A variable type instead gives a decorator with the other arguments.
        *variable_types: The types of variables to collect. Modules of Flax NNX among
            those of the model record as well, from Flax 0.12.6 on.
        init: A state of variables at the paths where they are recorded, to start from:
            perturbations to differentiate by.
        method_outputs: A variable type; under it the result of each public method of
            the modules and of `__call__` is recorded, by the method's name. Methods
            that a class inherits are not looked at.

    Returns:
        A function that returns the result and a state for each type; the result alone,
        if no types are given.

    Raises:
        ValueError: At a call, if there is no module to record in.

    Example:
        >>> import nnx_transforms as nnx
        >>> class Double(nnx.Module):
        ...     def __call__(self, x):
        ...         self.sow(nnx.Intermediate, 'inputs', x)
        ...         return 2 * x
        >>> y, recorded = nnx.capture(Double(), nnx.Intermediate)(3)
        >>> y, recorded['inputs'].value
        (6, (3,))
    """
    if isinstance(fn, type) and is_variable_type(fn):
        types = (fn, *variable_types)
        return lambda f: capture(f, *types, init=init, method_outputs=method_outputs)
    bound = fn if is_module(fn) else getattr(fn, "__self__", None)

    @api_boundary
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        module = bound if is_module(bound) else args[0]
        modules = [*recording(iter_modules(module))]
        if not modules:
            raise ValueError(
                "`capture` records in the modules of the first argument, and this "
                f"{type(module).__name__} has none that record. Put the model first, "
                "or capture the model itself or a method of it."
            )
        start: dict[Any, dict[Kind, dict[str, Any]]] = {}
        for path, leaf in to_flat_state(init or {}):
            kind = leaf.type if isinstance(leaf, VariableState) else type(leaf)
            start.setdefault(path[:-1], {}).setdefault(kind, {})[path[-1]] = leaf[...]
        recorded: dict[Any, Any] = {}
        try:
            for path, inner, library in modules:
                values: dict[Kind, Any] = {k: {} for k in library.kinds(variable_types)}
                for given, named in start.get(path, {}).items():
                    values |= {kind: {**named} for kind in library.kinds([given])}
                attribute: Any = library.attribute
                records = tuple(k(v) for k, v in values.items())
                setattr(inner, CAPTURED, attribute(records))
            kinds = {type(m) for _, m, _ in modules} if method_outputs else ()
            with methods_wrapped(kinds, functools.partial(_sowing, method_outputs)):
                result = fn(*args, **kwargs)
            for path, inner, library in modules:
                collected = library.kinds(variable_types)
                for variable in getattr(inner, CAPTURED):
                    if (kind := type(variable)) in collected:
                        for name, value in raw_value_of(variable).items():
                            recorded[*path, name] = kind(value)
        finally:
            for _, inner, _ in modules:
                if CAPTURED in vars(inner):
                    delattr(inner, CAPTURED)
        if not variable_types:
            return result
        leaves = (leaf for _, leaf in to_flat_state(state([*recorded.values()])))
        pairs = zip(recorded, leaves, strict=True)
        found: State[Any, Any] = State.from_flat_path(pairs)
        states = found.split(*variable_types)
        return (result, *(states if len(variable_types) > 1 else (states,)))

    return functools.wraps(fn)(wrapper) if inspect.isroutine(fn) else wrapper


@contextlib.contextmanager
def methods_wrapped(
    kinds: Collection[type[Any]],
    wrap: Callable[[str, Callable[..., Any]], Callable[..., Any]],
) -> Iterator[None]:
    """Replaces the public methods and `__call__` of classes for a while.

    Args:
        kinds: The classes. Methods that they inherit are left alone.
        wrap: Returns what takes the place of a method, of its name and itself.
    """
    with _wrapping, contextlib.ExitStack() as undo:
        for kind in kinds:
            for name, method in [*vars(kind).items()]:
                is_shown = not name.startswith("_") or name == "__call__"
                if is_shown and inspect.isfunction(method):
                    undo.callback(setattr, kind, name, method)
                    setattr(kind, name, wrap(name, method))
        yield


def _sowing(variable_type: Any, name: str, method: Callable[..., Any]) -> Any:
    """A method that records its results on modules that capture."""

    @functools.wraps(method)
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = method(self, *args, **kwargs)
        library = library_of(type(self))
        if library and CAPTURED in vars(self):
            for kind in library.kinds([variable_type]):
                self.sow(kind, name, result)
        return result

    return wrapper
