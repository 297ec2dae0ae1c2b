"""How lifted transforms of scope functions become transforms of modules.

A transform of `linen_lift.lift` takes functions of scopes. `on_modules` makes of it a
transform of module classes and methods, `with_module` one that is called with a module.
Both find the modules that take part (a `Frame`), give their scopes to the transform
and make clones of the modules in the inner scopes. The parameters are those of the
transform of scope functions; the decorated functions carry names and documentation.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Concatenate, ParamSpec, Protocol, TypeAlias, TypeVar, overload

from graphcore import StaticAttribute

from .. import errors
from ..module.base import Module
from ..module.calling import is_marked, marked, wrap_method
from ..module.containers import find
from ..scope import Variable
from .frame import Frame

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

Runner: TypeAlias = Callable[[Callable[..., Any], Frame], Any]
"""Lifts a function of a module, and calls it with what is in a frame."""

Methods: TypeAlias = str | Iterable[str] | Mapping[str, Mapping[str, Any]] | None


class ModuleTransform(Protocol[P]):
    """Transforms a module class, a `functools.partial` of one, or a function."""

    __name__: str

    @overload
    def __call__(self, target: T, *args: P.args, **kwargs: P.kwargs) -> T: ...
    @overload
    def __call__(self, target: T, *args: Any, methods: Methods, **kw: Any) -> T: ...


def on_modules(
    lifted: Callable[Concatenate[Any, P], Any],
    prefix: str,
    build: Callable[..., Runner] | None = None,
    unbound: Callable[..., Any] | None = None,
) -> Callable[[Callable[..., Any]], ModuleTransform[P]]:
    """Makes a transform of modules of a transform of scope functions.

    Its first parameter is `target`; `methods`, which chooses methods of a class, is
    added to the others.

    Args:
        lifted: the transform of scope functions.
        prefix: what the names of transformed classes start with.
        build: makes the runner, from the function and the options, where it is not
            enough to lift the core with these options.
        unbound: makes what is called for methods such as `init` of an unbound module,
            from the function and the options.

    Returns:
        A decorator for a function that has the name and the documentation.
    """

    def lift_core(fn: Callable[..., Any], **options: Any) -> Runner:
        lifted(fn, **options)  # type: ignore[call-arg]  # refuses wrong options early
        return runner_of(lifted, **options)

    def decorate(documented: Callable[..., Any]) -> ModuleTransform[P]:
        transform = documented.__name__
        signature = _with_methods(lifted)

        def wrap(fn: Callable[..., Any], **options: Any) -> Any:
            runner = (build or lift_core)(fn, **options)
            plain = unbound(fn, **options) if unbound else None
            return lift_function(fn, transform, runner, plain)

        lifting = Lifting(transform, prefix, wrap)

        @functools.wraps(documented)
        def on_target(*args: Any, **kwargs: Any) -> Any:
            given = signature.bind(*args, **kwargs)
            given.apply_defaults()
            options = dict(given.arguments)
            target, methods = options.pop("target"), options.pop("methods")
            return lifting(target, options, methods)

        on_target.__signature__ = signature  # type: ignore[attr-defined]
        return on_target

    return decorate


def runner_of(lifted: Callable[..., Any], /, *args: Any, **options: Any) -> Runner:
    """What lifts functions of modules by a transform of scope functions.

    Args:
        lifted: the transform.
        *args: further arguments of it.
        **options: likewise.
    """

    def runner(body: Callable[..., Any], frame: Frame) -> Any:
        run = lifted(make_core(body, frame), *args, **options)
        return run(frame.scopes, *frame.args, **frame.kwargs)

    return runner


# Options that were added when `methods` had its position already.
_AFTER_METHODS = {"static_argnames", "_split_transpose", "check_constancy_invariants"}


def _with_methods(lifted: Callable[..., Any]) -> inspect.Signature:
    parameters = _parameters(lifted, {"fn": "target"})
    place = len(parameters)
    while parameters[place - 1].name in _AFTER_METHODS:
        place -= 1
    methods = parameters[0].replace(name="methods", default=None, annotation=Methods)
    parameters.insert(place, methods)
    return inspect.Signature(parameters)


def _parameters(
    lifted: Callable[..., Any], names: Mapping[str, str]
) -> list[inspect.Parameter]:
    """The parameters of a transform, some of them under other names."""
    found = inspect.signature(lifted).parameters.values()
    return [p.replace(name=names.get(p.name, p.name)) for p in found]


def with_module(
    lifted: Callable[P, R],
    functions: Iterable[str],
    operands: str,
    finish: Callable[[Any], Any] = lambda result: result,
) -> Callable[[Callable[..., Any]], Callable[P, R]]:
    """Makes a transform that is called with a module of one called with a scope.

    Its parameter `mdl` stands in the place of `scope`.

    Args:
        lifted: the transform of scope functions.
        functions: the parameters that are functions, or sequences of them.
        operands: the parameter with further arguments of these.
        finish: makes the result of what the transform of scope functions returns.

    Returns:
        A decorator for a function that has the name and the documentation.
    """
    signature = inspect.Signature(_parameters(lifted, {"scope": "mdl"}))

    def decorate(documented: Callable[..., Any]) -> Callable[P, R]:
        transform = documented.__name__

        @functools.wraps(documented)
        def with_mdl(*args: P.args, **kwargs: P.kwargs) -> R:
            bound = signature.bind(*args, **kwargs)
            given = bound.arguments
            further = (given.get(operands, ()),)
            frame = Frame(given["mdl"], further, {}, transform)
            for name in functions:
                fn, core = given[name], functools.partial(core_of, transform, frame)
                several = isinstance(fn, Sequence)
                given[name] = list(map(core, fn)) if several else core(fn)
            given["mdl"] = frame.scopes
            if operands in given:
                (given[operands],) = frame.args
            result: R = finish(lifted(*bound.args, **bound.kwargs))
            return result

        with_mdl.__signature__ = signature  # type: ignore[attr-defined]
        return with_mdl

    return decorate


def core_of(transform: str, frame: Frame, fn: Any) -> Callable[..., Any]:
    """A function of scopes that calls what a transform was given as a function.

    Args:
        transform: the name of the transform.
        frame: the modules of the call.
        fn: a function of a module, or a bound method.

    Raises:
        TransformTargetError: if `fn` is something else.
    """
    check_function(transform, fn)
    if isinstance(getattr(fn, "__self__", None), Module):
        fn = fn.__func__  # a bound method; it is called with the module inside
    return make_core(as_body(fn), frame)


def check_function(transform: str, fn: Any) -> None:
    """Refuses what is no function of a module.

    Args:
        transform: the name of the transform.
        fn: what it was given.

    Raises:
        TransformTargetError: if `fn` is a class, a module or cannot be called.
    """
    wrong = isinstance(fn, (type, Module)) or errors.is_flax_module(type(fn))
    if not callable(fn) or wrong:
        raise errors.TransformTargetError(transform, fn)


def as_body(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A function of a module as what to call inside of a transform.

    Args:
        fn: a plain function, a method, or the result of a lifted transform.
    """
    if is_marked(fn, "_lifted"):
        return fn
    return wrap_method(fn, functools.partial(_is_method, fn))


