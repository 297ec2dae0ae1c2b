"""Lifted transforms, and writes of variables, inside of plain JAX transforms.

What does not depend on the plain transform can be stored, whatever is around it; what
was declared there is seen by everything that looks at variables.
"""

import jax
import jax.numpy as jnp
import pytest

import linen_lift as nn
from linen_lift import errors, tree

KEY, X = jax.random.key(0), jnp.arange(6.0).reshape(2, 3)


def first_of_two(fn):
    """`fn` under `jax.vmap`, for one of two equal arguments."""
    return lambda *args: jax.tree.map(
        lambda x: x[0], jax.vmap(fn)(*jax.tree.map(lambda x: jnp.stack([x, x]), args))
    )


def inside_grad(fn):
    def run(*args):
        def loss(scale):
            return scale, fn(*args)

        return jax.grad(loss, has_aux=True)(1.0)[1]

    return run


AROUND = {
    "eager": lambda fn: fn,
    "jit": jax.jit,
    "vmap": first_of_two,
    "grad": inside_grad,
    "nested": lambda fn: jax.jit(first_of_two(fn)),
}
around = pytest.mark.parametrize("around", AROUND.values(), ids=AROUND)


class Over(nn.Module):
    """A module under `jax.vmap`."""

    make: object

    @nn.compact
    def __call__(self, x):
        return jax.vmap(self.make(), axis_name="batch")(x)


class Counter(nn.Module):
    @nn.compact
    def __call__(self, x):
        count = self.variable("stats", "count", lambda: jnp.zeros(()))
        count.value += 1.0
        self.sow("stats", "seen", 2.0 * count.value)
        return x


LAYERS = {
    "remat": lambda: nn.remat(nn.Dense)(3, name="layer"),
    "jit": lambda: nn.jit(nn.Dense)(3, name="layer"),
    "weight norm": lambda: nn.WeightNorm(nn.Dense(3, name="layer"), name="norm"),
    "written": lambda: Counter(name="layer"),
}


def same(a, b):
    return jax.tree.structure(a) == jax.tree.structure(b) and jax.tree.all(
        jax.tree.map(lambda a, b: jnp.allclose(a, b, atol=1e-6), a, b)
    )


@around
@pytest.mark.parametrize("make", LAYERS.values(), ids=LAYERS)
def test_under_outer_transforms(make, around):
    expected = Over(make).init(KEY, X)
    variables = around(lambda x: Over(make).init(KEY, x))(X)
    assert same(variables, expected)
    shapes = jax.eval_shape(Over(make).init, KEY, X)
    assert jax.tree.map(jnp.shape, shapes) == jax.tree.map(jnp.shape, expected)

    def apply(x):
        return Over(make).apply(expected, x, mutable="stats")

    assert same(around(apply)(X), apply(X))


@around
def test_synchronized_batch_norm(around):
    def make():
        return nn.BatchNorm(use_running_average=False, axis_name="batch", momentum=0.5)

    variables = Over(make).init(KEY, X)

    def apply(x):
        return Over(make).apply(variables, x, mutable="batch_stats")[1]

    (stats,) = around(apply)(X)["batch_stats"].values()
    assert stats["mean"].tolist() == [0.75, 1.25, 1.75]


def test_in_tables_and_lazy_init():
    model = Over(LAYERS["remat"])
    assert "layer" in model.tabulate(KEY, X)
    shape = jax.ShapeDtypeStruct(X.shape, X.dtype)
    assert same(model.lazy_init(KEY, shape), model.init(KEY, X))


@pytest.mark.parametrize("lift", [nn.jit, nn.remat, None], ids=["jit", "remat", "scan"])
def test_inside_of_lifted_transforms(lift):
    class Step(nn.Module):
        @nn.compact
        def __call__(self, x, _):
            return Over(LAYERS["remat"], name="over")(x), None

    if lift is None:
        axes = {"variable_axes": {"params": 0}, "split_rngs": {"params": True}}
        made = nn.scan(Step, length=2, **axes)()
    else:
        made = lift(Step)()
    (params,) = made.init(KEY, X, None)["params"]["over"].values()
    assert params["kernel"].shape == ((2, 3, 3) if lift is None else (3, 3))


