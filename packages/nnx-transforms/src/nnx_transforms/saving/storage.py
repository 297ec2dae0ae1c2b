"""How a checkpoint lies in its directory: the parts that orbax writes and reads.

Orbax makes a checkpoint appear as a whole. What becomes of it later it notices in part,
deep in its reading and not quietly, and a flipped bit of an array not at all. So the
checksums of the files are noted when they are complete, and compared first.
"""

from __future__ import annotations

import json
import reprlib
import threading
import zlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import numpy as np

from graphcore import Filter
from nnx_transforms.saving.arrays import Request, restore_args, to_write
from nnx_transforms.saving.contents import (
    Contents,
    check_selection,
    contents_of,
    is_plain,
)
from nnx_transforms.saving.errors import DamagedCheckpointError
from nnx_transforms.saving.names import text_of

# The parts of a checkpoint, and the file with the checksums.
ARRAYS, CONTENTS, CHECKSUMS = "arrays", "contents", "checksums.json"
_PIECE = 1 << 24
# Held while a saving starts: what starts in two threads at once, orbax mixes up.
starting = threading.RLock()


def handlers() -> Any:
    """The orbax handlers that write and read the parts."""
    import orbax.checkpoint as ocp

    class Arrays(ocp.PyTreeCheckpointHandler):  # type: ignore[misc]
        def finalize(self, directory: Any) -> None:
            super().finalize(directory)
            names = [
                str((folder / name).relative_to(directory))
                for folder, _, files in directory.walk()
                for name in files
            ]
            checksums = json.dumps(_checksums(directory, names))
            (directory / CHECKSUMS).write_text(checksums)

    registry = ocp.handlers.DefaultCheckpointHandlerRegistry()
    registry.add(ARRAYS, ocp.args.PyTreeSave, Arrays())
    registry.add(CONTENTS, ocp.args.JsonSave, ocp.JsonCheckpointHandler())
    return registry


def save_arguments(node: Any, filter: Filter) -> Any:
    """What orbax is to save of a graph.

    Args:
        node: The graph.
        filter: Which of its variables.

    Returns:
        Orbax's arguments.

    Raises:
        TypeError: If a variable holds something that can't be saved, with its path.
        ValueError: If the filter selects nothing.
    """
    import orbax.checkpoint as ocp
    import tensorstore

    contents, values = contents_of(node, filter)
    check_selection(contents, node, filter)
    for name, value in values.items():
        leaf = contents.leaves[name]
        is_array = isinstance(value, jax.Array | np.ndarray | np.generic) and (
            leaf.is_key or not leaf.is_stored or hasattr(tensorstore, value.dtype.name)
        )
        # Orbax writes neither what a traced value stands for nor the mask of an array.
        if isinstance(value, jax.core.Tracer | np.ma.MaskedArray) or not (
            is_array or is_plain(value)
        ):
            raise TypeError(
                f"The value at {text_of(name)!r} can't be saved: it is "
                f"{reprlib.repr(value)} of type {type(value).__name__}, expected an "
                "array of a dtype that orbax can write, a number or a string. Leave it "
                "out with `filter=`."
            )
    parts = {CONTENTS: ocp.args.JsonSave(contents.to_json())}
    arrays = {
        name: to_write(values[name])
        for name, leaf in contents.leaves.items()
        if leaf.is_stored
    }
    if arrays:
        parts[ARRAYS] = ocp.args.PyTreeSave(arrays)
    return ocp.args.Composite(**parts)


def read_contents(directory: Any) -> Contents:
    """Reads what a checkpoint says of itself.

    Args:
        directory: The checkpoint.

    Returns:
        The description.

    Raises:
        FileNotFoundError: If there is no checkpoint.
        DamagedCheckpointError: If it is not whole.
        ValueError: If it is something else than a checkpoint of ours.
        NotImplementedError: If it was made by a newer version of this package.
    """
    import orbax.checkpoint as ocp

    if not directory.exists():
        raise FileNotFoundError(
            f"There is no checkpoint {str(directory)!r}. A saving that did not finish "
            "leaves none."
        )
    if ocp.utils.is_tmp_checkpoint(directory):
        raise _damaged(directory, "its saving did not finish")
    if problem := _no_checkpoint(directory):
        raise ValueError(f"{str(directory)!r} is no checkpoint of a graph: {problem}")
    try:
        found = ocp.JsonCheckpointHandler().restore(directory / CONTENTS)
        return Contents.from_json(found)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _damaged(directory, error) from error


