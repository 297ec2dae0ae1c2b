"""Models with many small variables, the same in each library.

Their steps do next to no arithmetic, so that what is measured is the way into the
compiled function and out of it. All variables are read: JAX leaves out arrays that a
function does not use.

The arrays are made in the order in which every library passes them to JAX: by name,
the counter first. With thousands of them it matters whether memory is read from end to
end.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import nnx_transforms as nnx
from tools.bench import peers

NAMES = ("bias_1", "bias_2", "kernel_1", "kernel_2", "offset", "scale")
CHUNK = 30


def arrays(count: int) -> list[jax.Array]:
    """Makes small arrays, each with memory of its own."""
    values = np.arange(count, dtype=np.float32) * 1e-3
    return [jax.device_put(np.full((2,), value)) for value in values]


def total(values: Iterable[jax.Array]) -> jax.Array:
    """Adds all values up; a barrier now and then keeps compilation fast."""
    values = list(values)
    result = values[0]
    for start in range(0, len(values), CHUNK):
        for value in values[start : start + CHUNK]:
            result = result + value
        result = jax.lax.optimization_barrier(result)
    return result


def make_layers(library: Any, values: Sequence[jax.Array]) -> list[Any]:
    """Makes blocks of a normalization and two dense layers, with six variables.

    Args:
        library: `nnx_transforms` or `flax.nnx`.
        values: The arrays of their variables, six for each.

    Returns:
        The layers.
    """

    class Layer(library.Module):
        def __init__(self) -> None:
            rngs = library.Rngs(0)
            self.norm = library.LayerNorm(2, rngs=rngs)
            self.first = library.Linear(2, 2, rngs=rngs)
            self.second = library.Linear(2, 2, rngs=rngs)

    layer = Layer()
    layers = [library.clone(layer) for _ in range(len(values) // len(NAMES))]
    variables = [variable for layer in layers for variable in _variables_of(layer)]
    for variable, value in zip(variables, values, strict=True):
        write(variable, value)
    return layers


def _variables_of(layer: Any) -> list[Any]:
    first, norm, second = layer.first, layer.norm, layer.second
    dense = [first.bias, first.kernel], [second.bias, second.kernel]
    return [*dense[0], norm.bias, norm.scale, *dense[1]]


class Model(nnx.Module):
    """Layers and a counter.

    Args:
        values: The arrays of the variables, that of the counter first. Libraries that
            are compared hold the same ones: where arrays lie in memory matters.
        container: Makes what the layers are kept in, of a list of them.
    """

    def __init__(
        self, values: Sequence[jax.Array], container: Callable[[Any], Any] = nnx.List
    ) -> None:
        self.layers = container(make_layers(nnx, values[1:]))
        self.count = nnx.BatchStat(values[0])


def by_layer(values: Sequence[jax.Array]) -> list[Sequence[jax.Array]]:
    """The arrays of each layer; that of the counter is left out."""
    size = len(NAMES)
    return [values[i : i + size] for i in range(1, len(values), size)]


def nested(layers: Sequence[Any]) -> Any:
    """Keeps layers in dicts of dicts, ten in each."""
    groups = [layers[i : i + 10] for i in range(0, len(layers), 10)]
    return nnx.Dict(
        {
            f"group{i:03}": nnx.Dict({f"layer{j}": x for j, x in enumerate(group)})
            for i, group in enumerate(groups)
        }
    )


def _leaf_layers(container: Any) -> Iterable[Any]:
    if hasattr(container, "values"):
        for group in container.values():
            yield from group.values()
    else:
        yield from container


def layer_variables(model: Any) -> list[Any]:
    """The variables of a model's layers, in order."""
    layers = _leaf_layers(model.layers)
    return [variable for layer in layers for variable in _variables_of(layer)]


def read(variable: Any) -> jax.Array:
    """The value of a variable, in the way that its library recommends."""
    return _access(type(variable))[0](variable)


def write(variable: Any, value: jax.Array) -> None:
    """Overwrites a variable, in the way that its library recommends."""
    _access(type(variable))[1](variable, value)


@functools.cache
def _access(kind: type[Any]) -> tuple[Callable[..., Any], Callable[..., Any]]:
    if hasattr(kind, "get_value"):
        return kind.get_value, kind.set_value
    return attrgetter("value"), lambda variable, value: setattr(
        variable, "value", value
    )


# Steps: of a model with variables, and of a list of arrays with the counter first.


def write_one(model: Any) -> jax.Array:
    """Reads all variables and advances the counter."""
    write(model.count, read(model.count) + 1)
    return total(map(read, layer_variables(model)))


def write_all(model: Any) -> jax.Array:
    """Reads and overwrites all variables."""
    variables = layer_variables(model)
    out = total(map(read, variables))
    for variable in [model.count, *variables]:
        write(variable, read(variable) + 1)
    return out


