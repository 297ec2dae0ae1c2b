"""`shard_map` over live objects, on several devices."""

import jax
import jax.numpy as jnp
import mapped_programs as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from nnx_transforms import (
    BatchStat,
    Dict,
    Linear,
    Module,
    Param,
    Rngs,
    StateSharding,
    Variable,
)
from nnx_transforms.transforms.jit import jit
from nnx_transforms.transforms.shard_map import shard_map
from nnx_transforms.transforms.vmap import vmap

N = 4
pytestmark = pytest.mark.devices(N)


def mesh(shape=(N,), names=("x",)):
    kinds = (jax.sharding.AxisType.Auto,) * len(shape)
    devices = jax.devices()[: int(np.prod(shape))]
    return jax.make_mesh(shape, names, axis_types=kinds, devices=devices)


class Cell(Module):
    def __init__(self, w):
        self.w = Param(w)
        self.steps = BatchStat(jnp.array(0))


SPECS = StateSharding({Param: P("x"), ...: P()})


# A superset of JAX


@given(
    st.lists(
        st.sampled_from([P(), P("x"), P(None, "x"), P("x", "y")]),
        min_size=1,
        max_size=3,
    ),
    st.sampled_from([P(), P("x"), P(("x", "y")), (P("x"), P()), (P(), P(), P()), None]),
    st.booleans(),
    st.sampled_from([4, 6]),
)
@settings(max_examples=20)
def test_plain_pytrees_like_jax(in_specs, out_specs, check_vma, size):
    args = [jnp.arange(float(size * 4)).reshape(size, 4) for _ in in_specs]

    def f(*args):
        total = jax.lax.psum(sum(x.sum() for x in args), ("x", "y"))
        return args[0] * 2, total

    def mapped(transform):
        return transform(
            f,
            mesh=mesh((2, 2), ("x", "y")),
            in_specs=tuple(in_specs),
            out_specs=out_specs,
            check_vma=check_vma,
        )(*args)

    found = []
    for transform in (shard_map, jax.shard_map):
        try:
            found.append(mapped(transform))
        except Exception as error:
            found.append((type(error), str(error)))
    ours, theirs = found
    if isinstance(theirs[0], type):
        assert ours == theirs
    else:
        jax.tree.map(np.testing.assert_array_equal, ours, theirs)


def test_the_mesh_in_force_and_axis_names():
    m = mesh((2, 2), ("x", "y"))
    x = jnp.arange(8.0).reshape(4, 2)
    with jax.set_mesh(m):
        for transform in (shard_map, jax.shard_map):
            half = transform(
                lambda x: jax.lax.psum(x, "x"),
                in_specs=P("x"),
                out_specs=P(),
                axis_names={"x"},
            )
            np.testing.assert_array_equal(jax.jit(half)(x), x[:2] + x[2:])


# Objects


def test_updates_identity_and_new_variables():
    cells = Cell(jnp.arange(8.0))
    w = cells.w

    @shard_map(mesh=mesh(), in_specs=(SPECS, P("x")), out_specs=(P("x"), SPECS))
    def f(cell, x):
        cell.steps.value = cell.steps.value + 1
        cell.w.value = cell.w.value + jax.lax.psum(x.sum(), "x")
        cell.last = Param(x * 2)
        return x, cell

    _, same = f(cells, jnp.arange(8.0))
    assert same is cells and cells.w is w
    np.testing.assert_array_equal(w.value, 28 + jnp.arange(8.0))
    np.testing.assert_array_equal(cells.last.value, 2 * jnp.arange(8.0))
    assert w.value.sharding.spec == P("x") and int(cells.steps.value) == 1


def test_specs_of_whole_objects_and_named_shardings():
    m = mesh()
    v = Dict(a=Param(jnp.arange(4.0)))
    add = shard_map(
        lambda v, x: setattr(v.a, "value", v.a.value + x.sum()),
        mesh=m,
        in_specs=(P("x"), P("x")),
        out_specs=None,
    )
    add(v, x=jnp.arange(8.0))
    assert v.a.value.tolist() == [1.0, 6.0, 11.0, 16.0]
    named = StateSharding({...: NamedSharding(m, P("x"))})
    size = shard_map(lambda v: v.a.value[0], mesh=m, in_specs=(named,), out_specs=P())
    with pytest.raises(ValueError, match="'output' has the spec"):
        size(v)
    total = shard_map(
        lambda v: jax.lax.psum(v.a.value[0], "x"), mesh=m, in_specs=named, out_specs=P()
    )
    assert float(total(v)) == 34.0


