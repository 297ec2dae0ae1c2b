"""Static values that may change in place belong to one graph, also among equal ones."""

import dataclasses
import functools
import gc as garbage
import pickle
import threading
import types
import unittest.mock
import weakref

import jax
import jax.numpy as jnp
import pytest

import graphcore as gc
from graphcore.authors import enter


@dataclasses.dataclass
class Config:
    n: int


@functools.partial(
    jax.tree_util.register_dataclass, data_fields=["w"], meta_fields=["config"]
)
@dataclasses.dataclass
class Tree:
    w: jax.Array
    config: object


class Model(gc.Object):
    def __init__(self, config, tags=()):
        self.config = config
        self.part = gc.Dict(config=config)
        self.tree = [Tree(jnp.ones(2), config)]
        self.w = gc.Param(jnp.array(1.0), tags=[*tags])


def called(f, *args):
    entry = enter(f, args)
    return entry.commit(*entry.body(*entry.values))


@pytest.fixture(params=[Config, lambda n: types.SimpleNamespace(n=n)])
def twins(request):
    """Two equal models, of which the first was described before."""
    models = [Model(request.param(0), ["a"]) for _ in range(2)]
    assert gc.graphdef(models[0]) == gc.graphdef(models[1])
    return models


def count(m):
    m.config.n += 1
    m.w.tags.append("b")


def test_what_a_function_does_to_one_is_not_done_to_another(twins):
    first, second = twins
    for n in (1, 2):
        called(count, second)
        assert (second.config.n, second.w.tags) == (n, ["a", *"b" * n])
        assert second.part.config is second.tree[0].config is second.config
        assert (first.config.n, first.w.tags) == (0, ["a"])
    called(count, first)
    assert (first.config.n, first.w.tags) == (1, ["a", "b"])


def add(m):
    m.more = Config(1)
    m.w.more = [1]


def test_what_a_function_leaves_alone_stays_the_same_object(twins):
    kept = [(m.config, m.w.tags) for m in twins]
    for m, (config, tags) in zip(twins, kept, strict=True):
        called(add, m)
        assert m.config is m.part.config is config and m.w.tags is tags
        assert m.tree[0].config is config
    first, second = twins
    assert first.more == second.more and first.more is not second.more
    assert first.w.more == second.w.more and first.w.more is not second.w.more


def test_what_a_function_makes_is_made_for_each_call():
    def make():
        return Model(Config(1), ["a"])

    entry = enter(make)
    left = entry.body(*entry.values)  # as JAX keeps it with a trace
    first, second = (entry.commit(*left) for _ in range(2))
    assert first.config is first.part.config is not second.config
    assert first.tree[0].config is first.config
    assert first.config == second.config
    assert first.w.tags == second.w.tags and first.w.tags is not second.w.tags


def test_copies_have_the_static_values_of_their_model(twins):
    for m in twins:
        copies = gc.clone(m), gc.merge(*gc.split(m)), gc.clone(m, variables=False)
        assert all(twin.config is m.config for twin in copies)
        assert all(twin.tree[0].config is m.config for twin in copies)


@dataclasses.dataclass
class Holds:
    part: object


def test_static_values_that_hold_one_object_hold_one_inside():
    m = Model(Config(1))
    m.outer = Holds(m.config)
    m.named = {"a": Holds(m.config)}

    def change(m):
        m.config.n = 2
        assert m.outer.part is m.named["a"].part is m.tree[0].config is m.config

    called(change, m)
    assert m.outer.part is m.named["a"].part is m.config
    assert m.config == Config(2)


class Counted(types.SimpleNamespace):
    copies = 0

    def __deepcopy__(self, memo):
        Counted.copies += 1
        return Counted(**vars(self))


def test_a_value_that_many_nodes_hold_is_copied_as_often_as_one():
    def copies(count):
        config = Counted(n=0)
        model = gc.List([gc.Dict(config=config, n=i) for i in range(count)])
        Counted.copies = 0
        definition, state = gc.split(model)
        called(lambda model: model.append(gc.Dict()), model)
        assert len({id(node.config) for node in gc.merge(definition, state)}) == 1
        return Counted.copies

    assert copies(20) == copies(1) > 0


class Watched(types.SimpleNamespace):
    def __deepcopy__(self, memo):
        meanwhile()
        return Watched(**vars(self))


def meanwhile():
    """What another thread does while a value is copied."""


@pytest.mark.parametrize("change", [{"n": 5}, {"lock": threading.Lock()}])
def test_a_value_that_changes_while_it_is_copied_is_that_of_its_own_model(
    change, monkeypatch
):
    first, second = Model(Watched(n=0)), Model(Watched(n=0))
    assert gc.graphdef(first) == gc.graphdef(second)
    monkeypatch.setitem(
        globals(), "meanwhile", lambda: vars(first.config).update(change)
    )
    assert called(lambda m: vars(m.config), second) == {"n": 0}


def test_a_value_that_was_changed_since_is_that_of_its_own_model(twins):
    first, second = twins
    first.config.n = 5

    def seen(a, b):
        return [x.n for m in (a, b) for x in (m.config, m.tree[0].config)]

    assert called(seen, second, first) == [0, 0, 5, 5]
    assert called(seen, first, second) == [5, 5, 0, 0]


