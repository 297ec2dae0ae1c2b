"""Settings that hold for every test and example in the repository."""

import os

import pytest
from hypothesis import HealthCheck, settings

# Several CPU devices, so that sharding and collectives can be tested anywhere. XLA
# reads the flag when its first client is made, so it must be set before that; flags
# that the caller set are kept.
_DEVICES = "--xla_force_host_platform_device_count"
if _DEVICES not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_DEVICES}=8".strip()

# Adapters are loaded by themselves, when an object of their library is met.
collect_ignore_glob = [
    f"packages/*/src/*/adapters/{library}.py" for library in ("equinox", "flax")
]

# A worker process must leave room for the others on one accelerator.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

# No deadline: the first call of a jitted function compiles. Chosen with pytest's
# --hypothesis-profile; by default "ci", with the same examples in each run, where the
# variable CI is set.
_SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]
settings.register_profile("dev", deadline=None, suppress_health_check=_SLOW)
settings.register_profile("ci", settings.get_profile("dev"), derandomize=True)
settings.register_profile("thorough", settings.get_profile("dev"), max_examples=2000)
settings.load_profile("ci" if os.environ.get("CI") else "dev")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skips a test that is marked to need more devices than there are."""
    for marker in item.iter_markers("devices"):
        import jax  # not before the flags above are set

        (due,) = marker.args
        if jax.device_count() < due:
            pytest.skip(f"needs {due} devices")
