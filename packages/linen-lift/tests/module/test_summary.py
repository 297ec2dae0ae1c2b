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
    assert "P(None, model)" in table and "Total Parameters: 8" in table


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


COUNTED = {"compute_flops": True, "compute_vjp_flops": True}


def rows(table):
    """The cells of each row by path."""
    lines = [line.strip("|").split("|") for line in table.splitlines() if "|" in line]
    header, *rest = [[cell.strip() for cell in line] for line in lines]
    return {row[0]: dict(zip(header, row, strict=True)) for row in rest if row[1]}


def test_calls_of_other_methods_have_rows():
    class Two(nn.Module):
        def setup(self):
            self.coder = Coder()

        def encode(self, x):
            return self.coder.encode(x)

    class Coder(nn.Module):
        @nn.compact
        def encode(self, x):
            return nn.Dense(5)(x)

    found = rows(Two().tabulate(KEY, x=jnp.ones((2, 3)), method="encode"))
    assert list(found) == ["", "coder", "coder/Dense_0"]
    assert found["coder"]["module"] == "Coder (encode)"
    assert found[""]["inputs"] == "x: float32[2,3]"


def test_flops_inside_of_a_lifted_transform():
    class Model(nn.Module):
        @nn.compact
        def __call__(self, x):
            split = {"params": False}
            loop = nn.scan(
                nn.SimpleCell, variable_broadcast="params", split_rngs=split, in_axes=1
            )
            return loop(4, name="loop")(jnp.zeros((2, 4)), x)

    found = rows(Model().tabulate(KEY, jnp.ones((2, 5, 3)), **COUNTED))
    # 2 x 3 x 4 multiplications, as many additions, for each step of the loop.
    assert (found["loop/i"]["inputs"], found["loop/i"]["flops"]) == (
        "float32[2,3]",
        "56",
    )
    assert int(found["loop/i"]["vjp_flops"]) > 56 < int(found["loop"]["flops"])


def test_flops_of_modules_that_share_submodules():
    class Model(nn.Module):
        @nn.compact
        def __call__(self, x):
            return nn.WeightNorm(nn.Dense(3))(x)

    found = rows(Model().tabulate(KEY, jnp.ones((2, 4)), **COUNTED))
    assert int(found["WeightNorm_0"]["flops"]) > int(found["Dense_0"]["flops"]) > 0
    paths = Model().module_paths(KEY, jnp.ones((2, 4)))
    norm = paths["WeightNorm_0"]
    assert norm.init_with_output(KEY, jnp.ones((2, 4)))[0].shape == (2, 3)


def test_nothing_to_count():
    class Empty(nn.Module):
        def __call__(self):
            return 1

    table = Empty().tabulate({}, **COUNTED)
    assert rows(table)[""] | {"outputs": "1", "flops": "0"} == rows(table)[""]
    assert "Total Parameters: 0 (0 B)" in table
    ints = rows(nn.Embed(3, 4).tabulate(KEY, jnp.ones((1, 2), int), **COUNTED))
    assert int(ints[""]["vjp_flops"]) > 0


def test_operations_that_nobody_counts_are_unknown(monkeypatch):
    # As on a GPU where JAX is told to use no CPU.
    monkeypatch.setattr(jax.stages.Lowered, "cost_analysis", lambda self: None)
    found = rows(nn.Dense(3).tabulate(KEY, jnp.ones((2, 4)), **COUNTED))
    assert (found[""]["flops"], found[""]["vjp_flops"]) == ("unknown", "unknown")


def test_as_a_function():
    make = nn.tabulate(Net(), KEY, depth=1, compute_flops=True)
    x = jnp.ones((2, 3))
    assert make(x) == Net().tabulate(KEY, x, depth=1, compute_flops=True)


def test_what_is_in_scopes_of_ones_own_is_counted_once():
    class Tower(nn.Module):
        @nn.compact
        def __call__(self, x):
            layers = self.scope.push("layers")
            for i in range(2):
                x = nn.Dense(3, parent=layers.push(str(i)))(x)
            return x

    table = Tower().tabulate(KEY, jnp.ones((1, 3)))
    assert "layers/1" in table
    assert "Total Parameters: 24" in table


def test_variables_that_hold_dicts_are_listed():
    class Counted(nn.Module):
        @nn.compact
        def __call__(self, x):
            self.variable("state", "seen", lambda: {"n": jnp.zeros(()), "x": [x]})
            return nn.Dense(3)(x)

    table = Counted().tabulate(KEY, jnp.ones((1, 3)))
    (row,) = (r for r in table.split("+--") if "Counted" in r and "Summary" not in r)
    assert "seen/n: float32[]" in row and "seen/x/[0]: float32[1,3]" in row
    assert "4 (16 B)" in row and "kernel" not in row


def test_submodules_that_are_not_called_are_listed_with_their_parent():
    class Quiet(nn.Module):
        def setup(self):
            self.w = self.param("w", nn.initializers.zeros, (5,))

    class Loud(nn.Module):
        @nn.compact
        def __call__(self, x):
            return x * Quiet().w.sum()

    assert "Quiet_0/w: float32[5]" in Loud().tabulate(KEY, jnp.ones((1, 3)))
