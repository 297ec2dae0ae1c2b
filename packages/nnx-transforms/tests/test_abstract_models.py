"""What transforms say of objects that are abstract, or hold what JAX does not take."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
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
    "grad": lambda m: nnx.grad(lambda m: m(X).sum())(m),
    "vjp": lambda m: nnx.vjp(lambda m: m(X), m),
    "linearize": lambda m: nnx.linearize(lambda m: m(X), m),
    "pmap": lambda m: nnx.pmap(lambda m, x: m(x), in_axes=(None, 0))(m, X[None]),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_an_abstract_object_is_named_with_the_way_out(call):
    model = nnx.eval_shape(lambda: nnx.Linear(2, 2, rngs=nnx.Rngs(0)))
    message = r"variable at '\S*bias' holds .*ShapeDtypeStruct(.|\n)*with `update`"
    with pytest.raises(TypeError, match=message):
        call(model)
    nnx.update(model, nnx.state(nnx.Linear(2, 2, rngs=nnx.Rngs(0))))
    call(model)


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_an_array_of_what_is_no_number_is_named(call):
    model = nnx.Linear(2, 2, rngs=nnx.Rngs(0))
    model.bias.value = np.array(["a", "b"])
    with pytest.raises(TypeError, match=r"variable at '\S*bias'"):
        call(model)


RUNS = {
    "vmap": lambda m: nnx.vmap(lambda m, x: m(x), in_axes=(None, 0))(m, X[None]),
    "custom_vjp": lambda m: with_rule(m),
}


@nnx.custom_vjp
def with_rule(model):
    return model.kernel.value + 1


with_rule.defvjp(lambda m: (with_rule(m), None), lambda _, g: (g[0][0],))


@pytest.mark.parametrize("call", RUNS.values(), ids=RUNS)
def test_where_the_function_gets_what_is_abstract_its_error_has_the_path(call):
    model = nnx.eval_shape(lambda: nnx.Linear(2, 2, rngs=nnx.Rngs(0)))
    with pytest.raises(TypeError) as caught:
        call(model)
    (note,) = [n for n in caught.value.__notes__ if "The object is abstract" in n]
    assert "/bias' holds ShapeDtypeStruct" in note


ELSEWHERE = {
    "jit": lambda f, m: nnx.jit(f)(m),
    "remat": lambda f, m: nnx.remat(f)(m),
    "cond": lambda f, m: nnx.cond(True, f, f, m),
    "scan": lambda f, m: nnx.scan(f, in_axes=(None,), out_axes=0, length=2)(m),
    "grad": lambda f, m: nnx.grad(f, wrt="no")(m),
    "vmap": lambda f, m: nnx.vmap(f, in_axes=None, axis_size=2)(m),
}


@pytest.mark.parametrize(
    ("name", "value"),
    [(name, jax.ShapeDtypeStruct((), "float32")) for name in ELSEWHERE]
    # The others refuse it before they call the function.
    + [(name, "text") for name in ("scan", "grad", "vmap")],
)
def test_an_error_of_the_function_stays_what_it_is(name, value):
    def refuses(model):
        raise TypeError("mine")

    with pytest.raises(TypeError, match=r"^mine(\n|$)") as caught:
        ELSEWHERE[name](refuses, nnx.Dict(unused=nnx.Variable(value)))
    assert "abstract" not in str(getattr(caught.value, "__notes__", ""))


def test_a_function_may_make_an_abstract_object():
    def make():
        return nnx.eval_shape(lambda: nnx.Linear(2, 3, rngs=nnx.Rngs(0)))

    assert nnx.eval_shape(make).kernel.value.shape == (2, 3)
    assert nnx.remat(make)().kernel.value.shape == (2, 3)


OF_STRINGS = {
    **{name: CALLS[name] for name in ("jit", "remat", "cond", "vjp", "pmap")},
    "lower": lambda m: nnx.jit(lambda m: m(X)).lower(m),
    "eval_shape": lambda m: nnx.eval_shape(lambda m: m(X), m),
}


@pytest.mark.parametrize("call", OF_STRINGS.values(), ids=OF_STRINGS)
def test_a_string_in_a_variable_is_named(call):
    model = nnx.Linear(2, 2, rngs=nnx.Rngs(0))
    model.note = nnx.Param("text")
    with pytest.raises(TypeError, match=r"variable at '\S*note' holds a value of type"):
        call(model)


def test_merge_inputs_alone_says_what_goes_around_it():
    with pytest.raises(ValueError, match="inside one that `split_inputs` made"):
        nnx.merge_inputs(lambda model: 1)(nnx.Dict())


def test_an_optimizer_says_which_parameter_or_gradient_is_abstract():
    model = nnx.Linear(2, 2, rngs=nnx.Rngs(0))
    empty = nnx.eval_shape(lambda: nnx.Linear(2, 2, rngs=nnx.Rngs(0)))
    optimizer = nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param)
    calls = {"model": (empty, nnx.state(model)), "gradients": (model, nnx.state(empty))}
    for of, given in calls.items():
        with pytest.raises(
            TypeError, match=f"the {of} with .* 'bias': that is abstract"
        ):
            optimizer.update(*given)
    assert int(optimizer.step.value) == 0


def test_carry_is_for_scan():
    with pytest.raises(TypeError, match="in_axes has `Carry` for a value at '0', but"):
        nnx.vmap(lambda c, x: x, in_axes=(nnx.Carry, 0))(1.0, X)
    with pytest.raises(TypeError, match="`Carry` for a Dict at '0', but only `scan`"):
        nnx.vmap(lambda m, x: x, in_axes=(nnx.Carry, 0))(nnx.Dict(), X)
