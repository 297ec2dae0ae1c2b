"""Variables and streams of modules for Flax Linen are the same with linen-lift."""

import flax.core
import jax
import jax.numpy as jnp
import pytest
from linen_comparison import (
    KEYS,
    X,
    both,
    dense,
    pattern,
    raised,
    ramp,
    run,
)

import linen_lift


@both
def test_reading_and_writing_variables(nn):
    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            before = self.has_variable("cache", "n"), self.get_variable("cache", "n", 7)
            if self.is_mutable_collection("cache"):
                self.put_variable("cache", "n", x.sum())
            after = self.has_variable("cache", "n"), self.get_variable("cache", "n")
            return before, after, sorted(self.variables)

    return run(Net(), X, mutable=["cache"])


@both
def test_writing_what_is_not_mutable(nn):
    class Put(nn.Module):
        def __call__(self):
            self.put_variable("cache", "n", 1)

    class Write(nn.Module):
        @nn.compact
        def __call__(self):
            self.variable("cache", "n", lambda: 0).value = 3

    variables = {"cache": {"n": 1}}
    return (
        raised(Put().apply, variables),
        raised(Write().apply, variables),
        raised(Write().apply, variables, mutable=["other"]),
        Write().apply(variables, mutable=True),
        Put().apply({}, mutable="cache"),
    )


@both
def test_variables_that_are_missing(nn):
    class Param(nn.Module):
        @nn.compact
        def __call__(self):
            return self.param("w", ramp())

    class Variable(nn.Module):
        @nn.compact
        def __call__(self):
            return self.variable("cache", "n", lambda: 0).value

    class Without(nn.Module):
        @nn.compact
        def __call__(self):
            return self.variable("cache", "n").value

    wrong = {"params": {"w": jnp.ones(4)}}
    return (
        raised(Param().apply, {}),
        raised(Param().apply, {"params": {}}),
        raised(Param().apply, {"params": {"v": 1}}),
        raised(Param().apply, wrong),
        raised(Variable().apply, {}),
        raised(Variable().apply, {"cache": {"m": 1}}),
        raised(Variable().apply, {"cache": {"m": 1}}, mutable=["cache"]),
        raised(Without().apply, {}, mutable=["cache"]),
        raised(Without().init, KEYS),
        raised(Param().apply, {"params": {"params": {"w": jnp.ones(3)}}}),
        raised(Param().apply, jnp.ones(3)),
        raised(Param().apply, {"params": jnp.ones(3)}),
        raised(Param().apply, None),
    )


@both
def test_what_mutable_returns(nn):
    class Net(nn.Module):
        @nn.compact
        def __call__(self):
            n = self.variable("cache", "n", lambda: jnp.zeros(()))
            m = self.variable("stats", "m", lambda: jnp.zeros(()))
            if self.is_mutable_collection("cache"):
                n.value += 1
            return n.value + m.value

    variables = Net().init({})
    filters = [False, True, [], "cache", ["cache"], ("cache", "stats"), ["none"]]
    filters += [{"cache"}, nn.DenyList("stats") if hasattr(nn, "DenyList") else None]
    deny = linen_lift.DenyList if nn is linen_lift else flax.core.DenyList
    filters[-1] = deny("stats")
    return variables, [Net().apply(variables, mutable=each) for each in filters]


@both
def test_wrong_filters(nn):
    net = dense(nn)
    variables = net.init(KEYS, X)
    return raised(net.apply, variables, X, mutable=3)


@both
def test_what_init_makes_with_mutable(nn):
    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            self.sow("intermediates", "x", x)
            self.sow("other", "x", x)
            self.variable("cache", "n", lambda: jnp.zeros(()))
            return dense(nn)(x)

    return [
        Net().init(KEYS, X),
        Net().init(KEYS, X, mutable=True),
        raised(Net().init, KEYS, X, mutable=["params"]),
        Net().init(KEYS, X, mutable=["params", "cache"]),
        raised(Net().init, KEYS, X, mutable=["cache"]),
        Net().init(KEYS, X, capture_intermediates=True),
    ]


@both
def test_sowing(nn):
    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            stored = self.sow("intermediates", "x", x)
            self.sow("intermediates", "x", 2 * x)
            self.sow(
                "sums", "s", x.sum(), reduce_fn=jnp.add, init_fn=lambda: jnp.ones(())
            )
            return stored

    variables = Net().init(KEYS, X)
    return (
        variables,
        Net().apply({}, X),
        Net().apply({}, X, mutable=["intermediates", "sums"]),
        Net().apply(variables, X, mutable=["sums"]),
    )


@both
def test_sowing_where_something_else_is(nn):
    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            self.sow("intermediates", "a", x)
            return dense(nn, name="a")(x)

    class Other(nn.Module):
        @nn.compact
        def __call__(self, x):
            x = dense(nn, name="a")(x)
            self.sow("intermediates", "a", x)
            return x

    return [raised(m.init, KEYS, X, mutable=True) for m in (Net(), Other())]