def test_a_change_within_the_structure_of_a_pytree_is_seen():
    node = gc.Dict(tree=Tree(jnp.ones(2), Config(0)))
    before, state = gc.split(node)
    definitions = {}
    for n in (0, 1, 2, 0, 2, 1):
        node.tree.config.n = n
        definition = gc.graphdef(node)
        assert definitions.setdefault(n, definition) == definition
        assert called(lambda node: node.tree.config.n, node) == n
    assert len({*definitions.values()}) == 3 and before == definitions[0]
    (found,) = gc.diff(before, definitions[2])
    assert found.path == ("tree",) and found.kind == "metadata"
    assert gc.merge(before, state).tree.config == Config(0)
    alone = gc.graphdef(node.tree)
    node.tree.config.n = 5
    mapped = alone.with_index_mapping(gc.HashableMapping({}))
    assert mapped.with_index_mapping(None) == alone != gc.graphdef(node.tree)
    assert pickle.loads(pickle.dumps(before)) == before


def test_a_definition_is_pickled_as_it_was_made():
    m = Model(Config(1))
    definition = gc.graphdef(m)
    m.config.n = 2
    again = pickle.loads(pickle.dumps(definition))
    assert again == definition != gc.graphdef(m)


@pytest.mark.parametrize("mock", [unittest.mock.Mock, unittest.mock.MagicMock])
def test_a_mock_is_a_static_value(mock):
    logger = mock()
    model = Model(Config(0))
    model.logger = logger
    graphdef, state = gc.split(model)
    assert gc.merge(graphdef, state).logger is logger
    assert gc.graphdef(model) == graphdef


class Offset(float):
    pass


@pytest.mark.parametrize("kind", [float, Offset])
def test_zeros_of_either_sign_differ(kind):
    plus, minus = (gc.graphdef(gc.Dict(x=kind(zero))) for zero in (0.0, -0.0))
    assert plus != minus and plus == gc.graphdef(gc.Dict(x=kind(0.0)))


def test_the_class_of_a_static_value_is_not_kept():
    class Local:
        pass

    gc.split(gc.Dict(x=Local()))
    reference = weakref.ref(Local)
    del Local
    garbage.collect()
    assert reference() is None


@pytest.mark.parametrize("pack", [lambda m: m, lambda m: (1, m), lambda m: {"a": m}])
def test_static_arguments_with_variables_are_refused(pack):
    with pytest.raises(ValueError, match=r"argument 0 .* a Dict.* with variables"):
        enter(called, (), statics={0: pack(gc.Dict(n=gc.Variable(1)))})
    with pytest.raises(ValueError, match="static argument 0 has a Dict in it"):
        enter(called, (), statics={0: frozenset([gc.Dict(n=gc.Variable(1))])})
    with pytest.raises(ValueError, match="static argument 0 has a Variable in it"):
        enter(called, (), statics={0: (gc.Variable(0),)})
    enter(called, (), statics={0: (1, gc.Dict(n=1))})
    enter(called, (), statics={0: {"a": 1, 2: 3}})  # JAX can't sort its keys.


def scaled(x, *args, **kwargs):
    return x


def in_a_list(x):
    return [x]


PARTIALS = [
    lambda: functools.partial(scaled),
    lambda: functools.partial(scaled, 1),
    lambda: functools.partial(scaled, 1.0),
    lambda: functools.partial(scaled, True),
    lambda: functools.partial(scaled, (1, 2)),
    lambda: functools.partial(scaled, a=1, b=2),
    lambda: functools.partial(scaled, b=2, a=1),
    lambda: functools.partial(functools.partial(scaled, 1), a=1),
    lambda: functools.partial(in_a_list, 1),
]


def test_partials_are_compared_by_what_they_bind():
    for number, make in enumerate(PARTIALS):
        for other, another in enumerate(PARTIALS):
            a, b = (gc.graphdef(gc.Dict(f=f())) for f in (make, another))
            assert (a == b) == (number == other), (number, other)
            if a == b:
                assert hash(a) == hash(b)


@pytest.mark.parametrize("bound", [[1, 2], {"a": 1}, jnp.ones(2)])
def test_partials_of_what_can_not_be_hashed_equal_themselves_only(bound):
    f = functools.partial(scaled, bound)
    one, two, other = (
        gc.graphdef(gc.Dict(f=g)) for g in (f, f, functools.partial(scaled, bound))
    )
    assert one == two and one != other


def test_partials_with_attributes_equal_themselves_only():
    def make():
        f = functools.partial(scaled, 1)
        f.name = "scaled"
        return gc.graphdef(gc.Dict(f=f))

    assert make() != make()


def test_each_model_keeps_its_own_partial():
    one, two = (gc.Dict(f=functools.partial(scaled, 1), n=gc.Param(1)) for _ in "ab")
    held = one.f, two.f

    def call(m):
        m.n.value = m.f(m.n.value)
        return m

    for m in (one, two):
        entry = enter(call, (m,))
        assert entry.commit(*entry.body(*entry.values)) is m
    assert one.f is held[0] and two.f is held[1]
