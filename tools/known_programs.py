"""A pytest plugin with which a program is compiled once, whichever function it is of.

Tests make their functions anew, and JAX compiles each function anew, also where XLA has
compiled the very same program for another one. JAX's persistent cache knows programs by
what they compute. Here it lasts as long as the process: a folder that processes share
would be read by one while another writes, and one that stays could be of other code.

Use it with ``pytest -p tools.known_programs``.
"""

import tempfile

import jax
import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Gives JAX a folder for compiled programs, in each process that runs tests."""
    if config.getoption("numprocesses", None) and not hasattr(config, "workerinput"):
        return  # The workers do.
    folder = tempfile.TemporaryDirectory()
    config.add_cleanup(folder.cleanup)
    jax.config.update("jax_compilation_cache_dir", folder.name)
    # However small and quickly compiled: those of tests are.
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
