"""An error in a transformed function shows the frames of users."""

import os
import traceback

import jax
import jax.numpy as jnp
import pytest

import graphcore
import nnx_transforms as nnx

PACKAGES = tuple(os.path.dirname(p.__file__) + os.sep for p in (nnx, graphcore))


class Counter(nnx.Module):
    def __init__(self):
        self.n = nnx.Param(jnp.ones(3))


class Refused(Exception):
    """An error of a user."""


def refuse(*args):
    raise Refused("not today")


class Refusing(nnx.Module):
    def method(self, model):
        refuse(self, model)

    __call__ = method


def ruled(make, define, *rules):
    """A function with derivative rules."""
    function = make(lambda model: model.n.value.sum())
    getattr(function, define)(*rules)
    return function


# What calls `refuse` with a model, which JAX traces in between or not.
CALLS = {
    "jit": lambda m: nnx.jit(refuse)(m),
    "jit, no objects": lambda m: nnx.jit(refuse)(1.0),
    "jit, donated": lambda m: nnx.jit(refuse, donate_state=True)(m),
    "jit, placed": lambda m: nnx.jit(refuse, in_shardings=(None,))(m),
    "jitted method": lambda m: nnx.jit(Refusing().method)(m),
    "jit_partial": lambda m: nnx.jit_partial(refuse, m)(),
    "trace": lambda m: nnx.jit(refuse).trace(m),
    "lower": lambda m: nnx.jit(refuse).lower(m),
    "eval_shape of jit": lambda m: nnx.jit(refuse).eval_shape(m),
    "make_jaxpr": lambda m: nnx.make_jaxpr(refuse)(m),
    "eval_shape": lambda m: nnx.eval_shape(refuse, m),
    "grad": lambda m: nnx.grad(refuse)(m),
    "value_and_grad": lambda m: nnx.value_and_grad(refuse)(m),
    "jacrev": lambda m: nnx.jacrev(refuse)(m),
    "hessian": lambda m: nnx.hessian(refuse)(m),
    "vjp": lambda m: nnx.vjp(refuse, m),
    "jvp": lambda m: nnx.jvp(refuse, (m,), (nnx.state(m),)),
    "linearize": lambda m: nnx.linearize(refuse, m),
    "vmap": lambda m: nnx.vmap(refuse)(m),
    "pmap": lambda m: nnx.pmap(lambda m, x: refuse(), in_axes=(None, 0))(
        m, jnp.ones(1)
    ),
    "shard_map": lambda m: nnx.shard_map(
        refuse,
        mesh=jax.make_mesh((1,), ("x",)),
        in_specs=jax.sharding.PartitionSpec(),
        out_specs=jax.sharding.PartitionSpec(),
    )(m),
    "map": lambda m: nnx.map(lambda x: refuse(m), jnp.ones(3)),
    "scan": lambda m: nnx.scan(refuse, length=2)(m, None),
    "while_loop": lambda m: nnx.while_loop(lambda m: True, refuse, m),
    "condition of while_loop": lambda m: nnx.while_loop(refuse, lambda m: m, m),
    "fori_loop": lambda m: nnx.fori_loop(0, 2, refuse, m),
    "cond": lambda m: nnx.cond(True, refuse, lambda m: m, m),
    "switch": lambda m: nnx.switch(0, [refuse, refuse], m),
    "remat": lambda m: nnx.remat(refuse)(m),
    "checkify": lambda m: nnx.checkify(refuse)(m),
    "closure_convert": lambda m: nnx.closure_convert(refuse, m),
    "linear_call": lambda m: nnx.linear_call(refuse, refuse, m, 1.0),
    "custom_vjp": lambda m: ruled(
        lambda f: nnx.custom_vjp(refuse), "defvjp", refuse, refuse
    )(m),
    "rule of custom_vjp": lambda m: nnx.grad(
        ruled(nnx.custom_vjp, "defvjp", refuse, refuse)
    )(m),
    "later rule of custom_vjp": lambda m: nnx.vjp(
        ruled(nnx.custom_vjp, "defvjp", lambda m: (m.n.value.sum(), None), refuse), m
    )[1](1.0),
    "rule under plain JAX": lambda m: jax.grad(
        lambda x: nnx.linear_call(lambda _, x: x, refuse, 1.0, x)
    )(1.0),
    "custom_jvp": lambda m: ruled(lambda f: nnx.custom_jvp(refuse), "defjvp", refuse)(
        m
    ),
    "custom_gradient": lambda m: nnx.custom_gradient(refuse)(m),
    "transform_metadata": lambda m: nnx.transform_metadata(refuse, partition="x")(m),
    "split_inputs": lambda m: nnx.split_inputs(nnx.merge_inputs(refuse))(m),
    "split_rngs": lambda m: nnx.split_rngs(splits=2)(refuse)(m),
    "capture": lambda m: nnx.capture(Refusing().method, nnx.Intermediate)(m),
    "tabulate": lambda m: nnx.tabulate(Refusing(), m),
    "class": lambda m: nnx.Jit.constructor(Refusing)()(m),
    "one in another": lambda m: nnx.jit(
        lambda m: nnx.scan(nnx.remat(refuse), length=2)(m, None)
    )(m),
}


def raised_by(call, *args):
    with pytest.raises(Exception) as caught:
        call(*args)
    return caught.value


def files_of_packages(error):
    """The files of frames in a traceback that are of these packages."""
    frames = traceback.extract_tb(error.__traceback__)
    return [f.filename for f in frames if f.filename.startswith(PACKAGES)]


@pytest.mark.parametrize("name", CALLS)
def test_only_frames_of_users_are_shown(name):
    error = raised_by(CALLS[name], Counter())
    assert isinstance(error, Refused), error
    assert files_of_packages(error) == []


def test_what_a_layer_refuses_shows_the_line_of_the_layer():
    layer = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
    error = raised_by(nnx.jit(lambda layer, x: layer(x)), layer, jnp.ones((4, 4)))
    assert all("layers" in file for file in files_of_packages(error))
    assert files_of_packages(error)


@pytest.mark.parametrize(
    "call",
    [
        nnx.grad(lambda m: m),
        lambda m: nnx.jit(lambda m: m).lower(m).compile()(3.0),
        lambda m: nnx.jit(lambda m, x: m, in_shardings=(None,))(m, m),
        lambda m: nnx.scan(lambda m, x: None, length=2)(m, None),
    ],
)
def test_what_a_transform_refuses_shows_where(call):
    error = raised_by(call, Counter())
    assert len(files_of_packages(error)) == 1


def test_a_second_call_shows_the_same():
    @nnx.jit
    def step(model, x):
        return model.n.value @ x

    model = Counter()
    step(model, jnp.ones(3))
    first, second = (raised_by(step, model, jnp.ones(4)) for _ in range(2))
    assert files_of_packages(first) == files_of_packages(second) == []
