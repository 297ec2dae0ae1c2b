"""`pack` and the transforms of scope functions built on it."""

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import sparse

import linen_lift as nn
from linen_lift import errors, lift
from linen_lift.scope import apply, bind, init

KEY = jax.random.key(0)
X = jnp.ones((2, 3))
ones = nn.initializers.ones


def dense(scope, x, features=3):
    w = scope.param("w", nn.initializers.lecun_normal(), (x.shape[-1], features))
    return x @ w


def count(scope):
    n = scope.variable("state", "n", lambda: 0)
    n.value += 1
    return n.value


def test_groups_go_to_the_first_filter():
    seen = []

    def fn(scope_fn, repack_fn, variables, rngs, x):
        seen.append((variables, rngs))
        scope = scope_fn(variables, rngs)
        out = scope.get_variable("params", "w") * x + count(scope)
        return out, repack_fn(scope)

    packed = lift.pack(fn, ["params", True], ["state"], ["noise", True])
    variables = {"params": {"w": 3}, "state": {"n": 1}, "other": {"a": 2}}
    rngs = {"params": KEY, "noise": KEY}
    out, updated = apply(packed, mutable=True)(variables, 2, rngs=rngs)
    assert out == 8
    assert updated == {**variables, "state": {"n": 2}}
    (params, others), (noise, rest) = seen[0]
    assert params == ({"params": {"w": 3}},)
    assert others == ({"state": {"n": 1}, "other": {"a": 2}},)
    assert [list(g[0]) for g in (noise, rest)] == [["noise"], ["params"]]


def test_only_what_comes_out_is_mutable():
    def fn(scope_fn, repack_fn, variables, rngs):
        scope = scope_fn(variables, rngs)
        assert scope.is_mutable_collection("state")
        assert not scope.is_mutable_collection("params")
        frozen = scope_fn(variables, rngs, mutable_filter=False)
        assert not frozen.is_mutable_collection("state")
        return None, repack_fn(scope)

    bound = bind({"state": {"n": 1}, "params": {"w": 1}}, mutable=True)
    lift.pack(fn, [True], ["state"], [])(bound)
    immutable = bind({"state": {"n": 1}})
    with pytest.raises(AssertionError):
        lift.pack(fn, [True], ["state"], [])(immutable)


def test_scopes_that_contain_one_another_share_variables():
    def fn(scope_fn, repack_fn, variables, rngs):
        assert len(variables[0]) == 2  # one tree, and another one
        scopes = scope_fn(variables, rngs)
        scopes["child"].put_variable("state", "n", 5)
        assert scopes["root"].push("child", reuse=True).get_variable("state", "n") == 5
        assert scopes["again"] == scopes["child"]
        assert scopes["other"].get_variable("state", "n") == 7
        return None, repack_fn(scopes)

    root = bind({"state": {"child": {"n": 1}}}, mutable=True)
    child = root.push("child")
    other = bind({"state": {"n": 7}}, mutable=True)
    scopes = {"child": child, "root": root, "again": child, "other": other}
    lift.pack(fn, [True], [True], [True])(scopes)
    assert child.get_variable("state", "n") == 5


def test_keyword_arguments_and_other_mistakes():
    fn = lambda scope_fn, repack_fn, v, r, **kw: (kw, repack_fn(scope_fn(v, r)))
    scope = bind({})
    assert lift.pack(fn, [True], [True], [], enable_kwargs=True)(scope, a=1) == {"a": 1}
    with pytest.raises(TypeError, match="Lifted mine"):
        lift.pack(fn, [True], [True], [], name="mine")(scope, a=1)
    with pytest.raises(TypeError, match="pytree of scopes"):
        lift.pack(fn, [True], [True], [])([scope, 3])

    def writes(scope_fn, repack_fn, variables, rngs):
        return None, (({"params": {"w": 1}},),)

    with pytest.raises(errors.ModifyScopeVariableError, match='"w"'):
        lift.pack(writes, [True], [True], [])(bind({}))


def test_inner_scopes_end_with_the_transform():
    kept = []
    apply(lift.remat(lambda s: kept.append(s) or 1.0))({})
    with pytest.raises(errors.InvalidScopeError):
        kept[0].push("a")