def read_only(model: Any) -> jax.Array:
    """Reads all variables."""
    return total(map(read, [model.count, *layer_variables(model)]))


STEPS: dict[str, Callable[[Any], Any]] = {
    "write one": write_one,
    "write all": write_all,
    "read only": read_only,
}


def raw_write_one(values: list[jax.Array]) -> Any:
    """As `write_one`; returns the counter."""
    return total(values[1:]), [values[0] + 1]


def raw_write_all(values: list[jax.Array]) -> Any:
    """As `write_all`; returns all arrays."""
    return total(values[1:]), [value + 1 for value in values]


def raw_read_only(values: list[jax.Array]) -> Any:
    """As `read_only`; returns no array."""
    return total(values), []


RAW_STEPS: dict[str, Callable[[list[jax.Array]], Any]] = {
    "write one": raw_write_one,
    "write all": raw_write_all,
    "read only": raw_read_only,
}


def raw_call(
    step: Callable[..., Any], values: list[jax.Array], *rest: Any, **options: Any
) -> Any:
    """Makes a call of a compiled step that keeps the arrays it returns.

    Args:
        step: From the arrays to a result and the first of them, changed.
        values: The arrays; further calls see the changed ones.
        *rest: Further arguments.
        **options: For `jax.jit`.

    Returns:
        A function without arguments.
    """
    compiled = jax.jit(step, **options)
    values = list(values)

    def call() -> Any:
        out, changed = compiled(values, *rest)
        values[: len(changed)] = changed
        return out

    return call


# The same in Flax and Equinox


def flax_model(values: Sequence[jax.Array]) -> Any:
    """The model as Flax NNX modules."""
    flax = peers.flax_nnx

    class FlaxModel(flax.Module):
        def __init__(self) -> None:
            container = getattr(flax, "List", list)
            self.layers = container(make_layers(flax, values[1:]))
            self.count = flax.BatchStat(values[0])

    return FlaxModel()


def equinox_model(values: Sequence[jax.Array]) -> Any:
    """The model as Equinox modules, with arrays instead of variables."""
    eqx = peers.equinox

    class Linear(eqx.Module):
        bias: jax.Array
        kernel: jax.Array

    class Norm(eqx.Module):
        bias: jax.Array
        scale: jax.Array

    class EquinoxLayer(eqx.Module):
        first: Linear
        norm: Norm
        second: Linear

    class EquinoxModel(eqx.Module):
        count: jax.Array
        layers: list[EquinoxLayer]

    made = [
        EquinoxLayer(Linear(*a[:2]), Norm(*a[2:4]), Linear(*a[4:]))
        for a in by_layer(values)
    ]
    return EquinoxModel(values[0], made)


def equinox_step(kind: str) -> Callable[[Any], Any]:
    """A step of the Equinox model, returning the model where the step writes."""
    eqx = peers.equinox

    def step(model: Any) -> Any:
        values = layer_variables(model)
        if kind == "read only":
            return total([model.count, *values]), None
        if kind == "write all":
            return total(values), jax.tree.map(lambda x: x + 1, model)
        return total(values), eqx.tree_at(lambda m: m.count, model, model.count + 1)

    return step


def equinox_call(kind: str, values: Sequence[jax.Array]) -> Callable[[], Any]:
    """A call of an Equinox step that keeps the new model."""
    compiled = peers.equinox.filter_jit(equinox_step(kind))
    model = equinox_model(values)

    def call() -> Any:
        nonlocal model
        out, changed = compiled(model)
        if changed is not None:
            model = changed
        return out

    return call


def linen_call(kind: str, values: Sequence[jax.Array]) -> Callable[[], Any]:
    """A call as users of Flax Linen write it: a compiled function of nested dicts."""
    layers = by_layer(values)
    names = [f"layer{i:03}" for i in range(len(layers))]
    params = {
        name: dict(zip(NAMES, layer, strict=True))
        for name, layer in zip(names, layers, strict=True)
    }
    held = {"params": params, "stats": {"count": values[0]}}
    linen = peers.flax_linen

    class LinenModel(linen.Module):
        @linen.compact
        def __call__(self) -> Any:
            stored = self.variables["params"]
            values = [stored[n][name] for n in names for name in NAMES]
            count = self.variable("stats", "count", jnp.zeros, (2,))
            if kind == "read only":
                return total([count.value, *values])
            count.value = count.value + 1
            if kind == "write all":
                for n in names:
                    new = {k: v + 1 for k, v in stored[n].items()}
                    self.scope.put_variable("params", n, new)
            return total(values)

    mutable = {"read only": False, "write one": ["stats"], "write all": True}[kind]

    @jax.jit
    def step(variables: Any) -> Any:
        out = LinenModel().apply(variables, mutable=mutable)
        return out if mutable else (out, {})

    def call() -> Any:
        out, changed = step(held)
        held.update(changed)
        return out

    return call