def test_constructors_and_methods():
    make = shard_map(
        Cell, mesh=mesh(), in_specs=P("x"), out_specs=SPECS, check_vma=True
    )
    cells = make(jnp.arange(8.0))
    assert cells.w.value.shape == (8,) and cells.steps.value.shape == ()
    layer, x = Linear(2, 3, rngs=Rngs(0)), jnp.ones((8, 2))
    run = shard_map(layer, mesh=mesh(), in_specs=P("x"), out_specs=P("x"))
    np.testing.assert_allclose(run(x), layer(x), rtol=1e-6)


def test_data_parallel_gradients():
    layer = Linear(2, 1, rngs=Rngs(0))
    x = jax.random.normal(jax.random.key(0), (8, 2))

    def loss(kernel, x):
        return ((x @ kernel) ** 2).mean()

    @jit
    @shard_map(mesh=mesh(), in_specs=(P(), P("x")), out_specs=P())
    def step(layer, x):
        value, g = jax.value_and_grad(lambda k: jax.lax.pmean(loss(k, x), "x"))(
            layer.kernel.value
        )
        layer.kernel.value = layer.kernel.value - 0.1 * g
        return value

    kernel = layer.kernel.value
    value, g = jax.value_and_grad(loss)(kernel, x)
    np.testing.assert_allclose(step(layer, x), value, rtol=1e-5)
    np.testing.assert_allclose(layer.kernel.value, kernel - 0.1 * g, rtol=1e-5)


@given(mp.graphs, mp.programs)
@settings(max_examples=15)
def test_programs_against_a_rewrite_by_hand(graph, program):
    # Each shard holds one index: its programs are those of `vmap`.
    xs = jnp.arange(1.0, N + 1)
    root = mp.build(graph, N, 0)
    total, expected = mp.vmap_by_hand(program, root, xs, 0)

    def f(root, x):
        # The same numbers, with an axis of size one in front.
        total, node = mp.run(program, root, x[0])
        for v in mp.reached(root)[1] + mp.reached(node)[1]:
            if isinstance(v, Param) and v.value.ndim == 2:
                v.value = v.value[None]
        return total[None], node

    before = mp.by_uid(root)
    ours, node = shard_map(
        f, mesh=mesh(), in_specs=(SPECS, P("x")), out_specs=(P("x"), SPECS)
    )(root, xs)
    np.testing.assert_allclose(ours, total, rtol=1e-5)
    mp.assert_same_graph(Dict(root=root, out=node), expected)
    mp.assert_identity(before, root)


def test_inside_jit_and_around_vmap():
    cells = vmap(Cell)(jnp.arange(8.0).reshape(8))

    @jit
    def outer(cells, x):
        f = vmap(lambda c, x: setattr(c.w, "value", c.w.value * x))
        shard_map(f, mesh=mesh(), in_specs=P("x"), out_specs=None)(cells, x)
        return cells

    assert outer(cells, jnp.arange(8.0)) is cells
    np.testing.assert_array_equal(cells.w.value, jnp.arange(8.0) ** 2)


# Errors


