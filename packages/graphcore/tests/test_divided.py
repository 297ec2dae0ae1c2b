"""Pytrees with leaves that JAX does not take, as arguments and values of variables."""

import array
import functools
import gc as garbage
import types
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import graphcore as gc
from graphcore.authors import Divided, enter, has_objects
from graphcore.divided.divided import divide


@jax.tree_util.register_pytree_with_keys_class
class Layer:
    """A module of a functional library, which counts how often it is taken apart."""

    flattened = 0

    def __init__(self, w, act, b=None):
        self.w, self.act, self.b = w, act, b

    def tree_flatten_with_keys(self):
        type(self).flattened += 1
        key = jax.tree_util.GetAttrKey
        return [(key(name), getattr(self, name)) for name in ("w", "act", "b")], None

    def tree_flatten(self):
        type(self).flattened += 1
        return (self.w, self.act, self.b), None

    @classmethod
    def tree_unflatten(cls, _, children):
        return cls(*children)


class Fixed(Layer):
    """One that can't be changed."""


class Hiding(Fixed):
    """One the attributes of which don't show what JAX finds in it."""

    def __init__(self, w, act, b=None):
        self.w, self.act, self.hidden = w, act, types.SimpleNamespace(held=b)

    b = property(lambda self: self.hidden.held)


jax.tree_util.register_pytree_with_keys_class(Fixed)
jax.tree_util.register_pytree_with_keys_class(Hiding)
gc.register_filtered_type(Layer)
gc.register_filtered_type(Fixed, immutable=True)


@jax.tree_util.register_pytree_node_class
class Slotted:
    """One that can't be changed, and to which no weak reference can be made."""

    __slots__ = ("act", "w")

    def __init__(self, w, act):
        self.w, self.act = w, act

    def tree_flatten(self):
        return (self.w, self.act), None

    @classmethod
    def tree_unflatten(cls, _, children):
        return cls(*children)


gc.register_filtered_type(Slotted, immutable=True)


def call(f, *args):
    entry = enter(f, args)
    return entry.commit(*jax.jit(entry.body)(*entry.values))


def test_other_static_leaves_in_the_same_structure_are_others():
    one, two, again = (Layer(jnp.ones(1), f) for f in (abs, max, abs))
    first, second, third = Divided.of_values([one, two, again])
    assert first.join().act is third.join().act is abs
    assert second.join().act is max
    assert first.frame == third.frame != second.frame


def test_what_was_taken_apart_and_cannot_change_is_not_taken_apart_again():
    for act in (jnp.sin, jnp.ones(1)):  # with something static in it, and without
        fixed = Fixed(jnp.ones(2), act)
        node = gc.Dict(layer=gc.Variable(fixed), n=gc.Variable(jnp.array(0)))

        traces = []

        def step(node, layer, traces=traces):
            traces.append(1)
            node.n.value += 1
            return layer.w + node.layer.value.w

        body = jax.jit(lambda f, *args: f(*args), static_argnums=0)

        def run(node, layer, body=body, step=step):
            entry = enter(step, (node, layer))
            return entry.commit(*body(entry.body, *entry.values))

        run(node, fixed)
        run(node, fixed)
        before = Fixed.flattened
        assert run(node, fixed).tolist() == [2, 2]
        assert Fixed.flattened == before
        assert int(node.n.value) == 3
        assert len(traces) == 1


def test_pytrees_and_objects_may_stand_in_one_container():
    node, layer = gc.Dict(w=gc.Param(jnp.ones(1))), Layer(jnp.ones(2), abs)
    same, again = call(lambda pair: pair, (node, layer))
    assert same is node
    assert type(again) is Layer and again.act is abs


def test_what_a_function_returns_is_whole():
    out = call(lambda v: Layer(v.value + 1, abs), gc.Variable(jnp.ones(1)))
    assert type(out) is Layer and out.act is abs and out.w.tolist() == [2]


def test_what_a_function_returned_is_not_taken_apart_at_the_next_call():
    step = compiled(lambda layer: Fixed(layer.w + 1, layer.act))
    layer = step(step(Fixed(jnp.ones(2), jnp.sin)))
    before = Fixed.flattened
    for _ in range(3):
        layer = step(layer)
    assert Fixed.flattened == before
    assert layer.w.tolist() == [6, 6]


