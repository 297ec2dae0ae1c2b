"""Settings that hold for every test and example in the repository."""

import os

# Several CPU devices, so that sharding and collectives can be tested anywhere. XLA
# reads the flag when its first client is made, so it must be set before that; flags
# that the caller set are kept.
_DEVICES = "--xla_force_host_platform_device_count"
if _DEVICES not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_DEVICES}=8".strip()

# A worker process must leave room for the others on one accelerator.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
