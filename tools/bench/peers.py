"""The libraries that are compared, where they are installed."""

from __future__ import annotations

import importlib
import importlib.metadata
import inspect
import os
import platform
from typing import Any

import jax

RAW = "raw JAX"
BY_HAND = "by hand"
NNX = "nnx-transforms"
CORE = "graphcore"
LIFT = "linen-lift"
FLAX = "Flax NNX"
FLAX_UPDATES = "Flax NNX, graph updates"
FLAX_GRAPH = "Flax NNX, graph"
FLAX_TREE = "Flax NNX, tree"
FLAX_PARTIAL = "Flax NNX, jit_partial"
LINEN = "Flax Linen"
EQUINOX = "Equinox"


def _installed(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except Exception:  # missing, or too old for this JAX
        return None


flax_nnx = _installed("flax.nnx")
flax_linen = _installed("flax.linen")
equinox = _installed("equinox")


def flax_modes(transform: Any) -> dict[str, dict[str, bool]]:
    """The modes that a transform of Flax NNX has, as keyword arguments.

    Args:
        transform: For instance `flax.nnx.jit`.

    Returns:
        The arguments by the name of the mode. An older Flax has only one mode, which
        follows changes of the graph.
    """
    parameters = inspect.signature(transform).parameters
    if "graph_updates" not in parameters:
        return {FLAX_UPDATES: {}}
    return {
        FLAX_UPDATES: {"graph": True, "graph_updates": True},
        FLAX_GRAPH: {"graph": True, "graph_updates": False},
        FLAX_TREE: {"graph": False, "graph_updates": False},
    }


def missing() -> list[str]:
    """Notes on the peers that are left out."""
    peers = {"Flax NNX": flax_nnx, "Flax Linen": flax_linen, "Equinox": equinox}
    return [
        f"{name} is left out: it can't be imported here."
        for name, module in peers.items()
        if module is None
    ]


def environment() -> dict[str, Any]:
    """What the measurements depend on beside the code."""
    versions = {}
    for name in ("jax", "jaxlib", "numpy", "flax", "equinox"):
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    device = jax.devices()[0]
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        "load": load,
        "device": f"{device.platform}: {device.device_kind}",
        "versions": versions,
    }
