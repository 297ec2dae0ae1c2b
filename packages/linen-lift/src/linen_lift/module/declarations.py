"""What the methods of a bound module do with its scope: variables, streams, paths."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from .. import errors
from ..scope import Scope, Variable
from ..signatures import parameters_of_method
from .context import context
from .module_base import ModuleBase


def _append(values: tuple[Any, ...], value: Any) -> tuple[Any, ...]:
    return (*values, value)


class Declarations(ModuleBase):
    """The part of `Module` that reads and declares variables of its scope."""

    scope: ClassVar[Scope | None]  # of `Module`, which derives from this class

    def _module__bound(self, what: str) -> Scope:
        scope = self.scope
        if scope is None:
            raise errors.UnboundModuleError(type(self).__name__, what)
        return scope

    def _module__declaring(self, kind: str, name: str) -> Scope:
        scope = self._module__bound(f'{kind} "{name}"')
        state = self._module__state
        if not (state.in_compact or state.in_setup):
            about = {"kind": kind, "module": type(self).__name__, "but": ""}
            running = context.modules[-1] if context.modules else None
            if running is not None and running._module__is_name_scope:
                about["but"] = "; a method with a name scope makes submodules only"
            raise errors.DeclareVariableError("", name, scope.path_text, **about)
        return scope

    @parameters_of_method(Scope.param)
    def param(self, name: str, *_args: Any, **_options: Any) -> Any:
        """Declares a parameter, and returns its value.

        Args:
            name: its name.
            init_fn: makes the first value from a key and the other arguments.
            *init_args: arguments of `init_fn` after the key.
            unbox: whether to return the value without its axis metadata.
            **init_kwargs: keyword arguments of `init_fn`.

        Returns:
            The value.

        Raises:
            DeclareVariableError: outside `setup` and compact methods.
            ScopeParamShapeError: if the stored value has another shape than `init_fn`
                makes; and what else `Scope.param` raises.
        """
        return self._module__declaring("parameter", name).param(
            name, *_args, **_options
        )

    @parameters_of_method(Scope.variable)
    def variable(
        self, col: str, name: str, *_args: Any, **_options: Any
    ) -> Variable[Any]:
        """Declares a variable.

        Args:
            col: its collection.
            name: its name.
            init_fn: makes the first value.
            *init_args: arguments of `init_fn`.
            unbox: whether its `value` looks through axis metadata.
            **init_kwargs: keyword arguments of `init_fn`.

        Returns:
            The variable; read and write its `value`.

        Raises:
            DeclareVariableError: outside `setup` and compact methods; and what
                `Scope.variable` raises.
        """
        scope = self._module__declaring("variable", name)
        return scope.variable(col, name, *_args, **_options)

    def get_variable(self, col: str, name: str, default: Any = None) -> Any:
        """The value of a variable of this module.

        Args:
            col: its collection.
            name: its name.
            default: what to return if it does not exist.
        """
        return self._module__bound(f'variable "{name}"').get_variable(
            col, name, default
        )

    def put_variable(self, col: str, name: str, value: Any) -> None:
        """Stores a value in a variable of this module.

        Args:
            col: its collection, which must be mutable.
            name: its name.
            value: a pytree.

        Raises:
            ModifyScopeVariableError: if the collection is not mutable.
            JaxTransformError: inside a JAX transform that is not lifted, if the value
                belongs to it; see `Scope.put_variable`.
        """
        self._module__bound(f'variable "{name}"').put_variable(col, name, value)

    def has_variable(self, col: str, name: str) -> bool:
        """Whether a variable of this module exists.

        Args:
            col: its collection.
            name: its name.
        """
        return self._module__bound(f'variable "{name}"').has_variable(col, name)

    def is_mutable_collection(self, col: str) -> bool:
        """Whether a collection may be written.

        Args:
            col: its name.
        """
        return self._module__bound(f'collection "{col}"').is_mutable_collection(col)

    def has_rng(self, name: str) -> bool:
        """Whether a random stream was given.

        Args:
            name: its name.
        """
        return self._module__bound(f'RNGs, such as "{name}",').has_rng(name)

    def make_rng(self, name: str = "params") -> jax.Array:
        """Draws a key.

        Args:
            name: the name of a stream; `params` is used if it was not given.

        Returns:
            A key that no other draw returns.
        """
        return self._module__bound(f'RNGs, such as "{name}",').make_rng(name)

    def is_initializing(self) -> bool:
        """Whether `init` is running."""
        return bool(
            self._module__bound("initialization").get_flag("initializing", False)
        )

    def sow(
        self,
        col: str,
        name: str,
        value: Any,
        reduce_fn: Callable[[Any, Any], Any] = _append,
        init_fn: Callable[[], Any] = tuple,
    ) -> bool:
        """Stores a value for the caller of `apply`, if its collection is mutable.

        Args:
            col: the collection, often `intermediates`.
            name: the name.
            value: a pytree.
            reduce_fn: joins what is there and `value`; appends to a tuple by default.
            init_fn: makes what is there at first.

        Returns:
            Whether it was stored.
        """
        scope = self._module__bound(f'variable "{name}"')
        if not scope.is_mutable_collection(col):
            return False
        if scope.has_variable(col, name):
            before = scope.get_variable(col, name)
        else:
            scope.reserve(name, col)
            before = init_fn()
        scope.put_variable(col, name, reduce_fn(before, value))
        return True

    def perturb(self, name: str, value: Any, collection: str = "perturbations") -> Any:
        """Adds a variable that is zero to a value, to differentiate with respect to it.

        Where the collection was not given, `value` is returned as it is.

        Args:
            name: the name of the perturbation.
            value: a pytree of arrays.
            collection: where it lives.

        Returns:
            The sum.

        Raises:
            PerturbationNotFoundError: if the collection was given without this name.
        """
        scope = self._module__bound(f'variable "{name}"')
        if scope.is_mutable_collection(collection):
            if not scope.has_variable(collection, name):
                scope.reserve(name, collection)
                zeros = jax.tree.map(jnp.zeros_like, value)
                scope.put_variable(collection, name, zeros)
        elif not scope.has_collection(collection):
            return value
        elif not scope.has_variable(collection, name):
            raise errors.PerturbationNotFoundError(collection, name, scope.path_text)
        added = scope.get_variable(collection, name)
        return jax.tree.map(jnp.add, value, added)

    @property
    def variables(self) -> dict[str, Any]:
        """The variables of this module and its submodules: `{collection: dict}`."""
        return self._module__bound("variables").variables()

    @property
    def path(self) -> tuple[str, ...]:
        """The names from the root to this module."""
        return self._module__bound("path").path
