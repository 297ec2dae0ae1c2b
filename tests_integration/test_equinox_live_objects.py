"""Live objects inside of Equinox's modules, among the arguments of transforms."""

from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nnx_transforms as nnx

X = jnp.ones(2)


class Around(eqx.Module):
    inner: object
    w: jax.Array


@pytest.mark.parametrize("wrapped", [lambda x: x, lambda x: [x]])
@pytest.mark.parametrize("library", ["nnx_transforms", "flax.nnx"])
def test_a_live_object_inside_of_a_module_is_updated(library, wrapped):
    theirs = pytest.importorskip(library)
    inner = theirs.Module()
    inner.calls = theirs.Variable(jnp.array(0))
    around = Around(inner, X)

    @nnx.jit
    def step(tree):
        calls = jax.tree.leaves(tree, is_leaf=lambda x: type(x) is Around)[0].inner
        calls.calls[...] += 1
        return tree

    for _ in range(2):
        (found,) = jax.tree.leaves(
            step(wrapped(around)), is_leaf=lambda x: type(x) is Around
        )
    assert found.inner is inner and int(inner.calls[...]) == 2


@pytest.mark.parametrize("library", ["nnx_transforms", "flax.nnx"])
def test_a_module_is_differentiated_together_with_a_live_object_inside(library):
    theirs = pytest.importorskip(library)
    inner = theirs.Module()
    inner.p, inner.calls = theirs.Param(2 * X), theirs.BatchStat(jnp.array(0.0))
    around = Around(inner, X)
    inner.tied = inner.p

    def f(around, x):
        around.inner.calls[...] += 1
        return (around.w * around.inner.p[...] * around.inner.tied[...] * x).sum()

    due = jax.grad(lambda p, w, x: (w * p * p * x).sum(), (0, 1, 2))(2 * X, X, X)

    def check(of_module, of_x):
        found = jax.tree.leaves(of_module.inner), of_module.w, of_x
        for got, expected in zip((*found[0], *found[1:]), due, strict=True):
            np.testing.assert_allclose(got, expected, rtol=1e-6)

    check(*nnx.jit(nnx.grad(f, argnums=(0, 1)))(around, X))
    _, pull = nnx.vjp(f, around, X)
    cotangents = pull(jnp.array(1.0))
    check(*cotangents)
    check(*nnx.jacrev(f, argnums=(0, 1))(around, X))
    _, push = nnx.linearize(f, around, X)
    square = sum((x**2).sum() for x in due)
    np.testing.assert_allclose(push(*cotangents), square, rtol=1e-6)
    _, tangent = nnx.jvp(f, (around, X), cotangents)
    np.testing.assert_allclose(tangent, square, rtol=1e-6)
    assert float(inner.calls[...]) == 5


def test_a_module_with_a_live_object_is_returned_and_takes_a_cotangent():
    inner = nnx.Dict(p=nnx.Param(X))
    around = Around(inner, X)
    (out, _), pull = nnx.vjp(lambda a: (a, a.w * a.inner.p[...]), around)
    assert out.inner is inner
    ones = jnp.ones_like(X)
    (found,) = pull((Around(jax.tree.map(jnp.ones_like, nnx.state(inner)), ones), ones))
    assert found.w.tolist() == (1 + X).tolist()
    assert found.inner.p.value.tolist() == (1 + X).tolist()


def test_what_is_not_differentiated_may_be_a_module_with_a_live_object():
    inner = nnx.Variable(jnp.array(0))
    around = Around(inner, X)

    def f(x, around):
        around.inner[...] += 1
        return (x * around.w).sum()

    assert nnx.grad(f)(X, around).tolist() == X.tolist()
    assert int(inner[...]) == 1


def test_a_derivative_rule_has_no_tangent_for_a_live_object_inside_of_a_module():
    f = nnx.custom_vjp(lambda tree: X.sum())
    f.defvjp(lambda tree: (X.sum(), None), lambda res, g: (None,))
    inner = nnx.Dict(p=nnx.Param(X))
    with pytest.raises(TypeError, match=r"'tree'.* Around .* live Dict.*of its own"):
        f([Around(inner, X)])


