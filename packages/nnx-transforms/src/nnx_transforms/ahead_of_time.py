"""Tracing, lowering and compiling ahead of time."""

from __future__ import annotations

from typing import Any, Protocol

from graphcore.joint import joint_of
from nnx_transforms.compiled import CompiledFunction
from nnx_transforms.lifting import publish

__all__ = ["Compiled", "Lowered", "Traced"]


class _Jitted(Protocol):
    """What a stage needs of the jitted function that it is of."""

    def _locate(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Locates a call; None if there are no objects."""

    def _without_statics(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments without static ones."""
        ...


class _Stage:
    """A stage of JAX's, with everything that it offers.

    Args:
        jitted: The jitted function.
        function: The compiled function for the structure of the objects; None if the
            call has none.
        stage: JAX's own stage.
    """

    __slots__ = ("_function", "_jitted", "_stage")

    def __init__(
        self, jitted: _Jitted, function: CompiledFunction | None, stage: Any
    ) -> None:
        self._jitted = jitted
        self._function = function
        self._stage = stage

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in _Stage.__slots__:
            raise AttributeError(name)
        return getattr(self._stage, name)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._stage!r})"


class Traced(_Stage):
    """A traced function: `jaxpr`, `lower()`, and the rest of `jax.stages.Traced`.

    Example:
        >>> import nnx_transforms as nnx
        >>> len(nnx.jit(lambda x: x * 2).trace(1.0).jaxpr.eqns)
        1
    """

    __slots__ = ()

    def lower(self, **options: Any) -> Lowered:
        """Lowers the function.

        Args:
            **options: As for `jax.stages.Traced.lower`.

        Returns:
            The lowered function.

        Example:
            >>> import nnx_transforms as nnx
            >>> 'multiply' in nnx.jit(lambda x: x * 2).trace(1.0).lower().as_text()
            True
        """
        return Lowered(self._jitted, self._function, self._stage.lower(**options))


class Lowered(_Stage):
    """A lowered function: `compile()`, `as_text()`, and the rest of JAX's.

    Example:
        >>> import nnx_transforms as nnx
        >>> 'multiply' in nnx.jit(lambda x: x * 2).lower(1.0).as_text()
        True
    """

    __slots__ = ()

    def compile(self, **options: Any) -> Compiled:
        """Compiles the function.

        Args:
            **options: As for `jax.stages.Lowered.compile`.

        Returns:
            The compiled function.

        Example:
            >>> import nnx_transforms as nnx
            >>> float(nnx.jit(lambda x: x * 2).lower(1.0).compile()(2.0))
            4.0
        """
        return Compiled(self._jitted, self._function, self._stage.compile(**options))


class Compiled(_Stage):
    """A compiled function; call it with objects of the structure it was made for.

    Example:
        >>> import nnx_transforms as nnx
        >>> float(nnx.jit(lambda x: x * 2).lower(1.0).compile()(2.0))
        4.0
    """

    __slots__ = ()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        jitted = self._jitted
        call = jitted._locate(args, kwargs)
        if call is None:
            if self._function is not None:
                raise TypeError(
                    "This function was compiled for a call with objects, but there "
                    "are none among the arguments."
                )
            args, kwargs = jitted._without_statics(args, kwargs)
            out, tree, outcome = self._stage(*args, **kwargs)
            return publish((), joint_of(())[0], (), outcome, out, tree)
        function = self._function
        if function is None or call.function is not function:
            raise TypeError(
                "This function was compiled for objects of another structure, other "
                "places of them among the arguments, or other static arguments. "
                "Lower and compile it again for these."
            )
        for plan in call.plans:
            plan.check_trace()
        _, kept, donated = function.prepare(
            call.joint.values(call.plans), call.args, call.kwargs
        )
        out, tree, outcome = self._stage(kept, donated, *call.args, **call.kwargs)
        values = function.flat(out)
        return publish(call.roots, call.joint, call.plans, outcome, values, tree)
