"""Modules with transformed methods, against the inner modules one by one."""

import copy
import gc as garbage
import pickle
import types
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import graphcore as gc
from nnx_transforms import (
    PARTITION_NAME,
    BatchStat,
    Carry,
    Module,
    Param,
    Rngs,
    Variable,
    jit,
)
from nnx_transforms import remat as nnx_remat
from nnx_transforms.legacy.constructors import Grad, Jit, Pmap, Remat, Scan, Vmap
from nnx_transforms.transforms.grad import grad


class Block(Module):
    """A layer with parameters, a counter and noise."""

    def __init__(self, width, *, rngs):
        self.w = Param(jax.random.normal(rngs.params(), (width, width)) / width)
        self.count = BatchStat(jnp.array(0))
        self.rngs = rngs
        self.width = width

    def __call__(self, x, scale=1.0):
        self.count.value = self.count.value + 1
        return jnp.tanh(x @ self.w.value) * scale

    def noisy(self, x):
        return self(x) + jax.random.normal(self.rngs.noise(), x.shape)

    def double(self, x):
        return x * 2


class Step(Block):
    """A layer in the form that a scan takes."""

    def __call__(self, x, scale=1.0):
        y = super().__call__(x, scale)
        return y, y.sum()

    def noisy(self, x):
        y = super().__call__(x) + jax.random.normal(self.rngs.noise(), x.shape)
        return y, jax.random.key_data(self.rngs.noise())

    def with_inputs(self, x, a, b):
        return x + a, a * b


def rngs():
    return Rngs(params=1, noise=2)


# Remat, Jit, Grad: one module


@pytest.mark.parametrize("kind", [Remat, Jit])
def test_one_module_does_what_the_inner_one_does(kind):
    inner = Block(3, rngs=rngs())
    module = kind(Block, module_init_args=(3,), module_init_kwargs={"rngs": rngs()})
    x = jnp.ones((2, 3))
    for _ in range(2):
        np.testing.assert_allclose(module(x, scale=2.0), inner(x, 2.0), rtol=1e-6)
        np.testing.assert_allclose(module.call.noisy(x), inner.noisy(x), rtol=1e-6)
    assert int(module.module.count.value) == int(inner.count.value) == 4
    draws = [int(m.rngs.noise.count.value) for m in (module.module, inner)]
    assert draws == [2, 2]

    def loss(module, x):
        return (module(x) ** 2).sum()

    found = grad(loss)(module, x)
    np.testing.assert_allclose(
        found.module.w.value, grad(loss)(inner, x).w.value, rtol=1e-5
    )


def test_remat_passes_its_options_on():
    module = Remat.constructor(Block, prevent_cse=False)(3, rngs=rngs())
    graphdef, state = gc.split(module)

    def f(state, x):
        return gc.merge(graphdef, state)(x).sum()

    found = str(jax.make_jaxpr(f)(state, jnp.ones(3)))
    assert "prevent_cse=False" in found


def test_remat_takes_static_arguments_and_policies():
    class Choice(Module):
        def __call__(self, x, name):
            return jnp.sin(x) if name == "sin" else jnp.cos(x)

    policy = jax.checkpoint_policies.everything_saveable
    module = Remat(Choice, True, 2, policy)
    assert float(module(0.0, "cos")) == 1.0
    assert float(module(0.0, "sin")) == 0.0
    made = jax.make_jaxpr(lambda x: Remat(Choice, True, 2, policy)(x, "sin"))(0.0)
    assert "everything_saveable" in str(made)


def test_jit_compiles_a_method_once():
    traces = []

    class Counted(Block):
        def __call__(self, x):
            traces.append(x)
            return super().__call__(x)

    module = Jit(Counted, module_init_args=(3,), module_init_kwargs={"rngs": rngs()})
    x = jnp.ones(3)
    for _ in range(3):
        module(x)
    gc.clone(module)(x)
    assert len(traces) == 1
    module(jnp.ones((2, 3)))
    assert len(traces) == 2
    assert module.call.double(x).tolist() == [2.0] * 3
    assert len(traces) == 2


