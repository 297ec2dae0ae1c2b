import sys
import threading
from functools import partial

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.experimental import sparse

import linen_lift as nn
from linen_lift import errors, shapes
from linen_lift.scope import Scope, apply, bind, init, lazy_init

KEY = jax.random.key(0)
ones = nn.initializers.ones


def dense(scope, x, features=2):
    w = scope.param("w", nn.initializers.lecun_normal(), (x.shape[-1], features))
    b = scope.param("b", nn.initializers.zeros, (features,))
    return x @ w + b


def test_init_and_apply_are_pure():
    def mlp(scope, x):
        h = scope.child(dense, "hidden")(x, 4)
        return scope.child(dense, "out")(h)

    x = jnp.ones((1, 3))
    out, variables = init(mlp)(KEY, x)
    assert jax.tree.map(jnp.shape, variables) == {
        "params": {"hidden": {"w": (3, 4), "b": (4,)}, "out": {"w": (4, 2), "b": (2,)}}
    }
    assert (apply(mlp)(variables, x) == out).all()
    assert (init(mlp)({"params": KEY}, x)[0] == out).all()


def test_apply_returns_what_is_mutable():
    def count(scope):
        n = scope.variable("state", "n", lambda: 0)
        n.value += 1
        return n.value

    given_variables = {"state": {"n": 1}}
    assert apply(count, mutable=["state"])(given_variables) == (2, {"state": {"n": 2}})
    assert given_variables == {"state": {"n": 1}}
    assert apply(lambda s: 1, mutable=[])({}) == (1, {})
    assert apply(lambda s: 1)({}) == 1
    assert init(lambda s: 3, mutable=False)(KEY) == (3, {})


def test_keys_depend_on_path_and_count_only():
    def draws(scope, extra=()):
        for name in extra:
            scope.push(name).make_rng("noise")
        a = scope.push("a")
        return a.make_rng("noise"), a.make_rng("noise"), scope.make_rng("noise")

    rngs = {"noise": KEY}
    plain = apply(draws)({}, rngs=rngs)
    more = apply(draws)({}, extra=("x", "y"), rngs=rngs)
    assert jax.tree.all(jax.tree.map(lambda a, b: a == b, plain, more))
    assert len({tuple(jax.random.key_data(k).tolist()) for k in plain}) == 3
    other = apply(draws)({}, rngs={"noise": jax.random.key(1)})
    assert plain[0] != other[0]


@settings(max_examples=30)
@given(
    st.lists(
        st.tuples(
            st.lists(st.sampled_from("abc"), max_size=3).map(tuple), st.integers(1, 3)
        ),
        min_size=1,
        max_size=6,
        unique_by=lambda p: p[0],
    ),
    st.randoms(),
)
def test_the_order_of_draws_at_other_paths_is_irrelevant(places, random):
    def draw(order):
        def fn(scope):
            drawn = {}
            for path, count in order:
                here = scope
                for name in path:
                    here = here.push(name, reuse=True)
                drawn[path] = [here.make_rng("noise") for _ in range(count)]
            return drawn

        return apply(fn)({}, rngs={"noise": KEY})

    shuffled = list(places)
    random.shuffle(shuffled)
    one, two = draw(places), draw(shuffled)
    data = {}
    for path, count in places:
        for i in range(count):
            assert one[path][i] == two[path][i]
            data[path, i] = tuple(jax.random.key_data(one[path][i]).tolist())
    assert len(set(data.values())) == len(data)


def test_a_stream_that_was_not_given_is_params():
    def fn(scope):
        return scope.has_rng("dropout"), scope.make_rng("dropout"), scope.make_rng()

    has, first, second = apply(fn)({}, rngs=KEY)
    assert not has
    one, two = apply(lambda s: (s.make_rng(), s.make_rng()))({}, rngs={"params": KEY})
    assert first == one and second == two


def test_raw_keys_are_keys():
    out = apply(lambda s: s.make_rng())({}, rngs=jax.random.PRNGKey(0))
    assert out.shape == (2,)


@pytest.mark.parametrize(
    "rngs",
    [
        *(3, {"params": 3}, {"params": jnp.ones(2)}, {3: KEY}),
        *(jnp.uint32(3), jax.random.split(KEY)),
        jax.random.split(jax.random.PRNGKey(0)),
    ],
)
def test_what_is_no_key_is_refused(rngs):
    with pytest.raises(errors.InvalidRngError, match=r"keys?"):
        init(lambda s: None)(rngs)