def test_a_live_object_inside_of_a_module_need_not_be_a_tree():
    inner = nnx.Module()
    around = Around(inner, X)
    inner.calls = inner.same = nnx.Variable(jnp.array(0))
    inner.me = inner

    def step(around):
        around.inner.calls += 1
        return around.inner.me.same[...]

    assert int(nnx.jit(step)(around)) == 1
    assert int(nnx.cond(True, step, step, around)) == 2
    assert int(inner.calls[...]) == 2


@nnx.register_dataclass
@dataclass
class Parts:  # which compares by its fields, so that it can't be hashed
    first: object


def test_a_live_object_inside_of_a_module_need_not_be_hashable():
    parts = Parts(nnx.Param(X))

    def step(around):
        around.inner[0].first.value = around.inner[0].first.value * 3
        return around.w.sum()

    assert float(nnx.jit(step)(Around([parts], X))) == 2
    assert float(nnx.remat(step)(Around([parts], X))) == 2
    np.testing.assert_allclose(parts.first.value, 9 * X)


class Given(eqx.Module):
    """One whose `__init__` does not take its arguments apart."""

    inner: object
    w: jax.Array

    def __init__(self, inner):
        self.inner, self.w = inner, X


@pytest.mark.parametrize("wrapped", [lambda x: x, lambda x: [x]])
@pytest.mark.parametrize("library", ["nnx_transforms", "flax.nnx"])
def test_a_live_object_inside_of_a_module_may_refer_to_itself(library, wrapped):
    theirs = pytest.importorskip(library)
    inner = theirs.Module()
    inner.calls, inner.itself = theirs.Variable(jnp.array(0)), inner

    @nnx.jit
    def step(tree):
        (given,) = jax.tree.leaves(tree, is_leaf=lambda x: type(x) is Given)
        given.inner.itself.calls[...] += 1
        return nnx.grad(lambda w: (w**2).sum())(given.w)

    for _ in range(2):
        assert step(wrapped(Given(inner))).tolist() == [2, 2]
    assert int(inner.calls[...]) == 2


class Counting(nnx.Module):
    def __init__(self):
        self.dense = nnx.Linear(2, 2, rngs=nnx.Rngs(0))
        self.dropout = nnx.Dropout(0.5, rngs=nnx.Rngs(0))
        self.calls = nnx.Variable(jnp.array(0))
        self.scale, self.steps = jnp.ones(2), jnp.arange(2)


def _count(m):
    m.calls.value += 1


def _draw(m):
    m.dropout(jnp.ones(2))


def _replace(m):
    m.scale = m.scale + 1


def _replace_integers(m):
    m.steps = m.steps + 1


@pytest.mark.parametrize("write", [_count, _draw, _replace, _replace_integers])
@pytest.mark.parametrize(
    "transform",
    [
        eqx.filter_jit,
        eqx.filter_grad,
        eqx.filter_checkpoint,
        lambda f: eqx.filter_jit(eqx.filter_grad(f)),
        lambda f: (
            lambda m: eqx.filter_vmap(lambda m, _: f(m), in_axes=(None, 0))(
                m, jnp.ones(3)
            )
        ),
        lambda f: lambda m: eqx.filter_vjp(f, m),
        lambda f: lambda m: eqx.filter_eval_shape(f, m),
    ],
    ids=["jit", "grad", "checkpoint", "jit of grad", "vmap", "vjp", "eval_shape"],
)
def test_writes_that_transforms_of_equinox_would_lose_are_refused(transform, write):
    def f(m, writes=True):
        if writes:
            write(m)
        return (m.dense(jnp.ones(2)) * m.scale).sum()

    m = Counting()
    transform(lambda m: f(m, writes=False))(m)
    with pytest.raises(nnx.TraceContextError, match="would not see the change"):
        transform(f)(m)
    assert int(m.calls.value) == int(m.dropout.rngs.count.value) == 0
    assert (m.scale.tolist(), m.steps.tolist()) == ([1, 1], [0, 1])
