"""Attributes of Flax's modules that are set together with those of ours."""

import pytest

import nnx_transforms as nnx

flax = pytest.importorskip("flax.nnx")


def test_modes_reach_modules_of_flax_in_a_module():
    class Mixed(nnx.Module):
        def __init__(self):
            self.norm = flax.BatchNorm(2, rngs=flax.Rngs(0))
            self.rest = [{"dropout": flax.Dropout(0.5, rngs=flax.Rngs(0))}]
            self.own = nnx.Dropout(0.5, rngs=nnx.Rngs(0))

    def modes(model):
        dropout = model.rest[0]["dropout"]
        settings = dropout.deterministic, model.norm.use_running_average
        return *settings, model.own.deterministic, dropout.rate

    model = Mixed()
    assert modes(model) == (False, False, False, 0.5)
    model.eval()
    assert modes(model) == (True, True, True, 0.5)
    model.set_attributes(flax.Dropout, rate=0.1)
    assert modes(model) == (True, True, True, 0.1)
    assert modes(nnx.with_attributes(model, deterministic=False))[0] is False
    with pytest.raises(ValueError, match="has the attribute"):
        model.set_attributes(rate=0.2, missing=1)
    model.train()
    assert modes(model) == (False, False, False, 0.1)