def test_names_are_unique_among_variables_of_a_collection_and_scopes():
    scope = bind({}, KEY, mutable=True)
    scope.variable("a", "v", lambda: 1)
    scope.variable("b", "v", lambda: 2)
    for again in (lambda: scope.variable("a", "v"), lambda: scope.push("v")):
        with pytest.raises(errors.NameInUseError, match="/v"):
            again()
    child = scope.push("child")
    with pytest.raises(errors.NameInUseError, match="submodule"):
        scope.push("child")
    assert scope.push("child", reuse=True) == child
    assert hash(scope.push("child", reuse=True)) == hash(child)
    assert child not in (scope, scope.push("sibling"), bind({}).push("child"), "child")
    scope.push("late", reuse=True)
    with pytest.raises(errors.NameInUseError):
        scope.push("late")
    with pytest.raises(errors.NameInUseError):
        scope.param("child", ones, ())
    assert scope.default_name("child") == "child0"
    assert scope.push(prefix="child").name == "child0"
    assert scope.push(prefix="child").name == "child1"
    assert scope.name_reserved("child") and not scope.name_reserved("other")
    with pytest.raises(TypeError, match="string"):
        scope.reserve(3)


def test_children_are_named_after_their_function():
    def model(scope, x):
        shared = scope.child(dense)
        return shared(x, 3) + scope.child(dense, prefix="layer_")(x, 3) + shared(x, 3)

    _, variables = init(model)(KEY, jnp.ones(3))
    assert sorted(variables["params"]) == ["dense_0", "layer_0"]


def test_child_keyword_arguments_and_no_named_call():
    def model(scope, x):
        return scope.child(dense, "d", named_call=False, features=5)(x)

    assert init(model)(KEY, jnp.ones(3))[0].shape == (5,)


def test_operations_of_a_child_carry_its_name():
    def model(scope, named_call):
        return scope.child(dense, "layer", named_call=named_call)(jnp.ones(3), 2)

    _, variables = init(model)(KEY, True)
    for named_call in (True, False):
        run = jax.jit(partial(apply(model), named_call=named_call))
        text = run.lower(variables).as_text(debug_info=True)
        assert ("/layer/" in text) is named_call


def test_rewound_frees_names_and_perhaps_streams():
    scope = bind({}, KEY, mutable=True)
    first = scope.make_rng()
    scope.param("w", ones, ())
    assert scope.rewound().param("w", ones, ()) == 1
    assert scope.rewound().make_rng() != first
    assert scope.rewound(rewind_rngs=True).make_rng() == first


def test_reading_and_writing():
    scope = bind({"params": {"a": {"w": 1}}, "state": {}}, mutable=["state"])
    a = scope.push("a")
    assert a.root is scope and a.parent is scope and a.path == ("a",)
    assert a.path_text == "/a" and scope.path_text == "/"
    assert a.get_variable("params", "w") == 1
    assert a.get_variable("params", "x", 7) == 7
    assert a.has_variable("params", "w") and not a.has_variable("state", "w")
    assert a.is_collection_empty("state") and not a.is_collection_empty("params")
    assert a.is_mutable_collection("state") and not a.is_mutable_collection("params")
    a.put_variable("state", "n", 5)
    assert scope.variables() == {
        "params": {"a": {"w": 1}},
        "state": {"a": {"n": 5}},
    }
    assert scope.mutable_variables() == {"state": {"a": {"n": 5}}}
    assert a.variables() == {"params": {"w": 1}, "state": {"n": 5}}
    scope.put_variable("state", "b", nn.freeze({"n": 6}))
    scope.push("b").put_variable("state", "m", 7)
    assert scope.variables()["state"]["b"] == {"n": 6, "m": 7}
    v = a.variable("state", "n")
    assert v.is_mutable() and repr(v) == "Variable(state/a/n)"


def test_what_is_stored_in_place_of_a_dict_is_all_there_is():
    scope = bind({}, mutable=True)
    scope.put_variable("state", "v", {"a": 1})
    scope.put_variable("state", "v", 2)
    assert scope.get_variable("state", "v") == 2
    scope.put_variable("state", "v", {"b": 3})
    assert scope.get_variable("state", "v") == {"b": 3}


def test_variables_has_what_is_not_empty_and_may_be_changed():
    scope = bind({"params": {"w": 1}, "none": {}}, mutable=True)
    seen = scope.variables()
    assert seen == {"params": {"w": 1}}
    seen["params"]["w"] = 2
    assert scope.get_variable("params", "w") == 1


def test_variables_gives_what_may_not_be_changed_as_it_was_given():
    given = nn.freeze({"w": 1})
    assert bind({"params": given}).variables()["params"] is given


def test_a_variable_that_is_not_there_is_named_with_the_collections_that_have_any():
    scope = bind({"params": {"w": 1}, "none": {}})
    with pytest.raises(errors.ScopeCollectionNotFound, match="params") as raised:
        scope.variable("state", "v")
    assert "none" not in str(raised.value)