def _is_method(fn: Any, cls: type[Any]) -> bool:
    found: Any = getattr(cls, getattr(fn, "__name__", type(fn).__name__), None)
    if is_marked(found, "_wrapped_method"):
        return False  # it became one outside of the transform
    # A decorator may be inside of the transform, too.
    return inspect.unwrap(found, stop=lambda each: each is fn) is fn


def make_core(fn: Callable[..., Any], frame: Frame) -> Callable[..., Any]:
    """A function of scopes that calls a function of a module.

    Args:
        fn: from `as_body`.
        frame: the modules of the call.
    """

    @functools.wraps(fn)
    def core(scopes: Any, /, *args: Any, **kwargs: Any) -> Any:
        return call_inside(fn, *frame.rebuild(scopes, args, kwargs))

    return core


def call_inside(fn: Callable[..., Any], module: Any, args: Any, kwargs: Any) -> Any:
    """Calls a function of a module with the clones in inner scopes.

    Raises:
        TransformedMethodReturnValueError: if it returns a module or a variable.
    """
    out = fn(module, *args, **kwargs)
    if find(out, (Module, Variable)):
        name = getattr(fn, "__name__", type(fn).__name__)
        raise errors.TransformedMethodReturnValueError(name, module.scope.path_text)
    return out


@dataclasses.dataclass(frozen=True)
class Lifting:
    """What transforms a class, a partial of one, or a function of a module.

    Args:
        transform: the name of the transform.
        prefix: what the names of transformed classes start with.
        wrap: makes the transformed function, from a function and the options.
    """

    transform: str
    prefix: str
    wrap: Callable[..., Any]

    def __call__(
        self, target: Any, options: Mapping[str, Any], methods: Methods = None
    ) -> Any:
        """Transforms something.

        Args:
            target: what to transform.
            options: the options of the transform.
            methods: the methods of a class to transform, or options for each.

        Raises:
            TransformTargetError: if `target` is none of these.
        """
        cls = target.func if isinstance(target, functools.partial) else target
        if isinstance(cls, type) and issubclass(cls, Module):
            if methods is None or isinstance(methods, str):
                methods = (methods or "__call__",)
            if not isinstance(methods, Mapping):
                methods = {name: {} for name in methods}
            # The class is kept, so it has no part in later changes to an option.
            per_method = {
                name: {
                    option: copy.copy(x) if isinstance(x, (dict, list, set)) else x
                    for option, x in {**options, **own}.items()
                }
                for name, own in methods.items()
            }
            lifted = self._of_class(cls, per_method)
            if cls is target:
                return lifted
            return functools.partial(lifted, *target.args, **target.keywords)
        check_function(self.transform, target)
        if methods is not None:
            raise TypeError(
                f"methods= chooses methods of a class; linen_lift.{self.transform} was "
                f"given the function {getattr(target, '__name__', target)!r}."
            )
        return self.wrap(target, **options)

    def _of_class(self, cls: Any, per_method: Mapping[str, Any]) -> Any:
        # The same class is made once, so that caches that know it by identity work
        # where a class is transformed anew for each instance.
        described = (
            (name, *(StaticAttribute(*option) for option in own.items()))
            for name, own in per_method.items()
        )
        # A method can be replaced, in a notebook or by a mock.
        functions = {name: getattr(cls, name, None) for name in per_method}
        key: Any = (self.wrap, *functions.values(), *described)
        cache = cls._module__lifted_classes
        try:
            if key in cache:
                return cache[key]
        except TypeError:  # an option without a hash
            key = None
        namespace: dict[str, Any] = {
            "__module__": cls.__module__,
            "__qualname__": f"{self.prefix}{cls.__qualname__}",
            "__doc__": cls.__doc__,
            "_original": cls,
        }
        for name, fn in functions.items():
            if not inspect.isfunction(fn):
                raise errors.TransformTargetError(
                    self.transform, f"{cls.__name__}.{name}"
                )
            namespace[name] = self.wrap(fn, **per_method[name])
        lifted = type(cls)(
            f"{self.prefix}{cls.__name__}", (cls,), namespace, _derived=True
        )
        if key is not None:
            if len(cache) >= 64:
                cache.clear()
            cache[key] = lifted
        return lifted


def lift_function(
    fn: Callable[..., Any], transform: str, runner: Runner, unbound: Any
) -> Any:
    """Transforms a function of a module.

    Args:
        fn: the function.
        transform: the name of the transform.
        runner: lifts and calls it.
        unbound: what is called for methods such as `init` of an unbound module.
    """
    body = as_body(fn)
    plain = None if getattr(fn, "_compact", False) else unbound
    name = getattr(fn, "__name__", "")

    @functools.wraps(fn)
    def lifted(module: Any, /, *args: Any, **kwargs: Any) -> Any:
        if plain is not None and isinstance(module, Module) and module.scope is None:
            return plain(module, *args, **kwargs)
        # Of a transformed class, the methods that this one calls are transformed with
        # it, and not once more: inside, the module is one of the original class.
        cls = type(module)
        if cls.__dict__.get(name) is lifted:
            cls = cls.__dict__.get("_original", cls)
        frame = Frame(module, args, kwargs, transform, cls)
        return runner(body, frame)

    return marked(lifted, "_lifted")