def _no_checkpoint(directory: Any) -> str:
    """What to do with something that was never a checkpoint of ours; empty for one."""
    if not directory.is_dir():
        return "it is no directory. `saving.load` reads files of other programs."
    items = sorted(directory.iterdir())
    names = [item.name for item in items]
    if ARRAYS in names or CONTENTS in names:
        return ""
    is_of_orbax = "_CHECKPOINT_METADATA" in names
    places = [directory, *(items if is_of_orbax else ())]
    if any((place / "_METADATA").exists() for place in places):
        return "another program wrote it. `saving.load` reads such."
    if steps := sorted(int(name) for name in names if name.isdecimal()):
        last = str(directory / str(steps[-1]))
        return f"it holds the steps {steps}. Restore {last!r}, or use a `Manager`."
    if names and not is_of_orbax:
        return f"it is a folder with {', '.join(names[:5])}. Restore what is in it."
    return ""


def read_arrays(directory: Any, requests: Mapping[str, Request]) -> dict[str, Any]:
    """Reads arrays. Processes do not wait for each other here.

    Args:
        directory: The checkpoint.
        requests: By name.

    Returns:
        By name, what `placed` takes.

    Raises:
        DamagedCheckpointError: If they can't be read.
    """
    import orbax.checkpoint as ocp

    stored = {name: r for name, r in requests.items() if r.leaf.is_stored}
    if not stored:
        return {}
    _check_files(directory / ARRAYS)
    arguments = ocp.args.PyTreeRestore(
        item=dict.fromkeys(stored, 0),
        restore_args={name: restore_args(r) for name, r in stored.items()},
        partial_restore=True,
    )
    handler = ocp.PyTreeCheckpointHandler()
    try:
        found = dict(handler.restore(directory / ARRAYS, args=arguments))
    except (MemoryError, jax.errors.JaxRuntimeError):
        raise
    except Exception as error:  # There is no common type for what can be wrong.
        raise _damaged(directory, error) from error
    for name, request in stored.items():
        due = request.leaf.shape
        # For what is not there, orbax returns what stands for it in `item`. The data of
        # keys have one more axis, or more.
        shape = getattr(found[name], "shape", None)
        if shape is None or shape[: len(due)] != due:
            raise _damaged(directory, f"its array {text_of(name)!r} is another one")
    return found


def _check_files(arrays: Any) -> None:
    """Compares the checksums of the files; of several processes, each takes some."""
    try:
        noted = json.loads((arrays / CHECKSUMS).read_text())
        names = sorted(noted)[jax.process_index() :: jax.process_count()]
        found = _checksums(arrays, names)
    except (OSError, ValueError, TypeError) as error:
        raise _damaged(arrays.parent, error) from error
    for name in names:
        if found[name] != noted[name]:
            raise _damaged(arrays.parent, f"{name} is not what was written")


def _checksums(directory: Any, names: list[str]) -> dict[str, int]:
    with ThreadPoolExecutor() as pool:
        found = pool.map(lambda name: _checksum(directory / name), names)
        return dict(zip(names, found, strict=True))


def _checksum(path: Any) -> int:
    found = 0
    with path.open("rb") as file:
        while piece := file.read(_PIECE):
            found = zlib.crc32(piece, found)
    return found


def _damaged(directory: Any, problem: object) -> DamagedCheckpointError:
    return DamagedCheckpointError(
        f"{str(directory)!r} is not a whole checkpoint of a graph: {str(problem)[:300]}"
    )