def test_an_error_inside_changes_nothing():
    def fails(scope):
        count(scope)
        raise RuntimeError("mine")

    scope = bind({"state": {"n": 1}}, KEY, mutable=True)
    for transform in (lift.jit, lift.remat, lift.fold_rngs, lift.add_metadata_axis):
        with pytest.raises(RuntimeError, match="mine"):
            transform(fails)(scope.rewound())
        assert scope.variables() == {"state": {"n": 1}}
        assert scope.make_rng() is not None


@pytest.mark.parametrize(
    "transform",
    [lift.jit, lift.remat, lift.fold_rngs, lift.named_call, lift.add_metadata_axis],
)
def test_transforms_that_change_nothing(transform):
    def model(scope, x):
        a = scope.child(dense, "a")(x)
        return a + scope.child(transform(dense), "b")(x) * scope.child(count, "c")()

    plain = lambda scope, x: (
        scope.child(dense, "a")(x)
        + scope.child(dense, "b")(x) * scope.child(count, "c")()
    )
    out, variables = init(model)(KEY, X)
    expected, made = init(plain)(KEY, X)
    assert jnp.allclose(out, expected)
    assert jax.tree.all(jax.tree.map(lambda a, b: jnp.allclose(a, b), variables, made))


def test_swap_collection_writes_back():
    swapped = lift.swap_collection(count, "state", "old")
    variables = {"state": {"n": 1}, "old": {"n": 10}}
    out, updated = apply(swapped, mutable=True)(variables)
    assert out == 11 and updated == {"state": {"n": 1}, "old": {"n": 11}}


def test_several_scopes_in_derivatives():
    def f(scopes, x):
        return (
            scopes[0].get_variable("params", "w") * x
            + scopes[1].get_variable("params", "w") * x**2
        )

    def run(scope, x):
        scopes = [scope.push("a"), scope.push("b")]
        with pytest.raises(errors.MultipleScopesError, match='"/a", "/b"'):
            lift.vjp(f, scopes, x)
        return lift.vjp(f, scopes, x, multi_scope=True)[1](1.0)

    variables = {"params": {"a": {"w": 2.0}, "b": {"w": 3.0}}}
    (a, b), x_ct = apply(run)(variables, 2.0)
    assert (a["params"]["w"], b["params"]["w"], x_ct) == (2, 4, 14)


def test_tangents_of_an_empty_collection():
    def f(scope, x):
        return x * scope.get_variable("params", "w")

    def run(scope, x):
        tangents = {"params": {"w": 1.0}, "state": {}}
        return lift.jvp(f, scope, (x,), (0.0,), tangents)

    assert apply(run)({"params": {"w": 3.0}}, 2.0) == (6, 2)


def test_a_variable_that_is_made_beside_others_has_cotangents():
    def f(scope, x):
        w, b = (scope.param(name, ones, (2,)) for name in "wb")
        return w * x + b

    def run(scope, x):
        scope.param("w", ones, (2,))
        return lift.vjp(f, scope, x)[1](jnp.ones(2))[0]

    params = init(run)(KEY, jnp.array([3.0, 4.0]))[0]["params"]
    assert params["w"].tolist() == [3, 4] and params["b"].tolist() == [1, 1]


def test_what_is_compiled_makes_no_default_name_that_is_in_use():
    layer = lambda scope, x: scope.child(dense, prefix="d")(x)
    named = lambda scope, x: scope.child(dense, "d0")(x)

    class Model(nn.Module):
        layer: object

        def __call__(self, x):
            return self.layer(self, self.layer(self, x))

    def in_module(self, x):
        return layer(self.scope, x)

    compiled = lift.jit(layer), lift.jit(named)
    for first, second in ((0, 0), (1, 0)):

        def twice(scope, x, layers, first=first, second=second):
            return layers[second](scope, layers[first](scope, x))

        out, variables = init(twice)(KEY, X, compiled)
        assert sorted(variables["params"]) == ["d0", "d1"]
        apply(compiled[0])({"params": {"d0": variables["params"]["d1"]}}, X)
        assert jnp.allclose(apply(twice)(variables, X, compiled), out)
        assert jnp.allclose(apply(twice)(variables, X, (layer, named)), out)
    expected = Model(in_module).apply(variables, X)
    assert jnp.allclose(Model(nn.jit(in_module)).apply(variables, X), expected)


