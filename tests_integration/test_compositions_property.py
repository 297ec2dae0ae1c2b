"""Random transforms of functions that capture a live object, with edits in between.

A function that an object hides in, in one of the ways that Python has, is transformed
two or three times over. Whatever happens to the object between two calls, the next one
must compute what a plain call computes: JAX keeps traces by the identity of functions,
and none may be served that has read what the object held before.
"""

import functools
import gc as garbage
import weakref

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import nnx_transforms as nnx

X = jnp.array([0.5, -1.0])


class Model(nnx.Module):
    """Reads a variable, an inner node and a static attribute, and draws a key."""

    def __init__(self):
        self.w = nnx.Param(jnp.array([1.0, 2.0]))
        self.inner = nnx.Dict(b=self.w, shift=0.0)
        self.power = 2

    def run(self, x):
        return jnp.sin(self.w.value * x) ** self.power + self.inner.b.value.sum()

    def __call__(self, x):
        return self.run(x) + self.inner.shift


class Holder:
    """A plain object with a model somewhere in it."""

    def __init__(self, model):
        self.parts = {"models": [model]}

    def run(self, x):
        return self.parts["models"][0](x)


def through_a_cell(model):
    def inner(x):
        return model(x)

    return lambda x: inner(x)


def through_a_default(model):
    def inner(x, m=model):
        return m(x)

    return lambda x: inner(x)


CAPTURES = [
    lambda model: model,
    lambda model: model.__call__,
    lambda model: Holder(model).run,
    lambda model: functools.partial(Model.__call__, model),
    lambda model: nnx.remat(lambda x: model(x)),
    through_a_cell,
    through_a_default,
]


def with_rule(f):
    rule = nnx.custom_vjp(f, input_updates=False)
    rule.defvjp(lambda x: (f(x), ()), lambda residuals, g: (g,))
    return rule


def with_differential(f):
    rule = nnx.custom_jvp(f)
    rule.defjvp(lambda primals, tangents: (f(*primals), tangents[0]))
    return rule


def with_gradient(f):
    def loss(x):
        y = f(x)
        return y.sum(), y

    return lambda x: nnx.grad(loss, has_aux=True)(x)[1]


def in_a_loop(f):
    def body(i, x):
        return f(x)

    return lambda x: nnx.fori_loop(0, 1, body, x)


def while_it_is_first(f):
    def holds(carry):
        return carry[0] < 1

    def body(carry):
        return carry[0] + 1, f(carry[1])

    return lambda x: nnx.while_loop(holds, body, (0, x))[1]


# As maps from functions of an array to functions of an array of the same value. (`jit`
# is not among them: it compiles in what a function captures, as JAX's own does.)
TRANSFORMS = {
    "remat": nnx.remat,
    "cond": lambda f: lambda x: nnx.cond(True, f, f, x),
    "switch": lambda f: lambda x: nnx.switch(1, [f, f], x),
    "fori_loop": in_a_loop,
    "while_loop": while_it_is_first,
    "scan": lambda f: lambda x: nnx.scan(f, in_axes=0, out_axes=0)(x[None])[0],
    "vmap": lambda f: lambda x: nnx.vmap(f)(x[None])[0],
    "map": lambda f: lambda x: nnx.map(f, x[None])[0],
    "grad": with_gradient,
    "vjp": lambda f: lambda x: nnx.vjp(f, x)[0],
    "linearize": lambda f: lambda x: nnx.linearize(f, x)[0],
    "checkify": lambda f: lambda x: nnx.checkify(f)(x)[1],
    "custom_vjp": with_rule,
    "custom_jvp": with_differential,
    "jax.vmap": lambda f: lambda x: jax.vmap(f)(x[None])[0],
}
CUSTOM = {"custom_vjp", "custom_jvp"}
# What JAX can't do: a reverse derivative of a loop, a forward one of a backward rule.
NOT_INSIDE = {
    "grad": {"while_loop"},
    "vjp": {"while_loop"},
    "linearize": {"custom_vjp"},
}


def fit_together(names):
    return not any(
        inner in NOT_INSIDE.get(outer, ())
        for i, outer in enumerate(names)
        for inner in names[i + 1 :]
    )


def write(model, number):
    model.w.value = jnp.array([number, 1.0])


def write_numpy(model, number):
    model.w.value = np.array([number, 2.0], np.float32)


def replace_variable(model, number):
    model.w = nnx.Param(jnp.array([3.0, number]))


def tie(model, number):
    model.inner.b = model.w


def replace_node(model, number):
    model.inner = nnx.Dict(b=nnx.BatchStat(jnp.array([number])), shift=1.0)


def change_static(model, number):
    model.power = int(number)


def change_inside(model, number):
    model.inner.shift = number


def reshape(model, number):
    model.inner.b = nnx.Param(jnp.full((2, 3), number))


EDITS = [
    *(write, write_numpy, replace_variable, tie, replace_node),
    *(change_static, change_inside, reshape),
]
edits = st.lists(
    st.tuples(st.sampled_from(EDITS), st.integers(1, 4)), min_size=1, max_size=3
)


@settings(max_examples=30)
@given(
    st.lists(st.sampled_from([*TRANSFORMS]), min_size=1, max_size=3).filter(
        fit_together
    ),
    st.sampled_from(CAPTURES),
    edits,
)
def test_what_a_function_captures_is_read_as_it_is_now(names, capture, edits):
    model = Model()
    f = capture(model)
    for name in reversed(names):
        f = TRANSFORMS[name](f)
    for edit, number in [(write, 1), *edits]:
        edit(model, float(number))
        before = model.w.value
        np.testing.assert_allclose(f(X), model(X), rtol=1e-4, atol=1e-5)
        assert model.w.value is before
    alive = weakref.ref(model)
    del f, model
    garbage.collect()
    # JAX keeps the rules of functions that were part of a loop or branch.
    assert alive() is None or CUSTOM.intersection(names)
