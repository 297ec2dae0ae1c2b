"""Methods and partials among the attributes of a node, and the objects they hold."""

import functools
import gc as garbage
import pickle
import weakref

import jax
import jax.numpy as jnp
import pytest

import graphcore as gc


class Net(gc.Object):
    """Calls what `call` is, which uses `w`."""

    def __init__(self, scale=1.0):
        self.w = gc.Param(jnp.full(2, scale))
        self.call = None

    def times(self, x, k=1.0):
        return self.w.value * x * k


def _own(net):
    net.call = net.times


def _partial(net):
    net.call = functools.partial(net.times, k=2.0)


def _partial_of_function(net):
    net.call = functools.partial(Net.times, net)


def _keyword(net):
    net.call = functools.partial(lambda x, of: of.times(x), of=net)


def _in_a_list(net):
    net.call = [jnp.sin, {"times": net.times}]


def _nested(net):
    net.call = functools.partial(lambda f, x: f(x), functools.partial(net.times, k=3.0))


def _of_a_child(net):
    net.a_child_behind_it = gc.Dict(inner=Net(5.0))
    net.a_call = net.a_child_behind_it.inner.times
    net.call = [net.a_call]


def _of_a_variable(net):
    net.call = functools.partial(lambda get, x: get() * x, net.w.get_value)


def _of_a_node_of_its_own(net):
    net.call = Net(7.0).times


HOW = [
    *(_own, _partial, _partial_of_function, _keyword, _in_a_list, _nested),
    *(_of_a_child, _of_a_variable, _of_a_node_of_its_own),
]
OF_ITSELF = [*HOW[:6]]


def call(net, x):
    f = net.call
    while not callable(f):
        f = f["times"] if isinstance(f, dict) else f[-1]
    return f(x)


def made(how, scale=1.0):
    net = Net(scale)
    how(net)
    return net


def double(net):
    for _, variable in gc.iter_graph(net):
        if isinstance(variable, gc.Variable):
            variable.value = variable.value * 2


@pytest.mark.parametrize("how", HOW)
def test_a_copy_calls_what_the_copy_has(how):
    net = made(how)
    before = call(net, 1.0).tolist()
    for copy in (gc.clone(net), gc.merge(*gc.split(net))):
        double(copy)
        assert call(copy, 1.0).tolist() == [2 * x for x in before]
    assert call(net, 1.0).tolist() == before


@pytest.mark.parametrize("how", HOW)
def test_a_definition_is_that_of_the_structure(how):
    first, second = made(how), made(how, 2.0)
    assert gc.graphdef(first) == gc.graphdef(gc.clone(first))
    # A function that was made anew is another one.
    assert (gc.graphdef(first) == gc.graphdef(second)) == (
        how not in (_keyword, _nested, _of_a_variable)
    )
    alive = weakref.ref(second)
    kept = gc.graphdef(second)
    del second
    garbage.collect()
    assert kept is not None and alive() is None


@pytest.mark.parametrize("how", HOW)
def test_an_update_leaves_the_callable_that_is_there(how):
    net = made(how)
    f, other = net.call, made(how, 2.0)
    gc.update(net, gc.state(other))
    assert net.call is f
    assert call(net, 1.0).tolist() == call(other, 1.0).tolist()


@pytest.mark.parametrize("how", HOW)
def test_one_crosses_a_functional_boundary_and_comes_back(how):
    net = made(how)
    f, before = net.call, call(net, 1.0).tolist()

    @jax.jit
    def inside(definition, state):
        copy = gc.merge(definition, state)
        double(copy)
        return call(copy, 1.0), gc.state(copy)

    y, state = inside(*gc.split(net))
    gc.update(net, state)
    assert y.tolist() == call(net, 1.0).tolist() == [2 * x for x in before]
    assert net.call is f


def test_an_object_has_its_path_from_where_else_it_stands():
    net = made(_of_a_child)
    inner = ("a_child_behind_it", "inner", "w")
    assert gc.state(net).flat_state().paths == (inner, ("w",))
    alone = made(_of_a_node_of_its_own)
    assert {*gc.state(alone).flat_state().paths} == {("w",), ("call", "__self__", "w")}


_ENDLESS = []
_ENDLESS.append(_ENDLESS)