@both
def test_capturing_intermediates(nn):
    class Inner(nn.Module):
        @nn.compact
        def __call__(self, x):
            return dense(nn)(x)

        def other(self, x):
            return 2 * x

    class Net(nn.Module):
        def setup(self):
            self.inner = Inner()

        def __call__(self, x):
            return self.inner.other(self.inner(self.inner(x)))

    variables = Net().init(KEYS, X)
    only = lambda module, name: isinstance(module, Inner) and name == "other"
    return (
        Net().apply(variables, X, capture_intermediates=True),
        Net().apply(variables, X, capture_intermediates=only),
        Net().apply(variables, X, capture_intermediates=True, mutable=["stats"]),
        Net().apply(variables, X, mutable=["intermediates"]),
    )


@both
def test_perturbing(nn):
    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            x = self.perturb("first", dense(nn)(x))
            return self.perturb("second", 2 * x, collection="mine")

    variables = Net().init(KEYS, X)
    params = {"params": variables["params"]}

    def loss(perturbations):
        both = {**params, "perturbations": perturbations}
        return Net().apply(both, X).sum()

    return (
        variables,
        Net().apply(params, X),
        jax.grad(loss)(variables["perturbations"]),
        raised(Net().apply, {**params, "perturbations": {}}, X),
        raised(Net().apply, {**params, "perturbations": {"x": X}}, X),
    )


@both
def test_initializing_and_scopes(nn):
    class Net(nn.Module):
        @nn.compact
        def __call__(self):
            return self.is_initializing(), self.scope.path, self.name, self.path

    return Net().init_with_output({}), Net().apply({}), Net(name="n").apply({})


@both
def test_which_keys_are_equal(nn):
    class Leaf(nn.Module):
        @nn.compact
        def __call__(self):
            return [self.make_rng("noise"), self.make_rng("noise"), self.make_rng()]

    class Net(nn.Module):
        @nn.compact
        def __call__(self):
            leaf = Leaf()
            keys = leaf() + leaf() + Leaf()() + [self.make_rng("params")]
            return [*keys, self.make_rng("other"), self.make_rng("params")]

    return pattern(*Net().apply({}, rngs=KEYS)), pattern(
        *Net().init_with_output(KEYS)[0]
    )


@both
def test_streams_that_are_missing(nn):
    class Net(nn.Module):
        @nn.compact
        def __call__(self):
            has = self.has_rng("noise"), self.has_rng("params")
            self.make_rng("noise")
            return has

    return (
        raised(Net().apply, {}),
        raised(Net().apply, {}, rngs={"other": KEYS["noise"]}),
        Net().apply({}, rngs={"params": KEYS["noise"]}),
        Net().apply({}, rngs=KEYS["noise"]),
        raised(Net().apply, {}, rngs={"noise": 3}),
        raised(Net().init, 3),
        raised(dense(nn).init, {}, X),
        raised(dense(nn).init, {"noise": KEYS["noise"]}, X),
        Net().init(jax.random.PRNGKey(0)),
    )


@both
def test_an_initializer_without_a_key(nn):
    class Net(nn.Module):
        @nn.compact
        def __call__(self):
            return self.variable("cache", "n", jnp.zeros, (2,)).value

    return Net().init({}), Net().init(KEYS)


@both
def test_initializers_with_keywords(nn):
    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            w = self.param("w", ramp(), shape=(3, 3))
            v = self.variable("stats", "v", lambda a, b=1: a + b, jnp.ones(3), b=4)
            return x @ w + v.value

    return run(Net(), X)


@both
def test_a_parameter_that_is_a_tree(nn):
    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            w = self.param("w", lambda key: {"a": jnp.ones(3), "b": (jnp.ones(()),)})
            return x * w["a"] + w["b"][0]

    return run(Net(), X), raised(Net().apply, {"params": {"w": {"a": X}}}, X)


@both
def test_variables_may_be_frozen(nn):
    library = linen_lift if nn is linen_lift else flax.core
    net = dense(nn)
    variables = library.freeze(net.init(KEYS, X))
    return net.apply(variables, X), net.apply(variables, X, mutable=["stats"])


@both
def test_the_variables_of_a_submodule(nn):
    class Net(nn.Module):
        def setup(self):
            self.inner = dense(nn)

        def __call__(self, x):
            y = self.inner(x)
            return y, self.inner.variables, self.variables

    return run(Net(), X)


@pytest.mark.parametrize("lift", ["none", "jit", "remat", "named_call"])
@both
def test_a_dict_that_is_written_joins_the_one_that_is_there(nn, lift):
    def count(module, x):
        seen = module.variable("stats", "seen", lambda: {"n": jnp.zeros(()), "x": x})
        if not module.is_initializing():
            seen.value = {"n": seen.value["n"] + 1}
        return x + seen.value["x"]

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            return (getattr(nn, lift)(count) if lift != "none" else count)(self, x)

    return run(Net(), X)


@pytest.mark.parametrize("library", [flax.core, linen_lift])
def test_statistics_in_a_frozen_dict(library):
    model = linen_lift.BatchNorm(use_running_average=False)
    variables = model.init(KEYS, X)
    frozen = library.freeze(variables)
    assert type(linen_lift.unfreeze(frozen)["batch_stats"]) is dict
    out, new = model.apply(frozen, X, mutable=["batch_stats"])
    expected, expected_new = model.apply(variables, X, mutable=["batch_stats"])
    assert (out == expected).all()
    assert jax.tree.all(jax.tree.map(lambda a, b: (a == b).all(), new, expected_new))
    assert type(new["batch_stats"]) is dict
