"""One process of the run: ``python -m tools.resume.training --help``.

It trains a small sharded model over all processes, saves each step in the background,
and starts where the last whole checkpoint is. It prints what it does, a line each.
"""

from __future__ import annotations

import argparse
import hashlib
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.experimental import multihost_utils
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import nnx_transforms as nnx
from nnx_transforms import saving
from tools.resume.processes import join_processes

WIDTH = 32


class Net(nnx.Module):
    """Layers of which one is used twice, with statistics and dropout."""

    def __init__(self) -> None:
        rngs = nnx.Rngs(0)
        self.first = nnx.Linear(8, WIDTH, rngs=rngs)
        self.inner = nnx.Linear(WIDTH, WIDTH, rngs=rngs)
        self.tied = self.inner
        self.norm = nnx.BatchNorm(WIDTH, rngs=rngs)
        self.dropout = nnx.Dropout(0.2, rngs=rngs)
        self.last = nnx.Linear(WIDTH, 1, rngs=rngs)
        self.calls = nnx.BatchStat(0)

    def __call__(self, x: jax.Array) -> jax.Array:
        self.calls.value += 1
        x = jnp.tanh(self.inner(jnp.tanh(self.first(x))))
        return self.last(self.dropout(self.norm(self.tied(x))))[:, 0]


def make_run() -> nnx.Dict:
    """A model with its optimizer."""
    model = Net()
    return nnx.Dict(model=model, optimizer=nnx.Optimizer(model, optax.adamw(0.01)))


def make_mesh() -> jax.sharding.Mesh:
    """Four devices, however many processes have them."""
    axis_types = (AxisType.Auto,) * 2
    return jax.make_mesh((2, 2), ("data", "model"), axis_types=axis_types)


def shardings(mesh: jax.sharding.Mesh) -> nnx.StateSharding:
    """Where what lies: matrices over both axes of the mesh, the rest everywhere."""

    def is_matrix(_: object, variable: object) -> bool:
        shape = getattr(getattr(variable, "value", None), "shape", ())
        return len(shape) == 2 and shape[1] == WIDTH

    split = NamedSharding(mesh, PartitionSpec("data", "model"))
    return nnx.StateSharding(
        {is_matrix: split, ...: NamedSharding(mesh, PartitionSpec())}
    )


def rows(mesh: jax.sharding.Mesh) -> NamedSharding:
    """Where the data lie."""
    return NamedSharding(mesh, PartitionSpec("data"))


def batch(step: int, mesh: jax.sharding.Mesh) -> jax.Array:
    """The data of a step, the same in every run."""
    data = np.random.default_rng(step).normal(size=(16, 8)).astype(np.float32)
    return jax.make_array_from_callback(data.shape, rows(mesh), lambda i: data[i])


def train_step(run: nnx.Dict, x: jax.Array) -> jax.Array:
    """One update of the parameters."""

    def loss(model: Net) -> jax.Array:
        return jnp.mean((model(x) - jnp.sin(x.sum(axis=1))) ** 2)

    value, grads = nnx.value_and_grad(loss)(run.model)
    run.optimizer.update(grads)
    return value


def digest(node: nnx.Dict) -> str:
    """A hash of all bits of a graph's state."""
    found = hashlib.sha256()
    for path, variable in nnx.state(node).flat_state():
        value = variable.value
        if isinstance(value, jax.Array):
            if jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
                value = jax.random.key_data(value)
            if not value.is_fully_addressable:
                value = multihost_utils.process_allgather(value, tiled=True)
        array = np.asarray(value)
        found.update(repr((path, str(array.dtype), array.shape)).encode())
        found.update(array.tobytes())
    return found.hexdigest()


def say(text: str) -> None:
    """Prints a line that the caller sees at once."""
    print(text, flush=True)


def main() -> None:
    """Runs one process of the training."""
    parser = argparse.ArgumentParser(prog="python -m tools.resume.training")
    parser.add_argument("folder", type=Path, help="where the checkpoints are")
    parser.add_argument("--steps", type=int, required=True)
    for name in ("process", "processes", "port"):
        parser.add_argument(f"--{name}", type=int, required=True)
    arguments = parser.parse_args()
    join_processes(arguments.process, arguments.processes, arguments.port)
    mesh = make_mesh()
    where = shardings(mesh)
    # The layout is always the same, so that sums are taken in the same order.
    train = nnx.jit(train_step, in_shardings=(where, rows(mesh)))
    with saving.Manager(arguments.folder, keep=2) as manager:
        run = nnx.eval_shape(make_run)
        start = manager.restore(run, sharding=where)
        if start is None:
            run = nnx.jit(make_run, out_shardings=where)()
        say(f"start {start or 0}")
        for step in range((start or 0) + 1, arguments.steps + 1):
            loss = train(run, batch(step, mesh))
            manager.save(step, run)
            say(f"step {step} {float(loss):.6f}")
    say(f"end {digest(run)}")


if __name__ == "__main__":
    main()
