"""Checkpoints of several processes, and runs that are killed."""

import jax
import pytest
from jax.sharding import AxisType

import nnx_transforms as nnx
from nnx_transforms import saving
from tools.resume.killing import check
from tools.resume.processes import Processes
from tools.resume.training import digest, shardings

pytest.importorskip("orbax.checkpoint")
from saving_program import everything


def test_one_process_and_two_read_each_other(tmp_path):
    types = (AxisType.Auto,) * 2
    mesh = jax.make_mesh((1, 8), ("data", "model"), axis_types=types)
    node = everything(shardings(mesh), 5)
    node.run.optimizer.step.value += 7
    saving.save(tmp_path / "by_one", node)
    arguments = [str(tmp_path)]
    log = tmp_path / "log"
    with Processes("tests_integration.saving_program", arguments, 2, log) as both:
        one, other = both.finish()
    assert one == other
    read, drawn, written, found, step = one
    assert read == f"read {digest(node)}"
    assert drawn == f"drawn {jax.random.key_data(node.rngs()).tolist()}"
    # Back here, on yet another mesh, and without any of the arrays.
    written_digest = written.removeprefix("written ")
    assert digest(node) == written_digest
    other_mesh = jax.make_mesh((4, 1), ("data", "model"), axis_types=types)
    abstract = nnx.eval_shape(lambda: everything(None, 0))
    saving.restore(tmp_path / "by_two", abstract, sharding=shardings(other_mesh))
    assert digest(abstract) == written_digest
    exported = saving.read_values(tmp_path / "by_two.safetensors")
    kernel = node.run.model.first.kernel.value
    assert (exported["run/model/first/kernel"] == kernel).all()
    # A checkpoint that one process can't read is refused in both.
    assert found == "found 1 [1]"
    assert step == "step 8"


def test_a_run_that_is_killed_ends_as_one_that_is_not(tmp_path, capfd):
    assert check(tmp_path, kills=3, count=2, seed=1), capfd.readouterr().out
