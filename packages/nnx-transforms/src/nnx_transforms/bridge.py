"""Live objects in modules of linen-lift, and those in live objects.

`ToNNX` is a live object that runs a module of linen-lift: its variables are attributes,
at their paths, and the type of each tells its collection. `ToLinen` is a module of
linen-lift that runs a live object: its variables are in the collection that the type of
each names, at their paths. Random streams are passed on by name.

This is the one module that imports linen-lift, which must be installed for it.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from itertools import filterfalse
from typing import Any, TypeVar

import jax

import linen_lift
from graphcore import (
    Dict,
    HashableMapping,
    State,
    Variable,
    is_variable,
    iter_graph,
    to_predicate,
    variable_name_from_type,
    variable_type_from_name,
)
from graphcore.authors import path_text, raw_value_of, write_raw
from nnx_transforms.modules.libraries import library_of
from nnx_transforms.modules.module import Module
from nnx_transforms.randomness.rngs import RngCount, RngKey, Rngs, RngState
from nnx_transforms.sharding.shardings import get_var_pspec
from nnx_transforms.sharding.shardings import with_partitioning as _with_partitioning
from nnx_transforms.transforms.eval_shape import eval_shape
from nnx_transforms.transforms.mapped.metadata_axes import add_axis, remove_axis
from nnx_transforms.traversals import flatten_mapping, unflatten_mapping

__all__ = [
    "NNXMeta",
    "ToLinen",
    "ToNNX",
    "lazy_init",
    "to_linen",
    "to_linen_var",
    "to_nnx_var",
    "with_partitioning",
]

N = TypeVar("N", bound="ToNNX")
M = TypeVar("M", bound=Callable[..., Any])
# Prefix of the attributes of ToNNX itself, so that they clash with no part of a module.
_OWN = "to_nnx__"
# The fields of linen-lift's boxes, with their names in the metadata of variables.
_FIELDS = {"names": "out_sharding", "rules": "sharding_rules"}
_BOX = "linen_meta_type"


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class NNXMeta(linen_lift.AxisMetadata):
    """A box of linen-lift with the metadata of a variable.

    Args:
        var_type: The type of the variable.
        value: Its value.
        metadata: Its metadata.

    Example:
        >>> import graphcore as gc, jax.numpy as jnp, linen_lift as nn
        >>> from nnx_transforms import bridge
        >>> metadata = {'out_sharding': ('rows', None)}
        >>> box = bridge.NNXMeta(gc.Param, jnp.ones((4, 2)), metadata)
        >>> tuple(nn.get_partition_spec({'w': box})['w'])
        ('rows', None)
    """

    var_type: type[Any] = dataclasses.field(metadata={"static": True})
    value: Any
    metadata: Mapping[str, Any] = dataclasses.field(metadata={"static": True})

    def __post_init__(self) -> None:
        object.__setattr__(self, "metadata", HashableMapping(self.metadata))

    def unbox(self) -> Any:
        """The value."""
        return self.value

    def replace_boxed(self, value: Any) -> NNXMeta:
        """A box with the same metadata around another value.

        Args:
            value: The value.
        """
        return dataclasses.replace(self, value=value)

    def add_axis(self, index: int, params: Mapping[Any, Any]) -> NNXMeta:
        """The box with an axis more in its sharding.

        Args:
            index: Where the axis is.
            params: Its name, under `PARTITION_NAME`.
        """
        return self._edited(add_axis, index, params)

    def remove_axis(self, index: int, params: Mapping[Any, Any]) -> NNXMeta:
        """The box with an axis less in its sharding.

        Args:
            index: Where the axis is.
            params: Its name, under `PARTITION_NAME`.
        """
        return self._edited(remove_axis, index, params)

    def _edited(self, edit: Any, index: int, params: Mapping[Any, Any]) -> NNXMeta:
        variable = self.to_nnx_variable()
        edit(variable, index, params.get(linen_lift.PARTITION_NAME))
        return dataclasses.replace(self, metadata=variable.get_metadata())

    def get_partition_spec(self) -> jax.sharding.PartitionSpec:
        """The mesh axes that the metadata name."""
        return get_var_pspec(self.to_nnx_variable())

    def to_nnx_variable(self) -> Any:
        """A variable of the type, with the value and the metadata."""
        return self.var_type.from_metadata(self.value, self.metadata)


def to_linen_var(variable: Any) -> Any:
    """What stands in a collection for a variable.

    Args:
        variable: A variable, or its state.

    Returns:
        Its value, in a box if it has metadata: that which it came from, or `NNXMeta`.

    Example:
        >>> import graphcore as gc
        >>> from nnx_transforms import bridge
        >>> box = bridge.to_linen_var(gc.Param(1.0, unit='m'))
        >>> type(box).__name__, box.unbox(), bridge.to_linen_var(gc.Param(1.0))
        ('NNXMeta', 1.0, 1.0)
    """
    value, metadata = raw_value_of(variable), dict(variable.get_metadata())
    box = metadata.pop(_BOX, None)
    if box is None:
        return NNXMeta(variable.type, value, metadata) if metadata else value
    names = {field.name: _FIELDS.get(field.name, field.name) for field in _fields(box)}
    kept = {field: metadata[m] for field, m in names.items() if m in metadata}
    return box(value=value, **kept)


def to_nnx_var(col: str, x: Any) -> Any:
    """Makes a variable of what stands in a collection.

    Args:
        col: The collection.
        x: A value, or a box.

    Returns:
        A variable of the type that the collection has, with what the box says as
        metadata.

    Example:
        >>> import linen_lift as nn
        >>> from nnx_transforms import bridge
        >>> variable = bridge.to_nnx_var('params', nn.Partitioned(1.0, ('rows',)))
        >>> type(variable).__name__, variable.value, variable.out_sharding
        ('Param', 1.0, ('rows',))
    """
    kind = variable_type_from_name(col, allow_register=True)
    if isinstance(x, NNXMeta):
        return x.to_nnx_variable()
    if not isinstance(x, linen_lift.AxisMetadata):
        return kind(x)
    found = {field.name: getattr(x, field.name) for field in _fields(type(x))}
    value = found.pop("value")
    known = {_FIELDS.get(k, k): v for k, v in found.items() if v is not None}
    return kind.from_metadata(value, {**known, _BOX: type(x)})


def _fields(box: type[Any]) -> tuple[dataclasses.Field[Any], ...]:
    if not dataclasses.is_dataclass(box):
        raise TypeError(
            f"The box {box.__name__} is no dataclass, so what it says can't become "
            "metadata of a variable: make it one, with a field `value`."
        )
    return dataclasses.fields(box)


def with_partitioning(
    fn: Callable[..., Any], names: tuple[Any, ...], mesh: Any = None
) -> Callable[..., Any]:
    """Wraps an initializer so that its variables are `Partitioned` in linen-lift.

    Args:
        fn: An initializer.
        names: A mesh axis for each dimension of what it makes.
        mesh: The mesh that the names belong to, if not the one in force.

    Returns:
        An initializer with the same arguments.

    Example:
        >>> import jax, nnx_transforms as nnx
        >>> from nnx_transforms import bridge
        >>> init = bridge.with_partitioning(jax.nn.initializers.ones, ('rows', None))
        >>> box = bridge.to_linen_var(nnx.Param(init(jax.random.key(0), (2, 3))))
        >>> type(box).__name__, box.names
        ('Partitioned', ('rows', None))
    """
    box = linen_lift.Partitioned
    return _with_partitioning(fn, names, mesh, **{_BOX: box})


class ToNNX(Module):
    """A live object that runs a module of linen-lift.

    Its variables are made by `lazy_init`. A call writes back what the module changes:
    in all collections but `params`, or in those that `mutable` names.

    Args:
        module: An unbound module of linen-lift.
        rngs: Random streams: `params` for the first values, and those that the module
            draws from. `default` stands for any other. A key stands for `params`.

    What boxes such as `Partitioned` say is metadata of the variables. The methods of
    the module are there as well. The module and the streams are `to_nnx__module` and
    `to_nnx__rngs`; `module` and `rngs`, too, if no part of the module is called so.

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

    def __init__(self, module: Any, rngs: Rngs | jax.Array | None = None) -> None:
        if not isinstance(module, linen_lift.Module):
            kind = type(module).__name__
            raise TypeError(
                f"ToNNX takes a module of linen-lift; found {kind}. Is that one of "
                f"Flax Linen, give `linen_lift.FlaxModule({kind}(...))`."
            )
        self.to_nnx__module = module
        # A fork, so that what it draws does not advance the caller's streams further.
        self.to_nnx__rngs = None if rngs is None else _streams(rngs).fork()
        self.to_nnx__is_made = False

    def __getattr__(self, name: str) -> Any:
        own = vars(self)
        if name in ("module", "rngs") and _OWN + name in own:
            return own[_OWN + name]  # unless the module has something of this name
        method = getattr(type(own.get("to_nnx__module")), name, None)
        if name.startswith("_") or not callable(method):
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}.")
        return functools.partial(self, method=method)

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
        rngs: Rngs | jax.Array | None = None,
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
        module, kwargs["method"] = self.to_nnx__module, method
        if self.to_nnx__is_made:
            if mutable is None:
                mutable = linen_lift.DenyList("params")
            kwargs |= {"rngs": self._keys(rngs), "mutable": mutable}
            out = module.apply(self._collections(), *args, **kwargs)
            if mutable is False:
                return out
            out, variables = out
            self._take(variables)
        elif _initializing.get():
            out, variables = module.init_with_output(self._keys(rngs), *args, **kwargs)
            self._take(variables)
            self.to_nnx__is_made = True
        else:
            raise ValueError(
                f"The variables of this {type(module).__name__} were not made: call "
                "`lazy_init` with the arguments of a call first."
            )
        return out

    def _keys(self, rngs: Rngs | jax.Array | None) -> dict[str, jax.Array]:
        given = self.to_nnx__rngs if rngs is None else rngs
        if given is None:
            return {}
        keys = {name: stream() for name, stream in _streams(given).items()}
        if "default" in keys:
            keys.setdefault("params", keys.pop("default"))
        return keys

    def _collections(self) -> dict[str, Any]:
        values: State[Any, Any] = State.from_flat_path(
            (_place(path, variable), to_linen_var(variable))
            for path, variable in _variables(self)
            if not str(path[0]).startswith(_OWN)
        )
        return values.raw_mapping

    def _take(self, collections: Mapping[str, Any]) -> None:
        for col, tree in collections.items():
            for path, value in flatten_mapping(tree).items():
                self._write(path, to_nnx_var(col, value))

    def _write(self, path: tuple[str, ...], new: Any) -> None:
        holder: Any = self
        for name in path[:-1]:
            if name not in vars(holder):
                setattr(holder, name, Dict())
            holder = getattr(holder, name)
        found = vars(holder).get(path[-1])
        if type(found) is type(new):
            found.raw_value = new.raw_value
        else:
            setattr(holder, path[-1], new)


