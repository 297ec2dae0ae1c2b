"""Functions with derivative rules inside, and around, the other transformations.

The object has a shared variable, a counter and a random stream. The derivative by the
variable is ten times too large, which tells that it is the rule's.
"""

import jax
import jax.numpy as jnp
import pytest
from rule_programs import close

from nnx_transforms import (
    BatchStat,
    Carry,
    Module,
    Param,
    Rngs,
    State,
    StateAxes,
    cond,
    fori_loop,
    jit,
)
from nnx_transforms.transforms.checkpoint import remat
from nnx_transforms.transforms.custom_gradient import custom_gradient
from nnx_transforms.transforms.custom_jvp import custom_jvp
from nnx_transforms.transforms.custom_vjp import custom_vjp
from nnx_transforms.transforms.grad import grad
from nnx_transforms.transforms.jacobian import hessian
from nnx_transforms.transforms.scan import scan
from nnx_transforms.transforms.vmap import vmap


class Model(Module):
    def __init__(self, w):
        self.w = Param(w)
        self.tied = self.w
        self.calls = BatchStat(jnp.array(0))
        self.rngs = Rngs(0)


def scale(m, x):
    m.calls.value = m.calls.value + 1
    m.rngs()
    return m.w.value * x


with_vjp = custom_vjp(scale)


def bwd(residuals, g):
    m, x = residuals
    (m_g, _), out_g = g
    m_g["tied"].value = 10 * out_g * x
    return m_g, out_g * m.w.value


with_vjp.defvjp(lambda m, x: (with_vjp(m, x), (m, x)), bwd)
with_jvp = custom_jvp(scale)


@with_jvp.defjvp
def rule(primals, tangents):
    (m, x), (m_t, x_t) = primals, tangents
    return with_jvp(m, x), 10 * m_t["tied"].value * x + m.w.value * x_t


@custom_gradient
def with_gradient(m, x):
    w = m.w.value
    tangent = m.w.to_state()

    def vjp(g):
        return State({"tied": tangent.replace(10 * g * x)}), g * w

    return scale(m, x), vjp


EACH = StateAxes({Param: 0, ...: None})
CARRIED = StateAxes({Param: 0, ...: Carry})


def of_switch(h):
    return lambda m, x: cond(jnp.sum(x) > 0, h, lambda m, x: scale(m, x) * 2, m, x)


def of_loop(h):
    return lambda m, x: fori_loop(0, 2, lambda i, c: (c[0], h(c[0], c[1])), (m, x))[1]


