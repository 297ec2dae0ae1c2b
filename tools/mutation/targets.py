"""What is mutated, and which tests may notice."""

from __future__ import annotations

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
    *(f"{_CORE}/{folder}/*.py" for folder in ("cache", "graphdef", "state")),
    f"{_CORE}/boundary/*.py",
    *(f"{_CORE}/{name}.py" for name in ("context", "functional", "refmap", "undo")),
    *(f"{_CORE}/{name}.py" for name in ("content", "content_key", "editing")),
    *(f"{_TRANSFORMS}/{name}.py" for name in ("jit", "jit_body", "traced", "guards")),
    *(f"{_TRANSFORMS}/{name}.py" for name in ("grad", "differentiation", "donation")),
    *(f"{_TRANSFORMS}/{name}.py" for name in ("vmap", "mapping", "mapping_errors")),
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
    Suite("tests_integration", ("test_equinox.py", "test_flax_models.py")),
)


def modules() -> list[Path]:
    """The files that are mutated, relative to the root of the repository."""
    found = {path for pattern in _MUTATED for path in ROOT.glob(pattern)}
    return sorted(path.relative_to(ROOT) for path in found)