def test_jit_takes_options():
    class Choice(Module):
        def __init__(self):
            self.total = Variable(jnp.zeros(()))

        def __call__(self, x, name):
            self.total.value = self.total.value + x
            return {"sin": jnp.sin, "cos": jnp.cos}[name](x)

    by_number = Jit(Choice, static_argnums=2, donate_state=True)
    by_name = Jit(Choice, static_argnames="name")
    assert float(by_number(0.0, "cos")) == float(by_name(0.0, name="cos")) == 1.0
    old = by_number.module.total.value
    by_number(1.0, "sin")
    assert old.is_deleted()


def test_grad_module():
    class Loss(Module):
        def __init__(self, w):
            self.w = Param(jnp.array(w))
            self.b = Variable(jnp.array(1.0))
            self.count = BatchStat(jnp.array(0))

        def __call__(self, x):
            self.count.value = self.count.value + 1
            return self.w.value**2 * x + self.b.value

        def with_aux(self, x):
            return self(x), "aux"

    module = Grad.constructor(Loss)(3.0)
    found = module(2.0)
    assert found.to_pure_dict() == {"w": 12.0}
    assert int(module.module.count.value) == 1
    assert float(Grad(Loss, 1, module_init_args=(3.0,))(x=2.0)) == 9.0
    found, aux = Grad(Loss, has_aux=True, module_init_args=(3.0,)).call.with_aux(1.0)
    assert (float(found.w.value), aux) == (6.0, "aux")
    found = Grad(Loss, wrt=Variable, allow_int=True, module_init_args=(3.0,))(2.0)
    assert set(found) == {"w", "b", "count"}


# Vmap and Pmap


@pytest.mark.parametrize("kind", [Vmap, Pmap])
@settings(max_examples=10, deadline=None)
@given(
    size=st.integers(1, 3),
    split=st.sampled_from([..., "params", "noise", None]),
    axis=st.sampled_from([0, 1]),
)
def test_stacked_modules_are_modules_side_by_side(kind, size, split, axis):
    size = min(size, jax.local_device_count()) if kind is Pmap else size
    given_rngs = rngs()
    module = kind(
        Block,
        axis_size=size,
        in_axes=(None, axis),
        out_axes=1,
        state_axes={Param: axis, ...: 0},
        split_rngs=split,
        module_init_args=(3,),
        module_init_kwargs={"rngs": given_rngs},
    )
    assert module.module.rngs is given_rngs

    def keys(stream, draws):
        """What `split_rngs` gives each index of a stream with so many draws."""
        key = jax.random.key({"params": 1, "noise": 2}[stream])
        if split in (..., stream):
            key = jax.random.split(jax.random.fold_in(key, draws), size)
            return [jax.random.fold_in(k, 0) for k in key], draws + 1
        return [jax.random.fold_in(key, draws)] * size, draws + 1

    params, _ = keys("params", 0)
    ws = [jax.random.normal(key, (3, 3)) / 3 for key in params]
    np.testing.assert_allclose(module.module.w.value, jnp.stack(ws, axis), rtol=1e-6)
    assert module.module.count.value.shape == (size,)
    noises, _ = keys("noise", 1 if split in (..., "noise") else 0)

    x = jax.random.normal(jax.random.key(0), (3, size) if axis else (size, 3))
    each = [jnp.take(x, i, axis) for i in range(size)]
    expected = [
        jnp.tanh(x @ w) + jax.random.normal(key, (3,))
        for x, w, key in zip(each, ws, noises, strict=True)
    ]
    found = module.call.noisy(x)
    np.testing.assert_allclose(found, jnp.stack(expected, 1), rtol=1e-5, atol=1e-6)
    assert module.module.count.value.tolist() == [1] * size
    assert module.module.rngs.noise.key.shape == ()


