"""The functions of an earlier generation, against those of this one and by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import graphcore as gc
import nnx_transforms as nnx
from nnx_transforms import (
    BatchStat,
    Carry,
    Dict,
    Module,
    Param,
    Rngs,
    StateAxes,
    Variable,
    experimental,
)


class Model(Module):
    def __init__(self, size):
        self.w = Param(jnp.arange(1.0, size + 1))
        self.tied = self.w
        self.count = BatchStat(jnp.zeros(size, int))
        self.shared = Variable(jnp.array(2.0))

    def __call__(self, x):
        self.count.value = self.count.value + 1
        return x * self.w.value * self.shared.value


AXES = {Param: 0, BatchStat: 0, ...: None}


def test_what_is_the_same_as_in_this_generation():
    assert experimental.grad is nnx.grad
    assert experimental.value_and_grad is nnx.value_and_grad
    assert experimental.remat is nnx.remat
    for name in ("Remat", "Scan", "Vmap"):
        assert getattr(experimental, name) is getattr(nnx, name)

    m = Dict(a=Param(jnp.array(2.0)), b=Variable(jnp.array(3.0)))
    found = experimental.grad(lambda x, m: m.a.value * x, (0, 1), wrt=Param)(5.0, m)
    assert (float(found[0]), found[1].to_pure_dict()) == (2.0, {"a": 5.0})


@settings(max_examples=20, deadline=None)
@given(
    n=st.integers(1, 3),
    in_axis=st.sampled_from([0, 1, -1, None]),
    out_axis=st.sampled_from([0, 1]),
    given_size=st.booleans(),
)
def test_vmap_is_that_of_this_generation(n, in_axis, out_axis, given_size):
    shape = (2,) if in_axis is None else (n, 2) if in_axis == 0 else (2, n)
    x = jnp.arange(1.0, 1 + np.prod(shape)).reshape(shape)
    one, two = Model(n), Model(n)
    size = n if given_size else None

    def f(m, x):
        return m(x), {"more": x}

    found = experimental.vmap(
        f,
        in_axes=(0, in_axis),
        out_axes=(out_axis, 0),
        axis_size=size,
        state_axes=AXES,
    )(one, x)
    expected = nnx.vmap(f, (StateAxes(AXES), in_axis), (out_axis, 0), axis_size=size)(
        two, x
    )
    jax.tree.map(np.testing.assert_array_equal, found, expected)
    jax.tree.map(np.testing.assert_array_equal, gc.state(one), gc.state(two))
    assert one.tied is one.w


def test_vmap_returns_objects_with_their_axes():
    m = Model(3)

    @experimental.vmap(in_axes=(0, None), out_axes=1, state_axes=AXES)
    def f(m, x):
        """Says."""
        m.new = Param(m.w.value + x)
        return m, [m.new, Dict(s=m.shared, mine=BatchStat(x))], jnp.ones(2)

    same, (new, fresh), ones = f(m, 1.0)
    assert (same is m, new is m.new, fresh.s is m.shared) == (True, True, True)
    assert new.value.tolist() == [2.0, 3.0, 4.0]
    assert fresh.mine.value.tolist() == [1.0, 1.0, 1.0]
    assert float(m.shared.value) == 2.0
    assert ones.shape == (2, 3)
    assert (f.__name__, f.__doc__) == ("f", "Says.")


def test_vmap_of_keyword_arguments():
    def f(x, *, y, m):
        return x * y * m.w.value

    m = Model(3)
    mapped = experimental.vmap(f, in_axes_kwargs={"y": None, "m": 0}, state_axes=AXES)
    assert mapped(jnp.ones(3), y=2.0, m=m).tolist() == [2.0, 4.0, 6.0]


@pytest.mark.parametrize("split", [..., "noise", "other", False])
def test_vmap_splits_streams(split):
    rngs = Rngs(noise=0, other=1)
    expected_rngs = Rngs(noise=0, other=1)

    @experimental.vmap(in_axes=(None, 0), split_rngs=split)
    def draw(rngs, x):
        return jax.random.uniform(rngs.noise()), jax.random.uniform(rngs.other())

    found = draw(rngs, jnp.zeros(4))
    for name, values in zip(("noise", "other"), found, strict=True):
        distinct = 4 if split in (..., name) else 1
        assert len(set(values.tolist())) == distinct
        stream = expected_rngs[name]
        key = stream()
        if distinct == 4:
            keys = [jax.random.fold_in(k, 0) for k in jax.random.split(key, 4)]
        else:
            keys = [key] * 4
        np.testing.assert_array_equal(values, [jax.random.uniform(k) for k in keys])
        assert int(rngs[name].count.value) == int(stream.count.value) == 1


@pytest.mark.parametrize("name", ["vmap", "scan"])
def test_streams_are_restored_after_an_error(name):
    rngs = Rngs(0)

    def bad(x, rngs):
        rngs()
        raise KeyError("no")

    size = {"axis_size" if name == "vmap" else "length": 3}
    with pytest.raises(KeyError):
        getattr(experimental, name)(bad, **size)(jnp.ones(3), rngs)
    assert rngs.default.key.shape == ()
    assert int(rngs.default.count.value) == 0


def test_streams_are_split_into_a_known_number():
    with pytest.raises(ValueError, match=r"'default' .* give `axis_size`"):
        experimental.vmap(lambda rngs: rngs())(Rngs(0))
    with pytest.raises(ValueError, match=r"'default' .* give `length`"):
        experimental.scan(lambda c, rngs: (c, rngs()))(1.0, Rngs(0))


def test_vmap_of_bound_methods():
    class Holder(Module):
        def __init__(self):
            self.total = Variable(jnp.array(0.0))

        def add(self, m, x):
            self.total.value = self.total.value + 1
            return m(x)

    holder, m = Holder(), Model(3)
    mapped = experimental.vmap(holder.add, in_axes=(0, None), state_axes=AXES)
    assert mapped(m, 1.0).tolist() == [2.0, 4.0, 6.0]
    assert float(holder.total.value) == 1.0


def test_errors_of_vmap():
    m = Model(3)
    with pytest.raises(ValueError, match="shared"):
        experimental.vmap(lambda m: None, state_axes={Param: 0, BatchStat: 0})(m)
    with pytest.raises(ValueError, match="in_axes has 1 entries"):
        experimental.vmap(lambda m, x: None, in_axes=(0,), state_axes=AXES)(m, 1.0)
    with pytest.raises(ValueError, match="size"):
        experimental.vmap(lambda m, x: None, state_axes=AXES)(m, jnp.ones(2))

    def write(m, x):
        m.shared.value = m.shared.value + x

    with pytest.raises(ValueError, match="shared"):
        experimental.vmap(write, state_axes=AXES)(m, jnp.arange(3.0))


@settings(max_examples=20, deadline=None)
@given(
    n=st.integers(0, 3),
    reverse=st.booleans(),
    argnum=st.sampled_from([None, 0, 1]),
    output=st.booleans(),
    carried=st.booleans(),
)
def test_scan_is_a_loop(n, reverse, argnum, output, carried):
    def f(x, y, m, *, z):
        m.shared.value = m.shared.value + (x if argnum == 1 else y)
        m.w.value = m.w.value * z
        carry = (y if argnum == 1 else x) + m.w.value
        out = {"out": m.shared.value}
        if argnum is None:
            return out if output else None
        return (carry, out) if output else carry

    one, two = Model(n), Model(n)
    xs, ys = (jnp.arange(1.0, n + 1) * k for k in (1, 2))
    zs = jnp.arange(2.0, n + 2)
    start = jnp.array(10.0)
    args = [xs, ys]
    if argnum is not None:
        args[argnum] = start
    axes = {Param: 0, BatchStat: 0}
    if carried:
        axes[...] = Carry
    found = experimental.scan(
        f,
        length=n,
        reverse=reverse,
        carry_argnum=argnum,
        state_axes=axes,
        scan_output=output,
    )(*args, one, z=zs)

    carry, outs = start, [None] * n
    for i in range(n)[:: -1 if reverse else 1]:
        inner = gc.clone(two)
        inner.w.value = two.w.value[i]
        given = [xs[i], ys[i]]
        if argnum is not None:
            given[argnum] = carry
        out = f(*given, inner, z=zs[i])
        two.shared.value = inner.shared.value
        two.w.value = two.w.value.at[i].set(inner.w.value)
        if argnum is None:
            outs[i] = out
        else:
            carry, outs[i] = out if output else (out, None)
    stacked = {"out": jnp.array([o["out"] for o in outs if o])}
    if argnum is None:
        expected = stacked if output else None
    else:
        expected = (carry, stacked) if output else carry
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    jax.tree.map(np.testing.assert_allclose, found, expected)
    jax.tree.map(np.testing.assert_allclose, gc.state(one), gc.state(two))


def test_scan_carries_objects_and_keeps_their_streams():
    class State(Module):
        def __init__(self):
            self.total = Variable(jnp.array(0.0))
            self.rngs = Rngs(0)

    def f(state, rngs):
        state.total.value = state.total.value + 1
        return state, (state.rngs().shape, jax.random.key_data(rngs()))

    state, rngs = State(), Rngs(1)
    found, (_, keys) = experimental.scan(f, length=3)(state, rngs)
    assert found is state
    assert float(state.total.value) == 3.0
    assert int(state.rngs.default.count.value) == 3
    assert len({tuple(k) for k in keys.tolist()}) == 3
    assert int(rngs.default.count.value) == 1


def test_scan_finds_the_carry_by_keyword():
    @experimental.scan(carry_argnum=1)
    def f(x, carry):
        return carry + x, None

    assert float(f(jnp.arange(3.0), carry=1.0)[0]) == 4.0
    with pytest.raises(ValueError, match="Argument 1 is carried"):
        f(jnp.arange(3.0))


def test_scan_is_that_of_this_generation():
    one, two = Model(3), Model(3)
    axes = StateAxes(AXES)
    old = experimental.scan(lambda c, m: (m(c), c), state_axes=AXES)(1.0, one)
    new = nnx.scan(lambda c, m: (m(c), c), in_axes=(Carry, axes))(1.0, two)
    jax.tree.map(np.testing.assert_array_equal, old, new)
    jax.tree.map(np.testing.assert_array_equal, gc.state(one), gc.state(two))


def test_they_compose():
    m = Model(3)

    @experimental.jit
    @experimental.grad
    def loss(m, x):
        layers = experimental.remat(
            lambda m, x: experimental.scan(
                lambda c, m: (jnp.tanh(m(c)), None), state_axes=AXES
            )(x, m)[0]
        )
        return experimental.vmap(layers, in_axes=(None, 0), state_axes={...: None})(
            m, x
        ).sum()

    found = loss(m, jnp.ones(2))

    def by_hand(w):
        x = jnp.ones(2)
        for i in range(3):
            x = jnp.tanh(x * w[i] * 2.0)
        return x.sum()

    np.testing.assert_allclose(
        found.tied.value if "tied" in found else found.w.value,
        jax.grad(by_hand)(m.w.value),
        rtol=1e-5,
    )
    assert m.count.value.tolist() == [1, 1, 1]


class Scale(Module):
    def __init__(self):
        self.w = Param(jnp.array(2.0))
        self.count = Variable(jnp.array(0))

    def __call__(self, x):
        return self.w.value * x

    def counting(self, x):
        self.count.value = self.count.value + 1
        return self(x)


TRANSFORMS = {
    "vmap": experimental.vmap,
    "scan": lambda f: experimental.scan(f, carry_argnum=None),
}


@pytest.mark.parametrize("outer", [nnx.jit, nnx.remat])
@pytest.mark.parametrize("kind", TRANSFORMS)
def test_a_transform_around_it_sees_the_object_of_a_method(kind, outer):
    model = Scale()
    step = outer(TRANSFORMS[kind](model))
    assert step(jnp.ones(2)).tolist() == [2, 2]
    model.w.value = jnp.array(5.0)
    assert step(jnp.ones(2)).tolist() == [5, 5]


def test_a_scan_of_a_method_that_writes_in_another_transform():
    model = Scale()
    scanned = experimental.scan(
        model.counting, carry_argnum=None, state_axes={...: Carry}
    )
    for step in (scanned, nnx.jit(scanned)):
        assert step(jnp.ones(3)).tolist() == [2, 2, 2]
    assert model.count.value == 6
