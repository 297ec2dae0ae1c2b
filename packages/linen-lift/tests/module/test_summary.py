import sys

import jax
import jax.numpy as jnp
import pytest

import linen_lift as nn

KEY = jax.random.key(0)


class Block(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.BatchNorm(use_running_average=True)(x)
        return nn.Dense(3, name="out")(nn.Dense(5)(x))


class Net(nn.Module):
    @nn.compact
    def __call__(self, x):
        block = Block()
        return block(block(x))


def test_the_table_lists_submodules_and_variables():
    table = Net().tabulate(KEY, jax.ShapeDtypeStruct((2, 3), jnp.float32))
    rows = [line for line in table.splitlines() if "Dense" in line]
    assert "Net Summary" in table
    assert any("Block_0/Dense_0" in row and "float32[2,5]" in row for row in rows)
    assert sum("Block_0/out" in row for row in table.splitlines()) == 1
    assert "kernel: float32[3,5]" in table and "mean: float32[3]" in table
    # 15 + 5 + 15 + 3 parameters, 3 + 3 of BatchNorm's, and as many statistics.
    assert "44 (176 B)" in table and "6 (24 B)" in table
    assert "Total Parameters: 50 (200 B)" in table
    order = [table.index(p) for p in ("Block_0/BatchNorm_0", "Block_0/Dense_0")]
    assert order == sorted(order)


def test_depth_and_repetition():
    x = jnp.ones((2, 3))
    shallow = Net().tabulate(KEY, x, depth=1)
    assert "Block_0/Dense_0" not in shallow and "out/kernel" in shallow
    assert "Total Parameters: 50" in shallow
    lines = Net().tabulate(KEY, x, show_repeated=True).splitlines()
    assert sum("Block_0/out" in line for line in lines) >= 1


def test_boxes_show_their_names():
    init = nn.with_partitioning(nn.initializers.ones, (None, "model"))
    table = nn.Dense(2, kernel_init=init).tabulate(KEY, jnp.ones((1, 3)))
    assert "P(None, 'model')" in table and "Total Parameters: 8" in table


def test_with_and_without_rich(monkeypatch):
    x = jnp.ones((2, 3))
    options = {"width": 200, "force_terminal": False}
    pytest.importorskip("rich")
    assert "━" in Net().tabulate(KEY, x, console_kwargs=options)
    for name in ("rich", "rich.console", "rich.table", "rich.text"):
        monkeypatch.setitem(sys.modules, name, None)
    plain = Net().tabulate(KEY, x, console_kwargs=options)
    assert plain == Net().tabulate(KEY, x)


def test_lifted_modules_have_one_row():
    Loop = nn.scan(
        lambda_free_block(),
        variable_axes={"params": 0},
        split_rngs={"params": True},
        length=3,
    )
    lines = Loop().tabulate(KEY, jnp.ones((2, 3)), None).splitlines()
    assert sum("Dense_0" in line for line in lines) == 1


def lambda_free_block():
    class Body(nn.Module):
        @nn.compact
        def __call__(self, x, _):
            return nn.Dense(3)(x), None

    return Body
