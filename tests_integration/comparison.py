"""What tests against another library compare."""

import jax
import jax.numpy as jnp
import numpy as np


def close(found, expected, tolerance=2e-5):
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    wide = lambda x: np.asarray(x).astype(complex if jnp.iscomplexobj(x) else float)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(wide(a), wide(b), rtol=tolerance, atol=tolerance)