def test_what_stands_for_a_pytree_may_be_put_together_of_anything():
    divided = divide(Fixed(jnp.ones(2), abs))
    axes = jax.tree.map(lambda _: 0, divided).join()
    assert divide(axes).arrays == [] and divide(axes).join().w == 0


def test_a_change_of_what_can_change_is_seen():
    layer = Layer(jnp.ones(2), jnp.sin)
    variable = gc.Variable(layer)
    f = lambda v, x: v.value.act(x)
    assert float(call(f, variable, 0.0)) == 0
    layer.act = jnp.cos
    assert float(call(f, variable, 0.0)) == 1


def test_what_is_known_of_a_pytree_goes_with_it():
    fixed = Fixed(jnp.ones(2), jnp.sin)
    call(lambda v: v.value.w, gc.Variable(fixed))
    alive = weakref.ref(fixed)
    del fixed
    garbage.collect()
    assert alive() is None


def with_lists():
    """One that can't change, but for the lists and dicts in it."""
    layers = [Fixed(jnp.full(2, float(i)), jnp.sin, {"a": jnp.ones(1)}) for i in (1, 2)]
    return Fixed(jnp.ones(2), jnp.cos, [*layers, jnp.zeros(2), abs, "name"])


def compiled(f):
    """Calls a function as a transform does, which remembers what it has compiled."""
    body = jax.jit(lambda f, *args: f(*args), static_argnums=0)

    def run(*args, times=1):
        for _ in range(times):
            entry = enter(f, args)
            out = entry.commit(*body(entry.body, *entry.values))
        return out

    return run


OFTEN = 20


def test_what_has_lists_and_dicts_is_not_taken_apart_again_when_it_comes_often():
    variable = gc.Variable(with_lists())
    double = compiled(lambda v: v.value.b[1].w * 2)
    double(variable, times=OFTEN)
    before = Fixed.flattened
    assert double(variable).tolist() == [4, 4]
    assert Fixed.flattened == before


@pytest.mark.parametrize(
    "change",
    [
        lambda tree: tree.b.__setitem__(2, jnp.ones(2)),
        lambda tree: tree.b.__setitem__(1, Fixed(jnp.ones(2), jnp.cos)),
        lambda tree: tree.b.__setitem__(1, None),
        lambda tree: tree.b.__setitem__(3, max),
        lambda tree: tree.b.__setitem__(4, "other"),
        lambda tree: tree.b.append(jnp.ones(1)),
        lambda tree: tree.b.pop(2),
        lambda tree: tree.b.reverse(),
        lambda tree: tree.b[0].b.update(a=jnp.zeros(1)),
        lambda tree: tree.b[0].b.update(c=jnp.zeros(1)),
        lambda tree: tree.b[1].b.update(c=tree.b[1].b.pop("a")),
    ],
)
def test_a_change_of_a_list_or_dict_in_what_comes_often_is_seen(change):
    tree = with_lists()
    read, variable = compiled(lambda v: v.value), gc.Variable(tree)
    assert read(variable, times=OFTEN).b[2].tolist() == [0, 0]
    change(tree)
    # Once that it changed, and often that it is as it is now.
    for times in 1, OFTEN:
        out = read(variable, times=times)
        due, found = jax.tree.flatten(tree), jax.tree.flatten(out)
        assert found[1] == due[1]
        for x, y in zip(due[0], found[0], strict=True):
            assert x.tolist() == y.tolist() if isinstance(x, jax.Array) else x is y


@pytest.mark.parametrize("hold", [list, tuple])
@pytest.mark.parametrize("between", [[], [0.25]])
def test_one_of_several_of_a_structure_is_known_when_it_comes_often(hold, between):
    def made(number):  # an object of its own each time
        return gc.Variable(Fixed(jnp.ones(2), abs, hold([float(str(number))])))

    double = compiled(lambda v: v.value.w * v.value.b[0])
    first, second = made(0.5), made(0.5)
    for variable in (first, *map(made, between)):
        double(variable)
    for variable in first, second:
        double(variable, times=OFTEN)
        before = Fixed.flattened
        assert double(variable).tolist() == [0.5, 0.5]
        assert Fixed.flattened == before


