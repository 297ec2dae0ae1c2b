"""`StateAxes` read as a mapping."""

import jax.numpy as jnp
import pytest

import nnx_transforms as nnx


def test_axes_made_of_other_axes():
    axes = nnx.StateAxes({nnx.Param: 0, nnx.BatchStat: None})
    assert dict(axes) == dict(axes.items()) == {nnx.Param: 0, nnx.BatchStat: None}
    assert (tuple(axes.keys()), tuple(axes.values())) == (axes.filters, axes.axes)
    assert axes[nnx.Param] == 0
    assert len(axes) == 2
    assert nnx.Param in axes
    with pytest.raises(KeyError):
        axes[nnx.Cache]
    assert [*axes] == [*axes.filters] and nnx.Cache not in axes
    outer = nnx.StateAxes({**axes, ...: None})
    norm = nnx.BatchNorm(2, rngs=nnx.Rngs(0))
    norm.scale.value = jnp.arange(6.0).reshape(3, 2)
    norm.bias.value = jnp.zeros((3, 2))
    doubled = nnx.vmap(lambda n: n.scale.value * 2, in_axes=(outer,))(norm)
    assert (doubled == 2 * norm.scale.value).all()


def test_the_first_filter_of_one_meaning_counts():
    axes = nnx.StateAxes([([nnx.Param], 0), ([nnx.Param], 1), (True, None)])
    assert (axes[[nnx.Param]], axes[...]) == (0, None)
