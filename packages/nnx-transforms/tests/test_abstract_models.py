"""What transforms say of objects that are abstract, or hold what JAX does not take."""

import jax.numpy as jnp
import pytest

import nnx_transforms as nnx

X = jnp.ones((1, 2))
CALLS = {
    "jit": lambda m: nnx.jit(lambda m: m(X))(m),
    "remat": lambda m: nnx.remat(lambda m: m(X))(m),
    "cond": lambda m: nnx.cond(True, lambda m: m(X), lambda m: -m(X), m),
    "switch": lambda m: nnx.switch(1, [lambda m: m(X), lambda m: -m(X)], m),
    "while_loop": lambda m: nnx.while_loop(
        lambda c: c[1] < 2, lambda c: (c[0], c[1] + 1 + 0 * c[0](X).sum()), (m, 0.0)
    ),
    "scan": lambda m: nnx.scan(
        lambda m, x: (m, m(x)), in_axes=(nnx.Carry, 0), out_axes=(nnx.Carry, 0)
    )(m, X[None]),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_an_abstract_object_is_named_with_the_way_out(call):
    model = nnx.eval_shape(lambda: nnx.Linear(2, 2, rngs=nnx.Rngs(0)))
    message = r"variable at '\S*bias' holds .*ShapeDtypeStruct(.|\n)*with `update`"
    with pytest.raises(TypeError, match=message):
        call(model)
    nnx.update(model, nnx.state(nnx.Linear(2, 2, rngs=nnx.Rngs(0))))
    call(model)


@pytest.mark.parametrize("call", [CALLS["jit"], CALLS["remat"], CALLS["cond"]])
def test_a_string_in_a_variable_is_named(call):
    model = nnx.Linear(2, 2, rngs=nnx.Rngs(0))
    model.note = nnx.Variable("text")
    with pytest.raises(TypeError, match=r"variable at '\S*note' holds a value of type"):
        call(model)


def test_merge_inputs_alone_says_what_goes_around_it():
    with pytest.raises(ValueError, match="inside one that `split_inputs` made"):
        nnx.merge_inputs(lambda model: 1)(nnx.Dict())


def test_carry_is_for_scan():
    with pytest.raises(TypeError, match="`Carry` for a Dict at '0', but only `scan`"):
        nnx.vmap(lambda m, x: x, in_axes=(nnx.Carry, 0))(nnx.Dict(), X)