def _streams(rngs: Rngs | jax.Array) -> Rngs:
    return rngs if isinstance(rngs, Rngs) else Rngs(params=rngs)


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
        kwargs: Its keyword arguments, which are attributes of the module as well.
        skip_rng: Whether not to pass `rngs=`.
        metadata_fn: Returns what is stored for a new variable; by default its value, in
            a box if it has metadata. None stores values alone. What is written later is
            in a box where what is there already is in one.

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
    metadata_fn: Callable[[Any], Any] | None = to_linen_var

    def __getattr__(self, name: str) -> Any:
        options = self.__dict__.get("kwargs", {})
        if name in options:
            return options[name]
        method = getattr(self.__dict__.get("nnx_class"), name, None)
        if name.startswith("_") or not callable(method):
            return super().__getattr__(name)
        return functools.partial(self, nnx_method=name)

    @linen_lift.compact
    def __call__(self, *args: Any, nnx_method: Any = None, **kwargs: Any) -> Any:
        """Calls the object.

        Args:
            *args: Arguments of the call.
            nnx_method: A method of the object, or its name, to call instead.
            **kwargs: Likewise.

        Returns:
            What it returns.

        Raises:
            ValueError: If a variable is missing, or the object draws from a stream
                that was not given.
        """
        given = self.variables

        def call(model: Any) -> Any:
            if callable(nnx_method):
                return nnx_method(model, *args, **kwargs)
            return getattr(model, nnx_method or "__call__")(*args, **kwargs)

        initializing = self.is_initializing()
        model = self._make() if initializing else eval_shape(self._make)
        if not initializing:
            self._restart(model)
        new = self._fill(model, given, partial=initializing)
        kept = ((path, v) for path, v in _variables(model) if path not in new)
        before = {path: raw_value_of(v) for path, v in kept}
        if initializing:
            # First values are saved before the call: what it writes is the result of a
            # step, which initialization does not take.
            self._write(model, before)
        out = call(model)
        if not initializing:
            self._write(model, before)
        return out

    def _make(self) -> Any:
        if self.skip_rng:
            return self.nnx_class(*self.args, **self.kwargs)
        assert self.scope is not None
        keys = {name: self.make_rng(name) for name in self.scope.rngs}
        made = self.nnx_class
        library = library_of(made) if isinstance(made, type) else None
        streams = library.streams if library else Rngs
        rngs = streams(keys.get("params", 0), **keys)
        return self.nnx_class(*self.args, **self.kwargs, rngs=rngs)

    def _restart(self, model: Any) -> None:
        """Starts the random streams of an object from keys of this call."""
        for _, node in iter_graph(model):
            if isinstance(node, ToNNX) and node.to_nnx__rngs is not None:
                # It hands all of its streams on, whether they are drawn from or not.
                for tag in filterfalse(self._has_key, list(node.to_nnx__rngs)):
                    delattr(node.to_nnx__rngs, tag)
        for _, variable in _variables(model):
            if _is_count((), variable):
                write_raw([(variable, jax.numpy.zeros_like(raw_value_of(variable)))])
            elif _is_key((), variable):
                # Another key for each: layers have streams of their own of one name.
                key, shape = self._key(variable.tag), raw_value_of(variable).shape
                key = jax.random.split(key, shape) if shape else key
                write_raw([(variable, key)])

    def _fill(self, model: Any, given: Mapping[str, Any], partial: bool) -> set[Any]:
        """Gives an object its values; returns the paths of those that are missing."""
        new = set()
        for path, variable in _variables(model):
            if _is_random((), variable):
                continue
            found = _get(given, _place(path, variable))
            if found is not None:
                write_raw([(variable, linen_lift.unbox(found))])
            elif partial:
                new.add(path)
            else:
                raise ValueError(
                    f"The variables have nothing at "
                    f"{path_text(_place(path, variable))!r}, where the object has a "
                    "variable: make them with `init`, which leaves out intermediates "
                    "unless it is told `mutable=True`."
                )
        return new

    def _has_key(self, tag: str) -> bool:
        return self.has_rng(tag) or self.has_rng("params")

    def _key(self, tag: str) -> Any:
        if self._has_key(tag):
            return self.make_rng(tag)
        return jax.random.key(0)  # A stand-in: `_write` refuses draws from it.

    def _write(self, model: Any, before: Mapping[Any, Any]) -> None:
        for path, variable in _variables(model):
            value = raw_value_of(variable)
            if path in before and before[path] is value:
                continue
            if _is_random((), variable):
                tag = variable.tag
                if not self._has_key(tag):
                    raise ValueError(
                        f"The object draws from the random stream {tag!r} at "
                        f"{path_text(path)!r}, but none of this name was given: pass "
                        f"rngs={{{tag!r}: key}}."
                    )
                continue
            col, name, *rest = _place(path, variable)
            if path not in before and not self.is_mutable_collection(col):
                continue  # Dropped, like `sow` into a collection that is not mutable.
            stored = _get(self.variables, (col, name, *rest))
            if isinstance(stored, linen_lift.AxisMetadata):
                value = stored.replace_boxed(value)
            elif path not in before and self.metadata_fn is not None:
                value = self.metadata_fn(variable)
            if rest:
                known = self.variables.get(col, {}).get(name, {})
                flat = flatten_mapping(known, keep_empty_nodes=True)
                value = unflatten_mapping({**flat, tuple(rest): value})
            self.put_variable(col, name, value)


