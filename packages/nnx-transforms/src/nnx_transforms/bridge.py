"""Live objects in modules of linen-lift, and those in live objects.

`ToNNX` is a live object that runs a module of linen-lift: its variables are attributes,
at their paths, and the type of each tells its collection. `ToLinen` is a module of
linen-lift that runs a live object: its variables are in the collection that the type of
each names, at their paths. Random streams are passed on by name.

This is the one module that imports linen-lift, which must be installed for it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any, TypeVar

import jax

import linen_lift
from graphcore import (
    Dict,
    State,
    Variable,
    is_variable,
    iter_graph,
    variable_name_from_type,
    variable_type_from_name,
)
from graphcore.authors import path_text
from nnx_transforms.module import Module
from nnx_transforms.rngs import RngCount, RngKey, Rngs, RngState
from nnx_transforms.transforms.eval_shape import eval_shape
from nnx_transforms.traversals import flatten_mapping, unflatten_mapping

__all__ = ["ToLinen", "ToNNX", "lazy_init", "to_linen"]

N = TypeVar("N", bound="ToNNX")
M = TypeVar("M", bound=Callable[..., Any])
_OWN = ("module", "rngs", "is_made")


class ToNNX(Module):
    """A live object that runs a module of linen-lift.

    Its variables are made by `lazy_init`. A call writes back what the module changes:
    in all collections but `params`, or in those that `mutable` names.

    Args:
        module: An unbound module of linen-lift.
        rngs: Random streams: `params` for the first values, and those that the module
            draws from. `default` stands for any other.

    Example:
        >>> import jax.numpy as jnp, linen_lift as nn, nnx_transforms as nnx
        >>> from nnx_transforms import bridge
        >>> x = jnp.ones((1, 2))
        >>> dense = bridge.ToNNX(nn.Dense(3), rngs=nnx.Rngs(0)).lazy_init(x)
        >>> dense.kernel.value.shape, type(dense.kernel).__name__
        ((2, 3), 'Param')
        >>> grads = nnx.grad(lambda dense: dense(x).sum())(dense)
        >>> grads['bias'].value.tolist()
        [1.0, 1.0, 1.0]
    """

    def __init__(self, module: Any, rngs: Rngs | None = None) -> None:
        if not isinstance(module, linen_lift.Module):
            kind = type(module).__name__
            raise TypeError(f"ToNNX takes a module of linen-lift; found {kind}.")
        self.module = module
        # Its draws are its own: the caller's streams go on as if there were one.
        self.rngs = None if rngs is None else rngs.fork()
        self.is_made = False

    def lazy_init(self: N, *args: Any, **kwargs: Any) -> N:
        """Makes the variables, as a first call would.

        Args:
            *args: Arguments of a call.
            **kwargs: Likewise.

        Returns:
            This object.
        """
        return lazy_init(self, *args, **kwargs)

    def __call__(
        self,
        *args: Any,
        rngs: Rngs | None = None,
        method: Any = None,
        mutable: Any = None,
        **kwargs: Any,
    ) -> Any:
        """Runs the module on the variables.

        Args:
            *args: Arguments of the method.
            rngs: Streams for this call, instead of the object's own.
            method: The method, or its name; `__call__` if left out.
            mutable: The collections that may be written; all but `params` if left out.
            **kwargs: Further arguments of the method.

        Returns:
            What it returns.

        Raises:
            ValueError: If there are no variables yet.
        """
        if not self.is_made and _initializing.get():
            out, variables = self.module.init_with_output(
                self._keys(rngs), *args, method=method, **kwargs
            )
            self._take(variables)
            self.is_made = True
            return out
        if not self.is_made:
            raise ValueError(
                f"The variables of this {type(self.module).__name__} were not made: "
                "call `lazy_init` with the arguments of a call first."
            )
        if mutable is None:
            mutable = linen_lift.DenyList("params")
        out = self.module.apply(
            self._collections(),
            *args,
            rngs=self._keys(rngs),
            method=method,
            mutable=mutable,
            **kwargs,
        )
        if mutable is False:
            return out
        out, updates = out
        self._take(updates)
        return out

    def _keys(self, rngs: Rngs | None) -> dict[str, jax.Array]:
        streams = self.rngs if rngs is None else rngs
        if streams is None:
            return {}
        keys = {name: stream() for name, stream in streams.items()}
        if "default" in keys:
            keys.setdefault("params", keys.pop("default"))
        return keys

    def _collections(self) -> dict[str, Any]:
        values: State[Any, Any] = State.from_flat_path(
            ((variable_name_from_type(type(variable)), *path), variable.raw_value)
            for path, variable in _variables(self)
            if path[0] not in _OWN
        )
        return values.raw_mapping

    def _take(self, collections: Mapping[str, Any]) -> None:
        for col, tree in collections.items():
            kind = variable_type_from_name(col, allow_register=True)
            for path, value in flatten_mapping(tree).items():
                self._write(path, kind, value)

    def _write(self, path: tuple[str, ...], kind: type[Any], value: Any) -> None:
        holder: Any = self
        if path[0] in _OWN:
            raise ValueError(
                f"The module has something at {path_text(path)!r}, a name that ToNNX "
                "has a use for: give its submodule or variable another one."
            )
        for name in path[:-1]:
            if name not in vars(holder):
                setattr(holder, name, Dict())
            holder = getattr(holder, name)
        found = vars(holder).get(path[-1])
        if is_variable(found) and type(found) is kind:
            found.raw_value = value
        else:
            setattr(holder, path[-1], kind(value))


def lazy_init(model: M, *args: Any, **kwargs: Any) -> M:
    """Makes the variables of each `ToNNX` that a call of a module reaches.

    Args:
        model: A `ToNNX`, or a module that has some among its parts; or a method of one.
        *args: Arguments of a call.
        **kwargs: Likewise.

    Returns:
        What was given.

    Example:
        >>> import jax.numpy as jnp, linen_lift as nn, nnx_transforms as nnx
        >>> from nnx_transforms import bridge
        >>> dense = bridge.ToNNX(nn.Dense(3), rngs=nnx.Rngs(0))
        >>> model = nnx.Sequential(dense, nnx.relu)
        >>> bridge.lazy_init(model, jnp.ones((1, 2))) is model, dense.bias.value.shape
        (True, (3,))
    """
    token = _initializing.set(True)
    try:
        model(*args, **kwargs)
    finally:
        _initializing.reset(token)
    return model


_initializing: ContextVar[bool] = ContextVar("_initializing", default=False)


class ToLinen(linen_lift.Module):
    """A module of linen-lift that runs a live object.

    The object is made anew in each call from the variables of the module. Those that it
    writes are written back; it may not change otherwise. Its random streams start from
    keys of the streams of the same name.

    Args:
        nnx_class: Makes the object.
        args: Its arguments; hashable.
        kwargs: Its keyword arguments.
        skip_rng: Whether not to pass `rngs=`.

    Example:
        >>> import jax, jax.numpy as jnp, nnx_transforms as nnx
        >>> from nnx_transforms import bridge
        >>> dense = bridge.ToLinen(nnx.Linear, args=(2, 3))
        >>> variables = dense.init(jax.random.key(0), jnp.ones((1, 2)))
        >>> variables['params']['kernel'].shape
        (2, 3)
        >>> dense.apply(variables, jnp.ones((1, 2))).shape
        (1, 3)
    """

    nnx_class: Callable[..., Any]
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = dataclasses.field(default_factory=linen_lift.FrozenDict)
    skip_rng: bool = False

    @linen_lift.compact
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the object.

        Args:
            *args: Arguments of the call.
            **kwargs: Likewise.

        Returns:
            What it returns.

        Raises:
            ValueError: If a variable is missing, or the object draws from a stream
                that was not given.
        """
        given = self.variables
        if self.is_initializing() and not given:
            # What the call writes are no first values: that step was not taken.
            model = self._make()
            self._write(model, {})
            return model(*args, **kwargs)
        model = eval_shape(self._make)
        self._fill(model, given)
        before = {path: v.raw_value for path, v in _variables(model)}
        out = model(*args, **kwargs)
        self._write(model, before)
        return out

    def _make(self) -> Any:
        if self.skip_rng:
            return self.nnx_class(*self.args, **self.kwargs)
        assert self.scope is not None
        keys = {name: self.make_rng(name) for name in self.scope.rngs}
        rngs = Rngs(keys.get("params", 0), **keys)
        return self.nnx_class(*self.args, **self.kwargs, rngs=rngs)

    def _fill(self, model: Any, given: Mapping[str, Any]) -> None:
        keys: dict[Any, Any] = {}
        for path, variable in _variables(model):
            if isinstance(variable, RngCount):
                variable.raw_value = jax.numpy.zeros((), variable.raw_value.dtype)
            elif isinstance(variable, RngKey):
                tag = variable.tag
                if tag not in keys:
                    keys[tag] = self._key(tag)
                variable.raw_value = keys[tag]
            else:
                variable.raw_value = _get(given, _place(path, variable))

    def _key(self, tag: str) -> Any:
        if self.has_rng(tag) or self.has_rng("params"):
            return self.make_rng(tag)
        return jax.random.key(0)  # It may not be drawn from; see `_write`.

    def _write(self, model: Any, before: Mapping[Any, Any]) -> None:
        for path, variable in _variables(model):
            value = variable.raw_value
            if path in before and before[path] is value:
                continue
            if isinstance(variable, RngState):
                tag = variable.tag
                if before and not (self.has_rng(tag) or self.has_rng("params")):
                    raise ValueError(
                        f"The object draws from the random stream {tag!r} at "
                        f"{path_text(path)!r}, but none of this name was given: pass "
                        f"rngs={{{tag!r}: key}}."
                    )
                continue
            col, name, *rest = _place(path, variable)
            if path not in before and not self.is_mutable_collection(col):
                continue  # As what is sown where nobody asked for it.
            if rest:
                known = self.variables.get(col, {}).get(name, {})
                flat = flatten_mapping(known, keep_empty_nodes=True)
                value = unflatten_mapping({**flat, tuple(rest): value})
            self.put_variable(col, name, value)


def to_linen(
    nnx_class: Callable[..., Any], *args: Any, name: str | None = None, **kwargs: Any
) -> ToLinen:
    """Makes a `ToLinen` with the arguments of the class given as in a call of it.

    Args:
        nnx_class: Makes the object.
        *args: Its arguments.
        name: The name of the module.
        **kwargs: Its keyword arguments.

    Returns:
        The module.

    Example:
        >>> import nnx_transforms as nnx
        >>> from nnx_transforms import bridge
        >>> bridge.to_linen(nnx.Linear, 2, 3).args
        (2, 3)
    """
    return ToLinen(nnx_class, args=args, kwargs=kwargs, name=name)


def _variables(root: Any) -> Iterator[tuple[tuple[Any, ...], Variable[Any]]]:
    return ((path, x) for path, x in iter_graph(root) if is_variable(x))


def _place(path: tuple[Any, ...], variable: Any) -> tuple[str, ...]:
    return variable_name_from_type(type(variable)), *map(str, path)


def _get(tree: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        if name not in tree:
            raise ValueError(
                f"The variables have nothing at {path_text(path)!r}, where the object "
                "has a variable: make them with `init`."
            )
        tree = tree[name]
    return tree
