"""`jit`: what is kept alive, in one thread and in several."""

import gc as garbage
import threading
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jitted_models import Block, Model

import graphcore as gc
import nnx_transforms as nnx

# Nothing leaks, threads don't meet


def test_objects_are_collected_when_dropped():
    jitted = nnx.jit(lambda m, x: m(x))

    def run():
        model = Model()
        jitted(model, jnp.ones(3))
        jitted(model, jnp.ones(3))
        return [weakref.ref(x) for x in (model, model.blocks[0], model.blocks[0].w)]

    references = run()
    garbage.collect()
    assert [r() for r in references] == [None] * 3


def test_a_function_is_collected_that_its_own_defaults_and_annotations_lead_to():
    def run():
        model = Block(1)

        def step(m, x: model, scale=model):
            return m.w.value * x

        jitted = model.step = nnx.jit(step)
        jitted(Block(1), jnp.ones(3))
        return weakref.ref(model), weakref.ref(step)

    references = run()
    garbage.collect()
    assert [r() for r in references] == [None] * 2


def test_a_partner_is_collected_while_the_model_lives():
    model = Model()
    jitted = nnx.jit(lambda m, o: m(o.w.value))

    def run():
        other = Block(1)
        other.me = other
        jitted(model, other)
        return weakref.ref(other)

    reference = run()
    garbage.collect()
    assert reference() is None
    detached = weakref.ref(model.blocks[1])
    jitted(model, Block(0))
    del model.blocks[1]
    garbage.collect()
    assert detached() is None


def test_a_thousand_steps_leave_what_ten_left():
    model = Model()
    optimizer = nnx.Optimizer(model, optax.sgd(0.1))

    @nnx.jit
    def step(model, optimizer, fresh):
        grads = nnx.grad(lambda m: m(fresh.w.value).sum())(model)
        optimizer.update(grads)
        fresh.n.value += 1

    def count():
        garbage.collect()
        return (
            len(jax.live_arrays()),
            len(garbage.get_objects()),
            len(step._bodies.known),
        )

    for _ in range(10):
        step(model, optimizer, Block(1))
    arrays, objects, entries = count()
    for _ in range(990):
        step(model, optimizer, Block(1))
    after = count()
    assert after[0] == arrays
    assert after[1] <= objects + 50
    assert after[2] == entries


def test_no_tracer_leaks():
    model = Model()
    with jax.checking_leaks():
        nnx.jit(lambda m, x: m(x))(model, jnp.ones(3))
        nnx.jit(lambda m: setattr(m, "made", nnx.Param(jnp.ones(2))))(model)
    assert not any(
        isinstance(v.value, jax.core.Tracer)
        for _, v in gc.variables(model).flat_state()
    )


def test_eight_threads_share_one_function():
    @nnx.jit
    def f(m, x):
        m.total = nnx.Cache(x)
        return m(x)

    failures = []

    def work(number):
        model = Model()
        try:
            for i in range(30):
                x = jnp.full(3, float(number + 1))
                out = f(model, x)
                np.testing.assert_allclose(
                    out, x * jnp.arange(3.0) * (jnp.arange(3.0) + 1) * 4
                )
                assert int(model.blocks[0].n.value) == i + 1
                assert float(model.total.value[0]) == number + 1
        except BaseException as error:  # reported by the main thread
            failures.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_a_deep_graph():
    root = node = nnx.Dict(w=nnx.Param(jnp.array(0.0)))
    for _ in range(2000):
        node.next = nnx.Dict(w=nnx.Param(1.0))
        node = node.next

    @nnx.jit
    def f(root):
        inner = root
        while "next" in inner:
            inner = inner.next
        inner.w.value = inner.w.value + 1
        inner.last = True

    f(root)
    assert float(node.w.value) == 2
    assert node.last


def test_a_structure_that_had_to_go_is_not_held_by_the_call_it_was_known_from(
    monkeypatch,
):
    monkeypatch.setattr(
        "nnx_transforms.transforms.compiled.jit_bodies.MAX_STRUCTURES", 3
    )

    @nnx.jit
    def f(m):
        return m.a.value

    def called_often(kind):
        for _ in range(4):
            f(nnx.Dict(a=nnx.Param(1), kind=kind))
        return weakref.ref(kind)

    class Kind:
        __eq__, __hash__ = object.__eq__, object.__hash__

    first = called_often(Kind())
    for _ in range(4):
        f(nnx.Dict(a=nnx.Param(1), kind=Kind()))
    garbage.collect()
    assert first() is None
