"""One of two processes that save, restore and meet damaged checkpoints together."""

import argparse
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils

import nnx_transforms as nnx
from nnx_transforms import saving
from tools.resume.processes import join_processes
from tools.resume.training import digest, make_mesh, make_run, shardings


class Everything(nnx.Module):
    """Arrays that are spread over the processes, and some that each has for itself."""

    def __init__(self, run, seed):
        self.run = run
        self.rngs = nnx.Rngs(seed)
        self.count = nnx.Variable(jnp.array(seed))
        self.on_host = nnx.Variable(np.full(3, seed))
        self.number = nnx.Variable(seed)


def everything(where, seed):
    run = nnx.jit(make_run, out_shardings=where)()
    run.model.last.bias.value += seed
    return Everything(run, seed)


def damaged_manager(folder, node, mesh):
    """The last step can be read by nobody, the one before not by the last process."""
    with saving.Manager(folder) as manager:
        for step in (1, 2, 3):
            node.run.optimizer.step.value += 1
            manager.save(step, node)
        manager.wait()
        if jax.process_index() == 0:
            arrays = (path for path in (folder / "3").rglob("d/*"))
            largest = max(arrays, key=lambda path: path.stat().st_size)
            largest.write_bytes(largest.read_bytes()[:-100])
        multihost_utils.sync_global_devices("damaged")
        read = saving.files.read_arrays
        if jax.process_index() == 1:

            def failing(directory, requests):
                if directory.name == "2":
                    raise saving.DamagedCheckpointError("for this process alone")
                return read(directory, requests)

            saving.files.read_arrays = failing
        try:
            found = manager.restore(node)
        finally:
            saving.files.read_arrays = read
        steps = manager.steps
        manager.save(2, node)
    return found, steps


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    for name in ("process", "processes", "port"):
        parser.add_argument(f"--{name}", type=int)
    arguments = parser.parse_args()
    join_processes(arguments.process, arguments.processes, arguments.port)
    folder, mesh = arguments.folder, make_mesh()
    where = shardings(mesh)

    node = everything(where, 1)
    kernel = node.run.model.inner.kernel.value
    saving.restore(folder / "by_one", node)
    assert node.run.model.inner.kernel.value.sharding == kernel.sharding
    assert not kernel.is_fully_addressable
    print("read", digest(node))
    # What is drawn goes on from the same place in every process.
    assert node.rngs.default.count.value.is_fully_addressable
    print("drawn", jax.random.key_data(node.rngs()).tolist())

    saving.save(folder / "by_two", node)
    saving.export_safetensors(folder / "by_two.safetensors", node)
    print("written", digest(node))

    print("found", *damaged_manager(folder / "steps", node, mesh))
    print("step", int(node.run.optimizer.step.value))


if __name__ == "__main__":
    main()