@pytest.mark.parametrize("kind", [Vmap, Pmap])
def test_axes_of_keyword_arguments_and_names(kind):
    class Mean(Module):
        def __call__(self, x, *, by):
            return jax.lax.pmean(x, "batch") * by

    n = min(3, jax.local_device_count()) if kind is Pmap else 3
    module = kind(Mean, axis_size=n, axis_name="batch", in_axes_kwargs=None)
    out = module(jnp.arange(float(n)), by=jnp.ones(2))
    np.testing.assert_allclose(out, np.full((n, 2), (n - 1) / 2))


def test_what_all_indices_share():
    class Shared(Block):
        def __call__(self, x):
            self.count.value = self.count.value + 1
            return x @ self.w.value

    axes = {BatchStat: None, ...: 0}
    module = Vmap(
        Shared,
        axis_size=3,
        in_axes=None,
        state_axes=axes,
        module_init_args=(2,),
        module_init_kwargs={"rngs": rngs()},
    )
    assert module(jnp.ones(2)).shape == (3, 2)
    assert int(module.module.count.value) == 1
    with pytest.raises(ValueError, match=r"/w\b"):
        Vmap(
            Shared,
            axis_size=3,
            state_axes={...: None},
            module_init_args=(2,),
            module_init_kwargs={"rngs": rngs()},
        )


def test_streams_that_a_module_makes_are_stacked():
    class Own(Module):
        def __init__(self, *, rngs):
            self.rngs = Rngs(noise=rngs.params())

        def __call__(self):
            return jax.random.uniform(self.rngs.noise())

    module = Vmap(Own, axis_size=3, module_init_kwargs={"rngs": rngs()})
    assert module.module.rngs.noise.key.shape == (3,)
    first, second = module(), module()
    assert len({*first.tolist(), *second.tolist()}) == 6
    assert module.module.rngs.noise.count.value.tolist() == [2, 2, 2]


def test_partition_names():
    class Sharded(Module):
        def __init__(self):
            self.w = Param(jnp.ones((2, 3)), sharding=("in", "out"))
            self.seen = None

        def __call__(self, x):
            assert self.w.sharding == ("in", "out")
            return x @ self.w.value, None

    metadata = {PARTITION_NAME: "layers"}
    for module in (
        Vmap(Sharded, axis_size=4, transform_metadata=metadata),
        Scan(Sharded, length=4, carry_argnum=None, transform_metadata=metadata),
    ):
        assert module.module.w.sharding == ("layers", "in", "out")
        module(jnp.ones((4, 2)))
        assert module.module.w.sharding == ("layers", "in", "out")


@pytest.mark.parametrize(("kind", "size"), [(Vmap, "axis_size"), (Scan, "length")])
def test_a_size_is_needed(kind, size):
    with pytest.raises(ValueError, match=f"`{size}`"):
        kind(Block, module_init_args=(3,), module_init_kwargs={"rngs": rngs()})


# Scan


def make_scan(length=4, **options):
    given = {"module_init_args": (3,), "module_init_kwargs": {"rngs": rngs()}}
    return Scan(Step, length=length, **given, **options)