# How the function is transformed, the variable, x, the calls and the gradient.
SCALAR, STACK = jnp.array(2.0), jnp.array([2.0, 2.0, 2.0])
CASES = {
    "jit": (jit, SCALAR, 3.0, 1, 30.0),
    "remat": (remat, SCALAR, 3.0, 1, 30.0),
    "jit remat": (lambda h: jit(remat(jit(h))), SCALAR, 3.0, 1, 30.0),
    "cond": (of_switch, SCALAR, 3.0, 1, 30.0),
    "jit cond": (lambda h: jit(of_switch(h)), SCALAR, 3.0, 1, 30.0),
    "fori_loop": (lambda h: lambda m, x: of_loop(h)(m, x), SCALAR, 3.0, 2, None),
    "vmap, shared": (
        lambda h: lambda m, x: vmap(h, in_axes=(None, 0))(m, jnp.full(3, x)).sum(),
        SCALAR,
        3.0,
        1,
        90.0,
    ),
    "vmap": (
        lambda h: lambda m, x: vmap(h, in_axes=(EACH, None))(m, x).sum(),
        STACK,
        3.0,
        1,
        [30.0] * 3,
    ),
    "scan": (
        lambda h: lambda m, x: scan(h, in_axes=(CARRIED, Carry), out_axes=Carry)(m, x),
        STACK,
        3.0,
        3,
        # Each rule multiplies its own derivative only.
        [10 * 3.0 * 4.0] * 3,
    ),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("h", [with_vjp, with_jvp, with_gradient])
def test_inside(case, h):
    transform, w, x, calls, expected = CASES[case]
    if case == "fori_loop":
        # JAX has no reverse mode for it; the function itself runs.
        m = Model(w)
        close(transform(h)(m, x), 12.0)
        assert int(m.calls.value) == calls
        return
    for whole in (lambda f: f, jit):
        m = Model(w)
        g = whole(grad(transform(h)))(m, x)
        close(g["tied"].value, jnp.asarray(expected))
        assert int(m.calls.value) == calls
        assert int(m.rngs.default.count.value) == calls
        assert m.tied is m.w
        assert g.flat_state().paths == (("tied",),)


@pytest.mark.parametrize("h", [with_vjp, with_jvp, with_gradient])
def test_around_and_in_rules(h):
    @custom_vjp
    def outer(m, x):
        return jit(remat(h))(m, x)

    outer.defvjp(
        lambda m, x: (jit(h)(m, x), (m, x)),
        lambda r, g: (g[0][0], 7 * g[1] * jit(grad(scale, argnums=1))(*r)),
    )
    for transform in (lambda f: f, jit, remat):
        m = Model(SCALAR)
        close(grad(transform(outer), argnums=1)(m, 3.0), 14.0)
        assert int(m.calls.value) == 1
    m = Model(STACK)
    g = vmap(grad(h), in_axes=(EACH, None), out_axes=0)(m, 3.0)
    close(g["tied"].value, jnp.full(3, 30.0))
    assert int(m.calls.value) == 1


@pytest.mark.parametrize("h", [with_vjp, with_jvp, with_gradient])
def test_shard_map_of_jax(h):
    mesh = jax.make_mesh(
        (1,),
        ("i",),
        axis_types=(jax.sharding.AxisType.Auto,),
        devices=jax.devices()[:1],
    )
    spec = jax.sharding.PartitionSpec("i")

    def body(w):
        return h(Model(w), jnp.ones_like(w))

    mapped = jax.shard_map(body, mesh=mesh, in_specs=spec, out_specs=spec)
    close(jax.grad(lambda w: mapped(w).sum())(jnp.arange(4.0)), jnp.full(4, 10.0))


class Layer(Module):
    def __init__(self):
        self.w = Param(jnp.array(2.0))
        self.calls = BatchStat(jnp.array(0))

    def f(self, x):
        self.calls.value = self.calls.value + 1
        return self.w.value * x**2

    def fwd(self, x):
        return self.f(x), None

    def rule(self, primals, tangents):
        return self.f(*primals), 10 * tangents[0]

    def with_gradient(self, x):
        return self.f(x), lambda g: (7 * g,)

    def by_vjp(self):
        f = custom_vjp(self.f)
        f.defvjp(self.fwd, lambda _, g: (5 * g[1],))
        return f

    def by_jvp(self):
        f = custom_jvp(self.f)
        f.defjvp(self.rule)
        return f


OF_METHODS = {
    "jit(grad)": (lambda m: jit(grad(m.f)), 12.0),
    "vmap(grad)": (lambda m: lambda x: vmap(grad(m.f))(x[None])[0], 12.0),
    "grad(grad)": (lambda m: grad(grad(m.f)), 4.0),
    "remat(grad)": (lambda m: remat(grad(m.f)), 12.0),
    "jit(hessian)": (lambda m: jit(hessian(m.f)), 4.0),
    "jit(custom_vjp)": (lambda m: jit(m.by_vjp()), 18.0),
    "jit(grad(custom_vjp))": (lambda m: jit(grad(m.by_vjp())), 5.0),
    "jit(custom_jvp)": (lambda m: jit(m.by_jvp()), 18.0),
    "jit(grad(custom_jvp))": (lambda m: jit(grad(m.by_jvp())), 10.0),
    "jit(custom_gradient)": (lambda m: jit(custom_gradient(m.with_gradient)), 18.0),
    "jit(grad(custom_gradient))": (
        lambda m: jit(grad(custom_gradient(m.with_gradient))),
        7.0,
    ),
}


@pytest.mark.parametrize("case", OF_METHODS)
def test_of_a_method_inside_another_transformation(case):
    make, expected = OF_METHODS[case]
    for whole in (lambda f: f, jit):
        m = Layer()
        close(whole(lambda m, x: make(m)(x))(m, jnp.array(3.0)), expected)
        assert int(m.calls.value) == 1
