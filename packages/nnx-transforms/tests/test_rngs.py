import copy
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import graphcore as gc
from nnx_transforms.randomness.random_splits import (
    fork,
    fork_rngs,
    reseed,
    restore_rngs,
    split_rngs,
    with_rngs,
)
from nnx_transforms.randomness.rngs import RngCount, RngKey, Rngs, RngState, RngStream


def data(key):
    return np.asarray(jax.random.key_data(key)).tolist()


def snapshot(rngs):
    return {
        name: (data(s.key.value), np.asarray(s.count.value).tolist())
        for name, s in rngs.items()
    }


# Streams


def test_a_draw_folds_the_count_into_the_key():
    rngs = Rngs(params=3)
    for n in range(3):
        assert data(rngs.params()) == data(jax.random.fold_in(jax.random.key(3), n))
    assert int(rngs.params.count.value) == 3
    assert rngs.params.count.value.dtype == jnp.uint32


@settings(max_examples=20, deadline=None)
@given(st.lists(st.sampled_from(["params", "dropout", "other"]), max_size=8))
def test_a_key_depends_on_root_and_count_of_its_stream_only(draws):
    rngs = Rngs(7, params=1)
    counts = {"params": 0, "default": 0}
    seeds = {"params": 1, "default": 7}
    for name in draws:
        stream = "params" if name == "params" else "default"
        expected = jax.random.fold_in(jax.random.key(seeds[stream]), counts[stream])
        assert data(rngs[name]()) == data(expected)
        counts[stream] += 1


def test_seeds_of_every_kind_give_the_same_stream():
    seeds = [
        5,
        np.int64(5),
        np.uint32(5),
        jnp.array(5),
        jax.random.key(5),
        jax.random.PRNGKey(5),
        RngKey(jax.random.key(5)),
    ]
    keys = {str(data(Rngs(seed)())) for seed in seeds}
    assert len(keys) == 1


@pytest.mark.parametrize(
    "seed", ["0", 0.5, np.ones(3), np.arange(3), jnp.array(1.0), None]
)
def test_what_is_no_seed_is_refused(seed):
    with pytest.raises(TypeError, match="'params' must be an integer"):
        Rngs(params=seed)


def test_unknown_streams_fall_back_to_the_default():
    rngs = Rngs(0)
    assert rngs.params is rngs.default
    assert rngs["dropout"] is rngs.default
    assert list(rngs) == ["default"] and len(rngs) == 1 and "params" not in rngs


def test_without_default_an_unknown_stream_is_an_error_with_the_way_out():
    rngs = Rngs(params=0)
    with pytest.raises(AttributeError, match=r"'dropout'.*\['params'\]"):
        rngs.dropout
    with pytest.raises(KeyError, match="dropout"):
        rngs["dropout"]
    with pytest.raises(AttributeError, match="'default'"):
        rngs()


def test_underscored_names_are_never_streams():
    assert not hasattr(Rngs(0), "_repr_html_")


def test_a_mapping_of_seeds_and_a_stream_named_like_a_parameter():
    assert list(Rngs({"params": 0}, noise=1)) == ["params", "noise"]
    assert list(Rngs(default=1)) == ["default"]


def test_filters_select_by_type_and_by_name():
    state = gc.state(Rngs(0, params=1))
    assert state.filter("params").flat_state().paths == (
        ("params", "count"),
        ("params", "key"),
    )
    keys, counts = state.split(RngKey, RngCount)
    assert list(keys) == list(counts) == ["default", "params"]
    assert state.filter(RngState).flat_state() == state.flat_state()


def test_copies_of_streams_are_independent():
    rngs = Rngs(0)
    rngs()
    for twin in (
        gc.clone(rngs),
        copy.deepcopy(rngs),
        gc.merge(*gc.split(rngs)),
    ):
        before = snapshot(rngs)
        assert snapshot(twin) == before
        twin()
        assert snapshot(rngs) == before


def test_streams_of_key_data_survive_pickling_of_their_state():
    rngs = Rngs(0)
    raw = pickle.loads(pickle.dumps(snapshot(rngs)))
    assert snapshot(Rngs(jnp.array(raw["default"][0], jnp.uint32))) == raw


def test_a_stream_of_another_trace_is_refused_and_unchanged():
    rngs = Rngs(0)
    with pytest.raises(gc.TraceContextError):
        jax.jit(lambda: rngs())()
    assert int(rngs.default.count.value) == 0


