import collections
import dataclasses
import functools
import types
import weakref
from collections.abc import Mapping
from unittest import mock

import graph_zoo as zoo
import jax
import jax.numpy as jnp
import pytest

import graphcore as gc
from graphcore.authors import Callee, captured_objects, enter, lifted

model = gc.Dict(weight=gc.Param(jnp.array(2.0)))


def reads_an_attribute_of_that_name(holder):
    return holder.model.weight * 2


def reads_the_global(holder):
    return model.weight * 2


def reads_it_in_a_class(holder):
    class Local:
        found = model

    return Local.found.weight


def reads_it_in_a_function_inside(holder):
    return (lambda: model.weight)()


def test_a_global_is_captured_where_it_is_read_and_not_where_an_attribute_is():
    assert captured_objects(reads_an_attribute_of_that_name) == []
    for f in (reads_the_global, reads_it_in_a_class, reads_it_in_a_function_inside):
        assert captured_objects(f) == [model]


class ReadsTheGlobal:
    def __call__(self, holder):
        return model.weight * 2


def calls_an_instance(holder):
    return instance(holder)


instance = ReadsTheGlobal()


def test_the_code_of_a_callable_instance_is_looked_at():
    assert captured_objects(instance) == captured_objects(calls_an_instance) == [model]


def test_a_global_of_what_a_wrapper_of_another_module_wraps_is_captured():
    wrapped = lifted(reads_the_global)(lambda f, /, holder: f(holder))
    assert captured_objects(wrapped) == [model]
    assert captured_objects(lifted(wrapped)(lambda f, /, holder: f(holder))) == [model]


class Plain:
    reads = reads_the_global


class Proxy:
    """Of another module, and says by a property what it wraps."""

    __slots__ = ("_inner",)

    def __init__(self, inner):
        self._inner = inner

    __wrapped__ = property(lambda self: self._inner)

    __call__ = types.FunctionType((lambda self, x: self._inner(x)).__code__, {})


def test_a_global_is_captured_also_by_what_stands_for_a_function():
    method = types.MethodType(reads_the_global, Plain())
    made = Plain().reads, method, functools.partial(reads_the_global, 1)
    for f in (*made, Proxy(reads_the_global)):
        assert captured_objects(f) == captured_objects(lambda f=f: f) == [model]


def test_what_a_plain_object_holds_is_captured_with_it():
    holder = types.SimpleNamespace(parts=[model])
    assert captured_objects(lambda: holder.parts) == [model]


class Hooks(dict):
    def on_start(self, trainer): ...


def test_mocks_in_what_a_function_captures_are_looked_through():
    for made in (mock.Mock(spec=Hooks), mock.create_autospec(Hooks), mock.MagicMock()):
        made.parts = [model]
        assert captured_objects(lambda holder=made: holder.parts) == [model]
        assert not made.mock_calls


class Stored(Mapping):
    """A mapping whose values are in a file, as those of h5py and `np.load` are."""

    def __init__(self):
        self.beside = [model]

    def __getitem__(self, key):
        raise OSError("the file is closed")

    def __iter__(self):
        return iter(["a"])

    def __len__(self):
        return 1


class Imported(dict):
    def values(self):
        raise ImportError("an optional package")


def test_an_object_that_is_its_own_attribute_is_looked_at_once():
    class Proxy:
        def __getattr__(self, name):
            return self

        def __call__(self, holder):
            return model.weight

    assert captured_objects(Proxy()) == [model]


def test_values_that_a_mapping_makes_are_not_asked_for():
    stored, imported = Stored(), Imported(a=model)
    assert captured_objects(lambda: stored) == [model]
    assert captured_objects(lambda: imported) == [model]
    proxy = types.MappingProxyType({"a": model})
    assert captured_objects(lambda: proxy) == [model]


class Remote:
    """An object that has every attribute, as proxies for other processes do."""

    asked = 0

    def __getattr__(self, name):
        Remote.asked += 1
        assert Remote.asked < 99
        return Remote()


