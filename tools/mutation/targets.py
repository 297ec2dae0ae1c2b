"""What is mutated, and which tests may notice."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import NamedTuple

__all__ = ["ROOT", "STORE", "SUITES", "Suite", "modules"]

ROOT = Path(__file__).resolve().parents[2]
STORE = ROOT / ".cache" / "mutation"
"""Where coverage and results are kept between runs; git ignores it."""

_CORE = "packages/graphcore/src/graphcore"
_TRANSFORMS = "packages/nnx-transforms/src/nnx_transforms/transforms"
# Plans, walk, build, states, contexts and boundaries; and what transforms are made of.
_MUTATED = (
    *(f"{_CORE}/{name}/*.py" for name in ("cache", "graphdef", "state", "boundary")),
    *(f"{_CORE}/{name}" for name in ("divided/*.py", "nodes/pytrees.py")),
    *(f"{_CORE}/{name}.py" for name in ("context", "functional", "refmap", "undo")),
    *(f"{_CORE}/{name}.py" for name in ("content", "content_key", "editing")),
    *(f"{_TRANSFORMS}/{name}/*.py" for name in ("compiled", "derivatives")),
    *(f"{_TRANSFORMS}/{name}/*.py" for name in ("loops", "mapped")),
    *(f"{_TRANSFORMS}/{name}.py" for name in ("jit", "grad", "vmap", "map")),
)


class Suite(NamedTuple):
    """Tests that may notice.

    Args:
        tests: The folder.
        chosen: The files.
        ignored: Those of them that have nothing to do with what is mutated.
    """

    tests: str
    chosen: tuple[str, ...] = ("test_*.py",)
    ignored: tuple[str, ...] = ()


SUITES = (
    Suite("packages/graphcore/tests"),
    Suite(
        "packages/nnx-transforms/tests",
        ignored=(
            *("test_layers*.py", "test_saving*.py", "test_sharded.py", "test_pmap.py"),
        ),
    ),
    # What graphcore has for objects of these libraries.
    Suite("tests_integration", ("test_equinox*.py", "test_flax_*.py")),
)


def modules() -> list[Path]:
    """The files that are mutated, relative to the root of the repository."""
    found = {pattern: [*ROOT.glob(pattern)] for pattern in _MUTATED}
    if nowhere := [pattern for pattern, paths in found.items() if not paths]:
        raise FileNotFoundError(f"No file is where {nowhere} look for it.")
    return sorted(path.relative_to(ROOT) for path in {*chain(*found.values())})
