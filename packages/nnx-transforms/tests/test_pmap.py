"""`pmap` over live objects, on several devices."""

import gc as garbage
import weakref

import jax
import jax.numpy as jnp
import mapped_programs as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nnx_transforms import (
    PARTITION_NAME,
    BatchStat,
    Carry,
    Dict,
    Linear,
    Module,
    Param,
    Rngs,
    StateAxes,
    Variable,
)
from nnx_transforms.transforms.pmap import pmap

N = 4
pytestmark = pytest.mark.devices(N)


class Cell(Module):
    def __init__(self, w):
        self.w = Param(w)
        self.steps = BatchStat(jnp.array(0))


AXES = StateAxes({Param: 0, ...: None})


def stack():
    cells = Cell(jnp.arange(1.0, N + 1))
    # As strong a type as addition gives, so that the second call is no new one.
    cells.steps.value = jnp.int32(0)
    return cells


# A superset of JAX


@st.composite
def plain_calls(draw):
    axes, args = [], []
    for _ in range(draw(st.integers(1, 2))):
        axis = draw(st.sampled_from([0, 1, None]))
        shape = [2, 3]
        if axis is not None:
            shape.insert(axis, N)
        axes.append(axis)
        args.append(jnp.arange(float(np.prod(shape))).reshape(shape))
    out_axes = draw(st.sampled_from([0, 1, (0, None), (0, 0, 0), {"a": 0}]))
    return args, tuple(axes), out_axes


def outcome(f, *args, **kwargs):
    try:
        return "returned", f(*args, **kwargs)
    except Exception as error:
        return "raised", type(error), str(error)


@given(plain_calls())
@settings(max_examples=15)
def test_plain_pytrees_like_jax(call):
    args, in_axes, out_axes = call

    def f(*args):
        total = sum(x.sum() for x in args)
        return jax.lax.psum(args[0], "i") * total, jax.lax.pmean(total, "i")

    def mapped(transform):
        return transform(f, "i", in_axes=in_axes, out_axes=out_axes)(*args)

    ours, theirs = outcome(mapped, pmap), outcome(mapped, jax.pmap)
    assert ours[:2] == theirs[:2] if ours[0] == "raised" else theirs[0] == "returned"
    if ours[0] == "returned":
        assert jax.tree.structure(ours[1]) == jax.tree.structure(theirs[1])
        jax.tree.map(np.testing.assert_array_equal, ours[1], theirs[1])


def test_other_arguments_like_jax():
    x = jnp.arange(float(N))
    power = lambda k, x: x**k
    options = {"in_axes": (None, 0), "static_broadcasted_argnums": 0}
    for transform in (pmap, jax.pmap):
        mapped = transform(power, donate_argnums=1, axis_size=N, **options)
        assert mapped(2, jnp.array(x)).tolist() == [0.0, 1.0, 4.0, 9.0]
        few = transform(lambda x: x + 1, devices=jax.local_devices()[:2])
        assert few(jnp.arange(2)).tolist() == [1, 2]
        with pytest.raises(ValueError):
            transform(power, **options)([2], x)
        with pytest.raises(TypeError):
            transform(power, in_axes="x")(x)


# Objects


def test_updates_identity_and_compilations():
    cells, traces = stack(), []
    w = cells.w

    @pmap(axis_name="i", in_axes=(AXES, 0), out_axes=(0, AXES))
    def f(cell, x):
        traces.append(x)
        cell.steps.value = cell.steps.value + 1
        cell.w.value = cell.w.value + jax.lax.psum(x, "i")
        cell.last = Param(x)
        return cell.w.value, cell

    x = jnp.arange(float(N))
    out, same = f(cells, x)
    assert same is cells and cells.w is w
    assert out.tolist() == w.value.tolist() == [7.0, 8.0, 9.0, 10.0]
    assert cells.last.value.tolist() == x.tolist()
    f(cells, x)  # One more variable than before.
    count = len(traces)
    for _ in range(3):
        f(cells, x)
    assert len(traces) == count
    assert int(cells.steps.value) == 5


def test_constructors_methods_and_keywords():
    keys = jax.random.split(jax.random.key(0), N)
    layer = pmap(lambda key: Linear(2, 3, rngs=Rngs(key)))(keys)
    assert layer.kernel.value.shape == (N, 2, 3)
    single = Linear(2, 3, rngs=Rngs(0))
    x = jnp.ones((N, 5, 2))
    np.testing.assert_allclose(pmap(single)(x), single(x), rtol=1e-6)
    run = pmap(lambda layer, x: layer(x), in_axes=(0, None))
    assert run(layer, x=x[0]).shape == (N, 5, 3)


