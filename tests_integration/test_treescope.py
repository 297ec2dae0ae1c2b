"""How treescope renders objects, states and definitions."""

import jax
import jax.numpy as jnp
import pytest
from small_models import Net

import nnx_transforms as nnx

treescope = pytest.importorskip("treescope")
# treescope looks at what NumPy and JAX are about to remove.
pytestmark = pytest.mark.filterwarnings("default::DeprecationWarning")


def test_an_object_shows_its_attributes_and_what_it_shares():
    text = treescope.render_to_text(Net())
    for part in ("Net(", "first=", "kernel=", "Param(", "calls=", "BatchStat("):
        assert part in text
    # The tied layer, seen under both of its names, is marked as one object.
    assert text.count("Repeated python obj") >= 2


def test_a_cycle_ends():
    node = nnx.Dict(v=nnx.Param(jnp.ones(2)))
    node.me = node
    text = treescope.render_to_text(node)
    assert text.count("Param(") == 1 and "cyclic reference" in text


def test_pages_for_notebooks():
    net = Net()
    graphdef, state = nnx.split(net)
    for shown in (net, [net, 1], state, graphdef, net.first.kernel):
        html = treescope.render_to_html(shown, compressed=False)
        assert "kernel" in html or "Param" in html


def test_objects_inside_and_outside_of_traces():
    seen = []

    @nnx.jit
    def f(net, x):
        seen.append(treescope.render_to_text(net))
        return net(x)

    f(Net(), jnp.ones((2, 8)))
    assert "Net(" in seen[0]
    abstract = nnx.eval_shape(Net)
    assert "float32" in treescope.render_to_text(abstract)
    assert isinstance(abstract.calls.value, jax.ShapeDtypeStruct)