def test_flags_are_seen_below():
    scope = bind({}, flags={"train": 1}).push("a")
    assert scope.has_flag("train") and scope.get_flag("train") == 1
    assert scope.get_flag("other", 2) == 2
    with pytest.raises(KeyError, match="other"):
        scope.get_flag("other")
    assert init(lambda s: s.get_flag("initializing"))(KEY)[0]


def test_scopes_of_a_parent():
    parent = Scope({"params": {"a": {"w": 1}}}, path=("x",))
    child = Scope({}, name="a", parent=parent)
    assert child.get_variable("params", "w") == 1 and child.path == ("x", "a")
    assert (repr(parent), repr(child)) == ("Scope(/x)", "Scope(/x/a)")
    assert repr(Scope({}, path=("x",), debug_path=("vmap(x)",))) == "Scope(/vmap(x))"
    with pytest.raises(ValueError, match="parent's variables"):
        Scope({"params": {}}, name="a", parent=parent)
    with pytest.raises(ValueError, match="needs a name"):
        Scope({}, parent=parent)


def test_temporary_scopes_end():
    with bind({"p": {"w": 1}}).temporary() as scope:
        child = scope.push("c")
        scope.get_variable("p", "w")
    for use in (scope.variables, child.make_rng, lambda: scope.push("d")):
        with pytest.raises(errors.InvalidScopeError, match="no longer valid"):
            use()


def test_a_scope_that_escapes_apply_is_dead():
    scope = apply(lambda s: s.push("a"))({}, rngs=KEY)
    with pytest.raises(errors.InvalidScopeError, match='"/a"'):
        scope.make_rng()


def test_parameters_made_by_arrays_and_trees_are_compared_by_shape():
    def model(scope):
        return scope.param("p", lambda key, n: {"a": jnp.ones(n), "b": jnp.ones(())}, 2)

    _, variables = init(model)(KEY)
    apply(model)(variables)
    variables["params"]["p"]["a"] = jnp.ones(3)
    with pytest.raises(errors.ScopeParamShapeError, match=r"\(3,\)"):
        apply(model)(variables)


def test_a_sparse_parameter_is_compared_by_what_it_holds():
    def model(scope, n=2):
        return scope.param("p", lambda key: sparse.BCOO.fromdense(jnp.eye(3), nse=n))

    _, variables = init(lambda scope: model(scope, 3))(KEY)
    out = apply(lambda scope: model(scope, 3) @ jnp.arange(3.0))(variables)
    assert out.tolist() == [0.0, 1.0, 2.0]
    with pytest.raises(errors.ScopeParamShapeError, match=r"\(3, 2\).*\(2, 2\)"):
        apply(model)(variables)


def test_shapes_that_follow_a_list_in_a_closure_are_looked_up_again():
    size = [2]

    def initializer(key):
        return jnp.ones(size[0])

    for n in (2, 3, 2):
        size[0] = n
        _, variables = init(lambda s: s.param("p", initializer))(KEY)
        assert apply(lambda s: s.param("p", initializer))(variables).shape == (n,)


SIZE = 2


def test_shapes_that_follow_a_variable_of_the_file_are_looked_up_again(monkeypatch):
    def initializer(key):
        return jnp.ones(SIZE)

    for n in (2, 3, 2):
        monkeypatch.setattr(sys.modules[__name__], "SIZE", n)
        _, variables = init(lambda s: s.param("p", initializer))(KEY)
        assert apply(lambda s: s.param("p", initializer))(variables).shape == (n,)


def test_shapes_follow_defaults_of_keywords():
    def initializer(n):
        def initializer(key, *, n=n):
            return jnp.ones(n)

        return initializer

    _, variables = init(lambda s: s.param("p", initializer(2)))(KEY)
    apply(lambda s: s.param("p", initializer(2)))(variables)
    with pytest.raises(errors.ScopeParamShapeError, match=r"\(2,\).*\(3,\)"):
        apply(lambda s: s.param("p", initializer(3)))(variables)


def test_the_number_of_known_shapes_is_bounded(monkeypatch):
    monkeypatch.setattr(shapes, "_MAX_ENTRIES", 3)
    monkeypatch.setattr(shapes, "_cache", {})
    initializer = lambda key, n: jnp.ones(n)
    for n in (*range(5), 0):
        _, variables = init(lambda s: s.param("p", initializer, n))(KEY)
        assert apply(lambda s: s.param("p", initializer, n))(variables).shape == (n,)
    assert 0 < len(shapes._cache) <= 3


RUNS = []


def an_initializer():
    def initializer(key, n):
        RUNS.append(n)
        return jnp.ones(n)

    return initializer


