"""`jit` against the function itself, on random programs."""

import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from jitted_models import Model

import nnx_transforms as nnx

# Against an independent rewrite


@st.composite
def programs(draw):
    """A list of small edits, each a function of a model and a number."""
    steps = draw(
        st.lists(
            st.tuples(st.integers(0, 9), st.integers(0, 3), st.integers(0, 3)),
            min_size=1,
            max_size=6,
        )
    )

    def variable(m, i):
        return [m.blocks[0].w, m.blocks[-1].w, m.plain[0].w, m.plain[1]["deep"].w][i]

    def run(m, x):
        total = x
        for op, i, j in steps:
            a, b = variable(m, i), variable(m, j)
            if op <= 1:
                a.value = a.value + b.value * x
            elif op == 2:
                m.blocks[0], m.blocks[-1] = m.blocks[-1], m.blocks[0]
            elif op == 3:
                setattr(m, f"made{i}", nnx.Cache(a.value * 2))
            elif op == 4 and hasattr(m, f"made{i}"):
                delattr(m, f"made{i}")
            elif op == 5:
                m.tied = b
            elif op == 6:
                m.plain.insert(2, m.blocks[0])
            elif op == 7:
                a.note = j
            elif op == 8:
                m.plain[1] = {"deep": m.plain[1]["deep"], "also": m.blocks[-1]}
            elif op == 9:
                m.extra = nnx.Dict(up=m, down=b)
            total = total + a.value.sum()
        return total

    return run


def canonical(root):
    """Identity pattern, types, statics, metadata and values of a graph."""
    order = {}
    lines = []

    def visit(path, x):
        if isinstance(x, nnx.Object | nnx.Variable):
            if id(x) in order:
                lines.append((path, "again", order[id(x)]))
                return
            order[id(x)] = len(order)
        if isinstance(x, nnx.Variable):
            value = np.asarray(x.value).tolist()
            lines.append((path, type(x).__name__, x.get_metadata(), value))
        elif isinstance(x, nnx.List | list):
            lines.append((path, type(x).__name__))
            for i, child in enumerate(x):
                visit((*path, i), child)
        elif isinstance(x, nnx.Object | dict):
            lines.append((path, type(x).__name__))
            for key, child in sorted((x if isinstance(x, dict) else vars(x)).items()):
                visit((*path, key), child)
        else:
            lines.append((path, x))

    visit((), root)
    return lines


@settings(max_examples=60)
@given(st.lists(programs(), min_size=1, max_size=3))
def test_jit_does_what_the_function_does(runs):
    ours, eager = Model(), Model()
    known = [ours, *ours.blocks, ours.plain[0], ours.plain[1]["deep"]]
    twins = [eager, *eager.blocks, eager.plain[0], eager.plain[1]["deep"]]
    for run in runs:
        x = jnp.array(2.0)
        np.testing.assert_allclose(nnx.jit(run)(ours, x), run(eager, x), rtol=1e-6)
        assert canonical(ours) == canonical(eager)
        # The caller's own objects, in the same roles.
        for a, b in zip(known, twins, strict=True):
            assert canonical(a) == canonical(b)
