"""Makes the helper module of this folder importable, and looks for leaked tracers."""

import gc
import sys
from pathlib import Path

import jax
import pytest

sys.path.insert(0, str(Path(__file__).parent))

# The folders whose tests run lifted transforms.
LIFTED = {"transforms", "lift"}


@pytest.fixture(autouse=True, scope="module")
def quick_compilation(request):
    """The time goes into compiling what runs once."""
    # Elsewhere some values must agree in every bit, compiled or not.
    quick = request.path.parent.name in {*LIFTED, "layers"}
    jax.config.update("jax_disable_most_optimizations", quick)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


@pytest.fixture(autouse=True, scope="module")
def thawed():
    """After each module, lets the collector look again at what `no_leaks` froze."""
    yield
    gc.unfreeze()


@pytest.fixture(autouse=True)
def no_leaks(request):
    """Every test of a lifted transform fails if a tracer outlives its trace."""
    if request.path.parent.name not in LIFTED:
        yield
        return
    # The check collects garbage after many traces. What is older than the test holds
    # none of its tracers only by a cycle, so it need not be looked through each time.
    gc.collect()
    gc.freeze()
    with jax.checking_leaks():
        yield