@around
def test_what_depends_is_refused(around):
    class Sown(nn.Module):
        @nn.compact
        def __call__(self, x):
            self.sow("stats", "x", x)
            return x

    def apply(x):
        return Over(Sown).apply({}, x, mutable="stats")

    with pytest.raises(errors.JaxTransformError, match='"x" in collection "stats"'):
        around(apply)(X)


def test_tracers_of_another_call_are_refused():
    kept = []

    def keep(x):
        kept.append(x)
        return x

    jax.vmap(keep)(X)

    class Sown(nn.Module):
        @nn.compact
        def __call__(self, x):
            self.sow("stats", "x", kept[0])
            return x

    with pytest.raises(errors.JaxTransformError):
        jax.jit(lambda x: Over(Sown).apply({}, x, mutable="stats"))(X)


# --- what was just declared -----------------------------------------------------------


PLAIN = {
    "vmap": lambda fn: jax.vmap(fn),
    "jvp": lambda fn: lambda x: jax.jvp(fn, (x,), (x,))[0],
    "jit": jax.jit,
    "checkpoint": jax.checkpoint,
    "cond": lambda fn: lambda x: jax.lax.cond(True, fn, fn, x),
}
plain = pytest.mark.parametrize("plain", PLAIN.values(), ids=PLAIN)


def call(dense, x):
    return dense(x)


def stepped(dense, carry, _):
    return carry, dense(carry)


def looped(**axes):
    return lambda d, x: nn.scan(stepped, length=2, **axes)(d, x, None)[1][0]


def once(dense, x):
    start = 0, jnp.zeros((*x.shape[:-1], 2))
    return nn.while_loop(
        lambda _, carry: carry[0] < 1,
        lambda dense, carry: (carry[0] + 1, dense(x)),
        dense,
        start,
        carry_variables="params",
    )[1]


LIFTED = {
    "remat": lambda d, x: nn.remat(call)(d, x),
    "jit": lambda d, x: nn.jit(call)(d, x),
    "vjp": lambda d, x: nn.vjp(call, d, x)[0],
    "cond": lambda d, x: nn.cond(x.sum() > 0, call, call, d, x),
    "scan, shared": looped(variable_broadcast="params"),
    "scan, carried": looped(variable_carry="params"),
    "while_loop": once,
    "map_variables": lambda d, x: nn.map_variables(
        call, "params", lambda v: v, mutable=True
    )(d, x),
}


@plain
@pytest.mark.parametrize("lifted", LIFTED.values(), ids=LIFTED)
def test_a_lifted_transform_sees_what_was_just_declared(lifted, plain):
    class Twice(nn.Module):
        @nn.compact
        def __call__(self, x):
            dense = nn.Dense(2, name="dense")
            return dense(x) - lifted(dense, x)

    class Outer(nn.Module):
        @nn.compact
        def __call__(self, x):
            twice = Twice(name="twice")
            return plain(lambda x: twice(x))(x)

    x = jnp.ones((2, 3))
    out, variables = Outer().init_with_output(KEY, x)
    assert jnp.allclose(out, 0, atol=1e-6)
    # Nothing of what only passed through a transform was stored.
    expected = Twice(name="twice").init(KEY, x)["params"]["dense"]
    found = variables["params"]["twice"]["dense"]
    assert jax.tree.map(jnp.shape, found) == jax.tree.map(jnp.shape, expected)
    assert jnp.allclose(out, Outer().apply(variables, x), atol=1e-6)