def test_static_arguments_and_objects():
    cells = stack()
    f = pmap(
        lambda c, how, x: getattr(c, how).value * x,
        in_axes=(AXES, None, 0),
        static_broadcasted_argnums=1,
    )
    assert f(cells, "w", jnp.ones(N)).tolist() == [1.0, 2.0, 3.0, 4.0]
    assert f(cells, "steps", jnp.ones(N)).tolist() == [0.0] * N
    with pytest.raises(ValueError, match=r"static argument 1.*is not hashable"):
        f(cells, ["w"], jnp.ones(N))


def test_donated_objects_come_back_whole():
    cells = stack()
    f = pmap(
        lambda c, x: setattr(c.w, "value", c.w.value * x),
        in_axes=(AXES, 0),
        donate_argnums=0,
    )
    for _ in range(2):
        f(cells, jnp.full(N, 2.0))
    assert cells.w.value.tolist() == [4.0, 8.0, 12.0, 16.0]
    assert int(cells.steps.value) == 0


def test_the_last_argument_is_donated():
    # What JAX has to move to the devices first is not donated itself.
    move = jax.pmap(lambda x: x)
    cells, scale = stack(), move(jnp.full((N, 1), 2.0))
    held = cells.w.value = move(cells.w.value)
    f = pmap(
        lambda x, c, *, scale: setattr(c.w, "value", c.w.value * x * scale[0]),
        in_axes=(0, AXES),
        donate_argnums=-1,
    )
    f(jnp.ones(N), cells, scale=scale)
    assert held.is_deleted() and not scale.is_deleted()
    assert cells.w.value.tolist() == [2.0, 4.0, 6.0, 8.0]


def test_partition_names_come_and_go():
    kernel = Param(jnp.ones((N, 2)), sharding=("model", "in"))
    seen = []
    pmap(
        lambda k: seen.append(k.sharding), transform_metadata={PARTITION_NAME: "model"}
    )(kernel)
    assert set(seen) == {("in",)} and kernel.sharding == ("model", "in")


@given(mp.graphs, mp.programs)
@settings(max_examples=8)
def test_programs_against_a_rewrite_by_hand(graph, program):
    xs = jnp.arange(1.0, N + 1)
    root = mp.build(graph, N, 0)
    total, expected = mp.vmap_by_hand(program, root, xs, 0)
    before = mp.by_uid(root)
    f = pmap(
        lambda root, x: mp.run(program, root, x), in_axes=(AXES, 0), out_axes=(0, AXES)
    )
    ours, node = f(root, xs)
    np.testing.assert_allclose(ours, total, rtol=1e-5)
    mp.assert_same_graph(Dict(root=root, out=node), expected)
    mp.assert_identity(before, root)


# Errors


def test_errors():
    cells = stack()
    before = mp.snapshot(cells)

    def differ(c, x):
        c.steps.value = c.steps.value + x

    f = pmap(differ, in_axes=(AXES, 0))
    for _ in range(2):
        with pytest.raises(ValueError, match="'0/steps' has axis None"):
            f(cells, jnp.arange(N))
    with pytest.raises(ValueError, match="'0/steps' over axis 1, but its value has"):
        pmap(lambda c: 0, in_axes=1)(cells)
    with pytest.raises(ValueError, match="0/w: axis 0 of shape"):
        pmap(lambda c, x: x, in_axes=(AXES, 0))(cells, jnp.arange(N - 1))
    make = pmap(Cell, out_axes=None)
    for _ in range(2):
        with pytest.raises(ValueError, match="'output/w' has axis None"):
            make(jnp.arange(N))
    with pytest.raises(ValueError, match="Inconsistent aliasing"):
        pmap(lambda c, w: 0, in_axes=(AXES, None))(cells, cells.w)
    with pytest.raises(TypeError, match="pmap's in_axes"):
        pmap(differ, in_axes=StateAxes({...: Carry}))
    with pytest.raises(TypeError, match="'0/v' holds a value of type str"):
        pmap(lambda d: 0)(Dict(v=Variable("x"), w=Param(jnp.ones(N))))
    with pytest.raises(ZeroDivisionError):
        pmap(lambda c, x: differ(c, x) or 1 / 0, in_axes=(AXES, 0))(
            cells, jnp.arange(N)
        )
    mp.assert_untouched(cells, before)


def test_nothing_keeps_the_objects():
    cells = stack()
    f = pmap(lambda c, x: setattr(c, "new", Param(x)), in_axes=(AXES, 0))
    f(cells, jnp.arange(N))
    refs = [weakref.ref(x) for x in (cells, cells.w, cells.new)]
    del cells
    garbage.collect()
    assert [r() for r in refs] == [None] * 3
