# ruff: noqa: F403, F405
"""A program as users write it, for type checkers: they see every public name."""

from typing import Any, assert_type

import jax
from jax.experimental import checkify

import graphcore as gc
import linen_lift as nn
import nnx_transforms as nnx
from linen_lift import *


class Model(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.linear = nnx.Linear(2, 3, rngs=rngs)
        self.calls = nnx.Variable(0)


@nnx.jit
def forward(model: Model, x: jax.Array) -> jax.Array:
    return model.linear(x)


@nnx.jit(static_argnums=1, donate_state=True)
@nnx.remat(static_argnums=1)
def count(model: Model, by: int) -> None:
    model.calls.value += by


@nnx.vmap(in_axes=(None, 0))
def each(model: Model, x: jax.Array) -> jax.Array:
    return model.linear(x)


class Block(Module):
    features: int

    @compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return assert_type(Dense(self.features)(x), jax.Array)


def lifted(block: Block, x: jax.Array) -> None:
    assert_type(remat(Block), type[Block])
    assert_type(scan(Block, methods=["__call__"])(3)(x), jax.Array)
    assert_type(jit(Block, static_argnums=1)(features=2), Block)
    assert_type(vmap(Block.__call__, variable_axes={"params": 0})(block, x), jax.Array)
    assert_type(named_call(Block)(3), Block)
    remat(Block)(depth=3)  # type: ignore[call-arg]


class Trainer(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.model = Model(rngs)

    @nnx.jit(donate_state=True)
    def step(self, x: jax.Array) -> jax.Array:
        return forward(self.model, x)


def transformed(model: Model, x: jax.Array) -> None:
    assert_type(forward(model, x), jax.Array)
    assert_type(each(model, x), jax.Array)
    assert_type(count(model, 2), None)
    assert_type(Trainer(nnx.Rngs(0)).step(x), jax.Array)
    assert_type(nnx.vmap(Model, out_axes=0)(nnx.Rngs(0)), Model)
    assert_type(nnx.eval_shape(Model, nnx.Rngs(0)), Model)
    assert_type(nnx.fori_loop(0, 3, lambda i, model: model, model), Model)
    forward.lower(model, x).compile()
    forward(model)  # type: ignore[call-arg]
    nnx.vmap(forward, 0, out_axis=0)  # an option of another JAX


Split = tuple[gc.GraphDef[Model], gc.GraphState]
Pair = tuple[jax.Array, int]


def loss(model: Model, x: jax.Array) -> jax.Array:
    return model.linear(x).sum()


def loss_and_aux(model: Model, x: jax.Array) -> Pair:
    return loss(model, x), 3


@nnx.value_and_grad(has_aux=True)
def derived(model: Model, x: jax.Array) -> Pair:
    return loss_and_aux(model, x)


@nnx.grad(wrt=nnx.Param)
def gradient(model: Model, x: jax.Array) -> jax.Array:
    return loss(model, x)


def derivatives(model: Model, x: jax.Array) -> None:
    assert_type(nnx.value_and_grad(loss)(model, x), tuple[jax.Array, Any])
    assert_type(derived(model, x), tuple[Pair, Any])
    gradient(model, x).linear
    gradient(x, x)  # type: ignore[arg-type]
    nnx.value_and_grad(loss)(model)  # type: ignore[call-arg]
    nnx.grad(loss, 0)(model)  # type: ignore[call-arg]
    nnx.grad(loss, of=0)  # type: ignore[call-overload]
    nnx.value_and_grad(lambda m: (m(x), 1), has_aux=True)(model)
    nnx.jacfwd(nnx.jacrev(loss))(model)  # type: ignore[call-arg]
    nnx.hessian(loss)(model)  # type: ignore[call-arg]
    nnx.jacfwd(loss)(model)  # type: ignore[call-arg]
    nnx.jacrev(loss)(model)  # type: ignore[call-arg]
    assert_type(nnx.vjp(loss, model, x), tuple[jax.Array, Any])
    assert_type(nnx.linearize(loss, model, x), tuple[jax.Array, Any])
    assert_type(nnx.jvp(loss, (model, x), (model, x)), tuple[jax.Array, Any])
    out, pull, aux = nnx.vjp(loss_and_aux, model, x, has_aux=True)
    assert_type((out, aux), Pair)
    pull(out)


@nnx.custom_vjp(nondiff_argnums=(1,))
def ruled(model: Model, power: int) -> jax.Array:
    return model.linear.kernel.value**power


@nnx.custom_jvp
def doubled(x: jax.Array) -> jax.Array:
    return 2 * x


@doubled.defjvp
def doubled_jvp(primals: tuple[jax.Array], tangents: tuple[jax.Array]) -> Any:
    return doubled(*primals), tangents[0]


@nnx.custom_gradient
def tripled(x: jax.Array) -> tuple[jax.Array, Any]:
    return 3 * x, lambda g: 3 * g


class WithRule(nnx.Module):
    @nnx.custom_vjp
    def rule(self, x: jax.Array) -> jax.Array:
        return x

    @nnx.value_and_grad
    def loss(self, x: jax.Array) -> jax.Array:
        return x


def rules(model: Model, x: jax.Array) -> None:
    assert_type(ruled(model, 2), jax.Array)
    ruled.defvjp(lambda model, power: (x, None), lambda power, rest, g: (None,))
    assert_type(doubled(x), jax.Array)
    doubled_jvp((x,), x)  # type: ignore[arg-type]
    assert_type(tripled(x), jax.Array)
    assert_type(WithRule().rule(x), jax.Array)
    assert_type(WithRule().loss(x), tuple[jax.Array, Any])
    WithRule.rule.defvjp(lambda self, x: (x, None), lambda rest, g: (None, g))


def control(model: Model, x: jax.Array) -> None:
    def as_int(model: Model) -> int:
        return 1

    assert_type(nnx.cond(x[0] > 0, loss, loss, model, x), jax.Array)
    assert_type(nnx.cond(x[0] > 0, lambda: x, lambda: 0.0), jax.Array | float)
    assert_type(nnx.cond(x[0] > 0, x, as_int, x, as_int), int)
    assert_type(nnx.switch(1, [loss, loss], model, x), jax.Array)
    assert_type(nnx.map(model.linear, x), jax.Array)
    error, out = nnx.checkify(loss)(model, x)
    assert_type(error, checkify.Error)
    assert_type(out, jax.Array)
    nnx.checkify(errors=checkify.nan_checks)(loss)(model)  # type: ignore[call-arg]
    assert_type(nnx.jit_partial(loss, model)(x), jax.Array)
    assert_type(nnx.closure_convert(loss, model, x)[0](model, x), jax.Array)
    assert_type(nnx.linear_call(loss, lambda m, g: g, model, x), jax.Array)
    nnx.make_jaxpr(loss)(model)  # type: ignore[call-arg]
    nnx.transform_metadata(partition="x")(loss)(model)  # type: ignore[call-arg]


@nnx.create_sharded(rules={"model": None})
def make(rngs: nnx.Rngs) -> Model:
    return Model(rngs)


@nnx.split_rngs(splits=2)
@nnx.vmap
def make_all(rngs: nnx.Rngs) -> Model:
    return Model(rngs)


def objects(model: Model, rngs: nnx.Rngs) -> None:
    assert_type(make(rngs), Model)
    make.lower(rngs)
    assert_type(make_all(rngs), Model)
    assert_type(nnx.fork_rngs(split=2)(make_all)(rngs), Model)
    assert_type(nnx.with_rngs(fork=...)(make_all)(rngs), Model)
    with nnx.split_rngs(rngs, splits=2):
        assert_type(rngs(), jax.Array)
        rngs.normal((2,)) + rngs.params.uniform()
    layers = nnx.List([nnx.Linear(2, 2, rngs=rngs) for _ in range(3)])
    assert_type(layers[0], nnx.Linear)
    assert_type([*layers], list[nnx.Linear])
    layers.append(model)  # type: ignore[arg-type]
    layers.eval()
    anything: nnx.List = nnx.List()
    anything.append(model)


def taken_apart(model: Model) -> None:
    assert_type(nnx.split(model), Split)
    assert_type(nnx.split(model, nnx.Param), Split)
    graphdef, params, rest = nnx.split(model, nnx.Param, ...)
    assert_type((graphdef, params), Split)
    assert_type(nnx.merge(graphdef, params, rest), Model)
    _, _, stats, _ = nnx.split(model, nnx.Param, nnx.BatchStat, ...)
    assert_type(stats, gc.GraphState)
    _, _, _, _, _ = nnx.split(model, nnx.Param, nnx.BatchStat, nnx.Cache, ...)
    assert_type(nnx.state(model, nnx.Param), gc.GraphState)
    params, rest = nnx.state(model, nnx.Param, ...)
    assert_type(rest, gc.GraphState)
    assert_type(nnx.variables(model), gc.State[Any, Any])
    _, others = nnx.variables(model, nnx.Param, ...)
    assert_type(others, gc.State[Any, Any])
    filters: list[nnx.Filter] = [nnx.Param]  # How many there are is not known.
    nnx.state(model, *filters).to_pure_dict()
    nnx.variables(model, *filters).flat_state()
    assert_type(nnx.pop(model, nnx.Cache), gc.GraphState)
    assert_type(nnx.pop(model, nnx.Cache, nnx.Param)[0], gc.GraphState)
    assert_type(nnx.clone(model), Model)
    assert_type(nnx.merge(nnx.unpack(model)), Model)
    assert_type(nnx.merge(*nnx.unpack(model, nnx.Param, ...)), Model)


def parameters(model: Model) -> int:
    model.lineer  # type: ignore[attr-defined]
    nnx.Linear.kernal  # type: ignore[attr-defined]
    model.linear = model  # type: ignore[assignment]
    blocks = [model.linear, nnx.Dropout(0.5), Model(nnx.Rngs(0))]
    [block(jax.numpy.ones(2)) for block in blocks]
    nnx.Dict(first=1).first
    assert_type(model.linear, nnx.Linear)
    assert_type(model.linear.kernel, nnx.Param[jax.Array])
    assert_type(model.linear.kernel.value, jax.Array)
    graphdef, state = gc.split(model)
    assert gc.merge(graphdef, state) is not model
    return len(jax.tree.leaves(state))


class ByFilter(gc.PrefixMapping[Any]):
    settings = (0, None)
    is_static = True

    def map_prefix(self, path: tuple[Any, ...], variable: Any) -> Any:
        return 0 if isinstance(variable, gc.Param) else None


class Around(Module):
    inner: Module

    def __call__(self, x: jax.Array) -> Any:
        return self.inner(x, train=True)


def names(model: Model, metrics: nnx.MultiMetric, new: list[jax.Array]) -> None:
    assert_type(model.linear.kernel[...], jax.Array)
    assert_type(model.linear.kernel[0] * 2, jax.Array)
    metrics.accuracy.compute()
    # What a function of optax says that it returns may be any pytree.
    nnx.update(model, new)
    assert_type(nnx.optimizer.OptState(0).value, int)
    assert_type(nn.transforms.remat(Block), type[Block])
    nn.module.merge_param("train", None, True)


def default(init: nn.initializers.Initializer = nn.initializers.zeros) -> None: ...