def to_linen(
    nnx_class: Callable[..., Any],
    *args: Any,
    metadata_fn: Callable[[Any], Any] | None = to_linen_var,
    name: str | None = None,
    skip_rng: bool = False,
    abstract_init: bool = True,
    **kwargs: Any,
) -> ToLinen:
    """Makes a `ToLinen` with the arguments of the class given as in a call of it.

    Args:
        nnx_class: Makes the object.
        *args: Its arguments.
        metadata_fn: As for `ToLinen`.
        name: The name of the module.
        skip_rng: As for `ToLinen`.
        abstract_init: Has no meaning; for code that passes it to Flax.
        **kwargs: Its keyword arguments.

    Returns:
        The module.

    Example:
        >>> import nnx_transforms as nnx
        >>> from nnx_transforms import bridge
        >>> bridge.to_linen(nnx.Linear, 2, 3).args
        (2, 3)
    """
    return ToLinen(nnx_class, args, kwargs, skip_rng, metadata_fn, name=name)


# Of any library.
_is_random, _is_key, _is_count = map(to_predicate, (RngState, RngKey, RngCount))


def _variables(root: Any) -> Iterator[tuple[tuple[Any, ...], Variable[Any]]]:
    return ((path, x) for path, x in iter_graph(root) if is_variable(x))


def _place(path: tuple[Any, ...], variable: Any) -> tuple[str, ...]:
    return variable_name_from_type(type(variable)), *map(str, path)


def _get(tree: Any, path: tuple[str, ...]) -> Any:
    """What is at a path; None if there is nothing."""
    for name in path:
        tree = tree.get(name) if isinstance(tree, Mapping) else None
    return tree
