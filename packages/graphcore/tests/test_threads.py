"""Eight threads at once, each with its own graphs and all with shared ones."""

import sys
import threading
import weakref

import graph_zoo as zoo
import jax
import jax.numpy as jnp
import pytest

import graphcore as gc
from graphcore.authors import Bodies
from graphcore.variables.bare_arrays import BareArray

THREADS = 8


@pytest.fixture(autouse=True)
def _switch_often():
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def in_threads(function):
    errors = []
    barrier = threading.Barrier(THREADS)

    def run(number):
        try:
            barrier.wait()
            function(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def model(number):
    return gc.Dict(
        layers=[gc.Dict(w=gc.Param(jnp.array(float(number)))) for _ in range(5)],
        number=number,
        v=gc.Variable(0, unit="m"),
    )


def test_own_graphs_next_to_a_shared_one():
    shared = model(100)
    expected = zoo.canonical(shared)
    graphdef = gc.graphdef(gc.clone(shared))

    def work(number):
        own = model(number)
        own.shared = shared
        for step in range(60):
            own.v.value = step
            own.v.unit = f"unit {step % 3}"
            own.step = step
            assert gc.graphdef(shared) == graphdef
            twin = gc.merge(*gc.split(own))
            assert (twin.step, twin.v.value, twin.number) == (step, step, number)
            assert twin.v.unit == f"unit {step % 3}"
            assert zoo.canonical(twin.shared) == expected
            gc.update(own, gc.state(twin))

    in_threads(work)
    assert zoo.canonical(shared) == expected


def test_contexts_of_one_tag_in_many_threads():
    @jax.jit
    def inside(graphdef, state):
        ctx = gc.current_update_context("threads")
        node = ctx.merge(graphdef, state)
        for layer in node.layers:
            layer.w.value += 1
        node.extra = node.layers[0]
        return ctx.split(node)

    def work(number):
        node = model(0)
        for step in range(15):
            with gc.update_context("threads") as ctx:
                assert ctx.merge(*inside(*ctx.split(node))) is node
            assert [float(x.w.value) for x in node.layers] == [step + 1.0] * 5
            assert node.extra is node.layers[0]

    in_threads(work)


def test_new_variable_types_and_states_in_many_threads():
    shared = model(1)
    state = gc.state(shared)
    found = []

    def work(number):
        class Mine(gc.Variable):
            pass

        node = gc.Dict(v=Mine(number))
        for _ in range(50):
            assert gc.state(node, Mine).v.value == number
            assert len(state.flat_state()) == 6
            assert gc.clone(node).v == node.v
        found.append(weakref.ref(node))

    in_threads(work)
    assert len(found) == THREADS


def test_bodies_that_are_full_take_more_from_many_threads():
    bodies = Bodies(4)

    def work(number):
        for step in range(5_000):
            key = number, step
            assert bodies.keep(key, key) is not None

    in_threads(work)
    assert len(bodies.known) <= 4 + THREADS


def test_an_array_in_a_node_has_one_place_in_all_threads():
    nodes = [gc.Dict(w=jnp.zeros(2), number=i) for i in range(2_000)]
    found = [[] for _ in range(THREADS)]

    def work(number):
        found[number] += [BareArray.at(node, ("w",)) for node in nodes]

    in_threads(work)
    for places in zip(*found, strict=True):
        assert len(set(map(id, places))) == 1