def test_a_draw_traces_two_operations():
    def draw(count):
        rngs = Rngs(0)
        rngs.default.count.value = count
        return rngs(), rngs.default.count.value

    eqns = jax.make_jaxpr(draw)(jnp.uint32(0)).jaxpr.eqns
    used = [e.primitive.name for e in eqns]
    assert used.count("random_fold_in") == 1
    assert used.count("add") == 1
    assert "convert_element_type" not in used


# Splits


@pytest.mark.parametrize("splits", [3, (3,), (2, 4)])
def test_split_gives_arrays_of_the_keys_of_a_draw(splits):
    rngs, twin = Rngs(params=0, dropout=1), Rngs(params=0)
    split_rngs(rngs, splits=splits, only="params")
    shape = splits if isinstance(splits, tuple) else (splits,)
    expected = jax.random.split(twin.params(), shape)
    assert data(rngs.params.key.value) == data(expected)
    assert rngs.params.count.value.shape == shape
    assert not rngs.params.count.value.any()
    assert rngs.dropout.key.value.shape == ()


@settings(max_examples=20, deadline=None)
@given(
    draws=st.integers(0, 3),
    splits=st.one_of(
        st.integers(1, 4), st.tuples(st.integers(1, 3), st.integers(1, 3))
    ),
    only=st.sampled_from([..., "params", "dropout", gc.Not("params"), "none"]),
)
def test_restore_undoes_a_split_but_for_one_draw(draws, splits, only):
    rngs, twin = Rngs(params=0, dropout=1), Rngs(params=0, dropout=1)
    for _ in range(draws):
        rngs.params(), twin.params()
    variables = [rngs.params.key, rngs.params.count, rngs.dropout.key]
    backups = split_rngs(rngs, splits=splits, only=only)
    for backup in backups:
        twin[backup.stream.tag]()
    restore_rngs(backups)
    assert snapshot(rngs) == snapshot(twin)
    after = [rngs.params.key, rngs.params.count, rngs.dropout.key]
    assert all(a is b for a, b in zip(variables, after, strict=True))


def test_two_splits_give_different_keys():
    rngs = Rngs(0)
    with split_rngs(rngs, splits=2):
        first = data(rngs.default.key.value)
    with split_rngs(rngs, splits=2):
        assert data(rngs.default.key.value) != first


def test_squeeze_drops_the_axis():
    rngs = Rngs(0)
    split_rngs(rngs, splits=1, squeeze=True)
    assert rngs.default.key.value.shape == rngs.default.count.value.shape == ()
    assert data(rngs()) != data(Rngs(0)())
    with pytest.raises(ValueError, match="splits=1"):
        split_rngs(rngs, splits=2, squeeze=True)


def test_a_shared_stream_is_split_once_and_every_holder_sees_it():
    rngs = Rngs(0)
    node = gc.Dict(a=rngs, b=gc.List([rngs, rngs.default]))
    backups = split_rngs((node, {"x": jnp.ones(2)}), splits=3)
    assert len(backups) == 1
    assert node.b[1].key.value.shape == (3,)


def test_as_decorator_over_positional_and_keyword_arguments():
    a, b = Rngs(0), Rngs(1)

    @split_rngs(splits=2)
    def f(x, a, *, b):
        """Docs."""
        return x, a.default.key.value.shape, b.default.key.value.shape

    assert f(1, a, b=b) == (1, (2,), (2,))
    assert f.__name__ == "f" and f.__doc__ == "Docs."
    assert a.default.key.value.shape == () == b.default.key.value.shape
    assert int(a.default.count.value) == 1


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_exception_restores_everything(error):
    rngs = Rngs(0, params=1)
    rngs()
    before = snapshot(rngs)
    with pytest.raises(error), split_rngs(rngs, splits=2):
        raise error
    assert snapshot(rngs) == before

    @split_rngs(splits=2)
    def fail(r):
        raise error

    with pytest.raises(error):
        fail(rngs)
    assert snapshot(rngs) == before


def test_a_second_split_is_refused_with_the_path_and_changes_nothing():
    node = gc.Dict(a=Rngs(params=0), b=Rngs(noise=0))
    split_rngs(node, splits=2, only="noise")
    before = snapshot(node.a) | snapshot(node.b)
    with pytest.raises(ValueError, match=r"'noise' at 'b/noise'.*\(2,\)"):
        split_rngs(node, splits=2)
    assert snapshot(node.a) | snapshot(node.b) == before
    with pytest.raises(ValueError, match=r"'noise' holds an array of keys"):
        node.b.noise()


def test_a_split_from_another_trace_changes_nothing():
    rngs = Rngs(0)
    before = snapshot(rngs)

    @jax.jit
    def f():
        split_rngs((Rngs(1), rngs), splits=2)

    with pytest.raises(gc.TraceContextError):
        f()
    assert snapshot(rngs) == before