def test_a_scope_below_another_one_makes_no_default_name_that_is_in_use():
    def model(scope):
        child = scope.push("child")
        child.push(prefix="d")
        return lift.fold_rngs(lambda scopes: scopes[1].push(prefix="d"))((scope, child))

    assert apply(lambda scope: model(scope).path)({}) == ("child", "d1")


def test_jit_is_compiled_once_wherever_it_is():
    traces = []

    @lift.jit
    def traced(scope, x):
        traces.append(1)
        return dense(scope, x) + jax.random.uniform(scope.make_rng("noise"))

    def model(scope, x, fn=traced):
        for i in range(3):
            x = fn(scope.push(f"layer{i}"), x)
        return x

    rngs = {"params": KEY, "noise": KEY}
    variables = init(model)(rngs, X)[1]
    assert len(traces) == 1
    out = apply(model)(variables, X, rngs=rngs)
    assert len(traces) == 2
    by_hand = lambda s, x: dense(s, x) + jax.random.uniform(s.make_rng("noise"))
    plain = apply(lambda s, x: model(s, x, by_hand))(variables, X, rngs=rngs)
    assert jnp.allclose(out, plain)


def test_static_arguments():
    def repeat(scope, x, times, up=True):
        for _ in range(times):
            x = x + (1 if up else -1)
        return x

    for transform in (lift.jit, lift.remat):
        fn = apply(transform(repeat, static_argnums=2, static_argnames="up"))
        assert fn({}, 1.0, 3) == 4 and fn({}, 1.0, times=2, up=False) == -1
        assert fn({}, 1.0, 2, False) == -1


def test_while_loop_keys_differ_between_iterations_and_condition():
    def run(scope):
        def cond(s, c):
            return c[0] < 3

        def body(s, c):
            i, drawn = c
            return i + 1, drawn.at[i].set(jax.random.bits(s.make_rng("noise")))

        start = (0, jnp.zeros(3, jnp.uint32))
        return lift.while_loop(cond, body, scope, start, split_rngs={"noise": True})[1]

    assert len(set(apply(run)({}, rngs={"noise": KEY}).tolist())) == 3


def test_a_loop_cannot_create_variables():
    def run(scope):
        return lift.while_loop(
            lambda s, c: c < 3, lambda s, c: c + count(s), scope, 0, "state"
        )

    with pytest.raises(TypeError):
        init(run)(KEY)


def test_branches_with_a_sparse_array_among_the_variables():
    def run(scope, pred, x):
        def multiplied(s, x):
            return s.get_variable("params", "w") @ x

        return lift.cond(pred, multiplied, lambda s, x: -x, scope, x)

    variables = {"params": {"w": sparse.BCOO.fromdense(2 * jnp.eye(3))}}
    x = jnp.ones(3)
    for pred, due in ((True, 2 * x), (False, -x)):
        out, left = apply(run, mutable="params")(variables, pred, x)
        assert out.tolist() == due.tolist()
        assert left["params"]["w"].todense().tolist() == (2 * jnp.eye(3)).tolist()


def test_draws_inside_count_outside():
    def draws(transform):
        def run(scope):
            inside = transform(lambda s: s.make_rng("noise"))
            return inside(scope), scope.make_rng("noise"), inside(scope)

        return apply(run)({}, rngs={"noise": KEY})

    plain = draws(lambda f: f)
    for transform in (lift.jit, lift.remat, lift.fold_rngs):
        found = draws(transform)
        assert all(bool(a == b) for a, b in zip(found, plain, strict=True))


def test_a_rule_in_compiled_code_draws_by_its_place():
    def noisy(scope, x):
        return x + jax.random.normal(scope.make_rng("noise"))

    def forward(scope, x):
        return noisy(scope, x), ()

    rule = lift.custom_vjp(noisy, forward, lambda _, g: ({}, g))

    def run(fn):
        both = apply(lambda scope, x: [scope.child(fn, name)(x) for name in "ab"])
        return both({}, 1.0, rngs={"noise": KEY})

    assert run(lift.jit(rule)) == run(noisy)


def test_debug_paths_show_the_transforms():
    seen = []

    def model(scope):
        child = scope.push("a")
        lift.remat(lambda s: seen.append(repr(s.push("b"))))(child)

    apply(model)({})
    assert seen == ["Scope(/remat(a)/b)"]
