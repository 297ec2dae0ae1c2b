"""Tracing, lowering and compiling ahead of time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import jax

from graphcore import api_boundary
from graphcore.authors import Bodies, Entry, Inside, path_text
from nnx_transforms.arguments import with_statics
from nnx_transforms.transforms.compiled.array_errors import explain_arrays
from nnx_transforms.transforms.compiled.explain_recompile import of_structure
from nnx_transforms.transforms.compiled.jit_body import JitBody

__all__ = ["Compiled", "Lowered", "Traced"]

S = TypeVar("S", bound="_Stage")
# Reports of JAX about outputs. The compiled function has three: the values of
# variables, the output of the user's function, and the changes of objects.
_OF_OUTPUTS = (
    "out_avals",
    "out_info",
    "output_formats",
    "output_layouts",
    "output_shardings",
)
# Its reports about arguments, whose first one is the values of variables.
_OF_ARGUMENTS = (
    "args_info",
    "in_avals",
    "input_formats",
    "input_layouts",
    "input_shardings",
)


@dataclass(repr=False, eq=False, slots=True)
class _Stage:
    """A stage of JAX's, with everything that it offers.

    What it reports of arguments and output has the structure of the function's own: a
    `State` stands in the place of an object among the arguments.

    Args:
        _stage: JAX's own stage.
        _enter: Takes a call with all arguments apart; None if there are no objects.
        _remember: Has `Bodies.recall` know a call from then on.
        _statics: The static arguments by position or name. As in JAX, the compiled
            function is called without them.
        _body: The function for the structure of the objects; None if there are none.
        _bound: The instance of a bound method, which is called without it.
        _bodies: Knows the last call of what was compiled.
    """

    _stage: Any
    _enter: Callable[[tuple[Any, ...], dict[str, Any]], Entry | None]
    _remember: Callable[[Bodies, tuple[Any, ...], dict[str, Any], Any], None]
    _statics: dict[Any, Any]
    _body: JitBody | None = None
    _bound: tuple[Any, ...] = ()
    _bodies: Bodies = field(default_factory=Bodies)

    def _next(self, kind: type[S], stage: Any) -> S:
        how = self._enter, self._remember, self._statics
        return kind(stage, *how, self._body, self._bound)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in _Stage.__slots__:
            raise AttributeError(name)
        if name == "donate_argnums":
            leaves = enumerate(jax.tree.leaves(self.args_info))
            return tuple([i for i, x in leaves if x.donated])
        if name == "in_tree":
            return jax.tree.structure(self.args_info)
        found = getattr(self._stage, name)
        if name in _OF_ARGUMENTS:
            return self._of_arguments(found)
        if name in _OF_OUTPUTS:
            return found[1]
        return found.children()[1] if name == "out_tree" else found

    def __dir__(self) -> set[str]:
        return {*object.__dir__(self), *dir(self._stage)}

    def _of_arguments(self, report: Any) -> Any:
        """A report of JAX's about arguments, in the form of the function's own."""
        if self._body is None:
            return report
        tree = self._stage.in_tree
        # These have shapes, which the types of pytrees may look at.
        stand_ins = tree.flatten_up_to(self._stage.args_info)
        of = dict(zip(map(id, stand_ins), tree.flatten_up_to(report), strict=True))
        args, kwargs = self._body.of_arguments(tree.unflatten(stand_ins))
        return jax.tree.map(lambda x: of.get(id(x)), (args[len(self._bound) :], kwargs))

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

        Raises:
            TypeError: If `jax.export` asks for it, and there are objects.

        Example:
            >>> import nnx_transforms as nnx
            >>> 'multiply' in nnx.jit(lambda x: x * 2).trace(1.0).lower().as_text()
            True
        """
        if self._body is not None and "_private_parameters" in options:
            raise TypeError(
                "`jax.export` stores functions of arrays, but there are objects among "
                "the arguments. Export `jax.jit` of a function that takes arrays, and "
                "gets the objects by `graphdef, state = split(model)` before and "
                "`merge(graphdef, state)` inside."
            )
        return self._next(Lowered, self._stage.lower(**options))


class Lowered(_Stage):
    """A lowered function: `compile()`, `as_text()`, and the rest of JAX's.

    Example:
        >>> import nnx_transforms as nnx
        >>> 'multiply' in nnx.jit(lambda x: x * 2).lower(1.0).as_text()
        True
    """

    __slots__ = ()

    def compile(self, *args: Any, **options: Any) -> Compiled:
        """Compiles the function.

        Args:
            *args: As for `jax.stages.Lowered.compile`.
            **options: As for `jax.stages.Lowered.compile`.

        Returns:
            The compiled function.

        Example:
            >>> import nnx_transforms as nnx
            >>> float(nnx.jit(lambda x: x * 2).lower(1.0).compile()(2.0))
            4.0
        """
        return self._next(Compiled, self._stage.compile(*args, **options))


class Compiled(_Stage):
    """A compiled function; call it with objects of the structure it was made for.

    Example:
        >>> import nnx_transforms as nnx
        >>> float(nnx.jit(lambda x: x * 2).lower(1.0).compile()(2.0))
        4.0
    """

    __slots__ = ()

    @api_boundary
    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        args = (*self._bound, *args)
        full = tuple(with_statics(args, self._statics))
        named = {p: x for p, x in self._statics.items() if isinstance(p, str)}
        named = {**kwargs, **named}
        warm = self._bodies.recall(full, named)
        entry = self._enter(full, named) if warm is None else Entry.recalled(*warm)
        body = self._body
        if body is None and entry is None:
            return Inside.empty().put_together(*self._stage(*args, **kwargs))
        if body is None or entry is None:
            one, other = (" no", "are some") if entry else ("", "are none")
            raise TypeError(
                f"This function was compiled for a call with{one} objects, but there "
                f"{other} among the arguments."
            )
        if entry.body is not body and entry.body.key != body.key:
            places = [path_text(path) for path in entry.body.first_places]
            both = (x.structure.joint.definitions for x in (body, entry.body))
            found = of_structure(places, *both)
            raise TypeError(
                "This function was compiled for objects of another structure, or other "
                "places of them among the arguments. Lower and compile it again for "
                "these. (Static arguments are left out when it is called.)"
                + (f" What differs:\n{found}" if found else "")
            )
        if warm is None:
            self._remember(self._bodies, full, named, body)
        entry.divide()
        _, given, given_named = body.prepare(entry, ahead=True)
        try:
            result = self._stage(*given, **given_named)
        except Exception as error:
            explain_arrays(error, body, entry.raw)
            raise
        return entry.commit(*result)
