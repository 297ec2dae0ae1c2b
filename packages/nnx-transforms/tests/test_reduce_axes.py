"""Gradients that are summed over named axes, of inputs and of objects."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import PartitionSpec as P

import graphcore as gc
from nnx_transforms import BatchStat, Dict, List, Param, PathContains, jit
from nnx_transforms.transforms.checkpoint import remat
from nnx_transforms.transforms.grad import grad, value_and_grad
from nnx_transforms.transforms.vjp import vjp

SIZES = {"i": 2, "j": 3}
XS = jnp.arange(1.0, 5.0)


def model(w=2.0, v=0.5):
    m = Dict(w=Param(jnp.asarray(w)), v=Param(jnp.asarray(v)))
    m.x = m.w
    m.count = BatchStat(jnp.array(0))
    return m


def loss(m, x):
    m.count.value = m.count.value + 1
    return jnp.sin(m.w.value * x) * m.v.value * m.x.value


def close(got, want):
    np.testing.assert_allclose(got, want, rtol=2e-5, atol=1e-5)


def of_arrays(f):
    """A function of the values of a model, to be mapped."""

    def run(w, v, x):
        m = model(w, v)
        out = f(m, x)
        return out, m.count.value

    return run


def value(w, v, x):
    return jnp.sin(w * x) * v * w


# Examples


def test_inputs():
    f = lambda w, x: w * x
    w = jnp.array(2.0)
    for wrap in (lambda g: g, jax.jit, jit):
        total = jax.vmap(
            wrap(grad(f, reduce_axes=("batch",))), (None, 0), axis_name="batch"
        )
        each = jax.vmap(wrap(grad(f)), (None, 0), axis_name="batch")
        assert total(w, XS).tolist() == [10.0] * 4
        assert each(w, XS).tolist() == [1.0, 2.0, 3.0, 4.0]
        # A mapped input has its own gradient at each index.
        mapped = jax.vmap(wrap(grad(f, reduce_axes="batch")), axis_name="batch")
        assert mapped(jnp.full(4, 2.0), XS).tolist() == [1.0, 2.0, 3.0, 4.0]


def test_an_outer_derivative_by_another_argument_is_not_summed():
    def f(w, s, x):
        return w**2 * s * x

    def by_hand(w, s, x):
        return jax.lax.psum(jax.grad(f)(w, s, x), "batch")

    def outer(inner):
        return jax.vmap(jax.grad(inner, 1), (None, None, 0), axis_name="batch")

    got = outer(grad(f, reduce_axes="batch"))(2.0, 3.0, XS)
    assert got.tolist() == outer(by_hand)(2.0, 3.0, XS).tolist()
    assert len(set(got.tolist())) == len(XS)  # each has its own


@pytest.mark.parametrize(
    "wrap", [lambda g: g, jit, remat], ids=["eager", "jit", "remat"]
)
def test_objects(wrap):
    g = wrap(grad(loss, reduce_axes=("batch",)))
    run = jax.vmap(of_arrays(g), (None, 0, 0), axis_name="batch")
    w, vs = jnp.array(2.0), jnp.linspace(0.1, 0.4, 4)
    got, count = run(w, vs, XS)
    want = jax.grad(lambda w: jax.vmap(value, (None, 0, 0))(w, vs, XS).sum())(w)
    close(got.w.value, jnp.full(4, want))
    close(got.v.value, jax.vmap(jax.grad(value, 1), (None, 0, 0))(w, vs, XS))
    assert "x" not in got
    assert count.tolist() == [1, 1, 1, 1]


def test_vjp_and_selection():
    def f(w, x):
        m = model(w)
        out, pull = vjp(loss, m, x, reduce_axes=("batch",), wrt=PathContains("w"))
        return pull(jnp.ones_like(out))

    gm, gx = jax.vmap(f, (None, 0), axis_name="batch")(jnp.array(2.0), XS)
    assert list(gm) == ["w"]
    want = jax.grad(lambda w: jax.vmap(lambda x: value(w, 0.5, x))(XS).sum())
    close(gm.w.value, jnp.full(4, want(2.0)))
    close(gx, jax.vmap(jax.grad(value, 2), (None, None, 0))(2.0, 0.5, XS))


def test_several_arguments_and_the_value():
    def f(w, x):
        m = model(w)
        run = value_and_grad(
            lambda m, scale, x: (loss(m, x) * scale, "aux"),
            argnums=(0, 1),
            has_aux=True,
            reduce_axes=("batch",),
        )
        (out, _), grads = run(m, w * 3.0, x)
        return out, grads

    out, (gm, gs) = jax.vmap(f, (None, 0), axis_name="batch")(2.0, XS)
    each = jax.vmap(lambda x: value(2.0, 0.5, x))(XS)
    close(out, each * 6.0)
    close(gs, jnp.full(4, each.sum()))
    assert np.ptp(gm.v.value) == 0


# Any program


@st.composite
def layouts(draw):
    subsets = st.frozensets(st.sampled_from(list(SIZES)))
    return {
        "order": draw(st.permutations(list(SIZES))),
        "mapped": [draw(subsets) for _ in range(3)],
        "listed": draw(st.permutations(list(SIZES)))[: draw(st.integers(0, 2))],
        "jitted": draw(st.booleans()),
        "seed": draw(st.integers(0, 99)),
    }


@settings(max_examples=20, deadline=None)
@given(layouts())
def test_it_is_the_gradient_of_the_summed_loss(layout):
    order, mapped = layout["order"], layout["mapped"]
    random = np.random.default_rng(layout["seed"])
    arrays = [
        jnp.asarray(random.normal(size=[SIZES[a] for a in order if a in m]), "float32")
        for m in mapped
    ]
    g = grad(loss, reduce_axes=tuple(layout["listed"]))
    run = of_arrays(jit(g) if layout["jitted"] else g)
    for axis in reversed(order):
        in_axes = tuple(0 if axis in m else None for m in mapped)
        run = jax.vmap(run, in_axes, axis_name=axis, axis_size=SIZES[axis])
    got, _ = run(*arrays)

    full = tuple(SIZES[a] for a in order)
    spread = [
        jnp.broadcast_to(
            jnp.reshape(x, [SIZES[a] if a in m else 1 for a in order]), full
        )
        for x, m in zip(arrays, mapped, strict=True)
    ]
    # The gradient per index, then summed over what is listed and not mapped.
    each = {
        "w": np.zeros(full, np.float32),
        "v": np.zeros(full, np.float32),
    }
    for n in itertools.product(*map(range, full)):
        dw, dv = jax.grad(value, (0, 1))(*(x[n] for x in spread))
        each["w"][n], each["v"][n] = dw, dv
    for key, own in zip("wv", mapped[:2], strict=True):
        axes = tuple(
            i for i, a in enumerate(order) if a in layout["listed"] and a not in own
        )
        want = each[key].sum(axes, keepdims=True)
        close(got[key].value, np.broadcast_to(want, full))


# Other maps, and errors


def test_again_outside_the_map():
    def total(w):
        g = grad(loss, reduce_axes=("batch",))
        run = jax.vmap(of_arrays(g), (None, None, 0), axis_name="batch")
        return run(w, 0.5, XS)[0].w.value[0]

    by_hand = jax.grad(lambda w: jax.vmap(lambda x: value(w, 0.5, x))(XS).sum())
    close(jax.grad(total)(2.0), jax.grad(by_hand)(2.0))
    outer = grad(lambda m: total(m.w.value))(model())
    close(outer.w.value, jax.grad(by_hand)(2.0))


def test_unbound_names():
    for name in ("batch", ("other", "batch")):
        with pytest.raises(NameError, match="unbound axis name"):
            grad(loss, reduce_axes=name)(model(), 1.0)
    m = model()
    with pytest.raises(NameError, match="unbound axis name"):
        vjp(loss, m, 1.0, reduce_axes="batch")
    assert int(m.count.value) == 0


@pytest.mark.parametrize("listed", [(), ("d",)])
def test_shard_map_sums_by_itself(listed):
    mesh = jax.make_mesh((1,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    graphdef, state = gc.split(model())

    def f(state, x):
        g = grad(lambda m, x: loss(m, x).sum(), reduce_axes=listed)
        return g(gc.merge(graphdef, state), x)

    run = jax.shard_map(f, mesh=mesh, in_specs=(P(), P("d")), out_specs=P())
    got = run(state, XS)
    want = jax.grad(lambda w: jax.vmap(lambda x: value(w, 0.5, x))(XS).sum())(2.0)
    close(got.w.value, want)


def test_untracked_shard_map_is_refused():
    mesh = jax.make_mesh((1,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    graphdef, state = gc.split(model())

    def f(state, x):
        g = grad(lambda m, x: loss(m, x).sum(), reduce_axes="d")
        return g(gc.merge(graphdef, state), x)

    run = jax.shard_map(
        f, mesh=mesh, in_specs=(P(), P("d")), out_specs=P(), check_vma=False
    )
    with pytest.raises(ValueError, match="check_vma=False"):
        run(state, XS)


def test_integers_and_pytrees_pass():
    def f(n, tree, x):
        return tree[0].w.value * tree[1]["y"] * x * n

    def run(w, x):
        g = grad(f, argnums=(0, 1), allow_int=True, reduce_axes="batch")
        return g(3, [model(w), {"y": w}, List([])], x)

    gn, gt = jax.vmap(run, (None, 0), axis_name="batch")(2.0, XS)
    assert gn.dtype == jax.dtypes.float0
    close(gt[0].w.value, jnp.full(4, 3 * 2.0 * XS.sum()))
    close(gt[1]["y"], jnp.full(4, 3 * 2.0 * XS.sum()))