def test_split_keys_map_over_an_axis():
    rngs = Rngs(params=0)

    def draw(state):
        return gc.merge(graphdef, state).params()

    with split_rngs(rngs, splits=4):
        graphdef, state = gc.split(rngs)
        keys = jax.vmap(draw)(state)
    assert keys.shape == (4,)
    assert len({str(data(k)) for k in keys}) == 4


# New seeds


def test_reseed_draws_the_new_key_from_a_stream_with_the_seed():
    rngs = Rngs(params=0, dropout=1)
    rngs.dropout(), rngs.params()
    reseed(gc.List([rngs]), dropout=42)
    assert snapshot(rngs)["dropout"] == (data(Rngs(dropout=42).dropout()), 0)
    assert int(rngs.params.count.value) == 1


def test_reseed_gives_several_streams_of_a_name_different_keys():
    node = gc.List([Rngs(dropout=i) for i in range(3)])
    reseed(node, dropout=jax.random.key(9))
    roots = [data(r.dropout.key.value) for r in node]
    drawn = Rngs(jax.random.key(9))
    assert roots == [data(drawn()) for _ in range(3)]
    assert len(set(map(str, roots))) == 3


def test_a_policy_says_what_becomes_of_arrays_of_keys():
    rngs = Rngs(dropout=0)
    reseed(rngs, policy="scalars_only", dropout=1)
    assert data(rngs.dropout.key.value) == data(Rngs(dropout=1).dropout())
    rngs = Rngs(dropout=0).split(3)
    with pytest.raises(ValueError, match=r"at 'dropout'.*\(3,\).*match_shape"):
        reseed(rngs, policy="scalars_only", dropout=1)
    reseed(rngs, policy=lambda path, key, shape: jax.random.split(key, 2), dropout=1)
    assert rngs.dropout.count.value.shape == (2,)


def test_reseed_keeps_the_shape_of_split_streams():
    rngs = Rngs(dropout=0)
    split_rngs(rngs, splits=(2, 2))
    reseed(rngs, dropout=1)
    assert rngs.dropout.key.value.shape == (2, 2) == rngs.dropout.count.value.shape


def test_reseed_of_an_unknown_stream_changes_nothing():
    rngs = Rngs(params=0)
    with pytest.raises(ValueError, match=r"\['noise'\].*\['params'\]"):
        reseed(rngs, params=1, noise=2)
    assert snapshot(rngs) == snapshot(Rngs(params=0))


# Forks


def test_fork_splits_keys_and_leaves_counts():
    rngs = Rngs(params=0, dropout=1)
    rngs.params()
    state = gc.state(rngs)
    forked = fork(state, "params", 5)
    assert data(forked.split_keys.params.key.value) == data(
        jax.random.split(jax.random.key(0), 5)
    )
    assert int(forked.split_counts.params.count.value) == 1
    assert forked.broadcast_keys.flat_state().paths == (("dropout", "key"),)
    assert forked.broadcast_counts.flat_state().paths == (("dropout", "count"),)
    assert state == gc.state(rngs)


def test_fork_patterns():
    state = gc.state(Rngs(0))
    assert fork(state, ..., (None, 3)).split_keys.default.key.value.shape == (1, 3)
    merged = gc.State.merge(*fork(state, False, 3))
    assert merged == state
    with pytest.raises(ValueError, match="split_pattern"):
        fork(state, ..., None)
    with pytest.raises(ValueError, match="kernel"):
        fork(gc.State({"kernel": gc.Param.state(1.0)}), ..., 2)
    twice = gc.State.merge(*fork(state, ..., 2))
    with pytest.raises(ValueError, match=r"'default' at 'default'"):
        fork(twice, ..., 2)


def test_stream_alone():
    stream = RngStream(0, tag="noise")
    assert stream.tag == "noise"
    assert isinstance(stream(), jax.Array)


# Copies with other streams


def test_with_rngs_leaves_the_model_and_shares_its_variables():
    model = gc.Dict(w=gc.Param(jnp.ones(2)), rngs=Rngs(params=0, dropout=1))
    new = with_rngs(model, split={"params": 3}, fork="dropout")
    assert new.w is model.w and new.rngs is not model.rngs
    assert new.rngs.params.key.value.shape == (3,)
    assert data(new.rngs.dropout.key.value) == data(Rngs(dropout=1).dropout())
    assert model.rngs.params.key.value.shape == ()
    assert int(model.rngs.params.count.value) == 1


