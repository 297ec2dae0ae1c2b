"""One model on the devices of two processes: the same as on those of one.

Run as a program, this file is one of the processes.
"""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import nnx_transforms as nnx

optax = pytest.importorskip("optax")
KINDS = (AxisType.Auto, AxisType.Explicit)
LAYOUT = {nnx.PathContains("kernel"): P(None, "model"), ...: P()}


def make(rngs):
    model = nnx.Linear(8, 16, rngs=rngs)
    return model, nnx.Optimizer(model, optax.adam(0.1))


@nnx.jit(constrain_state=True, donate_state=True)
def step(model, optimizer, x):
    loss, grads = nnx.value_and_grad(lambda m: (m(x) ** 2).mean())(model)
    optimizer.update(grads)
    return loss


def program(kind):
    """Makes a model in shards, and one that is moved there; trains both."""
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(kind, kind))
    batch = np.random.default_rng(0).normal(size=(8, 8)).astype(np.float32)
    found = {}
    with jax.set_mesh(mesh):
        moved = make(nnx.Rngs(0))
        nnx.shard(moved, LAYOUT)
        created = nnx.create_sharded(make, shardings=LAYOUT)(nnx.Rngs(0))
        for name, (model, optimizer) in {"moved": moved, "created": created}.items():
            x = jax.make_array_from_callback(
                batch.shape, NamedSharding(mesh, P("data")), lambda i: batch[i]
            )
            losses = [float(step(model, optimizer, x)) for _ in range(3)]
            rows = nnx.placement(optimizer)
            # Only what is here can be looked at.
            for variable in (model.kernel, optimizer.opt_state[0].mu["kernel"]):
                shards = variable.value.addressable_shards
                assert {s.data.shape for s in shards} == {(8, 8)}
                assert len(shards) == jax.local_device_count()
            held = list(rows.bytes_on.values())
            shapes = {row.path: row.shard_shape for row in rows}
            found[name] = {"losses": losses, "held": held, "shapes": shapes}
    return json.loads(json.dumps(found))  # tuples as lists


def main():
    process, address = sys.argv[1:]
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(address, 2, int(process))
    assert (jax.process_count(), jax.device_count()) == (2, 8)
    print("found:" + json.dumps([program(kind) for kind in KINDS]))


def test_two_processes_find_what_one_finds():
    if jax.device_count() < 8:  # asked here: a process joins the others before
        pytest.skip("needs eight devices, which the tests make on CPU")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    flags = "--xla_force_host_platform_device_count=4"
    env = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags}
    running = [
        subprocess.Popen(
            [sys.executable, str(Path(__file__)), str(process), address],
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for process in range(2)
    ]
    try:
        printed = [process.communicate(timeout=300)[0] for process in running]
    finally:
        for process in running:
            process.kill()
    assert [process.returncode for process in running] == [0, 0], "\n".join(printed)
    expected = [program(kind) for kind in KINDS]
    for output in printed:
        [line] = [x for x in output.splitlines() if x.startswith("found:")]
        found = json.loads(line.removeprefix("found:"))
        for ours, theirs in zip(found, expected, strict=True):
            for name in ("moved", "created"):
                losses = ours[name].pop("losses"), theirs[name]["losses"]
                np.testing.assert_allclose(*losses, rtol=1e-5)
                assert ours[name]["shapes"] == theirs[name]["shapes"]
                assert ours[name]["shapes"]["opt_state/0/nu/kernel"] == [8, 8]
                assert ours[name]["held"] == theirs[name]["held"]


if __name__ == "__main__":
    main()