def test_attributes_that_an_object_makes_are_not_asked_for():
    remote = Remote()
    assert captured_objects(lambda: remote) == []


def test_a_function_of_an_attribute_named_like_a_global_keeps_its_body():
    holder = gc.Dict(model=model)
    f = reads_an_attribute_of_that_name
    assert enter(f, (holder,)).body is enter(f, (holder,)).body
    assert enter(reads_the_global, (holder,)).body is not (
        enter(reads_the_global, (holder,)).body
    )


class Calling(zoo.Bag):
    """A foreign node that can be called, and does not tell its trace."""

    def __call__(self):
        return self.items["w"].value


gc.register_graph_node_type(
    Calling,
    flatten=lambda bag: (sorted(bag.items.items()), None),
    set_key=lambda bag, key, child: bag.items.__setitem__(key, child),
    pop_key=lambda bag, key: bag.items.pop(key),
    create_empty=lambda metadata: Calling(),
    clear=lambda bag: bag.items.clear(),
    init=lambda bag, pairs: bag.items.update(pairs),
)


def test_a_foreign_node_that_is_called_takes_part():
    bag = Calling()
    bag.items["w"] = gc.Param(jnp.array(3.0))
    assert Callee(bag).bound == (bag,)
    entry = enter(bag, ())
    assert entry.commit(*entry.body(*entry.values)) == 3


@dataclasses.dataclass(slots=True)
class Trainer:
    model: gc.Dict
    log: object


class OwnSlots:
    __slots__ = ("__held", "empty")

    def __init__(self, held):
        self.__held = held


def test_slots_and_queues_are_looked_into():
    trainer = Trainer(model, collections.deque([1, gc.Param(2.0)]))
    found = captured_objects(lambda: trainer)
    assert {*map(id, found)} == {id(model), id(trainer.log[1])}
    assert captured_objects(functools.partial(len, OwnSlots(model))) == [model]


def test_what_wraps_itself_without_end_is_looked_at_once():
    class Endless:
        def __getattr__(self, name):
            return Endless()

        def __call__(self, holder):
            return model.weight

    def first():
        return model.weight

    def second(): ...

    first.__wrapped__, second.__wrapped__ = second, first
    made = Endless()
    for f in (made, lambda: made, first):
        assert captured_objects(f) == [model]


def test_a_weak_reference_is_followed():
    reference = weakref.ref(model)
    assert captured_objects(lambda: reference()) == [model]


def test_globals_of_the_modules_of_other_functions_count():
    elsewhere = types.FunctionType((lambda: model).__code__, {"model": model}, "f")

    def here():
        return elsewhere

    assert captured_objects([elsewhere]) == []
    assert captured_objects([elsewhere], elsewhere) == [model]
    assert captured_objects([here], here) == []


@dataclasses.dataclass(frozen=True)
class Config:
    act: object


STATICS = {
    "function": lambda: lambda: model.weight,
    "jitted": lambda: jax.jit(lambda: model.weight),
    "tuple": lambda: (1, lambda: model.weight),
    "list": lambda: [lambda: model.weight],
    "dataclass": lambda: Config(lambda: model.weight),
    "reference": lambda: weakref.ref(model),
}


@pytest.mark.parametrize("kind", STATICS)
@pytest.mark.parametrize("where", ["attribute", "metadata", "argument"])
def test_a_body_is_not_kept_where_something_static_captures_objects(kind, where):
    def f(*args):
        return args

    def entered(value):
        if where == "argument":
            return enter(f, (1,), statics={1: value})
        if where == "metadata":
            return enter(f, (gc.Dict(w=gc.Param(1, hint=value)),))
        return enter(f, (gc.Dict(w=gc.Param(1), f=value),))

    assert entered(abs).is_kept and entered((1, "two")).is_kept
    entry = entered(STATICS[kind]())
    assert entry.body.structure.captured_objects(f) == [model]
    assert not entry.is_kept