def test_equal_static_leaves_of_another_pytree_are_not_taken_for_its_own():
    for x in (1, 1.0, True, 0.0, -0.0, functools.partial(abs), functools.partial(abs)):
        tree = Fixed(jnp.ones(2), abs, x)
        joined = divide(tree).join()
        assert repr(joined.b) == repr(x)
        assert joined.b is x or isinstance(x, int | float)


def test_what_has_a_list_of_lists_may_change_in_place():
    tree = Fixed(jnp.ones(1), abs, [[jnp.zeros(1)], (jnp.zeros(1), {"a": jnp.ones(1)})])
    read, variable = compiled(lambda v: v.value.b), gc.Variable(tree)
    read(variable, times=OFTEN)
    tree.b[0][0], tree.b[1][1]["a"] = jnp.full(1, 2.0), jnp.full(1, 3.0)
    assert [float(x[0]) for x in jax.tree.leaves(read(variable))] == [2, 0, 3]


def test_what_was_in_a_list_and_is_gone_is_not_taken_for_none():
    tree = Fixed(jnp.ones(1), abs, [Fixed(jnp.ones(1), abs)])
    read = compiled(lambda v: jnp.array(len(jax.tree.leaves(v.value))))
    variable = gc.Variable(tree)
    assert int(read(variable, times=OFTEN)) == 4
    alive = weakref.ref(tree.b[0])
    tree.b[0] = None
    garbage.collect()
    assert alive() is None
    assert int(read(variable)) == 2


def test_what_has_lists_and_what_may_change_may_change_in_place():
    layer = Layer(jnp.ones(1), abs)
    read = compiled(lambda v: v.value.b[0].w)
    variable = gc.Variable(Fixed(jnp.ones(1), layer, [layer]))
    read(variable, times=OFTEN)
    layer.w = jnp.zeros(1)
    assert read(variable).tolist() == [0]


def test_what_hides_a_list_from_its_attributes_may_change_in_place():
    tree = Hiding(jnp.ones(1), abs, [jnp.zeros(1)])
    read, variable = compiled(lambda v: v.value.b[0]), gc.Variable(tree)
    read(variable, times=OFTEN)
    tree.hidden.held[0] = jnp.ones(1)
    assert read(variable).tolist() == [1]


def test_what_is_known_of_lists_goes_with_what_has_them():
    tree = with_lists()
    tree.b.append(functools.partial(print, tree))  # What is static may refer to it.
    alive = weakref.ref(tree)
    for _ in range(OFTEN):
        (divided,) = Divided.of_values([tree])
    del tree, divided
    garbage.collect()
    assert alive() is None


def test_only_the_arrays_that_are_new_come_back():
    layer = Layer(jnp.ones(2), jnp.sin, b=(jnp.zeros(3), None))
    variable = gc.Variable(layer)

    def step(v):
        v.value = Layer(v.value.w + 1, v.value.act, v.value.b)

    entry = enter(step, (variable,))
    arrays, *_ = jax.eval_shape(entry.body, *entry.values)
    assert [x.shape for x in jax.tree.leaves(arrays)] == [(2,)]
    call(step, variable)
    assert variable.value.w.tolist() == [2, 2]
    assert variable.value.b[0] is layer.b[0]
    assert variable.value.act is jnp.sin


def test_parts_without_a_new_array_are_the_same_objects_from_the_first_call_on():
    parts = [
        Fixed(jnp.ones(2), jnp.sin, b=(jnp.ones(1), jnp.ones(1))) for _ in range(2)
    ]
    parts[1].b = jnp.ones(1), jnp.ones(1)
    variable = gc.Variable(Fixed(parts[0], jnp.cos, b=parts[1]))

    def step(v):
        first = v.value.w
        new = Fixed(first.w + 1, first.act, first.b)
        v.value = Fixed(new, v.value.act, v.value.b)

    call(step, variable)
    assert variable.value.b is parts[1]
    assert variable.value.w.w.tolist() == [2, 2]