@pytest.mark.parametrize(
    "made",
    [
        an_initializer,
        lambda: partial(an_initializer()),
        lambda: jax.jit(an_initializer(), static_argnums=1),
    ],
)
def test_the_shapes_of_an_initializer_that_is_made_anew_are_known(made):
    variables = init(lambda s: s.param("p", made(), 2))(KEY)[1]
    apply(lambda s: s.param("p", made(), 2))(variables)
    RUNS.clear()
    apply(lambda s: s.param("p", made(), 2))(variables)
    assert not RUNS
    with pytest.raises(errors.ScopeParamShapeError, match=r"\(2,\).*\(3,\)"):
        apply(lambda s: s.param("p", made(), 3))(variables)


def test_lazy_init_computes_nothing_else():
    calls = []

    def model(scope, x, n):
        w = scope.param("w", nn.initializers.lecun_normal(), (x.shape[-1], n))
        jax.debug.callback(lambda: calls.append(1))
        return x @ w

    x = jax.ShapeDtypeStruct((10**9, 3), jnp.float32)
    lazy = lazy_init(model)(KEY, x, 2)
    jax.effects_barrier()
    assert not calls
    _, variables = init(model)(KEY, jnp.ones((1, 3)), 2)
    assert (lazy["params"]["w"] == variables["params"]["w"]).all()


def test_lazy_init_uses_the_arrays_it_gets():
    def model(scope, x, scale):
        return x * scope.param("w", lambda key: scale * 2)

    x = jax.ShapeDtypeStruct((2,), jnp.float32)
    assert lazy_init(model)(KEY, x, jnp.float32(3))["params"]["w"] == 6
    assert lazy_init(model)(KEY, jnp.ones(2), 3.0)["params"]["w"] == 6


def test_lazy_init_refuses_to_guess():
    def model(scope, x):
        child = scope.push("norm")
        child.param("fine", ones, ())
        child.variable("stats", "mean", lambda: x.mean())

    with pytest.raises(errors.LazyInitError) as raised:
        lazy_init(model)(KEY, jax.ShapeDtypeStruct((2,), jnp.float32))
    assert '"mean"' in str(raised.value) and '"stats"' in str(raised.value)
    assert "/norm/mean" in str(raised.value)


def test_a_scope_works_under_another_trace_as_long_as_nothing_leaks():
    transforms = [
        lambda f: jax.jit(lambda x: [f(x)] and x)(1.0),
        lambda f: jax.grad(lambda x: [f(x)] and x)(1.0),
        lambda f: jax.vmap(lambda x: [f(x)] and x)(jnp.ones(2)),
        lambda f: jax.lax.scan(lambda c, x: ([f(x)] and c, None), 0, jnp.ones(2)),
        lambda f: jax.checkpoint(lambda x: [f(x)] and x)(1.0),
    ]
    for transform in transforms:
        scope = bind({"params": {"w": 1.0}}, KEY, mutable=True)
        uses = [
            lambda x, scope=scope: scope.make_rng(),
            lambda x, scope=scope: scope.push("a"),
            lambda x, scope=scope: scope.put_variable("state", "v", 1),
            lambda x, scope=scope: scope.param("w", ones, ()),
            lambda x, scope=scope: scope.variable("state", "n", jnp.zeros, (2,)),
        ]
        for use in uses:
            transform(use)
        with pytest.raises(errors.JaxTransformError, match="/"):
            transform(lambda x, scope=scope: scope.put_variable("state", "x", x))
        assert jax.tree.map(jnp.shape, scope.variables()) == {
            "params": {"w": ()},
            "state": {"n": (2,), "v": ()},
        }
        assert not any(
            isinstance(x, jax.core.Tracer) for x in jax.tree.leaves(scope.variables())
        )


def test_what_leaks_inside_of_a_lift_is_named_by_its_whole_path():
    def leaks(scope, x):
        def row(x):
            return scope.variable("state", "first", lambda: x).value

        jax.vmap(row)(x)
        return scope.get_variable("state", "first")

    def model(scope, x):
        return nn.lift.checkpoint(leaks)(scope.push("inner"), x)

    with pytest.raises(errors.JaxTransformError, match='at path "/inner"'):
        init(model)(KEY, jnp.ones(2))


def test_threads_do_not_disturb_each_other():
    def model(scope, x):
        return scope.child(dense, "d")(x)

    x, results = jnp.ones(3), {}

    def work(i):
        results[i] = init(model)(jax.random.key(i), x)[0]

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for i in range(4):
        assert (results[i] == init(model)(jax.random.key(i), x)[0]).all()


def test_the_module_of_filters_is_here_too():
    assert nn.scope.in_filter(nn.DenyList("a"), "b")
