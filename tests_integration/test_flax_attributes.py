"""Modules of Flax in a module of ours, and in pytrees: listed and set like ours."""

import collections
import dataclasses
import subprocess
import sys
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import pytest

import nnx_transforms as nnx

flax = pytest.importorskip("flax.nnx")


class Block(flax.Module):
    def __init__(self, rngs):
        self.linear = flax.Linear(2, 3, rngs=rngs)
        self.dropout = flax.Dropout(0.5, rngs=rngs)

    def __call__(self, x):
        return self.dropout(self.linear(x))


def test_modules_of_flax_are_listed():
    class Mixed(nnx.Module):
        def __init__(self):
            self.blocks = [Block(flax.Rngs(0))]
            self.last = nnx.Linear(3, 4, rngs=nnx.Rngs(0))

        def __call__(self, x):
            return self.last(self.blocks[0](x))

    model = Mixed()
    own = {("blocks", 0, "linear"), ("blocks", 0, "dropout"), ("blocks", 0)}
    assert {path for path, _ in model.iter_modules()} == {*own, ("last",), ()}
    assert dict(nnx.iter_modules(model))["blocks", 0] is model.blocks[0]
    block = model.blocks[0]
    assert [*flax.iter_modules(block)] == [*nnx.iter_modules(block)]
    assert dict(nnx.iter_module_children(block)).keys() == {"linear", "dropout"}
    rows = nnx.tabulate(model, jnp.ones((5, 2))).splitlines()
    shown = {tuple(row.split()[:3]) for row in rows}
    assert shown >= {
        ("blocks/0", "Block", "float32[5,3]"),
        ("blocks/0/linear", "Linear", "float32[5,3]"),
        ("last", "Linear", "float32[5,4]"),
    }
    assert "kernel: float32[2,3]" in nnx.tabulate(block, jnp.ones((5, 2)))


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


@pytest.mark.parametrize("library", [nnx, flax])
@pytest.mark.parametrize(
    ("make", "place"),
    [
        (lambda x: [x] * 70, 3),
        (lambda x: collections.OrderedDict(a=x, b=x), "a"),
        (lambda x: {"a": [x] * 70}, "a"),
    ],
)
def test_a_module_that_refers_to_itself_may_take_the_place_of_arrays(
    library, make, place
):
    class Cell(flax.Module):
        def __init__(self):
            self.itself = self
            self.w = flax.Param(jnp.ones(1))

    class Model(library.Module):
        def __init__(self):
            self.parts = library.data(make(jnp.ones(2)))

    @nnx.jit
    def count(model):
        parts = model.parts.values() if place == "a" else model.parts
        return sum(isinstance(part, Cell) for part in parts)

    model = Model()
    for _ in range(3):
        assert count(model) == 0
    model.parts[place] = Cell()
    for _ in range(3):  # JAX alone would look into the module without an end
        assert count(model) == 1


class Pair(NamedTuple):
    first: Any
    second: Any


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Holder:
    held: Any


@pytest.mark.parametrize("around", [lambda x: Pair(x, 1.0), Holder])
def test_a_module_that_refers_to_itself_may_stand_in_any_pytree(around):
    class Cell(flax.Module):
        def __init__(self):
            self.itself = self
            self.n = flax.Variable(jnp.array(0))

    @nnx.jit
    def count(tree):
        held = tree[0] if isinstance(tree, Pair) else tree.held
        held[0].n[...] += 1
        return tree

    cell = Cell()
    tree = around([cell, {"more": cell}])
    for _ in range(3):
        tree = count(tree)
    found = jax.tree.leaves(tree, is_leaf=lambda x: isinstance(x, Cell))
    assert found[0] is found[1] is cell
    assert int(cell.n[...]) == 3


def test_the_first_module_that_a_program_passes_may_refer_to_itself():
    program = """if True:
        import collections, flax.nnx, jax, nnx_transforms as nnx
        class Cell(flax.nnx.Module):
            def __init__(self):
                self.itself = self
                self.n = flax.nnx.Variable(jax.numpy.array(2))
        Pair = collections.namedtuple("Pair", "first second")
        assert int(nnx.jit(lambda pair: pair.first.n[...])(Pair(Cell(), 1.0))) == 2
    """
    subprocess.run([sys.executable, "-c", program], check=True)


def test_what_a_transform_adds_is_to_jax_what_it_is_if_added_outside():
    def change(block):
        block.extra, block.width = flax.Param(jnp.ones(4)), 3
        block.linear.extra = flax.Param(jnp.ones(5))
        del block.linear.bias

    inside, outside = Block(flax.Rngs(0)), Block(flax.Rngs(0))
    nnx.jit(change)(inside)
    change(outside)
    for block in (inside, nnx.clone(inside)):
        assert jax.tree.structure(block) == jax.tree.structure(outside)


@pytest.mark.skipif(not hasattr(flax, "data"), reason="arrays are no data")
def test_what_an_update_adds_is_data_to_jax():
    updated, other = Block(flax.Rngs(0)), Block(flax.Rngs(0))
    more = {"extra": flax.Param(jnp.ones(4)), "linear": {"more": jnp.ones(5)}}
    nnx.update(updated, more)
    other.extra, other.linear.more = flax.Param(jnp.ones(4)), jnp.ones(5)
    assert jax.tree.structure(updated) == jax.tree.structure(other)


@pytest.mark.skipif(not hasattr(flax, "List"), reason="lists are no modules")
def test_arrays_in_a_list_are_written():
    block = Block(flax.Rngs(0))
    block.parts = flax.List([jnp.ones(2), flax.Param(jnp.ones(2))])

    def double(block):
        block.parts[0] = 2 * block.parts[0]

    nnx.jit(double)(block)
    assert block.parts[0].tolist() == [2.0, 2.0]
    nnx.update(block, jax.tree.map(jnp.zeros_like, nnx.state(block)))
    assert block.parts[0].tolist() == [0.0, 0.0]