@pytest.mark.parametrize(
    "value",
    [
        functools.partial(jnp.clip, min=0.0),
        functools.partial(print, {1: "mixed", "keys": 2}),
        functools.partial(print, _ENDLESS),
        "text".upper,
        functools.partial(max, "text".upper),
        functools.partial(gc.Param, 1),
        gc.Param.__init__,
    ],
)
def test_what_holds_no_object_is_static(value):
    net = Net()
    net.call = value
    assert not gc.is_pytree_node(value)
    assert gc.clone(net).call is value
    assert gc.graphdef(net) == gc.graphdef(gc.clone(net))


def test_another_method_or_another_object_is_another_definition():
    def definition(edit):
        net = made(_of_a_child)
        edit(net)
        return gc.graphdef(net)

    found = [
        definition(edit)
        for edit in (
            lambda net: None,
            lambda net: setattr(net, "a_call", net.times),
            lambda net: setattr(net, "a_call", net.a_child_behind_it.inner.other),
            lambda net: setattr(net, "a_call", functools.partial(net.a_call)),
            lambda net: setattr(net, "a_call", functools.partial(net.a_call, k=2.0)),
        )
    ]
    assert len({*found}) == len(found)


Net.other = lambda self, x: self.w.value - x


def test_edits_are_seen():
    net = made(_own)
    before = gc.graphdef(net)
    net.call = net.other
    assert gc.graphdef(net) != before
    net.call = net.times
    assert gc.graphdef(net) == before
    named = functools.partial(net.times, k=2.0)
    net.call = named
    first = gc.graphdef(net)
    named.keywords["k"] = 3.0
    assert gc.graphdef(net) != first


@pytest.mark.parametrize("how", HOW)
def test_nothing_outlives_the_object(how):
    net = made(how)
    gc.graphdef(net)
    gc.graphdef(net)
    alive = weakref.ref(net.w)
    del net
    garbage.collect()
    assert alive() is None


def test_it_can_be_shown():
    text = repr(made(_partial)).replace("\n", "")
    assert "method(<function times>, <Net#1, cycle>)" in text
    assert "k=2.0" in text


@pytest.mark.parametrize("how", [_own, _partial, _in_a_list, _of_a_child])
def test_pickles_and_deep_copies_hold_their_own(how):
    net = made(how)
    if how is not _in_a_list:  # a function of JAX can't be pickled
        again = pickle.loads(pickle.dumps(net))
        double(again)
        assert call(again, 1.0).tolist() == (2 * call(net, 1.0)).tolist()


# As pytrees


@pytest.mark.parametrize("how", OF_ITSELF)
def test_jax_makes_an_object_with_methods_of_its_own(how):
    net = made(how)
    before = call(net, 1.0).tolist()
    for copy in (
        jax.tree.map(lambda x: 2 * x, net),
        jax.jit(lambda net: jax.tree.map(lambda x: 2 * x, net))(net),
        jax.tree_util.tree_map_with_path(lambda _, x: 2 * x, net),
    ):
        assert call(copy, 1.0).tolist() == [2 * x for x in before]
    assert jax.jit(call)(net, 1.0).tolist() == before
    gradient = jax.grad(lambda net: call(net, 1.0).sum())(net)
    assert gradient.w.value.tolist() == before
    assert jax.tree.structure(net) == jax.tree.structure(gc.clone(net))


@pytest.mark.parametrize("how", [_own, _partial, _partial_of_function])
def test_traces_of_equal_objects_are_shared(how):
    traces = []

    @jax.jit
    def f(net, x):
        traces.append(1)
        return call(net, x)

    nets = [made(how, k) for k in (1.0, 2.0, 2.0)]
    first, second, third = (f(net, 1.0) for net in nets)
    assert (2 * first).tolist() == second.tolist() == third.tolist()
    assert len(traces) == 1


@pytest.mark.parametrize("how", [_of_a_child, _of_a_variable, _of_a_node_of_its_own])
def test_other_objects_in_a_callable_are_refused(how):
    with pytest.raises(ValueError, match="a pytree has no place for"):
        jax.tree.leaves(made(how))


def test_a_method_of_the_object_around_is_refused():
    net = Net()
    net.inner = gc.Dict(back=net.times)
    with pytest.raises(ValueError, match="reached twice"):
        jax.tree.leaves(net)
    with pytest.raises(ValueError, match="reached twice"):
        jax.tree.leaves(net.inner)
