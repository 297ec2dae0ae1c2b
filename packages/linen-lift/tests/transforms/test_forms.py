"""The three forms of a transform, statics, caching of compilations, several scopes."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export

import linen_lift as nn

KEY = jax.random.key(0)
X = jnp.ones((2, 4))


def shapes(variables):
    return jax.tree.map(jnp.shape, variables)


PREFIXES = {
    "Vmap": functools.partial(
        nn.vmap, variable_axes={"params": None}, in_axes=0, split_rngs={"params": False}
    ),
    "Scan": functools.partial(nn.scan, variable_broadcast="params"),
    "Checkpoint": nn.remat,
    "Jit": nn.jit,
    "Map_variables": nn.map_variables,
    "Fold_rngs": nn.fold_rngs,
    "Remat_scan": functools.partial(nn.remat_scan, lengths=(2,)),
    "": nn.named_call,
}


@pytest.mark.parametrize("prefix", PREFIXES)
def test_classes_and_partials(prefix):
    lifted = PREFIXES[prefix](nn.Dense)
    assert lifted.__name__ == f"{prefix}Dense" and issubclass(lifted, nn.Dense)
    assert lifted(3).features == 3 and lifted(3) == lifted(3)
    partial = PREFIXES[prefix](functools.partial(nn.Dense, 3, use_bias=False))
    assert partial().features == 3 and not partial().use_bias


@pytest.mark.parametrize("name", ["module", "scope", "variables", "call", "fn", "args"])
@pytest.mark.parametrize("prefix", ["Vmap", "Checkpoint", "Jit", "Fold_rngs", ""])
def test_arguments_of_a_method_have_any_name(prefix, name):
    class Sum(nn.Module):
        @nn.compact
        def __call__(self, x, **named):
            return nn.Dense(1)(x) * named[name]

    class Outer(nn.Module):
        @nn.compact
        def __call__(self, **named):
            return PREFIXES[prefix](Sum)()(X, **named)

    given = {name: 3 * jnp.ones((2, 1))}
    out, variables = Outer().init_with_output(KEY, **given)
    (layer,) = variables["params"].values()
    np.testing.assert_allclose(
        out, 3 * nn.Dense(1).apply({"params": layer["Dense_0"]}, X)
    )
    again = nn.init(lambda m, **named: m(**named), Outer())(KEY, **given)
    assert jax.tree.all(jax.tree.map(np.array_equal, again, variables))


class Method(nn.Module):
    transform: Any = None

    def setup(self):
        self.dense = nn.Dense(4)

    @nn.remat
    def __call__(self, x):
        return self.dense(self.dense(x))

    @nn.jit
    def other(self, x):
        return self.dense(x)


class Inline(nn.Module):
    @nn.jit
    @nn.remat
    @nn.compact
    def __call__(self, x):
        return nn.Dense(4)(nn.Dense(4)(x))


class OuterCompact(nn.Module):
    @nn.compact
    @nn.remat
    def __call__(self, x):
        return nn.Dense(4)(nn.Dense(4)(x))


def test_decorated_methods():
    variables = Method().init(KEY, X)
    assert sorted(variables["params"]) == ["dense"]
    dense = nn.Dense(4)
    own = {"params": variables["params"]["dense"]}
    assert jnp.allclose(
        Method().apply(variables, X), dense.apply(own, dense.apply(own, X))
    )
    assert jnp.allclose(
        Method().apply(variables, X, method="other"), dense.apply(own, X)
    )
    for cls in (Inline, OuterCompact):
        assert sorted(cls().init(KEY, X)["params"]) == ["Dense_0", "Dense_1"]
        twice = Wrapper(cls).init(KEY, X)["params"]
        assert sorted(twice[f"{cls.__name__}_0"]) == ["Dense_0", "Dense_1"]


class Wrapper(nn.Module):
    cls: Any

    @nn.compact
    def __call__(self, x):
        inner = self.cls()
        return inner(inner(x))


class Direct(nn.Module):
    transform: Any

    @nn.compact
    def __call__(self, x):
        def body(mdl, x):
            return nn.Dense(4)(x)

        x = self.transform(body)(self, x)
        x = nn.Dense(4)(x)
        return self.transform(body)(self, x)


@pytest.mark.parametrize("transform", [nn.remat, nn.jit, nn.fold_rngs, lambda f: f])
def test_names_go_on_after_a_direct_call(transform):
    variables = Direct(transform).init(KEY, X)
    assert sorted(variables["params"]) == ["Dense_0", "Dense_1", "Dense_2"]
    plain = Direct(lambda f: f).init(KEY, X)
    same = jax.tree.map(lambda a, b: bool(jnp.allclose(a, b)), variables, plain)
    assert jax.tree.all(same)
    assert Direct(transform).apply(variables, X).shape == X.shape


def test_a_name_declared_inside_is_free_outside():
    class Again(nn.Module):
        @nn.compact
        def __call__(self, x):
            nn.remat(lambda m, x: nn.Dense(4, name="d")(x))(self, x)
            return nn.Dense(4, name="d")(x)

    assert list(Again().init(KEY, X)["params"]) == ["d"]


@pytest.mark.parametrize("lift", [nn.jit, nn.remat, nn.fold_rngs])
def test_a_lifted_method_cannot_take_the_name_of_what_it_is_given(lift):
    class Clash(nn.Module):
        @lift
        def h(self, x, m):
            return nn.Dense(3, name="a")(m(x))

        @nn.compact
        def __call__(self, x):
            return self.h(x, nn.Dense(3, name="a"))

    with pytest.raises(nn.errors.NameInUseError, match="/a"):
        Clash().init(KEY, X)


@pytest.mark.parametrize("lift", [nn.jit, nn.remat])
def test_a_lifted_name_scope_is_one(lift):
    class Net(nn.Module):
        def setup(self):
            self.out = nn.Dense(3)

        @lift
        @nn.compact_name_scope
        def encode(self, x):
            return nn.Dense(4)(nn.Dense(5)(x))

        def __call__(self, x):
            return self.out(self.encode(x) + self.encode(x))

    def note(call, args, kwargs, context):
        called.append((type(context.module).__name__, context.method_name))
        return call(*args, **kwargs)

    called = []
    with nn.intercept_methods(note):
        _, variables = Net().init_with_output(KEY, X, mutable=True)
    assert sorted(variables["params"]) == ["encode", "out"]
    assert sorted(variables["params"]["encode"]) == ["Dense_0", "Dense_1"]
    assert ("NameScope", "__call__") in called
    assert ("Net", "encode") not in called


def test_methods_can_be_chosen():
    class Two(nn.Module):
        def setup(self):
            self.dense = nn.Dense(4)

        def up(self, x, scale):
            return self.dense(x) * scale

        def down(self, x):
            return self.dense(x)

    for methods in (["up", "down"], {"up": {"static_argnames": "scale"}, "down": {}}):
        Lifted = nn.remat(Two, methods=methods)
        variables = Lifted().init(KEY, X, 2, method="up")
        jaxpr = jax.make_jaxpr(lambda v: Lifted().apply(v, X, 2, method="up"))(
            variables
        )
        assert "remat" in str(jaxpr) or "checkpoint" in str(jaxpr)
    only = nn.remat(Two, methods="up")
    jaxpr = jax.make_jaxpr(lambda v: only().apply(v, X, method="down"))(variables)
    assert jaxpr.jaxpr.eqns[0].primitive.name == "dot_general"
    with pytest.raises(TypeError, match="methods="):
        nn.remat(lambda m: m, methods=["up"])


# --- modules and variables as arguments and fields --------------------


class Uses(nn.Module):
    inner: Any

    @nn.compact
    def __call__(self, x):
        n = self.variable("state", "n", lambda: 0)
        n.value += 1
        return nn.Dense(4, name="own")(self.inner(x))


class Sharing(nn.Module):
    lift: Any

    @nn.compact
    def __call__(self, x):
        shared = nn.Dense(4, name="shared")
        uses = self.lift(Uses)
        return uses(shared, name="a")(x) + uses(shared, name="b")(x) + shared(x)


@pytest.mark.parametrize("lift", [nn.remat, nn.jit, nn.fold_rngs])
def test_aliases_stay_aliases(lift):
    plain, lifted = Sharing(lambda c: c), Sharing(lift)
    variables = plain.init(KEY, X)
    made = jax.tree.map(
        lambda a, b: bool(jnp.allclose(a, b)), lifted.init(KEY, X), variables
    )
    assert jax.tree.all(made)
    out, updated = lifted.apply(variables, X, mutable="state")
    expected, updates = plain.apply(variables, X, mutable="state")
    assert jnp.allclose(out, expected) and updated == updates


def test_modules_and_variables_as_arguments():
    class Model(nn.Module):
        lift: Any

        @nn.compact
        def __call__(self, x):
            dense = nn.Dense(4)
            count = self.variable("state", "n", lambda: 0)

            def body(mdl, x, parts, count):
                assert parts["same"] is parts["dense"]
                count.value += 1
                return parts["dense"](x) + parts["same"](x)

            return self.lift(body)(self, x, {"dense": dense, "same": dense}, count)

    expected, variables = Model(lambda f: f).init_with_output(KEY, X)
    for lift in (nn.remat, nn.jit):
        out, made = Model(lift).init_with_output(KEY, X)
        assert jnp.allclose(out, expected) and shapes(made) == shapes(variables)
        assert made["state"]["n"] == 1
        _, updated = Model(lift).apply(made, X, mutable="state")
        assert updated["state"]["n"] == 2


# --- static arguments --------------------


class Options(nn.Module):
    @nn.compact
    def __call__(self, x, train, mode="a"):
        assert isinstance(train, bool) and isinstance(mode, str)
        return nn.Dense(4)(x) * (2 if train and mode == "b" else 1)


STATICS = [
    {"static_argnums": (2, 3)},
    {"static_argnums": (-1, -2)},
    {"static_argnames": ("train", "mode")},
    {"static_argnums": 2, "static_argnames": "mode"},
    {"static_argnames": ("self", "train", "mode")},
]


@pytest.mark.parametrize("statics", STATICS)
@pytest.mark.parametrize("transform", [nn.remat, nn.jit])
def test_static_arguments(transform, statics):
    model = transform(Options, **statics)()
    variables = model.init(KEY, X, True, mode="b")
    base = model.apply(variables, X, False, "a")
    for args, kwargs in [
        ((True, "b"), {}),
        ((True,), {"mode": "b"}),
        ((), {"train": True, "mode": "b"}),
        ((), {"mode": "b", "train": True}),
    ]:
        assert jnp.allclose(model.apply(variables, X, *args, **kwargs), 2 * base)
        assert model.init_with_output(KEY, X, *args, **kwargs)[0].shape == X.shape


def test_statics_of_decorated_methods():
    class Decorated(nn.Module):
        @functools.partial(nn.remat, static_argnums=(2,))
        @nn.compact
        def __call__(self, x, times):
            for _ in range(times):
                x = nn.Dense(4)(x)
            return x

    assert len(Decorated().init(KEY, X, 3)["params"]) == 3
    assert len(Decorated().init(KEY, X, times=2)["params"]) == 2


@pytest.mark.parametrize(
    "statics", [{"static_argnames": ("self", "n")}, {"static_argnums": 1}]
)
def test_a_compiled_method_of_an_unbound_module_has_its_static_arguments(statics):
    class Cached(nn.Module):
        width: int

        @functools.partial(nn.jit, **statics)
        def cache(self, n, fill=0.0):
            return jnp.full((n, self.width), fill)

    model = Cached(3)
    for cache in (model.cache(2, 4.0), model.cache(n=2, fill=jnp.array(4.0))):
        assert cache.shape == (2, 3) and (cache == 4).all()
    assert model.apply({}, 2, method="cache").shape == (2, 3)


@pytest.mark.parametrize("transform", [nn.remat, nn.jit])
def test_the_module_is_not_static(transform):
    with pytest.raises(ValueError, match="argument 0"):
        transform(Options, static_argnums=(0,))


def test_concrete_points_to_statics():
    with pytest.raises(ValueError, match="static_argnums"):
        nn.remat(nn.Dense, concrete=True)
    with pytest.raises(ValueError, match="static_argnums"):
        nn.lift.remat(lambda s: s, concrete=True)


# --- jit --------------------


class Traced(nn.Module):
    features: int
    log: Any
    widths: Any = ()

    @nn.compact
    def __call__(self, x):
        self.log.append(self.features)
        noise = jax.random.normal(self.make_rng("noise"), x.shape)
        return nn.Dense(self.features)(x) + noise


class Log:
    def __init__(self):
        self.entries = []

    def append(self, entry):
        self.entries.append(entry)

    def take(self):
        taken, self.entries = self.entries, []
        return taken


class Stack(nn.Module):
    log: Any
    features: Any = (4, 4, 4)
    lift: Any = nn.jit

    @nn.compact
    def __call__(self, x):
        for features in self.features:
            x = self.lift(Traced)(features, self.log, [1, {"a": 2}])(x)
        return x


def test_one_compilation_per_configuration():
    log = Log()
    rngs = {"params": KEY, "noise": jax.random.key(1)}
    variables = Stack(log).init(rngs, X)
    assert log.take() == [4]
    for _ in range(3):
        out = Stack(log).apply(variables, X, rngs=rngs)
    assert log.take() == [4]
    unlifted = Stack(Log(), lift=lambda c: type("JitTraced", (c,), {}))
    expected = unlifted.apply(variables, X, rngs=rngs)
    assert jnp.allclose(out, expected, atol=1e-5)  # the keys are those of each path
    Stack(log, (4, 4, 4, 4)).init(rngs, X)
    assert log.take() == []
    nn.jit(Traced)(4, log).init(rngs, X)
    assert log.take() == [4]  # another configuration: other widths


def test_jit_counts_draws_without_tracing():
    class Draws(nn.Module):
        @nn.compact
        def __call__(self, x):
            inner = nn.jit(Noise)()
            return inner(x), inner(x), inner(x)

    class Noise(nn.Module):
        def __call__(self, x):
            return jax.random.normal(self.make_rng("noise"), x.shape)

    a, b, c = Draws().apply({}, X, rngs={"noise": KEY})
    assert not (a == b).any() and not (b == c).any()
    again = Draws().apply({}, X, rngs={"noise": KEY})
    assert (again[2] == c).all()


def test_arrays_in_fields_are_arguments():
    class Scaled(nn.Module):
        scale: Any

        def __call__(self, x):
            return x * self.scale

    traces = []

    class Outer(nn.Module):
        scale: Any

        @nn.compact
        def __call__(self, x):
            traces.append(1)
            return nn.jit(Scaled)(self.scale)(x)

    run = lambda s: Outer(s).apply({}, X).sum()
    assert run(jnp.float32(2)) == 16 and run(jnp.float32(3)) == 24
    assert jax.grad(run)(2.0) == 8


def test_unhashable_fields_are_named():
    class Holds(nn.Module):
        bad: Any

        def __call__(self, x):
            return x

    with pytest.raises(TypeError, match='Field "bad" of JitHolds'):
        nn.jit(Holds)({}.keys()).apply({}, X)


def test_unhashable_fields_count_by_what_they_hold():
    class Options:
        __hash__ = None

        def __init__(self, scale):
            self.scale = scale

    class Scaled(nn.Module):
        options: Any

        def __call__(self, x):
            traces.append(1)
            return x * self.options.scale

    traces, lifted = [], nn.jit(Scaled)
    for scale in (2, 2, 3):
        assert lifted(Options(scale)).apply({}, 5) == 5 * scale
    assert len(traces) == 2


def test_donated_variables():
    model = nn.jit(nn.Dense, donate_argnums=(0, 1))(4)
    text = str(jax.make_jaxpr(model.apply)(nn.Dense(4).init(KEY, X), X))
    assert text.count("True") >= 3


# --- several scopes --------------------


class PairSum(nn.Module):
    a: Any

    @nn.compact
    def __call__(self, x, b):
        return nn.Dense(4, name="own")(self.a(x)) * b(x)


class TwoScopes(nn.Module):
    kind: str

    @nn.compact
    def __call__(self, x):
        a, b = nn.Dense(4, name="a"), nn.Dense(4, name="b")
        pair = PairSum(a, name="pair")
        f = lambda pair, x, b: pair(x, b)
        if self.is_initializing():
            return f(pair, x, b)
        if self.kind == "vjp":
            out, pull_back = nn.vjp(f, pair, x, b, multi_scope=True)
            variables, x_ct, b_ct = pull_back(jnp.ones_like(out))
            assert jax.tree.leaves(b_ct) == []
            return variables, x_ct
        if self.kind == "jvp":
            tangents = [jax.tree.map(jnp.ones_like, m.variables) for m in (b, a, pair)]
            return nn.jvp(f, pair, (x, b), (x, None), tangents)
        fwd = lambda pair, x, b: nn.vjp(f, pair, x, b, multi_scope=True)

        def bwd(pull_back, g):
            variables, *inputs = pull_back(g)
            assert [sorted(v["params"]) for v in variables] == [
                ["bias", "kernel"],
                ["bias", "kernel"],
                ["own"],
            ]
            scaled = [
                jax.tree.map(lambda t, k=k: k * t, v)
                for k, v in zip((2, 3, 5), variables, strict=True)
            ]
            return (scaled, *inputs)

        return nn.custom_vjp(f, fwd, bwd)(pair, x, b)


def two_scopes(params, x):
    dense = lambda p, x: x @ p["kernel"] + p["bias"]
    return dense(params["pair"]["own"], dense(params["a"], x)) * dense(params["b"], x)


@pytest.fixture(scope="module")
def params():
    return TwoScopes("vjp").init(KEY, X)["params"]


def close(a, b):
    return jax.tree.all(
        jax.tree.map(lambda x, y: bool(jnp.allclose(x, y, atol=1e-5)), a, b)
    )


def test_cotangents_of_several_scopes(params):
    found, x_ct = TwoScopes("vjp").apply({"params": params}, X)
    _, pull_back = jax.vjp(two_scopes, params, X)
    expected, x_expected = pull_back(jnp.ones((2, 4)))
    names = ("b", "a", "pair")  # arguments, fields, the module itself
    assert close(found, [{"params": expected[name]} for name in names])
    assert close(x_ct, x_expected)


def test_tangents_of_several_scopes(params):
    found = TwoScopes("jvp").apply({"params": params}, X)
    ones = jax.tree.map(jnp.ones_like, params)
    assert close(found, jax.jvp(two_scopes, (params, X), (ones, X)))


def test_custom_cotangents_of_several_scopes(params):
    def loss(fn):
        return jax.grad(lambda p: fn(p).sum())(params)

    found = loss(lambda p: TwoScopes("custom").apply({"params": p}, X))
    plain = loss(lambda p: two_scopes(p, X))
    factors = {"b": 2, "a": 3, "pair": 5}
    expected = {n: jax.tree.map(lambda t: k * t, plain[n]) for n, k in factors.items()}
    assert close(found, expected)


def test_a_contained_module_belongs_to_its_container():
    class Contains(nn.Module):
        def setup(self):
            self.inner = nn.Dense(4)

        def __call__(self, x):
            if self.is_initializing():
                return self.inner(x)
            out, pull_back = nn.vjp(
                lambda m, x, inner: m.inner(x) + inner(x), self, x, self.inner
            )
            return pull_back(jnp.ones_like(out))[0]

    variables = Contains().init(KEY, X)
    found = Contains().apply(variables, X)
    assert found["params"]["inner"]["bias"].tolist() == [4, 4, 4, 4]


def test_wrong_tangents_are_explained(params):
    class Wrong(nn.Module):
        tangents: Any

        @nn.compact
        def __call__(self, x):
            f = lambda m, x: m(x)
            return nn.jvp(f, nn.Dense(4, name="a"), (x,), (x,), self.tangents)

    for bad in ([{}, {}], [({},)], {"nothing": {"x": 1.0}}):
        with pytest.raises(ValueError, match='"/a"'):
            Wrong(bad).apply({"params": params}, X)


def test_no_cotangents_for_variables():
    def forward(module, x):
        return module(x), None

    def f(module, x):
        backward = lambda _, g: (None, jnp.ones_like(X))
        return nn.custom_vjp(lambda m, x: m(x), forward, backward)(module, x).sum()

    variables = nn.Dense(4).init(KEY, X)
    grads = jax.grad(nn.apply(f, nn.Dense(4)), argnums=(0, 1))(variables, X)
    assert grads[0]["params"]["bias"].tolist() == [0, 0, 0, 0]
    assert grads[1].tolist() == jnp.ones_like(X).tolist()


def test_custom_rules_of_bound_methods():
    class Net(nn.Module):
        def setup(self):
            self.dense = nn.Dense(1)

        def run(self, x):
            return self.dense(x)

        def forward(self, x):
            return nn.vjp(Net.run, self, x)

        def __call__(self, x):
            def backward(pull_back, g):
                params, x = pull_back(g)
                return jax.tree.map(jnp.sign, params), x

            return nn.custom_vjp(self.run, self.forward, backward)(self, x).sum()

    variables = Net().init(KEY, X)
    grads = jax.grad(lambda variables: Net().apply(variables, X))(variables)
    assert grads["params"]["dense"]["bias"].tolist() == [1.0]


def test_too_many_tangents_are_refused_as_by_jax():
    def f(module, x):
        return nn.jvp(lambda m, x: m(x), module, (x,), (x, x), {})

    with pytest.raises(TypeError, match="found 2 for 1"):
        nn.init(f, nn.Dense(4))(KEY, X)


def test_vjp_sees_variables_that_it_creates():
    class Creates(nn.Module):
        @nn.compact
        def __call__(self, x):
            out, pull_back = nn.vjp(lambda m, x: m(x), nn.Dense(4), x)
            return pull_back(jnp.ones_like(out))[0]["params"]["bias"]

    out, variables = Creates().init_with_output(KEY, X)
    assert out.tolist() == [2, 2, 2, 2]
    assert sorted(variables["params"]["Dense_0"]) == ["bias", "kernel"]


# --- other details --------------------


def test_gradients_need_scalars():
    class Vector(nn.Module):
        def __call__(self, x):
            return nn.grad(lambda m, x: 2 * x, self, x)

    with pytest.raises(ValueError, match="scalar"):
        Vector().apply({}, X)


def test_nondiff_arguments():
    def f(m, x, scale):
        return m(x) * scale

    def fwd(m, x, scale):
        return nn.vjp(lambda m, x: f(m, x, scale), m, x)

    def bwd(scale, pull_back, g):
        assert scale == 3
        return pull_back(10 * g)

    class Model(nn.Module):
        @nn.compact
        def __call__(self, x):
            return nn.custom_vjp(f, fwd, bwd, nondiff_argnums=(2,))(nn.Dense(4), x, 3)

    variables = Model().init(KEY, X)
    grads = jax.grad(lambda v: Model().apply(v, X).sum())(variables)
    assert grads["params"]["Dense_0"]["bias"].tolist() == [60] * 4
    with pytest.raises(ValueError, match="argument 0"):
        nn.custom_vjp(f, fwd, bwd, nondiff_argnums=0)


def test_reduce_axes_sums_over_the_batch():
    class Model(nn.Module):
        axes: Any = ()

        @nn.compact
        def __call__(self, x):
            dense = nn.Dense(2)
            out, pull_back = nn.vjp(lambda m, x: m(x), dense, x, reduce_axes=self.axes)
            return pull_back(jnp.ones_like(out))

    x = jnp.arange(12.0).reshape(4, 3)
    variables = Model().init(KEY, x[0])

    def run(axes):
        apply = lambda x: Model(axes).apply(variables, x)
        return jax.vmap(apply, axis_name="batch")(x)

    (summed, x_summed), (single, x_single) = run(("batch",)), run(())
    assert close(
        summed, jax.tree.map(lambda t: jnp.broadcast_to(t.sum(0), t.shape), single)
    )
    assert close(x_summed, x_single)  # the inputs are mapped over the axis
    with pytest.raises(NameError):
        Model(("nothing",)).apply(variables, x[0])


def test_reduce_axes_of_grad():
    class Model(nn.Module):
        axes: Any = ()

        @nn.compact
        def __call__(self, w, x):
            f = lambda m, w, x: (m(x) * w).sum()
            return nn.grad(f, nn.Dense(2), w, x, reduce_axes=self.axes)

    x, w = jnp.arange(12.0).reshape(4, 3), jnp.ones(2)
    variables = Model().init(KEY, w, x[0])
    run = lambda axes: jax.vmap(
        lambda x: Model(axes).apply(variables, w, x), axis_name="batch"
    )(x)
    (w_summed, x_summed), (w_single, x_single) = run(("batch",)), run(())
    assert close(w_summed, jnp.broadcast_to(w_single.sum(0), w_single.shape))
    assert close(x_summed, x_single)


class NoPair(nn.Module):
    def __call__(self, c, x):
        return c


def test_scan_details():
    class Body(nn.Module):
        @nn.compact
        def __call__(self, c, x, shared, *, extra=0.0):
            n = self.variable("state", "n", lambda: 0.0)
            n.value += 1
            return c + x + shared["s"] + extra, (c, n.value)

    Loop = nn.scan(
        Body,
        variable_carry="state",
        in_axes=(1, nn.broadcast),
        out_axes=(-1, nn.broadcast),
    )
    xs, c = jnp.arange(6.0).reshape(2, 3), jnp.zeros(2)
    (last, (cs, n)), variables = Loop().init_with_output(KEY, c, xs, {"s": 1.0})
    assert variables["state"]["n"] == 3 and n == 3
    assert cs.shape == (2, 3) and last.tolist() == [6, 15]
    (_, (_, n)), updated = Loop().apply(variables, c, xs, {"s": 1.0}, mutable="state")
    assert updated["state"]["n"] == 6 and n == 6
    (keyword, _), _ = Loop().apply(
        variables, c, x=xs, shared={"s": 1.0}, mutable="state"
    )
    assert (keyword == last).all()
    with pytest.raises(TypeError, match="extra"):
        Loop().apply(variables, c, xs, {"s": 1.0}, extra=1.0, mutable="state")
    with pytest.raises(TypeError, match="pair"):
        nn.scan(NoPair)().init(KEY, 0.0, X)


def test_a_loop_is_exported_for_any_length():
    model = nn.RNN(nn.LSTMCell(3))
    variables = model.init(KEY, jnp.ones((2, 5, 4)))
    any_length = jax.ShapeDtypeStruct(export.symbolic_shape("b, t, 4"), jnp.float32)
    exported = export.export(jax.jit(model.apply))(variables, any_length)
    x = jax.random.normal(KEY, (3, 7, 4))
    found, due = exported.call(variables, x), model.apply(variables, x)
    np.testing.assert_allclose(found, due, rtol=1e-5)


@pytest.mark.parametrize("reverse", [False, True])
def test_carried_variables_start_in_the_first_iteration(reverse):
    class Body(nn.Module):
        @nn.compact
        def __call__(self, c, x):
            seen = self.variable("state", "seen", lambda: x)
            seen.value = seen.value * 10 + x
            return c, seen.value

    xs = jnp.arange(1.0, 4.0)
    Loop = nn.scan(Body, variable_carry="state", reverse=reverse)
    (_, ys), variables = Loop().init_with_output(KEY, 0.0, xs)
    value, expected = None, []
    for x in reversed(xs.tolist()) if reverse else xs.tolist():
        value = (x if value is None else value) * 10 + x
        expected.append(value)
    assert ys.tolist() == (expected[::-1] if reverse else expected)
    assert variables["state"]["seen"] == value
    one, _ = nn.scan(Body, variable_carry="state")().init_with_output(KEY, 0.0, xs[:1])
    assert one[1].tolist() == [11]


def test_carried_variables_that_join_others():
    class Body(nn.Module):
        @nn.compact
        def __call__(self, c, x):
            count = self.variable("state", "count", lambda: 0.0)
            seen = self.variable("state", "seen", lambda: x)
            count.value += 1
            seen.value = seen.value * 10 + x
            return c + x, seen.value

    Loop = nn.scan(Body, variable_carry="state")
    given = {"state": {"count": jnp.array(5.0)}}
    (c, ys), updated = Loop().apply(given, 0.0, jnp.arange(1.0, 4.0), mutable="state")
    assert c == 6 and ys.tolist() == [11, 112, 1123]
    assert updated["state"] == {"count": 8, "seen": 1123}


def test_in_and_out_axes():
    class Uses(nn.Module):
        @nn.compact
        def __call__(self, x):
            offset = self.get_variable("offsets", "o")
            assert not self.is_mutable_collection("offsets")
            self.sow("intermediates", "h", x + offset)
            assert not self.has_variable("given", "g")
            return x + offset

    Lifted = nn.vmap(
        Uses, {"offsets": nn.In(0), "intermediates": nn.Out(0), "given": nn.Out(0)}
    )
    variables = {"offsets": {"o": jnp.arange(3.0)}, "given": {"g": jnp.ones(3)}}
    out, updated = Lifted().apply(variables, jnp.ones(3), mutable=True)
    assert out.tolist() == [1, 2, 3]
    assert updated["intermediates"]["h"][0].tolist() == [1, 2, 3]


def test_data_transform():
    groups = []

    def record(variables, rngs):
        groups.append((len(variables), len(rngs)))
        return jax.tree.map(lambda v: 2 * v, variables), rngs

    class Body(nn.Module):
        def __call__(self, c, _):
            return c + self.get_variable("params", "w"), None

    Loop = nn.scan(Body, {"params": 0}, length=2, data_transform=record)
    (out, _) = Loop().apply({"params": {"w": jnp.array([1.0, 2.0])}}, 0.0, None)
    assert out == 6 and groups[0] == (3, 0)


def test_vmap_keyword_arguments_and_axis_names():
    class Model(nn.Module):
        @nn.compact
        def __call__(self, x, *, y):
            return jax.lax.psum(x * y, "i")

    Lifted = nn.vmap(Model, axis_name="i")
    assert Lifted().apply({}, jnp.arange(3.0), y=jnp.ones(3)).tolist() == [3, 3, 3]


@pytest.mark.devices(4)
def test_the_mapped_axis_is_sharded_as_asked():
    mesh = jax.make_mesh(
        (2, 2),
        ("data", "model"),
        axis_types=(jax.sharding.AxisType.Auto,) * 2,
        devices=jax.devices()[:4],
    )
    inner = jax.NamedSharding(mesh, jax.P("model"))

    class Constrained(nn.Module):
        @nn.compact
        def __call__(self, x):
            w = self.param("w", nn.initializers.normal(), (4, 4))
            return jax.lax.with_sharding_constraint(x @ w, inner)

    Lifted = nn.vmap(
        Constrained, {"params": None}, {"params": False}, spmd_axis_name="data"
    )
    x = jnp.arange(8.0).reshape(2, 4)
    variables = Lifted().init(KEY, x)
    out = jax.jit(Lifted().apply)(variables, x)
    assert out.sharding.spec == jax.P("data", "model")
    assert jnp.allclose(out, x @ variables["params"]["w"], atol=1e-6)


def test_sizes_that_cannot_be_known():
    lifted = nn.vmap(nn.Dense, {"params": 0}, {"params": True}, in_axes=None)
    with pytest.raises(ValueError, match="split the random streams"):
        lifted(2).init(KEY, X)
    with pytest.raises(ValueError, match="at least one length"):
        nn.remat_scan(nn.Dense)


def test_collections_that_a_lift_does_not_name_are_not_seen():
    lifted = nn.vmap(nn.Dense, {"params": 0}, {"params": True})
    blind = nn.vmap(nn.Dense, {"stats": 0})
    variables = lifted(2).init(KEY, X)
    with pytest.raises(nn.errors.ScopeCollectionNotFound, match="kernel"):
        blind(2).apply(variables, X)
    with pytest.raises(nn.errors.InvalidRngError, match="split_rngs"):
        nn.vmap(nn.Dense, {"params": 0})(2).init(KEY, X)


REDECLARED = {
    "variable": lambda m, x: x + m.variable("state", "v", lambda: 1.0).value,
    "param": lambda m, x: x + m.param("v", nn.initializers.ones, ()),
    "submodule": lambda m, x: nn.Dense(3, name="v")(x),
}


@pytest.mark.parametrize("kind", REDECLARED)
@pytest.mark.parametrize(
    "lift",
    [
        lambda f, m, x: nn.cond(True, f, f, m, x),
        lambda f, m, x: nn.switch(1, [f, f], m, x),
        lambda f, m, x: nn.remat(f)(m, x),
        lambda f, m, x: nn.jit(f)(m, x),
        lambda f, m, x: nn.vmap(f, {"params": None, "state": None})(m, x[None])[0],
        lambda f, m, x: nn.vjp(f, m, x)[0],
        lambda f, m, x: nn.while_loop(
            lambda m, c: c[0] < 1, lambda m, c: (c[0] + 1, f(m, c[1])), m, (0, x)
        )[1],
    ],
    ids=["cond", "switch", "remat", "jit", "vmap", "vjp", "while_loop"],
)
def test_what_was_declared_outside_can_be_declared_again_inside(kind, lift):
    declare = REDECLARED[kind]

    class Lifted(nn.Module):
        @nn.compact
        def __call__(self, x):
            first = declare(self, x)
            return first, lift(declare, self, x)

    x = jnp.arange(3.0)
    variables = Lifted().init(KEY, x)
    first, again = Lifted().apply(variables, x)
    np.testing.assert_allclose(first, again, rtol=1e-6)
    assert set(variables["state" if kind == "variable" else "params"]) == {"v"}


class InSetup(nn.Module):
    lift: Any

    def setup(self):
        self.made = self.lift(self.make)(self, 2.0)
        self.part = nn.Dense(2)

    @staticmethod
    def make(module, x):
        return x * module.param("w", nn.initializers.normal(), (2,)) + module.one()

    def one(self):
        return 1.0

    def __call__(self):
        return self.part(self.made)


@pytest.mark.parametrize(
    "lift",
    [
        nn.remat,
        nn.jit,
        lambda f: lambda m, x: nn.vjp(f, m, x)[0],
        lambda f: lambda m, x: nn.cond(True, f, f, m, x),
    ],
    ids=["remat", "jit", "vjp", "cond"],
)
def test_setup_may_transform_what_it_calls(lift):
    same = functools.partial(np.testing.assert_allclose, rtol=1e-6)
    plain, lifted = InSetup(lambda f: f), InSetup(lift)
    variables = plain.init(KEY)
    jax.tree.map(same, lifted.init(KEY), variables)
    same(lifted.apply(variables), plain.apply(variables))


class Retaking(nn.Module):
    where: str

    def take(self, part):
        for _ in range(2):
            self.variable("state", "v", lambda: 0)
            nn.remat(lambda part, x: x)(part, 1.0)

    def setup(self):
        self.part = nn.Dense(3)
        if self.where == "setup":
            self.take(self)
        if self.where == "shared":
            nn.share_scope(self, self.part)

    @nn.compact
    def __call__(self):
        if self.where != "setup":
            self.take(self.part if self.where == "shared" else self)


@pytest.mark.parametrize("where", ["setup", "compact", "shared"])
def test_what_was_taken_outside_stays_taken_after_a_transform(where):
    with pytest.raises(nn.errors.NameInUseError):
        Retaking(where).init(KEY)


def test_branches_that_count():
    class Counted(nn.Module):
        @nn.compact
        def __call__(self, x, pred):
            self.variable("state", "yes", lambda: 0)
            self.variable("state", "no", lambda: 0)

            def yes(mdl, x):
                mdl.variable("state", "yes").value += 1
                return nn.Dense(2, name="dense")(x)

            def no(mdl, x):
                mdl.variable("state", "no").value += 1
                return -nn.Dense(2, name="dense")(x)

            return nn.cond(pred, yes, no, self, x)

    variables = Counted().init(KEY, X, True)
    assert set(variables["params"]) == {"dense"}
    kept = {**variables, "state": {"yes": 0, "no": 0}}
    out, updated = Counted().apply(kept, X, True, mutable="state")
    assert updated["state"] == {"yes": 1, "no": 0}
    other, updated = Counted().apply({**kept, **updated}, X, False, mutable="state")
    assert updated["state"] == {"yes": 1, "no": 1}
    np.testing.assert_allclose(out, -other)


def test_default_names_inside_are_not_those_outside():
    def linear(scope, x):
        return x * scope.param("w", nn.initializers.normal(), ())

    def f(scope, x):
        x = scope.child(linear, prefix="l")(x)
        return nn.lift.checkpoint(lambda s, x: s.child(linear, prefix="l")(x))(scope, x)

    _, variables = nn.scope.init(f)(KEY, 1.0)
    assert set(variables["params"]) == {"l0", "l1"}


@pytest.mark.parametrize("lift", [nn.remat, nn.jit, nn.named_call])
@pytest.mark.parametrize("inside", [True, False])
def test_one_call_is_one_call_on_either_side_of_compact(lift, inside):
    class Net(nn.Module):
        def __call__(self, x):
            return nn.Dense(2, name="dense")(x)

        __call__ = lift(nn.compact(__call__)) if inside else nn.compact(lift(__call__))

    def note(next_fun, args, kwargs, context):
        calls.append(context.method_name)
        return next_fun(*args, **kwargs)

    calls = []
    x = jnp.ones((1, 3))
    variables = Net().init(jax.random.key(0), x)
    with nn.intercept_methods(note):
        _, out = Net().apply(variables, x, capture_intermediates=True)
    assert calls == ["__call__", "__call__"]  # of Net and of Dense
    assert len(out["intermediates"]["__call__"]) == 1
    assert len(out["intermediates"]["dense"]["__call__"]) == 1


def test_equal_options_make_one_class():
    axes = {"params": 0}
    lifted = nn.vmap(nn.Dense, variable_axes=axes)
    axes["params"] = 1
    assert nn.vmap(nn.Dense, variable_axes=axes) is not lifted
    assert nn.vmap(nn.Dense, variable_axes={"params": 0}) is lifted
    assert nn.vmap(nn.Dense, variable_axes={"params": False}) is not lifted
    assert nn.vmap(nn.Embed, {"params": 0}, methods="attend") is not nn.vmap(
        nn.Embed, {"params": 0}
    )