@settings(max_examples=10, deadline=None)
@given(
    length=st.integers(1, 3),
    reverse=st.booleans(),
    split=st.sampled_from([..., "noise", None]),
    carried=st.booleans(),
)
def test_scanned_modules_are_modules_one_after_the_other(
    length, reverse, split, carried
):
    axes = {Param: 0, BatchStat: Carry if carried else 0}
    module = make_scan(length, reverse=reverse, split_rngs=split, state_axes=axes)
    ws = list(module.module.w.value)
    count = int(module.module.rngs.noise.count.value)
    key = jax.random.key(2)
    x = jax.random.normal(jax.random.key(3), (2, 3))
    y, outs = module.call.noisy(x)

    order = list(range(length))[:: -1 if reverse else 1]
    if split in (..., "noise"):
        keys = jax.random.split(jax.random.fold_in(key, count), length)
        draws = [[jax.random.fold_in(keys[i], d) for d in (0, 1)] for i in order]
        after = count + 1
    else:
        draws = [
            [jax.random.fold_in(key, count + 2 * n + d) for d in (0, 1)]
            for n in range(length)
        ]
        after = count + 2 * length
    expected = [None] * length
    for i, (one, two) in zip(order, draws, strict=True):
        x = jnp.tanh(x @ ws[i]) + jax.random.normal(one, x.shape)
        expected[i] = jax.random.key_data(two)
    np.testing.assert_allclose(y, x, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(outs, jnp.stack(expected))
    assert int(module.module.rngs.noise.count.value) == after
    found = module.module.count.value.tolist()
    assert found == (length if carried else [1] * length)


def test_scan_axes_and_keyword_arguments():
    module = make_scan(in_axes=(None, None, 0, None))
    x, a, b = jnp.ones((2, 3)), jnp.arange(4.0), jnp.array(2.0)
    y, products = module.call.with_inputs(x, a, b)
    np.testing.assert_allclose(y, x + 6)
    assert products.tolist() == [0.0, 2.0, 4.0, 6.0]
    _, sums = make_scan(in_axes=(None, None), in_axes_kwargs=0)(x, scale=a)
    expected = make_scan(in_axes=None, in_axes_kwargs=None)(x, scale=0.0)
    assert sums.shape == (4,)
    assert sums[0] == expected[1][0]
    with pytest.raises(ValueError, match="in_axes has 2 entries"):
        make_scan(in_axes=(None, 0)).call.with_inputs(x, a, b)


def test_scan_without_output_or_carry():
    class Pure(Block):
        def __call__(self, x):
            return x @ self.w.value

    given = {"module_init_args": (3,), "module_init_kwargs": {"rngs": rngs()}}
    carry_only = Scan(Pure, length=2, scan_output=False, **given)
    w = carry_only.module.w.value
    x = jnp.ones((1, 3))
    np.testing.assert_allclose(carry_only(x), x @ w[0] @ w[1], rtol=1e-5)
    output_only = Scan(Pure, length=2, carry_argnum=None, in_axes=None, **given)
    w = output_only.module.w.value
    np.testing.assert_allclose(output_only(x), jnp.stack([x @ w[0], x @ w[1]]))
    with pytest.raises(ValueError, match=r"must return a pair \(carry, output\)"):
        Scan(Pure, length=2, **given)(x)
    with pytest.raises(ValueError, match="Argument 2 is carried"):
        Scan(Pure, length=2, carry_argnum=2, **given)(x)


def test_scan_is_differentiated_and_nested():
    module = Remat(
        lambda: make_scan(state_axes={Param: 0, ...: Carry}), prevent_cse=False
    )

    def loss(module, x):
        return module(x)[0].sum()

    x = jnp.ones((2, 3))
    found = jit(grad(loss))(module, x)
    inner = module.module.module
    assert int(inner.count.value) == 4

    def by_hand(ws):
        y = x
        for w in ws:
            y = jnp.tanh(y @ w)
        return y.sum()

    expected = jax.grad(by_hand)(inner.w.value)
    np.testing.assert_allclose(found.module.module.w.value, expected, rtol=1e-5)

    stack = Vmap(
        lambda rngs: make_inner(rngs),
        axis_size=2,
        in_axes=None,
        module_init_kwargs={"rngs": rngs()},
    )
    assert stack.module.module.w.value.shape == (2, 4, 3, 3)
    assert stack(x)[0].shape == (2, 2, 3)


def make_inner(rngs):
    return Scan.constructor(Step, length=4)(3, rngs=rngs)


# All of them


KINDS = [Remat, Jit, Vmap, Scan, Pmap]


def make(kind, **options):
    given = {"module_init_args": (3,), "module_init_kwargs": {"rngs": rngs()}}
    if kind in (Vmap, Pmap):
        options = {"axis_size": 1, **options}
    if kind is Scan:
        options = {"length": 1, **options}
    return kind(Step, **given, **options)


@pytest.mark.parametrize("kind", KINDS)
def test_other_methods_items_and_attributes(kind):
    module = make(kind)
    x = jnp.ones((1, 3))
    if kind is not Scan:
        np.testing.assert_array_equal(module.call.double(x), 2 * x)
    module.module.parts = gc.List([Step(3, rngs=rngs())])
    if kind in (Remat, Jit):
        assert module.call.parts[0](x)[0].shape == (1, 3)
    with pytest.raises(AttributeError, match="nothing_here"):
        module.call.nothing_here(x)


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_changes_nothing(kind):
    module = make(kind)

    def bad(self, x):
        self.count.value = self.count.value + 1
        self.rngs.noise()
        self.extra = 1
        raise KeyError("no")

    Step.bad = bad
    try:
        before = gc.split(module)
        with pytest.raises(KeyError):
            module.call.bad(jnp.ones((1, 3)))
        after = gc.split(module)
    finally:
        del Step.bad
    assert before[0] == after[0]
    jax.tree.map(np.testing.assert_array_equal, *(map(values, (before[1], after[1]))))


def values(state):
    return [
        jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x
        for x in jax.tree.leaves(state)
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_graph_definitions_copies_and_pickles(kind):
    one, two = make(kind), make(kind)
    x = jnp.ones((1, 3))
    one(x)
    assert gc.graphdef(one) == gc.graphdef(two)
    assert hash(gc.graphdef(one)) == hash(gc.graphdef(two))
    for again in (copy.deepcopy(two), gc.clone(two), pickle.loads(pickle.dumps(two))):
        assert gc.graphdef(again) == gc.graphdef(one)
        np.testing.assert_allclose(again(x)[0], gc.clone(two)(x)[0])
    assert "Step" in repr(one)


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_leaks(kind):
    module = make(kind)
    if kind is not Pmap:
        with jax.checking_leaks():
            module(jnp.ones((1, 3)))
    module(jnp.ones((1, 3)))
    reference = weakref.ref(module.module)
    del module
    garbage.collect()
    assert reference() is None


def test_constructors_keep_the_name():
    construct = Scan.constructor(Block, length=3)
    assert construct.__name__ == "Block"
    assert type(construct(3, rngs=rngs())) is Scan


class Scaled(Module):
    def __call__(self, x, scale):
        return x * scale


class Shifted(Module):
    def __call__(self, scale, x):
        return x - scale


@pytest.mark.parametrize("decorator", [nnx_remat, jit])
def test_decorated_methods_are_told_apart(decorator):
    class First(Module):
        @decorator
        def go(self, x, scale):
            return x * scale

    class Second(Module):
        @decorator
        def go(self, scale, x):
            return x - scale

    layer = Remat(First)
    assert layer.call.go(x=10.0, scale=3.0) == 30
    layer.module = Second()
    assert layer.call.go(x=10.0, scale=3.0) == 7


def test_the_inner_module_may_be_replaced_by_one_with_other_arguments():
    layer = Remat(Scaled)
    assert layer(x=10.0, scale=3.0) == 30
    twin = gc.clone(layer)
    layer.module = Shifted()
    assert layer(x=10.0, scale=3.0) == 7
    assert twin(x=10.0, scale=3.0) == 30


def test_a_method_that_a_property_makes_is_traced_once():
    traces = []

    class Made(Module):
        @property
        def double(self):
            def double(self, x):
                traces.append(x)
                return 2 * x

            return types.MethodType(double, self)

    layer = Jit(Made)
    for _ in range(3):
        assert layer.call.double(jnp.ones(2)).tolist() == [2, 2]
    assert len(traces) == 1
