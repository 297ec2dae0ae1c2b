"""Where the arrays are that JAX speaks of when it refuses a compiled call.

JAX knows the values of variables by their numbers in lists, as `variables[3]`, and of
an array whose buffer is gone it tells the shape alone. These are common errors on
several devices and with donation, so what they mean is added to them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import jax

from graphcore.authors import path_text
from nnx_transforms.transforms.compiled.jit_body import JitBody

# The lists of values, as the forms of `JitBody` have them among their parameters.
_LISTS = r"((?:variables|kept|given)\[(\d+)\](?:\[(\d+)\])?)"
_VALUE = re.compile(f"(?:argument|key path) '?{_LISTS}", re.IGNORECASE)


def add_paths(error: BaseException, body: JitBody, values: Sequence[Any]) -> None:
    """Adds to an error of JAX's the paths of the variables that it is about.

    Args:
        error: What JAX said.
        body: The function.
        values: The raw values of the variables.
    """
    text = str(error)
    # As the compiled function has them: in one list, or in one a setting.
    numbers = range(len(values))
    groups = body.grouped(numbers)
    meant: dict[str, int] = {}
    for name, first, second in _VALUE.findall(text):
        if body.is_flat:
            meant[name] = numbers[int(first)]
        elif second:
            meant[name] = groups[int(first)][int(second)]
    notes = [
        f"{name} is the value of the variable at {_shown(body, position)}."
        for name, position in meant.items()
    ]
    if isinstance(error, RuntimeError) and "deleted" in text:
        notes += [
            f"The array of the variable at {_shown(body, position)} is gone: it was "
            "donated to an earlier call, or deleted."
            for position, value in enumerate(values)
            if any(map(_is_deleted, jax.tree.leaves(value)))
        ]
    for note in notes:
        error.add_note(note)


def _shown(body: JitBody, position: int) -> str:
    return repr(path_text(body.variable_path(position)))


def _is_deleted(x: Any) -> bool:
    return (
        isinstance(x, jax.Array)
        and not isinstance(x, jax.core.Tracer)
        and x.is_deleted()
    )
