"""What type checkers know of transformations that are decorators as well."""

from __future__ import annotations

from collections.abc import Callable
from typing import (
    Any,
    Concatenate,
    Literal,
    ParamSpec,
    Protocol,
    TypeAlias,
    TypeVar,
    overload,
)

P = ParamSpec("P")
Rest = ParamSpec("Rest")
R = TypeVar("R")
A = TypeVar("A")
T = TypeVar("T", bound=Callable[..., Any])
WithOptions: TypeAlias = Callable[Concatenate[Callable[..., Any], P], Any]
"""A transformation with options `P`, as it is written."""


class Same(Protocol[P]):
    """A transformation with options `P`, after which a function is called as before."""

    @overload
    def __call__(self, f: T, /, *args: P.args, **options: P.kwargs) -> T: ...
    @overload
    def __call__(self, *args: P.args, **options: P.kwargs) -> Callable[[T], T]: ...


class OfArguments(Protocol[P]):
    """A transformation with options `P` that keeps the arguments of a function."""

    @overload
    def __call__(
        self, f: Callable[Rest, Any], /, *args: P.args, **options: P.kwargs
    ) -> Callable[Rest, Any]: ...
    @overload
    def __call__(
        self, *args: P.args, **options: P.kwargs
    ) -> Callable[[Callable[Rest, Any]], Callable[Rest, Any]]: ...


class AtOnce(Protocol):
    """A transformation that calls its function, or decorates it; see `jvp`.

    A third of what is returned, with `has_aux`, is the second that the function does.
    """

    @overload
    def __call__(
        self,
        f: Callable[..., tuple[R, A]],
        /,
        *args: Any,
        has_aux: Literal[True],
        **options: Any,
    ) -> tuple[R, Any, A]: ...
    @overload
    def __call__(
        self,
        f: Callable[..., R],
        /,
        *args: Any,
        has_aux: Literal[False] = ...,
        **options: Any,
    ) -> tuple[R, Any]: ...
    @overload
    def __call__(self, *args: Any, **options: Any) -> Any: ...