@plain
def test_all_that_looks_at_variables_agrees(plain):
    seen = []

    class Looking(nn.Module):
        @nn.compact
        def __call__(self, x):
            scope = self.scope
            assert not self.has_variable("params", "w")
            assert not scope.has_collection("params") and not self.variables
            self.param("w", nn.initializers.ones, (3,))
            assert self.has_variable("params", "w")
            assert scope.has_collection("params")
            assert not scope.is_collection_empty("params")
            seen.append(jax.tree.map(jnp.shape, self.variables))
            assert "batch_stats" not in self.variables
            with pytest.raises(errors.ScopeCollectionNotFound, match="thing: params"):
                scope.variable("batch_stats", "mean")
            return x

    class Outer(nn.Module):
        @nn.compact
        def __call__(self, x):
            return plain(lambda x: Looking(name="looking")(x))(x)

    assert Outer().init(KEY, X)["params"]["looking"]["w"].tolist() == [1, 1, 1]
    assert seen and all(each == {"params": {"w": (3,)}} for each in seen)


def test_a_new_value_counts_more_than_what_is_pending():
    def run(scope):
        inner = scope.push("inner")

        def declare(x):
            inner.variable("state", "a", lambda: jnp.zeros(2))
            inner.variable("state", "b", lambda: jnp.zeros(2))
            scope.put_variable("state", "inner", {"a": 5.0})
            return x

        jax.jit(declare)(1.0)

    state = nn.scope.apply(run, mutable=True)({})[1]["state"]["inner"]
    assert state["a"] == 5 and state["b"].tolist() == [0, 0]


def test_what_only_passed_through_stays_pending_and_nothing_else():
    def run(scope):
        scopes = [scope.push("a"), scope.push("b")]

        def write(scopes):
            scopes[1].put_variable("two", "v", 5)

        def declare(x):
            for each in scopes:
                for col in ("one", "two"):
                    each.variable(col, "v", lambda: jnp.zeros(2))
            nn.lift.fold_rngs(write)(scopes)
            return x

        jax.jit(declare)(1.0)

    found = nn.scope.apply(run, mutable=True)({})[1]
    shapes = jax.tree.map(jnp.shape, found)
    unchanged = {"v": (2,)}
    assert shapes["one"] == {"a": unchanged, "b": unchanged}
    assert shapes["two"] == {"a": unchanged, "b": {"v": ()}}


def test_where_jax_does_not_tell_traces_apart(monkeypatch):
    monkeypatch.setattr(tree, "is_within", lambda *_: None)

    def run(x, store):
        def inside(x):
            return store(scope, lambda: x)

        scope = nn.scope.bind({}, mutable=True)
        jax.vmap(inside)(x)
        return scope.get_variable("stats", "a")

    def declare(scope, make):
        scope.variable("stats", "a", make)

    def put(scope, make):
        scope.put_variable("stats", "a", make())

    for store in (declare, put):
        with pytest.raises(errors.JaxTransformError):
            run(X, store)
    # What belongs to the trace itself can always be stored.
    applied = jax.jit(lambda x: Counter().apply({}, x, mutable="stats")[1])(X)
    assert applied["stats"]["count"] == 1


PLAIN = {
    "jit": jax.jit,
    "vmap": jax.vmap,
    "checkpoint": jax.checkpoint,
    "grad": lambda fn: lambda x: jax.grad(lambda x: (x.sum(), fn(x)), has_aux=True)(x),
    "jvp": lambda fn: lambda x: jax.jvp(fn, (x,), (x,)),
    "scan": lambda fn: lambda x: jax.lax.scan(lambda c, x: (c, fn(x)), 0.0, x),
}


@around
@pytest.mark.parametrize("plain", PLAIN.values(), ids=PLAIN)
def test_what_is_made_from_an_argument_is_refused(around, plain):
    class Made(nn.Module):
        @nn.compact
        def __call__(self, x):
            self.variable("stats", "doubled", lambda: 2.0 * x)
            return x

    class Model(nn.Module):
        @nn.compact
        def __call__(self, x):
            return plain(lambda x: Made(name="made")(x))(x)

    with pytest.raises(errors.JaxTransformError, match=r'"doubled" .* at path "/made"'):
        around(lambda x: Model().init(KEY, x))(X)
