"""Pytrees of the user's whose class looks at the arrays that it is made of."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export

import nnx_transforms as nnx


@jax.tree_util.register_pytree_node_class
class Batch:
    """Refuses what has no shape: texts, numbers and marks of any kind."""

    def __init__(self, x, y):
        if x.shape[0] != y.shape[0]:
            raise ValueError("the inputs are not as many as the outputs")
        self.x, self.y = x, y

    def tree_flatten(self):
        return (self.x, self.y), None

    @classmethod
    def tree_unflatten(cls, _, children):
        return cls(*children)


class Model(nnx.Module):
    def __init__(self):
        self.w = nnx.Param(jnp.array(2.0))
        self.calls = nnx.Variable(jnp.array(0))

    def __call__(self, batch):
        self.calls.value += 1
        return Batch(self.w.value * batch.x, batch.y)


def loss(model, batch):
    out = model(batch)
    return (out.x * out.y).sum()


def repeated(loop):
    return lambda model, batch: loop(lambda c: (c[0], c[0](c[1])), (model, batch))[1]


ITS_X = {
    "jit": (nnx.jit(Model.__call__), [0, 2, 4]),
    "donated": (nnx.jit(Model.__call__, donate_argnums=1), [0, 2, 4]),
    "compiled": (
        lambda m, b: nnx.jit(Model.__call__).lower(m, b).compile()(m, b),
        [0, 2, 4],
    ),
    "grad": (nnx.grad(loss, argnums=1), [2, 2, 2]),
    "jitted grad": (nnx.jit(nnx.grad(loss, argnums=1)), [2, 2, 2]),
    "grad in a container": (
        lambda m, b: nnx.grad(lambda pair: loss(*pair))([m, b])[1],
        [2, 2, 2],
    ),
    "vjp": (lambda m, b: nnx.vjp(Model.__call__, m, b)[1](b)[1], [0, 2, 4]),
    "remat": (nnx.remat(Model.__call__), [0, 2, 4]),
    "cond": (
        lambda m, b: nnx.cond(True, Model.__call__, lambda m, b: b, m, b),
        [0, 2, 4],
    ),
    "fori_loop": (
        repeated(lambda f, c: nnx.fori_loop(0, 2, lambda i, c: f(c), c)),
        [0, 4, 8],
    ),
    "while_loop": (
        repeated(lambda f, c: nnx.while_loop(lambda c: c[0].calls.value < 2, f, c)),
        [0, 4, 8],
    ),
    "scan": (
        repeated(lambda f, c: nnx.scan(lambda c, i: (f(c), i))(c, jnp.arange(2))[0]),
        [0, 4, 8],
    ),
}


@pytest.mark.parametrize("which", ITS_X)
def test_a_pytree_that_checks_its_arrays_stands_beside_objects(which):
    run, expected = ITS_X[which]
    model, batch = Model(), Batch(jnp.arange(3.0), jnp.ones(3))
    np.testing.assert_array_equal(run(model, batch).x, expected)
    assert int(model.calls.value) == (2 if expected[-1] == 8 else 1)


def test_it_may_be_the_value_of_a_variable_and_the_only_argument():
    held = nnx.Variable(Batch(jnp.arange(3.0), jnp.ones(3)))

    @nnx.jit
    def double(held):
        held.value = Batch(2 * held.value.x, held.value.y)

    for _ in range(2):
        double(held)
    np.testing.assert_array_equal(held.value.x, [0.0, 4.0, 8.0])
    total = nnx.jit(lambda batch: batch.x.sum())
    assert float(total(held.value)) == 12.0
    assert float(total(Batch(jnp.ones(2), jnp.ones(2)))) == 2.0
    ((path, old, new), _) = nnx.explain_recompile(total)
    assert (path, old, new) == ("args/0/0", "float32[3]", "float32[2]")


def test_stages_tell_of_it():
    batch = Batch(jnp.arange(3.0), jnp.ones(3))
    of_batch = jax.tree.structure(batch)
    for f, args in (
        (lambda batch: batch.x + batch.y, (batch,)),
        (lambda model, batch: model(batch).x + batch.y, (Model(), batch)),
    ):
        lowered = nnx.jit(f).lower(*args)
        assert lowered.in_tree.children()[0].children()[-1] == of_batch
        assert lowered.args_info[0][-1].x.shape == (3,)
        assert lowered.out_info.shape == (3,)
    sent = export.export(nnx.jit(lambda batch: batch.x + batch.y))(batch)
    np.testing.assert_array_equal(sent.call(batch), [1.0, 2.0, 3.0])


@jax.tree_util.register_pytree_node_class
class Samples(Batch):
    """Refuses what only describes an array, too."""

    def __init__(self, x, y):
        super().__init__(jnp.asarray(x), jnp.asarray(y))


LOOPS = {
    "fori_loop": lambda f, c: nnx.fori_loop(0, 2, lambda i, c: f(c), c),
    "while_loop": lambda f, c: nnx.while_loop(lambda c: c[1].y[0] < 3, f, c),
    "scan": lambda f, c: nnx.scan(lambda c, i: (f(c), i))(c, jnp.arange(2))[0],
    "cond": lambda f, c: nnx.cond(True, lambda c: f(f(c)), lambda c: c, c),
}


@pytest.mark.parametrize("loop", LOOPS)
def test_loops_carry_it_in_a_variable_and_beside_one(loop):
    if jax.__version_info__ < (0, 9) and loop != "scan":
        pytest.skip("JAX itself makes it of the types of what a trace returns")

    def step(carry):
        held, plain = carry
        held.value = Samples(2 * held.value.x, held.value.y)
        return held, Samples(plain.x + held.value.x, plain.y + 1)

    def grow(carry):
        return carry[0], Samples(*(jnp.tile(x, 2) for x in (carry[1].x, carry[1].y)))

    held = nnx.Variable(Samples(jnp.arange(3.0), jnp.ones(3)))
    _, plain = LOOPS[loop](step, (held, held.value))
    assert held.value.x.tolist() == [0.0, 4.0, 8.0]
    assert plain.x.tolist() == [0.0, 7.0, 14.0]
    if loop != "cond":
        with pytest.raises(TypeError, match=r"/1/0: float32\[3\] -> float32\[6\]"):
            LOOPS[loop](grow, (held, plain))
