"""Settings of what a function is bound to, and of what is reached twice."""

import gc as garbage
import weakref

import pytest

import graphcore as gc
from graphcore.authors import Bodies, enter


class First(gc.PrefixMapping):
    """Gives each variable the key under which it stands."""

    first_path_counts = True

    def map_prefix(self, path, variable):
        return path[-1]


class Every(First):
    first_path_counts = False


class Model(gc.Object):
    def __init__(self):
        self.w = gc.Param(1.0)

    def f(self, other):
        return self.w


def settings(*args, **options):
    return enter(*args, **options).body.structure.settings


def test_a_bound_object_has_a_setting():
    m, other = Model(), Model()
    found = settings(m.f, (other,), settings="argument", bound_setting="bound")
    assert found.roots == ("argument", "bound")
    assert found.variables == ("argument", "bound")


def test_a_bound_object_that_is_an_argument_too():
    m = Model()
    with pytest.raises(ValueError, match=r"(?s)Inconsistent.*0: 'a'.*self: 'b'"):
        settings(m.f, (m,), settings="a", bound_setting="b")
    assert settings(m.f, (m,), settings="a", bound_setting="a").roots == ("a",)
    # Without a setting for it, that of the argument counts.
    assert settings(m.f, (m,), settings="a").roots == ("a",)


def test_the_first_path_of_a_shared_variable_counts_where_that_is_said():
    shared = gc.Param(1.0)
    node = gc.Dict(a=shared, b=shared, c=gc.Param(2.0))
    found = settings(lambda node: None, (node,), settings=First())
    assert found.variables == ("a", "c")
    with pytest.raises(ValueError, match=r"(?s)Inconsistent.*0/a: 'a'.*0/b: 'b'"):
        settings(lambda node: None, (node,), settings=Every())


def test_a_body_is_kept_for_the_setting_of_its_output():
    def f(m):
        return m

    m = Model()
    one, two, again = (enter(f, (m,), out_settings=k).body for k in (0, 1, 0))
    assert one is again is not two


def test_each_structure_finds_its_body_again():
    kept, nodes = Bodies(8), (Model(), gc.Dict(w=gc.Param(1.0)))
    bodies = [enter(len, (node,), cache=kept).body for node in nodes]
    assert bodies[0] is not bodies[1]
    for number in (0, 1):
        assert enter(len, (nodes[number],), cache=kept).body is bodies[number]


def test_a_kept_body_keeps_its_function_only_where_a_cache_was_given():
    m, kept = Model(), Bodies(8)
    garbage.disable()
    try:
        body = enter(lambda m: m.w.value + 1, (m,), cache=kept).body
        assert body.run([1.0], (None,), {}).out == 2.0
        functions = [lambda m: m.w.value]
        enter(functions[0], (m,))
        alive = weakref.ref(functions.pop())
        assert alive() is None
    finally:
        garbage.enable()
