"""Names at the top level, and those of layers."""

import importlib
import pkgutil
import subprocess
import sys
import types

import jax
import pytest

import nnx_transforms as nnx
from nnx_transforms import layers

MODULES = sorted(module.name for module in pkgutil.iter_modules(layers.__path__))


@pytest.mark.parametrize("module", MODULES)
def test_names_are_what_the_module_offers(module):
    found = importlib.import_module(f"nnx_transforms.layers.{module}")
    offered = set(getattr(found, "__all__", ()))
    if module == "initializers":  # its names are below it
        offered = {"initializers", "ones_init", "zeros_init"}
    assert offered <= {*layers.__all__}
    for name in offered - {module}:
        value = getattr(found, name)
        assert getattr(nnx, name) is getattr(layers, name) is value


def test_activations_and_initializers_are_those_of_jax():
    assert nnx.gelu is jax.nn.gelu and nnx.one_hot is jax.nn.one_hot
    assert nnx.initializers.lecun_normal is jax.nn.initializers.lecun_normal
    assert nnx.initializers.zeros_init() is jax.nn.initializers.zeros
    assert nnx.initializers.ones_init() is jax.nn.initializers.ones


def test_names_are_listed_and_others_are_refused():
    assert {"LSTMCell", "initializers", "jit"} <= {*dir(nnx)} & {*nnx.__all__}
    assert "LSTMCell" in dir(layers)
    for module in (nnx, layers):
        with pytest.raises(AttributeError, match="no attribute 'Lstm'"):
            _ = module.Lstm


def test_modules_are_there_by_their_name_as_well():
    assert nnx.nn.linear.default_kernel_init is nnx.default_kernel_init
    assert nnx.nn.initializers is nnx.initializers
    assert nnx.ema.EMA is nnx.EMA
    assert nnx.optimizer.OptState is nnx.OptState
    # A function takes precedence over its module.
    assert not isinstance(nnx.custom_vjp, types.ModuleType)


def test_what_needs_more_is_imported_when_it_is_used():
    program = """
import sys, nnx_transforms as nnx
more = {f"nnx_transforms.{m}" for m in ("bridge", "experimental", "saving")}
assert not more & {*sys.modules} and "linen_lift" not in sys.modules
assert nnx.saving.restore and "nnx_transforms.saving" in sys.modules
namespace = {}
exec("from nnx_transforms import *", namespace)
assert namespace["MultiHeadAttention"] is nnx.MultiHeadAttention
assert "map" not in namespace and "bridge" not in namespace
"""
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize("name", ["bridge", "experimental", "saving"])
def test_what_needs_more_is_there_when_it_is_asked_for(name):
    pytest.importorskip("orbax.checkpoint")
    pytest.importorskip("linen_lift")
    assert getattr(nnx, name) is importlib.import_module(f"nnx_transforms.{name}")
    assert name in dir(nnx)
    assert name not in nnx.__all__  # `import *` imports nothing optional
