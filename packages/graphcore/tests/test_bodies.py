"""What is kept with a function, and for how long."""

import functools
import gc as garbage
import pickle
import types
import weakref

import jax
import pytest

import graphcore as gc
from graphcore.authors import Bodies, Entry, enter, lifted


def double(n):
    n.value *= 2


class Callable:
    def __call__(self, n):
        return n.value


KINDS = {
    "function": lambda: lambda n: n.value,
    "partial": lambda: functools.partial(lambda k, n: n.value, 1),
    "jitted": lambda: jax.jit(lambda n: n.value),
    "lifted": lambda: lifted(lambda n: n.value)(lambda f, n: f(n)),
    "instance": Callable,
}


@pytest.mark.parametrize("kind", KINDS)
def test_bodies_are_kept_with_their_function_and_go_with_it(kind):
    function, n = KINDS[kind](), gc.Variable(1)
    kept = Bodies.of(function)
    assert kept is Bodies.of(function)
    assert enter(function, (n,)).body is enter(function, (n,)).body
    assert kept.known
    seen = weakref.ref(kept), weakref.ref(function)
    del kept, function
    garbage.collect()
    assert [r() for r in seen] == [None, None]


def test_another_key_another_function_other_bodies():
    kept = Bodies.of(double, {"axes": (0, None)})
    assert kept is Bodies.of(double, {"axes": (0, None)})
    others = [
        Bodies.of(double, {"axes": (0, 1)}),
        Bodies.of(double, {"axes": [0, None]}),
        Bodies.of(double),
        Bodies.of(lambda n: n, {"axes": (0, None)}),
    ]
    assert len({*map(id, (kept, *others))}) == 5


def test_bodies_that_cannot_be_found_again_are_not_kept():
    assert Bodies.of(double, [set()]) is None  # not hashable
    assert Bodies.of(double, "a") is not None


def test_a_function_keeps_a_bounded_number():
    def f(n):
        return n

    first = weakref.ref(Bodies.of(f, 0))
    for key in range(1, 200):
        Bodies.of(f, key)
    assert first() is None


def test_what_is_kept_is_not_what_a_copy_of_the_function_keeps():
    kept = Bodies.of(double)

    @functools.wraps(double)
    def wrapper(n):
        return double(n)

    copied = types.FunctionType(double.__code__, double.__globals__)
    vars(copied).update(vars(double))
    for other in (wrapper, copied):
        assert Bodies.of(other) is not kept
        assert Bodies.of(other) is Bodies.of(other)
    assert Bodies.of(double) is kept


def test_attributes_of_a_function_can_be_pickled():
    # As picklers do that store functions by value.
    def f(n):
        return n

    f.told = 1
    kept = Bodies.of(f)
    attributes = pickle.loads(pickle.dumps(vars(f)))
    assert attributes["told"] == 1
    vars(f).update(attributes)
    assert Bodies.of(f) is not kept
    assert Bodies.of(f) is Bodies.of(f)


def test_what_is_made_of_an_object_without_a_name_is_called_by_its_class():
    class Twice:
        def __call__(self, x):
            return 2 * x

    twice = Twice()
    again = lifted(twice)(lambda f, x: f(f(x)))
    assert (again.__name__, again.__qualname__) == ("Twice", "Twice")
    assert again(1) == 4 and again.__wrapped__ is twice


def test_what_is_made_of_an_object_has_none_of_its_attributes():
    class Scale(gc.Object):
        def __init__(self):
            self.n = gc.Variable(3)

        def __call__(self, x):
            return self.n.value * x

    scale = Scale()
    made = lifted(scale)(lambda f, x: f(x))
    assert made(2) == 6 and not hasattr(made, "n")


def test_nothing_is_kept_with_what_no_weak_reference_can_be_made_to():
    class Slotted:
        __slots__ = ()

        def __call__(self, n):
            return n.value

    assert Bodies.of(Slotted()) is None
    assert enter(Slotted(), (gc.Variable(1),)).body.key is None


def test_a_function_is_known_for_as_many_structures_as_a_deep_model_has_layers():
    def f(n):
        return n.value

    nodes = [gc.Dict(value=gc.Variable(1), layer=layer) for layer in range(500)]
    first = [enter(f, (node,)).body for node in nodes]
    again = [enter(f, (node,)).body for node in nodes]
    assert all(a is b for a, b in zip(first, again, strict=True))


class Pair(gc.Object):
    def __init__(self, n):
        self.n = gc.Variable(n)

    def ahead_of(self, other):
        return self.n.value - other.n.value

    def before(self, a, b):
        return 100 * self.n.value + 10 * a.n.value + b.n.value


class Setting:
    """It has a hash, and can be changed all the same."""

    def __init__(self, by):
        self.by = by

    def __eq__(self, other):
        return self.by == other.by

    def __hash__(self):
        return hash(self.by)


def with_recall(f, static_argnums=()):
    """Calls of a function as the guide for authors has them."""
    bodies = Bodies()

    def call(*args):
        warm = bodies.recall(args, {})
        if warm is not None:
            entry = Entry.recalled(*warm)
        else:
            statics = {i: args[i] for i in static_argnums}
            traced = [None if i in statics else x for i, x in enumerate(args)]
            entry = enter(f, traced, statics=statics, cache=bodies)
            bodies.remember(args, {}, entry.body)
        return entry.commit(*jax.jit(entry.body)(*entry.values))

    return call


def test_a_call_is_recalled_with_the_object_that_the_function_is_bound_to():
    # Which is one of its arguments as well, now and then.
    one, two = Pair(1), Pair(2)
    call = with_recall(two.ahead_of)
    assert [call(one), call(two), call(one), call(two)] == [1, 0, 1, 0]
    call = with_recall(one.before)
    given = (one, two), (two, one), (one, two)
    assert [call(*args) for args in given] == [112, 121, 112]


def test_a_call_is_recalled_with_the_places_of_an_object_that_comes_twice():
    one, two = Pair(1), Pair(2)
    call = with_recall(lambda a, b: a.ahead_of(b))
    given = (one, one), (one, one), (one, two), (two, one), (two, two)
    assert [call(*args) for args in given] == [0, 0, -1, 1, 0]


def test_a_call_is_recalled_with_what_a_static_argument_is_now():
    n, setting = gc.Variable(2), Setting(3)
    call = with_recall(lambda n, setting: n.value * setting.by, static_argnums=[1])
    assert [call(n, setting), call(n, setting)] == [6, 6]
    setting.by = 5
    assert call(n, setting) == 10


def test_a_call_is_recalled_with_the_objects_that_are_in_its_containers_now():
    call = with_recall(lambda n, more: n.value + sum(m.value for m in more))
    one, two = gc.Variable(1), gc.Variable(2)
    given = (one, []), (one, []), (one, [two]), (one, [two, two]), (one, [one])
    assert [call(*args) for args in given] == [1, 1, 3, 5, 2]
