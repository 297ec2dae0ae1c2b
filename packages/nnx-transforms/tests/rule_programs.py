"""Random objects, and random programs that change them, for rules of derivatives."""

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st

import graphcore as gc
from nnx_transforms import BatchStat, Dict, List, Param

SIZE = 2


@st.composite
def models(draw):
    """A node with shared variables in lists and dicts, and perhaps a cycle."""
    numbers = st.floats(-1.0, 1.0, width=32)
    variables = []
    for i in range(draw(st.integers(2, 4))):
        kind = draw(st.sampled_from([Param, BatchStat]))
        value = jnp.array([draw(numbers) for _ in range(SIZE)], jnp.float32)
        variables.append(kind(value, number=i))
    picks = st.lists(st.sampled_from(range(len(variables))), max_size=3)
    m = Dict(
        direct=variables[0],
        listed=List([variables[i] for i in draw(picks)]),
        plain={"a": [variables[i] for i in draw(picks)]},
        all=tuple(variables),
        count=BatchStat(jnp.array(0), number=-1),
    )
    if draw(st.booleans()):
        m.listed.append(m)
    return m


def inexact(m):
    """The inexact variables of a model, by number."""
    return list(m.all)


@st.composite
def programs(draw, count=2):
    """Steps of a program over the first variables of a model."""
    index = st.integers(0, count - 1)
    step = st.one_of(
        st.tuples(st.just("add"), index, index),
        st.tuples(st.just("scale"), index, index),
        st.tuples(st.just("count")),
        st.tuples(st.just("attach"), index),
        st.tuples(st.just("swap")),
    )
    return draw(st.lists(step, max_size=5))


def run(program, m, x):
    """Runs a program on a model; returns an array."""
    total = x
    for step in program:
        vs = inexact(m)
        if step[0] == "add":
            vs[step[1]].value = vs[step[1]].value + jnp.sin(vs[step[2]].value) * x
        elif step[0] == "scale":
            vs[step[1]].value = vs[step[1]].value * jnp.cos(vs[step[2]].value)
        elif step[0] == "count":
            m.count.value = m.count.value + 1
        elif step[0] == "attach":
            m.extra = Param(vs[step[1]].value * x)
        else:
            m.listed, m.other = List([m.plain["a"]]), m.listed
        total = total + sum(v.value * (i + 1) for i, v in enumerate(vs))
    return total * vs_sum(m)


def vs_sum(m):
    return 1.0 + sum(jnp.sum(v.value) for v in inexact(m))


def written(program):
    """The numbers of the inexact variables that a program writes."""
    return sorted({step[1] for step in program if step[0] in ("add", "scale")})


def values(m):
    return [v.value for v in inexact(m)]


def same_graph(a, b):
    """Whether two models are the same in structure, sharing and values."""
    a_def, a_state = gc.split(a)
    b_def, b_state = gc.split(b)
    assert a_def == b_def
    close(jax.tree.leaves(a_state), jax.tree.leaves(b_state))


def close(a, b):
    a, b = jax.tree.leaves(a), jax.tree.leaves(b)
    assert len(a) == len(b)
    for x, y in zip(a, b, strict=True):
        np.testing.assert_allclose(
            np.asarray(x, np.float64), np.asarray(y, np.float64), rtol=2e-5, atol=1e-5
        )


def primitives(jaxpr):
    """The primitives of all equations, those of inner jaxprs included."""
    found = []
    for equation in jaxpr.eqns:
        found.append(equation.primitive.name)
        for parameter in equation.params.values():
            inner = getattr(parameter, "jaxpr", parameter)
            if hasattr(inner, "eqns"):
                found += primitives(inner)
    return found
