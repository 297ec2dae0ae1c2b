"""Plain classes of arrays as nodes."""

import abc
import dataclasses
import gc as garbage
import types
import weakref
from collections.abc import Mapping
from typing import Generic, TypeVar

import jax
import jax.numpy as jnp
import pytest

import graphcore as gc
from graphcore.authors import enter

T = TypeVar("T")


@gc.register_dataclass
@dataclasses.dataclass
class Layer:
    weight: jax.Array
    name: str = "layer"


class Wide(Layer):
    pass


@gc.register_dataclass
@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    weight: jax.Array
    part: Layer


@gc.register_dataclass
class Plain:
    pass


def run(f, *args):
    entry = enter(f, args)
    return entry.commit(*jax.jit(entry.body)(*entry.values))


def test_arrays_are_leaves_and_written_in_place():
    layer = Layer(jnp.ones(2))

    def double(layer):
        layer.weight = layer.weight * 2

    run(double, layer)
    assert layer.weight.tolist() == [2.0, 2.0] and layer.name == "layer"


def test_a_subclass_is_a_node_as_well():
    wide = Wide(jnp.ones(2))
    copy = gc.clone(gc.Dict(part=wide)).part
    assert type(copy) is Wide and copy.weight.shape == (2,)
    run(lambda w: setattr(w, "weight", w.weight + 1), wide)
    assert wide.weight.tolist() == [2.0, 2.0]


def test_a_subclass_may_add_slots_and_be_registered_itself():
    class Slotted(Layer):
        __slots__ = ("bias",)

    slotted = Slotted(jnp.ones(2))
    slotted.bias = jnp.zeros(2)

    def shift(x):
        x.bias = x.bias + x.weight

    for _ in range(2):
        run(shift, slotted)
    assert slotted.bias.tolist() == [2.0, 2.0]
    slotted.bias = jnp.ones(2)  # a change that no dict shows
    run(shift, slotted)
    assert slotted.bias.tolist() == [2.0, 2.0]
    for bias in ("none", 0):  # changes of what is static, likewise
        slotted.bias = bias
        assert run(lambda x: x.bias == "none", slotted) == (bias == "none")
    del slotted.bias
    assert not run(lambda x: hasattr(x, "bias"), slotted)
    slotted.bias = jnp.full(2, 2.0)
    gc.register_dataclass(Slotted)
    with pytest.raises(ValueError, match="registered"):
        gc.register_dataclass(Slotted)
    assert gc.clone(slotted).bias.tolist() == [2.0, 2.0]


def test_frozen_and_slotted_classes_are_written_too():
    frozen = Frozen(jnp.ones(2), Layer(jnp.zeros(3)))

    def replace(frozen):
        frozen.part.weight = frozen.part.weight + 1
        object.__setattr__(frozen, "weight", frozen.weight + 1)

    run(replace, frozen)
    assert frozen.weight.tolist() == [2.0, 2.0]
    assert frozen.part.weight.tolist() == [1.0] * 3


def test_identity_holds_within_a_graph():
    layer = Layer(jnp.ones(2))
    copy = gc.clone(gc.Dict(a=layer, b=layer))
    assert copy.a is copy.b and copy.a is not layer


def test_attributes_come_and_go():
    layer = Layer(jnp.ones(2))

    def rename(layer):
        layer.bias = jnp.zeros(3)
        del layer.name

    run(rename, layer)
    assert layer.bias.shape == (3,) and "name" not in vars(layer)


def test_a_static_attribute_is_part_of_the_definition():
    one, other = (gc.graphdef(Layer(jnp.ones(2), name)) for name in "ab")
    assert one != other and one == gc.graphdef(Layer(jnp.zeros(2), "a"))


def test_a_class_is_registered_once():
    with pytest.raises(ValueError, match="registered"):
        gc.register_dataclass(Layer)


def test_a_dropped_instance_is_freed_without_the_collector():
    layer = Layer(jnp.ones(2))
    run(lambda layer: setattr(layer, "weight", layer.weight + 1), layer)
    reference = weakref.ref(layer)
    garbage.disable()
    try:
        del layer
        assert reference() is None
    finally:
        garbage.enable()


def test_private_slots_are_children_too():
    @gc.register_dataclass
    class Hidden:
        __slots__ = ("__weight", "scale")

        def __init__(self):
            self.__weight, self.scale = jnp.ones(2), jnp.ones(3)

        def double(self):
            self.__weight = self.__weight * 2
            return self.__weight

    hidden = Hidden()
    assert run(Hidden.double, hidden).tolist() == [2.0, 2.0]
    assert gc.clone(hidden).double().tolist() == [4.0, 4.0]


@pytest.mark.parametrize("base", [Generic[T], abc.ABC, Mapping])
def test_bases_of_python_that_hold_nothing_but_attributes(base):
    kind = types.new_class("Layer", (base,))
    kind.__abstractmethods__ = frozenset()
    gc.register_dataclass(kind)
    layer = kind()
    layer.w = jnp.ones(2)
    assert gc.clone(layer).w.shape == (2,)


@pytest.mark.parametrize("base", [list, dict, tuple, Exception, types.SimpleNamespace])
def test_classes_that_hold_more_than_attributes_are_refused(base):
    refused = pytest.raises(ValueError, match="Layers hold more than attributes")
    with refused:
        gc.register_dataclass(type("Layers", (base,), {}))
    # A subclass of a registered one, when it is met.
    with refused:
        gc.clone(gc.Dict(a=type("Layers", (base, Plain), {})()))