def test_a_pytree_may_be_replaced_by_one_of_another_structure_and_fewer_arrays():
    many = [Fixed(jnp.full(2, float(i)), jnp.sin) for i in range(9)]
    variable = gc.Variable(Fixed(jnp.ones(2), jnp.cos, tuple(many)))

    def replace(variable):
        variable.value = Fixed(variable.value.w + 1, jnp.tanh)

    for _ in range(2):
        call(replace, variable)
    found = variable.value
    assert (found.w.tolist(), found.act, found.b) == ([3, 3], jnp.tanh, None)


class Making(Fixed):
    """One that can't be changed once it is made, and is used while it is."""

    is_made = False

    def __init__(self, w, act, b=None, use=lambda self: self.w):
        super().__init__(w, act, b)
        first = use(self)
        self.w = 3 * w
        self.found = first, use(self)
        self.is_made = True

    def __setattr__(self, name, value):
        if self.is_made:
            raise AttributeError("it is made")
        super().__setattr__(name, value)

    @classmethod
    def tree_unflatten(cls, _, children):
        made = object.__new__(cls)
        vars(made).update(zip(("w", "act", "b"), children, strict=True), is_made=True)
        return made


jax.tree_util.register_pytree_with_keys_class(Making)


def test_what_cannot_be_changed_may_be_changed_while_it_is_made():
    made = Making(jnp.ones(1), abs, use=functools.partial(call, lambda x: x.w))
    assert [x.tolist() for x in made.found] == [[1], [3]]
    assert call(lambda x: x.w, made).tolist() == [3]


@pytest.mark.parametrize("place", range(5))
def test_one_new_array_of_many_takes_its_place(place):
    def arrays(tree):
        return [float(x[0]) for x in jax.tree.leaves(tree) if isinstance(x, jax.Array)]

    def step(v):
        leaves, structure = jax.tree.flatten(v.value)
        chosen = [i for i, x in enumerate(leaves) if x is not jnp.sin][place]
        leaves[chosen] = leaves[chosen] + 10
        v.value = structure.unflatten(leaves)

    a, b, c, d, e = (jnp.array([float(n)]) for n in range(5))
    variable = gc.Variable(Fixed((a, (b, c)), jnp.sin, b=(d, e)))
    call(step, variable)
    assert arrays(variable.value) == [n + 10 * (n == place) for n in range(5)]


def test_static_leaves_that_cannot_be_hashed_are_named():
    with pytest.raises(TypeError, match=r"act.*set.*can't be hashed"):
        call(lambda v: 1, gc.Variable(Layer(jnp.ones(1), {1})))


class NoTree(gc.Object, pytree=False):
    def __init__(self):
        self.w = gc.Param(jnp.ones(1))


class Foreign:
    def __init__(self):
        self.w = gc.Param(jnp.ones(1))


class Box:
    def __init__(self, content):
        self.content = content

    def __jax_array__(self):
        return self.content


gc.register_dataclass(Foreign)
gc.register_variable_type(
    Box,
    get_value=lambda box: box.content,
    set_value=lambda box, value: setattr(box, "content", value),
    get_metadata=lambda box: {},
    create=lambda kind, value, metadata: kind(value),
)


@pytest.mark.parametrize("made", [NoTree, Foreign, lambda: Box(jnp.ones(1))])
def test_objects_that_are_no_pytrees_are_refused_in_values(made):
    # They would be constants of what was compiled.
    inner = made()
    variable = gc.Variable([jnp.ones(1), {"x": inner}])
    with pytest.raises(TypeError, match=rf"1/x.*{type(inner).__name__}, which can ch"):
        call(lambda v: 1, variable)
    assert variable.value[1]["x"] is inner
    variable = gc.Variable(jnp.ones(1))
    with pytest.raises(TypeError, match=rf"'0'.*{type(inner).__name__}, which can ch"):
        call(lambda v: v.set_value([made()]), variable)
    assert variable.value.shape == (1,)