def test_errors():
    m = mesh()
    cells = Cell(jnp.arange(8.0))
    before = mp.snapshot(cells)

    def differ(c, x):
        c.steps.value = c.steps.value + x.sum()

    def mapped(f, specs, out=None, **options):
        return shard_map(f, mesh=m, in_specs=specs, out_specs=out, **options)

    x = jnp.arange(8)
    with pytest.raises(ValueError, match=r"'0/steps' has the spec .*axes \['x'\]"):
        mapped(differ, (SPECS, P("x")))(cells, x)
    with pytest.raises(ValueError, match=r"'output/w' has the spec"):
        mapped(Cell, P("x"), P())(x)
    with pytest.raises(ValueError, match=r"'output/steps' is to be put together"):
        mapped(Cell, P("x"), P("x"))(x)
    with pytest.raises(ValueError, match="'0/steps' cannot be sharded by"):
        mapped(differ, (P("x"), P("x")))(cells, x)
    with pytest.raises(ValueError, match=r"'0/w' cannot be sharded.*\(7,\)"):
        mapped(differ, (SPECS, P("x")))(Cell(jnp.arange(7)), x)
    with pytest.raises(ValueError, match="Inconsistent aliasing"):
        mapped(lambda c, w: 0, (SPECS, P()))(cells, cells.w)
    with pytest.raises(ValueError, match="Inconsistent aliasing"):
        mapped(lambda c: c, (SPECS,), P())(cells)
    with pytest.raises(TypeError, match="shard_map's in_specs"):
        mapped(differ, (StateSharding({...: 0}), P("x")))
    for specs, out in ((0, P()), (P(), 0)):
        with pytest.raises(TypeError, match=r"of an object .*, but got 0"):
            mapped(lambda c: 0, specs, out)(cells)
    with pytest.raises(ValueError, match="in_specs has 1 entries"):
        mapped(differ, (SPECS,))(cells, x)
    with pytest.raises(ValueError, match=r"needs in_specs over the axes \['x'\]"):
        shard_map(differ, mesh=m, out_specs=None)(cells, x)
    with pytest.raises(ValueError, match="says what happens to the variables"):
        mapped(differ, (SPECS, SPECS))(cells, x)
    with pytest.raises(TypeError, match="'0/v' holds a value of type str"):
        mapped(lambda d: None, (P(),))(Dict(v=Variable("x")))
    with pytest.raises(ZeroDivisionError):
        mapped(lambda c, x: differ(c, x) or 1 / 0, (SPECS, P("x")))(cells, x)
    mp.assert_untouched(cells, before)


@pytest.mark.parametrize("names", [frozenset(), frozenset("x"), frozenset("xy")])
@pytest.mark.parametrize("around", [lambda f: f, jit])
def test_over_explicit_axes_types_give_the_specs(names, around):
    kinds = (jax.sharding.AxisType.Explicit,) * 2
    explicit = jax.make_mesh((2, 2), ("x", "y"), axis_types=kinds)

    def step(model, by):
        assert model.w[...].shape == ((2, 2) if names == {"x"} else (2, 1))
        model.w[...] = model.w[...] * model.scale[...] + by
        model.seen = Variable(model.scale[...])
        return model.w[...].sum(keepdims=True)[0], model.fixed

    with jax.set_mesh(explicit):
        w = jax.device_put(jnp.arange(8.0).reshape(4, 2), P("x", "y"))
        by = jax.device_put(jnp.arange(2.0), P("y"))
        model = Dict(w=Param(w), scale=Variable(jnp.array(2.0)), fixed=jnp.ones(3))
        out_specs = P(tuple(sorted(names or "xy"))), P()
        mapped = shard_map(step, out_specs=out_specs, axis_names=names)
        sums, fixed = around(lambda model, by: mapped(model, by))(model, by)
        assert jax.typeof(model.w[...]).sharding.spec == P("x", "y")
        assert fixed.shape == (3,) and float(model.seen[...]) == 2.0
    due = np.arange(8.0).reshape(4, 2) * 2 + np.arange(2.0)
    np.testing.assert_array_equal(model.w[...], due)
    parts = due.reshape(2, 2, 1, 2) if names == {"x"} else due.reshape(2, 2, 2, 1)
    np.testing.assert_array_equal(sums, parts.sum(axis=(1, 3)).ravel())


def test_a_variable_of_several_specs_needs_in_specs():
    explicit = jax.make_mesh((N,), ("x",), axis_types=(jax.sharding.AxisType.Explicit,))
    with jax.set_mesh(explicit):
        pair = [jax.device_put(jnp.arange(8.0), P(name)) for name in ("x", None)]
        with pytest.raises(ValueError, match=r"'v'.*give in_specs"):
            shard_map(lambda d: None, out_specs=P())(Dict(v=Variable(pair)))
