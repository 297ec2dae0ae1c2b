"""What is kept with a function, and for how long."""

import functools
import gc as garbage
import pickle
import types
import weakref

import jax
import pytest

import graphcore as gc
from graphcore.authors import Bodies, enter, lifted


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


def test_a_function_is_known_for_as_many_structures_as_a_deep_model_has_layers():
    def f(n):
        return n.value

    nodes = [gc.Dict(value=gc.Variable(1), layer=layer) for layer in range(500)]
    first = [enter(f, (node,)).body for node in nodes]
    again = [enter(f, (node,)).body for node in nodes]
    assert all(a is b for a, b in zip(first, again, strict=True))