def test_with_rngs_forks_what_any_kind_of_filter_selects():
    rngs = Rngs(a=0, b=1, c=2)
    new = with_rngs(rngs, fork=[["a", "b"], ...], broadcast={gc.Everything(): None})
    same = Rngs(a=0, b=1, c=2).fork()
    for name in "abc":
        assert data(new[name].key.value) == data(same[name].key.value)


def test_with_rngs_refuses_a_stream_that_two_rules_name():
    rngs = Rngs(params=0)
    with pytest.raises(ValueError, match=r"'params'.*split.*fork"):
        with_rngs(rngs, split={"params": 2}, fork="params")
    new = with_rngs(rngs, split={"params": 2}, fork=["dropout", ...])
    assert new.params.key.shape == (2,)


def test_forked_streams_come_back_with_other_counts():
    rngs = Rngs(params=0, dropout=1)

    @fork_rngs(split={"params": 2})
    def shapes(rngs):
        return rngs.params.key.shape, rngs.dropout.key.shape

    assert shapes(rngs) == ((2,), ())
    assert data(rngs.params.key.value) == data(jax.random.key(0))
    assert int(rngs.params.count.value) == 1 and int(rngs.dropout.count.value) == 0


def test_random_methods_draw_from_streams_inside_a_vmap():
    @jax.vmap
    def draw(key):
        rngs = Rngs(noise=key, default=0)
        return rngs.noise.uniform((2,)), rngs.normal()

    noise, normal = draw(jax.random.split(jax.random.key(0), 3))
    assert len(np.unique(noise)) == 6 and len(np.unique(normal)) == 1


def test_the_modes_of_flax_that_are_ours_are_accepted():
    rngs = Rngs(0)
    with split_rngs(rngs, splits=2, graph=True, graph_updates=True):
        assert rngs.default.key.shape == (2,)
    assert with_rngs(rngs, split=2, graph=False).default.key.shape == (2,)


def test_the_streams_to_split_may_be_a_list_of_names():
    rngs = Rngs(a=0, b=1, c=2)

    @split_rngs(splits=2, only=["a", "b"])
    def shapes(rngs):
        return [stream.key.shape for stream in (rngs.a, rngs.b, rngs.c)]

    assert shapes(rngs) == [(2,), (2,), ()]
    assert rngs.a.key.shape == ()


@pytest.mark.parametrize("only", [RngKey, RngCount])
def test_a_filter_of_streams_takes_both_key_and_count(only):
    rngs = Rngs(0)
    with split_rngs(rngs, splits=2, only=only) as backups:
        assert not backups and rngs.default.key.shape == ()
    assert snapshot(rngs) == snapshot(Rngs(0))


def test_a_split_without_updates_is_a_copy():
    rngs, others = Rngs(a=0, b=1), Rngs(a=0, b=1)
    copy = split_rngs(rngs, splits=3, only="a", graph=False)
    split_rngs(others, splits=3, only="a")
    assert copy.a.key.shape == (3,) and copy.b.key.shape == rngs.a.key.shape == ()
    assert copy.b.count is rngs.b.count
    assert (copy.a.key.value == others.a.key.value).all()
    assert int(rngs.a.count.value) == 1
    shape = split_rngs(splits=2, graph_updates=False)(lambda rngs: rngs.b.key.shape)
    assert shape(rngs) == (2,) and rngs.b.key.shape == ()
    fork = fork_rngs(rngs, split={"b": 4}, graph=False)
    assert fork.b.key.shape == (4,) and fork.a.key.shape == rngs.b.key.shape == ()


@pytest.mark.parametrize("how", ["split", "broadcast"])
def test_streams_without_a_rule_start_anew_from_the_same_key(how):
    rngs = Rngs(params=0, dropout=1, noise=2)
    rngs.dropout(), rngs.noise()
    new = getattr(rngs, how)({"params": 3, "dropout": None})
    assert new.params.key.shape == (3,)
    for name in ("dropout", "noise"):
        assert snapshot(new)[name] == (data(rngs[name].key.value), 0)
        assert int(rngs[name].count.value) == 1


def test_with_rngs_leaves_a_stream_whose_first_rule_is_none():
    new = with_rngs(Rngs(params=0, dropout=1), split={"params": None, ...: 4})
    assert new.params.key.shape == () and new.dropout.key.shape == (4,)


def test_reseed_names_the_policies_that_it_knows():
    with pytest.raises(ValueError, match=r"'scalar'.*'match_shape', 'scalars_only'"):
        reseed(Rngs(0), policy="scalar", default=1)
