"""`Module`: a dataclass whose methods own variables.

The fields of a module are its configuration; its variables live in a scope, which it
has while it is *bound*. `init` and `apply` bind a clone for the time of one call.
"""

from __future__ import annotations

import dataclasses
import inspect
import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from graphcore import api_boundary
from graphcore.authors import UNSET

from .. import errors
from .. import scope as scopes
from ..filters import CollectionFilter
from ..scope import Scope
from ..signatures import parameters_of
from .adoption import adopt, bind_to, register
from .calling import call_intercepted
from .containers import own_names, replace
from .context import context
from .declarations import Declarations
from .decorators import compact
from .definition import RESERVED, checked_hash, define, tabulate_fields
from .module_base import State
from .preparation import INIT_MUTABLE, CaptureFilter, check_instance, pure
from .summary import Summaries

M = TypeVar("M", bound="Module")


class Module(Declarations, Summaries):
    """The base of all modules.

    A subclass with annotated fields becomes a dataclass. Its submodules and variables
    are made in `setup`, or inline in one method marked `compact`. Two keyword-only
    fields are always there: `name`, and `parent`, which is found by itself.

    Example:
        >>> import linen_lift as nn, jax, jax.numpy as jnp
        >>> class Affine(nn.Module):
        ...     features: int
        ...     @nn.compact
        ...     def __call__(self, x):
        ...         shape = (x.shape[-1], self.features)
        ...         w = self.param('w', nn.initializers.ones, shape)
        ...         return x @ w
        >>> model = Affine(2)
        >>> variables = model.init(jax.random.key(0), jnp.ones(3))
        >>> model.apply(variables, jnp.ones(3)).tolist()
        [3.0, 3.0]
    """

    parent: Any = dataclasses.field(
        default=UNSET, repr=False, compare=False, hash=False, kw_only=True
    )
    name: str | None = dataclasses.field(default=None, kw_only=True)

    scope: ClassVar[Scope | None] = None
    _module__field_names: ClassVar[tuple[str, ...]] = ()
    _module__init_names: ClassVar[tuple[str, ...]] = ()
    _module__has_setup: ClassVar[bool] = False
    _module__compared: ClassVar[Any]
    _module__hashed: ClassVar[Any]
    _module__lifted_classes: ClassVar[dict[Any, Any]] = {}

    def __init_subclass__(
        cls, kw_only: bool = False, _derived: bool = False, **kwargs: Any
    ) -> None:
        super().__init_subclass__(**kwargs)
        cls._module__lifted_classes = {}
        if not _derived:  # a lifted class has the fields and methods of its base
            define(cls, kw_only)

    def __post_init__(self) -> None:
        attributes = self.__dict__
        attributes["_module__state"] = State(tuple(attributes))
        attributes["scope"] = None
        parent = self.parent
        if parent is UNSET:
            modules = context.modules
            parent = self.parent = modules[-1] if modules else None
        if parent is None:
            return
        if isinstance(parent, Scope):
            self.parent = None
            bind_to(self, parent)
        elif isinstance(parent, Module):
            register(parent, self)
        else:
            raise TypeError(
                "The parent of a module must be a module, a scope or None; found "
                f"{type(parent).__name__}."
            )

    def __eq__(self, other: object) -> Any:
        if type(other) is not type(self):
            return NotImplemented
        if self is other:
            return True
        # Bound modules have variables, which count as well.
        if self.scope != other.scope:
            return False
        return self._module__compared(self) == self._module__compared(other)

    @checked_hash
    def __hash__(self) -> int:
        return hash(self._module__hashed(self))

    if TYPE_CHECKING:  # a field may be any module, and modules are called

        def __call__(self, *args: Any, **kwargs: Any) -> Any: ...

    # --- attributes -----------------------------------------------------------------

    def __setattr__(self, name: str, value: Any) -> None:
        state: Any = self.__dict__.get("_module__state")
        # Typing notes the parameters of a generic class in each instance.
        free = state is None or name == "__orig_class__"
        if free or (self.scope is None and not state.in_setup):
            object.__setattr__(self, name, value)
            return
        if not state.in_setup:
            raise errors.SetAttributeFrozenModuleError(*_about(self, name))
        if name in self._module__init_names or name in RESERVED:
            raise errors.SetAttributeInModuleSetupError(*_about(self, name))
        object.__setattr__(self, name, adopt(self, name, value))

    def __delattr__(self, name: str) -> None:
        if self.scope is not None and not self._module__state.in_setup:
            raise errors.SetAttributeFrozenModuleError(*_about(self, name))
        object.__delattr__(self, name)

    def __getattr__(self, name: str) -> Any:
        # Only reached for what is not there: perhaps `setup` has not run.
        attributes = self.__dict__
        cls = type(self)
        state = attributes.get("_module__state")
        # Without a state, `__init__` has not run yet.
        if state is not None and not name.startswith("__"):
            if attributes["scope"] is not None and not state.setup_done:
                self._module__run_setup()
                if name in attributes:
                    return attributes[name]
            for base in cls.__mro__:
                if name in base.__dict__:
                    # A property raised this, which Python took for a missing one.
                    try:
                        return base.__dict__[name].__get__(self, cls)
                    except AttributeError as error:
                        known = cls.__name__, name
                        raise errors.DescriptorAttributeError(*known) from error
            if attributes["scope"] is None and self._module__has_setup:
                raise errors.CallSetupUnboundModuleError(cls.__name__, name)
        raise AttributeError(f"{cls.__name__!r} object has no attribute {name!r}")

    def __dir__(self) -> list[str]:
        if self._module__state is not None:
            self._module__run_setup()
        return list(super().__dir__())

    def _module__run_setup(self) -> None:
        state, scope = self._module__state, self.scope
        if state.setup_done or scope is None:
            return
        state.setup_done = True
        own_names(self)
        if not self._module__has_setup:
            return
        modules = context.modules
        state.mark = len(scope._log)
        # Setup makes again what came into a lifted transform with the module.
        passed, scope._passed = scope._passed, frozenset()
        state.in_setup = True
        modules.append(self)
        try:
            call_intercepted(self, type(self).setup, "setup", (), {})
        except BaseException:
            state.setup_done = False
            raise
        finally:
            modules.pop()
            state.in_setup = False
            scope._passed = passed
            now: Any = self.scope  # perhaps another one, by `share_scope`
            if not state.setup_done:
                now._free(now._log[state.mark :])
            # What setup took holds for all calls of compact methods.
            del now._log[state.mark :]

    def _module__in_name_scope(self, name: str) -> NameScope:
        """What calls the method `name` so that its submodules live under its name."""
        state, scope = self._module__state, self.scope
        assert scope is not None
        found = state.children.get(name)
        if isinstance(found, NameScope):
            return found
        if any(name == taken for taken, _ in scope._log):
            raise errors.NameInUseError("name scope", name, scope.path_text)
        scope._reserved.setdefault(name, (None,))
        made = state.children[name] = NameScope(parent=None, name=name)
        made.parent = self
        bind_to(made, Scope({}, name=name, parent=scope))
        return made

    def setup(self) -> None:
        """Makes submodules and variables; runs once, before the first use.

        Override it, and assign submodules to attributes: `self.dense = Dense(3)`.
        """

    # --- cloning and binding --------------------------------------------------------

    def clone(
        self: M,
        *,
        parent: Any = None,
        _deep_clone: bool | dict[int, Any] = False,
        _reset_names: bool = False,
        **updates: Any,
    ) -> M:
        """A copy with the same fields, unbound unless `parent` is given.

        Args:
            parent: a module or scope to bind the copy to.
            _deep_clone: whether all modules in its fields are cloned, too, each once.
            _reset_names: whether they lose their names then.
            **updates: new values for fields.

        Returns:
            The copy. The modules in its fields are those of the original, and bound
            where these are: `copy` makes copies of them.
        """
        attributes = self.__dict__
        if self._module__state is None:
            raise errors.IncorrectPostInitOverrideError(type(self).__name__)
        values = {name: attributes[name] for name in self._module__init_names}
        values.update(updates)
        clones = _deep_clone if isinstance(_deep_clone, dict) else {}

        def renewed(child: Module, _: str) -> Any:
            if id(child) not in clones:
                new = {"name": None} if _reset_names else {}
                clones[id(child)] = child.clone(
                    _deep_clone=clones, _reset_names=_reset_names, **new
                )
            return clones[id(child)]

        if _reset_names or _deep_clone is not False:
            values = {k: replace(v, (Module,), renewed) for k, v in values.items()}
        values.setdefault("name", None if self._module__state.auto_named else self.name)
        try:
            return type(self)(parent=parent, **values)
        except TypeError as error:
            known = inspect.signature(type(self)).parameters
            kinds = {p.kind for p in known.values()}
            if "parent" in known or inspect.Parameter.VAR_KEYWORD in kinds:
                raise
            name = type(self).__name__
            raise errors.IncorrectPostInitOverrideError(name) from error

    def copy(
        self: M, *, parent: Any = UNSET, name: str | None = None, **updates: Any
    ) -> M:
        """A copy with variables of its own, made where it is called.

        Args:
            parent: a module, scope or None; the running module if it is not given.
            name: the name of the copy.
            **updates: new values for fields.

        Returns:
            The copy. The modules in its fields are copies, too: what was one there is
            one here.
        """
        return self.clone(parent=parent, name=name, _deep_clone=True, **updates)

    def bind(
        self: M,
        variables: Mapping[str, Any],
        rngs: Any = None,
        mutable: CollectionFilter = False,
    ) -> M:
        """A copy that has variables, for interactive use.

        Args:
            variables: `{collection: nested dict}`.
            rngs: a key, or keys by stream.
            mutable: which collections may be written.

        Returns:
            The bound copy; its methods can be called directly.

        Raises:
            InvalidInstanceModuleError: if called on a class.
        """
        check_instance(self, "bind")
        scope = scopes.bind(variables, rngs, mutable)
        return self.clone(parent=scope, _deep_clone=True)

    def unbind(self: M) -> tuple[M, dict[str, Any]]:
        """The inverse of `bind`, also for submodules of a bound module.

        Returns:
            An unbound copy, without names for it and the modules in its fields, and its
            variables.

        Raises:
            CallUnbindOnUnboundModuleError: if the module is not bound.
        """
        if self.scope is None:
            raise errors.CallUnbindOnUnboundModuleError(type(self).__name__)
        self._module__run_setup()
        unbound = self.clone(_deep_clone=True, _reset_names=True, name=None)
        return unbound, self.variables

    # --- pure functions -------------------------------------------------------------

    @api_boundary
    def apply(
        self,
        variables: Mapping[str, Any],
        *args: Any,
        rngs: Any = None,
        method: Any = None,
        mutable: CollectionFilter = False,
        capture_intermediates: CaptureFilter = False,
        **kwargs: Any,
    ) -> Any:
        """Calls a method with given variables.

        Args:
            variables: `{collection: nested dict}`.
            *args: arguments of the method.
            rngs: a key (for the stream `params`), or keys by stream.
            method: a method or its name, or a function of the module; `__call__` by
                default.
            mutable: which collections may be written.
            capture_intermediates: whether to store what `__call__` of every submodule
                returns in the collection `intermediates`, but in a transform that is
                not lifted; or a function `(module, method_name)` that tells for every
                method.
            **kwargs: keyword arguments of the method.

        Returns:
            What the method returns and, unless `mutable` is False, with it the mutable
            collections.

        Raises:
            ApplyModuleInvalidMethodError: if `method` is neither.
            InvalidInstanceModuleError: if called on a class.

        Example:
            >>> import linen_lift as nn, jax.numpy as jnp
            >>> variables = {'params': {'kernel': jnp.ones((3, 1))}}
            >>> nn.Dense(1, use_bias=False).apply(variables, jnp.ones(3)).tolist()
            [3.0]
        """
        run = pure(scopes.apply, method, self, mutable, capture_intermediates)
        return run(variables, *args, rngs=rngs, **kwargs)

    @api_boundary
    def init_with_output(
        self,
        rngs: Any,
        *args: Any,
        method: Any = None,
        mutable: CollectionFilter = INIT_MUTABLE,
        capture_intermediates: CaptureFilter = False,
        **kwargs: Any,
    ) -> tuple[Any, dict[str, Any]]:
        """Creates the variables of a module.

        Args:
            rngs: a key (for the stream `params`), or keys by stream.
            *args: arguments of the method.
            method: as for `apply`.
            mutable: which collections are created.
            capture_intermediates: as for `apply`.
            **kwargs: keyword arguments of the method.

        Returns:
            What the method returns, and the variables.

        Example:
            >>> import linen_lift as nn, jax, jax.numpy as jnp
            >>> out, _ = nn.Dense(2).init_with_output(jax.random.key(0), jnp.ones(3))
            >>> out.shape
            (2,)
        """
        check_instance(self, "init_with_output")
        make = pure(scopes.init, method, self, mutable, capture_intermediates)
        return make(rngs, *args, **kwargs)

    @api_boundary
    @parameters_of(init_with_output)
    def init(self, *_args: Any, **_options: Any) -> dict[str, Any]:
        """Creates the variables of a module.

        Args:
            rngs: a key (for the stream `params`), or keys by stream.
            *args: arguments of the method.
            method: as for `apply`.
            mutable: which collections are created.
            capture_intermediates: as for `apply`.
            **kwargs: keyword arguments of the method.

        Returns:
            The variables.

        Example:
            >>> import linen_lift as nn, jax, jax.numpy as jnp
            >>> variables = nn.Dense(2).init(jax.random.key(0), jnp.ones(3))
            >>> variables['params']['kernel'].shape
            (3, 2)
        """
        check_instance(self, "init")
        return self.init_with_output(*_args, **_options)[1]

    @api_boundary
    def lazy_init(
        self,
        rngs: Any,
        *args: Any,
        method: Any = None,
        mutable: CollectionFilter = INIT_MUTABLE,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """Creates the variables of a module without computing its output.

        Args:
            rngs: a key (for the stream `params`), or keys by stream.
            *args: arguments of the method; `jax.ShapeDtypeStruct` stands for arrays
                whose values no variable depends on.
            method: as for `apply`.
            mutable: which collections are created.
            **kwargs: keyword arguments of the method.

        Returns:
            The variables.

        Raises:
            LazyInitError: if a variable depends on the values of such an argument.

        Example:
            >>> import linen_lift as nn, jax
            >>> x = jax.ShapeDtypeStruct((8, 3), 'float32')
            >>> nn.Dense(2).lazy_init(jax.random.key(0), x)['params']['kernel'].shape
            (3, 2)
        """
        make = pure(scopes.lazy_init, method, self, mutable)
        return make(rngs, *args, **kwargs)


# `Module` itself has no annotations to add; only subclasses are completed by
# `__init_subclass__`.
dataclasses.dataclass(eq=False, repr=False)(Module)
tabulate_fields(Module)


class _Parent:
    """The field `parent`, which does not keep the parent alive.

    A parent holds its submodules. If these held it as well, what a call leaves behind
    would live until the cyclic garbage collector runs.
    """

    def __get__(self, module: Any, _: Any = None) -> Any:
        held = None if module is None else module.__dict__.get("parent")
        return held() if isinstance(held, weakref.ref) else held

    def __set__(self, module: Any, parent: Any) -> None:
        if isinstance(parent, Module):
            parent = weakref.ref(parent)
        module.__dict__["parent"] = parent


Module.parent = _Parent()


class NameScope(Module):
    """The submodule whose submodules a method makes that has a name scope."""

    _module__is_name_scope: ClassVar[bool] = True

    @compact
    def __call__(self, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return method(*args, **kwargs)


def _about(module: Any, attribute: str) -> tuple[str, str, str]:
    return type(module).__name__, attribute, module.scope.path_text