def test_values_of_the_same_structure_are_compared_by_what_is_static():
    seen = []
    f = lambda v: seen.append(v.value.act)
    variable = gc.Variable(Layer(jnp.ones(1), 1))
    for act, count in (1, 1), (1.0, 2), (True, 3), (1, 3):
        variable.value = Layer(jnp.ones(1), act)
        entry = enter(f, (variable,))
        entry.commit(*_jitted(entry.body, *entry.values))
        assert len(seen) == count


_jitted = jax.jit(lambda f, *args: f(*args), static_argnums=0)


def test_a_type_may_be_declared_after_it_was_met():
    def look(v):
        seen.append(type(v.value.n) is int)

    seen = []
    variable = gc.Variable(Late(jnp.ones(1), 1))
    call(look, variable)
    gc.register_filtered_type(Late)
    call(look, variable)
    assert seen == [False, True]


@jax.tree_util.register_pytree_node_class
class Late:
    def __init__(self, w, n):
        self.w, self.n = w, n

    def tree_flatten(self):
        return (self.w, self.n), None

    @classmethod
    def tree_unflatten(cls, _, children):
        return cls(*children)


@jax.tree_util.register_pytree_node_class
class Named:
    """One with something beside its parts that JAX compares."""

    def __init__(self, part, name):
        self.part, self.name = part, name

    def tree_flatten(self):
        return (self.part,), self.name

    @classmethod
    def tree_unflatten(cls, name, children):
        return cls(*children, name)


@jax.tree_util.register_pytree_node_class
class Both(Named):
    """A graph node here, a pytree for JAX."""


gc.register_graph_node_type(
    Both,
    flatten=lambda both: ([("part", both.part)], None),
    set_key=setattr,
    pop_key=lambda both, key: vars(both).pop(key),
    create_empty=lambda metadata: Both.__new__(Both),
    clear=lambda both: vars(both).clear(),
    init=lambda both, pairs: vars(both).update(pairs),
)


class Refusing:
    def __eq__(self, other):
        raise TypeError("not to be compared")

    __hash__ = object.__hash__


def test_objects_are_found_beside_what_cannot_be_compared():
    names = lambda: "name", lambda: ["not hashable"], lambda: np.ones(2), Refusing
    for name in names:
        for _ in range(2):
            assert not has_objects([Named(jnp.ones(1), name())])
            assert has_objects([Named(gc.Variable(1), name())])
            assert has_objects([Named(Both(jnp.ones(1), name()), name())])
            assert has_objects([Both(jnp.ones(1), name())])


def test_what_is_known_of_structures_does_not_grow_for_ever():
    class Name:
        pass

    name = Name()
    assert not has_objects([Named(jnp.ones(1), name)])
    alive = weakref.ref(name)
    del name
    for number in range(5000):
        has_objects([Named(1, number)])
    assert alive() is None


def test_what_has_no_weak_references_is_taken_apart_each_time():
    variable, module = gc.Variable(Slotted(jnp.ones(2), abs)), Slotted(-1.0, jnp.sin)

    def step(variable, module):
        layer = variable.value
        variable.value = Slotted(layer.w + 1, layer.act)
        return module.act(layer.w)

    for _ in range(2):
        found = call(step, variable, module)
    assert variable.value.w.tolist() == [3, 3] and variable.value.act is abs
    assert found.tolist() == jnp.sin(jnp.full(2, 2.0)).tolist()


@jax.tree_util.register_pytree_node_class
class Settled:
    """A module of a functional library with settings in its structure."""

    def __init__(self, w, settings):
        self.w, self.settings = w, settings

    def tree_flatten(self):
        return (self.w,), (self.settings,)

    @classmethod
    def tree_unflatten(cls, settings, children):
        return cls(*children, *settings)


gc.register_filtered_type(Settled)


def test_settings_that_cannot_be_told_from_others_are_refused_with_the_way_out():
    class Record(array.array):
        """Hides what it holds, as what is written in C may."""

    module = Settled(jnp.ones(2), Record("i", [1]))
    with pytest.raises(TypeError, match=r"a Record,.*`register_immutable_type`"):
        divide(module)
    with pytest.raises(TypeError, match=r"'act' .* is a Record, which can't be hashed"):
        divide(Layer(jnp.ones(2), Record("i", [1])))
    gc.register_immutable_type(Record)
    assert divide(module).frame == divide(module).frame
