"""What depends on what: through loops, branches and calls."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import linen_lift as nn
from linen_lift.dataflow import evaluate_independent

KEY, X = jax.random.key(0), jnp.ones((2, 3))
SHAPE = jax.ShapeDtypeStruct((2, 3), "float32")
SCALAR = jax.ShapeDtypeStruct((), "float32")
TABLE = jax.ShapeDtypeStruct((2,), "float32")


def scan(known, unknown):
    def body(carry, x):
        a, b, i = carry
        u, v = x
        return (a * 2 + i, b + u, i + 1), (a + v, b * u, i)

    xs = (jnp.ones(4) * unknown, jnp.arange(4.0))
    return jax.lax.scan(body, (known, unknown, 0), xs, reverse=True)


def spreading(known, unknown):
    # What depends reaches the first value in the third iteration only.
    def body(carry, _):
        _, b, c, d = carry
        return (b, c, unknown + c, d), d

    return jax.lax.scan(body, (known, known, known, known), None, length=2)


def while_loop(known, unknown):
    def body(state):
        i, a, b = state
        return i + 1, a * 2, b + a * unknown

    return jax.lax.while_loop(lambda state: state[0] < 5, body, (0, known, known))


def overwriting(known, unknown):
    # How often the body runs, perhaps never, is not looked at.
    def body(state):
        return state[0] + 1, known

    return jax.lax.while_loop(lambda state: state[0] < 2, body, (0, unknown))


def cond(known, unknown):
    return jax.lax.cond(
        known > 0,
        lambda a, b: (a + 1, b, a),
        lambda a, b: (a - 1, a * b, a * 2),
        known,
        unknown,
    )


def calls(known, unknown):
    @jax.custom_jvp
    def rule(a, b):
        return a * 3, b

    rule.defjvp(lambda p, t: (rule(*p), t))
    both = jax.jit(jax.checkpoint(lambda a, b: rule(a + 1, b)))
    return both(known, unknown)


def unknown_branch(known, unknown):
    # What both branches compute alike is known although the branch is not.
    return jax.lax.cond(
        unknown > 0,
        lambda a, b: (jnp.sin(a) * 2, a + 1, b),
        lambda a, b: (jnp.sin(a) * 2, a + 2, -b),
        known,
        unknown,
    )


def unknown_branch_of_calls(known, unknown):
    def branch(sign):
        return jax.jit(lambda a, b: (jnp.sin(a) * 2, sign * b))

    return jax.lax.cond(unknown > 0, branch(1), branch(-1), known, unknown)


def unlike_inside(known, unknown):
    # The text of a jaxpr does not tell the first two of one branch from the other's.
    shared = jax.jit(lambda a: a + np.arange(2.0, dtype=np.float32))

    def branch(number):
        table = np.array([number, 0], np.float32)
        compiled = jax.jit(lambda a: a + table)
        outside = lambda a: jax.pure_callback(lambda a: table, TABLE, a)
        return lambda a, b: (compiled(a), outside(a), shared(a), b)

    return jax.lax.cond(unknown > 0, branch(1), branch(2), known, unknown)


CASES = {
    scan: [False, True, False, False, True, False],
    spreading: [True, True, True, False, False],
    while_loop: [False, False, True],
    overwriting: [False, True],
    cond: [False, True, False],
    unknown_branch: [False, True, True],
    unknown_branch_of_calls: [False, True],
    unlike_inside: [True, True, False, True],
    calls: [False, True],
}


@pytest.mark.parametrize("fn", CASES, ids=lambda fn: fn.__name__)
def test_what_does_not_depend_is_computed(fn):
    out, first = evaluate_independent(functools.partial(fn, jnp.float32(2)), SCALAR)
    found = jax.tree.leaves(out, is_leaf=lambda x: x is None)
    assert [x is None for x in found] == CASES[fn]
    expected = jax.tree.leaves(fn(2.0, 7.0))
    for value, other in zip(found, expected, strict=True):
        assert value is None or jnp.array_equal(value, other)
    places = [p for p, _ in jax.tree_util.tree_flatten_with_path(fn(2.0, 7.0))[0]]
    assert first == places[CASES[fn].index(True)]


def test_everything_depends_on_how_long_a_loop_runs():
    def fn(unknown):
        return jax.lax.while_loop(lambda s: s < unknown, lambda s: s + 2, 2.0)

    assert evaluate_independent(fn, SCALAR)[0] is None


class Step(nn.Module):
    @nn.compact
    def __call__(self, x, _=None):
        return nn.Dense(3)(x), x.sum()


class Net(nn.Module):
    wrap: object

    @nn.compact
    def __call__(self, x):
        return self.wrap(Step)(name="step")(x, None)[0]


def looped(cls):
    return nn.scan(cls, {"params": 0}, split_rngs={"params": True}, length=2)


def shared(cls):
    split = {"params": False}
    return nn.scan(cls, variable_broadcast="params", split_rngs=split, length=2)


def branching(cls):
    class Branching(nn.Module):
        @nn.compact
        def __call__(self, x, _):
            step = cls()
            if self.is_initializing():
                step(x)
            twice = lambda step, x: step(step(x)[0])
            return nn.cond(True, lambda step, x: step(x), twice, step, x)

    return Branching


def branching_on_data(cls):
    class Branching(nn.Module):
        @nn.compact
        def __call__(self, x, _):
            one = lambda self, x: cls(name="one")(x)
            return nn.cond(x.sum() > 0, one, lambda self, x: one(self, 2 * x), self, x)

    return Branching


def own_rule(cls):
    class OwnRule(nn.Module):
        @nn.compact
        def __call__(self, x, _):
            run = lambda step, x: step(x)
            forward = lambda step, x: nn.vjp(run, step, x)
            return nn.custom_vjp(run, forward, lambda pull_back, g: pull_back(g))(
                cls(), x
            )

    return OwnRule


@pytest.mark.parametrize(
    "wrap",
    [
        looped,
        shared,
        nn.remat,
        nn.jit,
        branching,
        branching_on_data,
        own_rule,
        lambda c: nn.remat(looped(nn.jit(c))),
    ],
)
def test_lazy_init_and_eval_shape_through_lifted_transforms(wrap):
    model = Net(wrap)
    expected = model.init(KEY, X)
    lazily = model.lazy_init(KEY, SHAPE)
    # Compiled as a whole, the last bit may be another one.
    assert jax.tree.all(jax.tree.map(jnp.allclose, lazily, expected))
    abstract = jax.eval_shape(model.init, KEY, SHAPE)
    assert jax.tree.map(jnp.shape, abstract) == jax.tree.map(jnp.shape, expected)


@pytest.mark.parametrize(
    "wrap", [lambda f: f, functools.partial(jax.jit, static_argnums=(1, 2))]
)
def test_branches_that_make_different_values(wrap):
    class Branching(nn.Module):
        @nn.compact
        def __call__(self, x):
            def made(number):
                values = np.full(3, number, np.float32)
                init = wrap(lambda key, shape, dtype: jnp.asarray(values, dtype))
                return lambda self, x: nn.Dense(3, name="a", bias_init=init)(x)

            return nn.cond(x.sum() > 0, made(1), made(2), self, x)

    with pytest.raises(nn.errors.LazyInitError, match="/a/bias"):
        Branching().lazy_init(KEY, SHAPE)


class Counted(nn.Module):
    @nn.compact
    def __call__(self, x, _=None):
        n = self.variable("stats", "n", lambda: jnp.zeros(()))
        rate = self.variable("stats", "rate", lambda: 0.5)
        if self.is_mutable_collection("stats") and not self.is_initializing():
            n.value += rate.value
        return x * n.value, None


@pytest.mark.parametrize("how", ["scan", "remat", "lazy"])
def test_a_constant_is_an_array_of_jax_that_no_call_changes(how):
    if how == "scan":
        model = nn.scan(Counted, variable_broadcast="stats", length=2)()
    else:
        model = nn.remat(Counted)() if how == "remat" else Counted()
    init = model.lazy_init if how == "lazy" else model.init
    variables = init(KEY, SHAPE if how == "lazy" else X, None)
    n, rate = variables["stats"]["n"], variables["stats"]["rate"]
    assert isinstance(n, jax.Array) and not n.weak_type
    assert isinstance(rate, jax.Array) and rate.weak_type
    for _ in range(2):
        _, updated = model.apply(variables, X, None, mutable=["stats"])
        assert (updated["stats"]["n"], variables["stats"]["n"]) == (0.5, 0.0)
