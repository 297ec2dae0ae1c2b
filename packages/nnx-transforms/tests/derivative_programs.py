"""Random objects that share parts, random programs on them, and jaxprs to compare."""

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st

import graphcore as gc
from nnx_transforms import BatchStat, Dict, List, Module, Param, Rngs, Variable


class Scale(Module):
    """A small model with everything: shared variables, a counter, a random stream."""

    def __init__(self, a=2.0, b=5.0):
        self.a = Param(jnp.array(a))
        self.b = Param(jnp.array(b))
        self.tied = self.a
        self.calls = BatchStat(jnp.array(0))
        self.rngs = Rngs(noise=0)

    def __call__(self, x):
        self.calls.value = self.calls.value + 1
        noise = jax.random.normal(self.rngs.noise(), jnp.shape(x))
        return self.a.value * x + self.b.value * noise


@st.composite
def pairs_of_models(draw):
    """Two nodes that share some of their variables, in lists, dicts and cycles."""
    random = np.random.default_rng(draw(st.integers(0, 99)))
    pool = [
        draw(st.sampled_from([Param, Param, BatchStat]))(
            jnp.asarray(random.normal(size=2), jnp.float32), number=i
        )
        for i in range(4)
    ]
    picks = st.lists(st.sampled_from(pool), max_size=3)

    def model(number):
        m = Dict(
            own=Param(jnp.asarray(random.normal(size=2), jnp.float32)),
            listed=List(draw(picks)),
            plain={"k": draw(picks), "t": tuple(draw(picks))},
            count=Variable(jnp.array(0)),
            rate=0.5,
        )
        if draw(st.booleans()):
            m.loop = m
        return m

    m, n = model(0), model(1)
    if draw(st.booleans()):
        n.other = m
    return m, n


steps = st.sampled_from(
    ["multiply", "count", "attach", "detach", "swap", "rewire", "rate", "restore"]
)
programs = st.lists(steps, max_size=6)


def floats(node):
    """The inexact variables that can be reached, each once."""
    found = gc.variables(node).flat_state().leaves
    return [v for v in found if jnp.issubdtype(v.raw_value.dtype, jnp.inexact)]


def run(program, m, n, x):
    """Runs a program on two models; returns a number."""
    total = jnp.sum(x)
    for i, step in enumerate(program):
        if step == "multiply":
            m.own.value = m.own.value * jnp.cos(n.own.value * x)
        elif step == "count":
            n.count.value = n.count.value + 1
        elif step == "attach":
            m[f"new{i}"] = Param(n.own.value * x)
        elif step == "detach":
            if "loop" in vars(m):
                del m.loop
            n.listed = List([])
        elif step == "swap":
            m.listed, n.listed = n.listed, m.listed
        elif step == "rewire":
            n.partner = m.own
        elif step == "rate":
            m.rate = m.rate + 1
        else:
            m.own.value = m.own.value * 1.0
        for k, v in enumerate(floats(m) + floats(n)):
            total = total + (k + 1) * jnp.sum(jnp.sin(v.value * x))
    return total * m.rate + jnp.sum(m.own.value * n.own.value)


def assert_close(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
            x, y = jax.random.key_data(x), jax.random.key_data(y)
        assert x.dtype == y.dtype
        if x.dtype != jax.dtypes.float0:
            np.testing.assert_allclose(x, y, rtol=2e-5, atol=1e-5)


def equations(jaxpr):
    """Everything that a jaxpr computes, with variables numbered by appearance."""
    numbers = {}

    def number(v):
        if hasattr(v, "val"):
            return "literal", np.asarray(v.val).tolist(), str(v.aval)
        return numbers.setdefault(v, len(numbers)), str(v.aval)

    def parameter(p):
        inner = getattr(p, "jaxpr", p)
        if hasattr(inner, "eqns"):
            return equations(inner)
        return "function" if callable(p) else str(p)

    return [
        (
            e.primitive.name,
            [number(v) for v in e.invars],
            [number(v) for v in e.outvars],
            {k: parameter(p) for k, p in e.params.items() if k != "name"},
        )
        for e in jaxpr.eqns
    ]


def assert_same_equations(f, g, *args):
    """Whether two functions of the same arrays compute the same, step by step."""
    one, two = jax.make_jaxpr(f)(*args), jax.make_jaxpr(g)(*args)
    assert equations(one.jaxpr) == equations(two.jaxpr)
    assert one.jaxpr.eqns


def snapshot(*nodes):
    """Everything there is to know of objects."""
    graphdef, state = gc.split(List(nodes))
    return graphdef, [id(leaf) for leaf in jax.tree.leaves(state)]
