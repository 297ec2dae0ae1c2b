"""Modules whose methods are transformed.

Each class takes a module constructor, and is a module with the inner one in `module`.
A call of it is a transformed call of the inner module's `__call__`; `m.call.name(...)`
is one of its method `name`. Wherever an argument is told by position, as in
`static_argnums` or `in_axes`, position 0 is the inner module.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, ClassVar, TypeAlias

from graphcore import api_boundary
from nnx_transforms.arguments import signature_of
from nnx_transforms.legacy.state_axes import construct_stacked, pmap, scan, vmap
from nnx_transforms.modules.module import Module
from nnx_transforms.transforms.checkpoint import remat
from nnx_transforms.transforms.grad import grad
from nnx_transforms.transforms.jit import jit

__all__ = ["Grad", "Jit", "Pmap", "Remat", "Scan", "Vmap"]

_NO_KWARGS: Mapping[str, Any] = MappingProxyType({})

Steps: TypeAlias = tuple[tuple[bool, Any], ...]
"""How a method is reached: for each step, whether it is an item, and its key."""


@dataclass
class _Settings:
    """What a class was told. Static: it is compared by value.

    Args:
        module_constructor: The constructor.
        values: The arguments of the transformation by name.

    Attributes:
        functions: Kept by method, so that what JAX compiled for one is found.
    """

    module_constructor: Any
    values: dict[str, Any]
    functions: dict[Any, Callable[..., Any]] = field(
        init=False, compare=False, default_factory=dict
    )

    def __hash__(self) -> int:
        # Some values can be compared, but not hashed.
        return hash((self.module_constructor, tuple(self.values)))

    def __deepcopy__(self, memo: Any) -> _Settings:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return _Settings, (self.module_constructor, self.values)

    def __repr__(self) -> str:
        texts = [f"{name}={value!r}" for name, value in self.values.items()]
        name = getattr(self.module_constructor, "__name__", self.module_constructor)
        return f"<{', '.join([str(name), *texts])}>"


class _Methods:
    """Selects a method of the inner module; see `call`."""

    __slots__ = ("_owner", "_steps")

    def __init__(self, owner: _Transformed, steps: Steps = ()) -> None:
        self._owner = owner
        self._steps = steps

    def __getattr__(self, name: str) -> _Methods:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Methods(self._owner, (*self._steps, (False, name)))

    def __getitem__(self, key: Any) -> _Methods:
        return _Methods(self._owner, (*self._steps, (True, key)))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._owner._run(self._steps, args, kwargs)


class _Transformed(Module):
    """A module around one whose methods are transformed.

    Args:
        module_constructor: The constructor of the inner module.
        *args: Options of the transformation.
        module_init_args: The arguments for the constructor.
        module_init_kwargs: Likewise.
        **options: Further options of the transformation.
    """

    # Called as `_transform(f, **options)`; `f` takes the inner module, then the
    # arguments of its method.
    _transform: ClassVar[Callable[..., Any]]
    # The option that says how many modules there are in one.
    _size: ClassVar[str | None] = None

    def __init_subclass__(
        cls,
        transform: Callable[..., Any] | None = None,
        size: str | None = None,
        **more: Any,
    ) -> None:
        super().__init_subclass__(**more)
        if transform is not None:  # else it is a subclass of a user's
            cls._transform, cls._size = staticmethod(transform), size
            cls.__init__ = _constructor_for(transform)  # type: ignore[method-assign]

    def __init__(
        self,
        module_constructor: Callable[..., Any],
        *args: Any,
        module_init_args: Sequence[Any] = (),
        module_init_kwargs: Mapping[str, Any] = _NO_KWARGS,
        **options: Any,
    ) -> None:
        make = module_constructor
        init = tuple(module_init_args), dict(module_init_kwargs)
        bound = inspect.signature(self._transform).bind(make, *args, **options)
        by_position = dict(zip(bound.arguments, bound.args, strict=False))
        _, *chosen = {**by_position, **bound.kwargs}.items()
        self.settings = _Settings(make, dict(chosen))
        if self._size is None:
            self.module = make(*init[0], **init[1])
        else:
            values = self.settings.values
            self.module = construct_stacked(make, init, self._size, **values)

    @classmethod
    def constructor(
        cls, module_constructor: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> Callable[..., Any]:
        """Makes a constructor of transformed modules.

        Args:
            module_constructor: The constructor of the inner module.
            *args: The arguments of this class behind it.
            **kwargs: Likewise.

        Returns:
            A function that takes the arguments of the inner module's constructor.

        Example:
            >>> import nnx_transforms as nnx
            >>> RematLinear = nnx.Remat.constructor(nnx.Linear)
            >>> RematLinear(2, 3, rngs=nnx.Rngs(0)).module.kernel.value.shape
            (2, 3)
        """

        @functools.wraps(module_constructor, updated=())
        def construct(*init_args: Any, **init_kwargs: Any) -> Any:
            make: Any = cls  # a subclass, with arguments of its own
            init = {"module_init_args": init_args, "module_init_kwargs": init_kwargs}
            return make(module_constructor, *args, **kwargs, **init)

        return construct

    @property
    def call(self) -> Any:
        """Reaches other methods than `__call__`: `m.call.encode(x)`."""
        return _Methods(self)

    @api_boundary
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the inner module, transformed.

        Args:
            *args: The arguments of its `__call__`.
            **kwargs: Likewise.

        Returns:
            What the transformation makes of its output.
        """
        return self._run((), args, kwargs)

    def _run(self, steps: Steps, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        functions = self.settings.functions
        bound = _reach(self.module, steps)
        # The module may have been replaced by one that takes other arguments. By code:
        # a property may make a function anew at each look.
        method: Any = inspect.unwrap(getattr(bound, "__func__", bound))
        key = steps, getattr(method, "__code__", type(bound))
        function = functions.get(key)
        if function is None:
            method = _method(self.module, steps)
            function = functions[key] = self._transform(method, **self.settings.values)
        return function(self.module, *args, **kwargs)


def _constructor_for(transform: Callable[..., Any]) -> Callable[..., None]:
    """The constructor of a class that takes the options of a transformation."""

    @functools.wraps(_Transformed.__init__)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        _Transformed.__init__(self, *args, **kwargs)

    own = inspect.signature(_Transformed.__init__).parameters.values()
    _, *options = inspect.signature(transform).parameters.values()
    named = [p for p in own if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    parameters = sorted([*named, *options], key=lambda p: p.kind)
    __init__.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return __init__


def _reach(module: Any, steps: Steps) -> Any:
    for is_item, key in steps:
        module = module[key] if is_item else getattr(module, key)
    return module


def _method(module: Any, steps: Steps) -> Callable[..., Any]:
    """A function of a module and the arguments of one of its methods."""

    def method(module: Any, /, *args: Any, **kwargs: Any) -> Any:
        return _reach(module, steps)(*args, **kwargs)

    bound = _reach(module, steps)
    method.__name__ = str(steps[-1][1]) if steps else type(module).__name__
    method.__doc__ = getattr(bound, "__doc__", None)
    signature = signature_of(bound)
    if signature is not None:
        # Transformations find the positions of keyword arguments by this.
        first = inspect.Parameter("_module", inspect.Parameter.POSITIONAL_ONLY)
        parameters = [first, *signature.parameters.values()]
        method.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return method


def _remat(
    f: Callable[..., Any],
    prevent_cse: bool | Sequence[bool] = True,
    static_argnums: int | tuple[int, ...] = (),
    policy: Callable[..., bool] | None = None,
) -> Any:
    return remat(
        f, prevent_cse=prevent_cse, static_argnums=static_argnums, policy=policy
    )


class Remat(_Transformed, transform=_remat):
    """A module whose intermediate values are computed again on the way back.

    Args:
        module_constructor: The constructor of the inner module.
        prevent_cse: As for `remat`.
        static_argnums: As for `remat`; 0 is the module.
        policy: As for `remat`.
        module_init_args: The arguments for the constructor.
        module_init_kwargs: Likewise.

    Example:
        >>> import nnx_transforms as nnx, jax.numpy as jnp
        >>> layer = nnx.Remat(nnx.Linear, module_init_args=(2, 3),
        ...                   module_init_kwargs={'rngs': nnx.Rngs(0)})
        >>> grads = nnx.grad(lambda m, x: m(x).sum())(layer, jnp.ones(2))
        >>> grads.module.kernel.value.shape
        (2, 3)
    """


class Jit(_Transformed, transform=jit):
    """A module whose methods are compiled, each once for a structure of the module.

    Args:
        module_constructor: The constructor of the inner module.
        module_init_args: The arguments for the constructor.
        module_init_kwargs: Likewise.
        **more: The options of `jit`; in positions, 0 is the module.

    Example:
        >>> import nnx_transforms as nnx, jax.numpy as jnp
        >>> layer = nnx.Jit.constructor(nnx.Linear)(2, 3, rngs=nnx.Rngs(0))
        >>> layer(jnp.ones(2)).shape
        (3,)
    """


class Grad(_Transformed, transform=grad):
    """A module whose methods give the gradient of what the inner module's return.

    Args:
        module_constructor: The constructor of the inner module.
        argnums: As for `grad`; 0 is the module.
        has_aux: As for `grad`.
        holomorphic: As for `grad`.
        allow_int: As for `grad`.
        reduce_axes: As for `grad`.
        wrt: As for `grad`.
        module_init_args: The arguments for the constructor.
        module_init_kwargs: Likewise.

    Example:
        >>> import nnx_transforms as nnx, jax.numpy as jnp
        >>> class Loss(nnx.Module):
        ...     def __init__(self, w):
        ...         self.w = nnx.Param(jnp.array(w))
        ...     def __call__(self, x):
        ...         return self.w.value ** 2 * x
        >>> float(nnx.Grad(Loss, module_init_args=(3.0,))(2.0).w.value)
        12.0
    """


class Vmap(_Transformed, transform=vmap, size="axis_size"):
    """Several modules in one: each index of the mapped axis has its own variables.

    Args:
        module_constructor: The constructor of one inner module.
        in_axes: The axes of arrays among the arguments; in a tuple, the entry for the
            module comes first, and has no meaning.
        out_axes: The axes of arrays in the output.
        axis_name: As for `vmap`.
        axis_size: How many modules; needed to construct them.
        spmd_axis_name: As for `vmap`.
        in_axes_kwargs: The axes of keyword arguments.
        state_axes: From filters to the axis of the variables that they select; None
            for those that all indices share.
        split_rngs: Selects the random streams of which each index has its own, when
            the modules are made and in each call.
        transform_metadata: As for `vmap`.
        module_init_args: The arguments for the constructor. All but random streams
            are the same for all indices.
        module_init_kwargs: Likewise.

    Raises:
        ValueError: If `axis_size` is not given, or a variable that all indices share
            would be different.

    Example:
        >>> import nnx_transforms as nnx, jax.numpy as jnp
        >>> Ensemble = nnx.Vmap.constructor(nnx.Linear, axis_size=4)
        >>> model = Ensemble(2, 3, rngs=nnx.Rngs(0))
        >>> model.module.kernel.value.shape, model(jnp.ones((4, 2))).shape
        ((4, 2, 3), (4, 3))
    """


# Behind the module, which is argument 0, comes the carry.
_scan = functools.partial(scan, carry_argnum=1)


class Scan(_Transformed, transform=_scan, size="length"):
    """Several modules in one, applied one after the other.

    Args:
        module_constructor: The constructor of one inner module.
        length: How many modules; needed to construct them.
        reverse: As for `jax.lax.scan`.
        unroll: As for `jax.lax.scan`.
        _split_transpose: As for `jax.lax.scan`.
        in_axes: The axes of arrays among the arguments; in a tuple, the entry for the
            module comes first, and has no meaning, like that for the carry.
        in_axes_kwargs: The axes of keyword arguments.
        out_axes: The axes along which outputs are stacked.
        carry_argnum: The position of the carry, 1 for the first argument behind the
            module; None if there is none.
        state_axes: From filters to the axis of the variables that they select; None
            for those that all iterations share, `Carry` for those that one hands to
            the next.
        split_rngs: Selects the random streams of which each iteration has its own,
            when the modules are made and in each call.
        transform_metadata: As for `scan`.
        scan_output: Whether methods return something besides the carry.
        module_init_args: The arguments for the constructor. All but random streams
            are the same for all modules.
        module_init_kwargs: Likewise.

    Raises:
        ValueError: If `length` is not given, or a variable that all iterations share
            would be different.

    Example:
        >>> import nnx_transforms as nnx, jax.numpy as jnp
        >>> Layers = nnx.Scan.constructor(nnx.Linear, length=5, scan_output=False)
        >>> model = Layers(3, 3, rngs=nnx.Rngs(0))
        >>> model.module.kernel.value.shape, model(jnp.ones((2, 3))).shape
        ((5, 3, 3), (2, 3))
    """


class Pmap(_Transformed, transform=pmap, size="axis_size"):
    """Several modules in one, each on a device of its own.

    Args:
        module_constructor: The constructor of one inner module.
        in_axes: As for `Vmap`.
        out_axes: The axes of arrays in the output.
        axis_size: How many modules; needed to construct them.
        in_axes_kwargs: The axes of keyword arguments.
        state_axes: As for `Vmap`.
        split_rngs: As for `Vmap`.
        transform_metadata: As for `pmap`.
        module_init_args: The arguments for the constructor. All but random streams
            are the same for all devices.
        module_init_kwargs: Likewise.
        **options: Others of `pmap`: `axis_name`, `devices`, `backend`.

    Raises:
        ValueError: If `axis_size` is not given, or a variable that all devices share
            would be different.

    Example:
        >>> import nnx_transforms as nnx, jax, jax.numpy as jnp
        >>> n = jax.local_device_count()
        >>> Replicas = nnx.Pmap.constructor(nnx.Linear, axis_size=n)
        >>> model = Replicas(2, 3, rngs=nnx.Rngs(0))
        >>> model(jnp.ones((n, 2))).shape == (n, 3)
        True
    """
