"""What one process compiled, the next one finds in JAX's cache on disk.

So it is only if a process makes the same program as another. With several hosts it has
to, since they run it together.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("optax")

PROGRAM = Path(__file__).with_name("compiling_program.py")


def compiled(folder, seed):
    """Runs the program in a process of its own, and returns what is in the cache."""
    env = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "PYTHONHASHSEED": str(seed),
        "JAX_COMPILATION_CACHE_DIR": str(folder),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    subprocess.run([sys.executable, str(PROGRAM)], env=env, check=True, timeout=600)
    return {path.name for path in folder.iterdir() if path.name.endswith("-cache")}


def test_each_process_makes_the_same_programs(tmp_path):
    first = compiled(tmp_path, 1)
    for name in ("jit_training_step", "jit_loops"):
        assert any(each.startswith(name) for each in first), first
    assert compiled(tmp_path, 2) - first == set()
