"""Where the arrays are that JAX speaks of when it refuses a compiled call.

JAX knows the values of variables by their numbers in lists, as `variables[3]`, and of
an array whose buffer is gone it tells the shape alone. So what that means is added to
its errors.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import jax
from jax.sharding import Sharding

from graphcore.authors import path_text
from nnx_transforms.transforms.compiled.jit_body import JitBody

# The lists of values, as the forms of `JitBody` have them among their parameters.
_LISTS = r"((?:_?variables|kept|given\[0\])(\[\d+\])(\[\d+\])?)"
_VALUE = re.compile(f"(?:arguments?|path(?: is)?|,|and|both) '?{_LISTS}", re.IGNORECASE)

_MOST = 5  # notes of one kind


def explain_arrays(error: Exception, body: JitBody, values: Sequence[Any]) -> None:
    """Adds notes to an error of JAX that give the paths of the variables it means.

    Args:
        error: What a call raised.
        body: The function.
        values: The raw values of the variables.

    Raises:
        TypeError: If a variable holds what JAX does not take, with the path.
    """
    if isinstance(error, TypeError):
        body.blame(values, error)
    text = str(error)
    if "while tracing the function " not in text:  # then a note was added inside
        for name, place in _named(text, body, len(values)):
            error.add_note(f"{name} is the value of the variable at {place}.")
    if isinstance(error, ValueError) and text.startswith("Sharding "):
        # JAX does not say which value it is that lies elsewhere, and JAX 0.9 and 0.10
        # not which can't be divided so.
        fits = _lies_there if "does not match" in text else _divides
        pairs = zip(body.structure.settings.variables, values, strict=True)
        wrong = [i for i, pair in enumerate(pairs) if not fits(*pair)]
        for position in wrong[:_MOST]:
            error.add_note(f"It is the variable at {_shown(body, position)}.")
        if len(wrong) > _MOST:
            error.add_note(f"So are {len(wrong) - _MOST} more.")
    if isinstance(error, RuntimeError) and "deleted" in text:
        for position, value in enumerate(values):
            if any(_is_concrete(x) and x.is_deleted() for x in jax.tree.leaves(value)):
                error.add_note(
                    f"The array of the variable at {_shown(body, position)} is gone: "
                    "it was donated to an earlier call, or deleted."
                )


def _named(text: str, body: JitBody, count: int) -> Iterator[tuple[str, str]]:
    """Finds the names of values in a text, with the places of their variables."""
    # The compiled function has them in one list, or in one list for each setting.
    if body.is_flat:
        positions = {f"[{i}]": i for i in range(count)}
    else:
        positions = {
            f"[{number}][{i}]": position
            for number, group in enumerate(body.grouped(range(count)))
            for i, position in enumerate(group)
        }
    for name, first, second in dict.fromkeys(_VALUE.findall(text)):
        position = positions.get(first if body.is_flat else first + second)
        if position is not None:
            yield name, _shown(body, position)


def _shown(body: JitBody, position: int) -> str:
    return repr(path_text(body.variable_path(position)))


def _divides(sharding: Any, value: Any) -> bool:
    for x in jax.tree.leaves(value) if isinstance(sharding, Sharding) else ():
        try:
            sharding.shard_shape(getattr(x, "shape", ()))
        except ValueError:
            return False
    return True


def _lies_there(sharding: Any, value: Any) -> bool:
    return not isinstance(sharding, Sharding) or all(
        x.sharding.is_equivalent_to(sharding, x.ndim)
        for x in jax.tree.leaves(value)
        if _is_concrete(x) and x.committed
    )


def _is_concrete(x: Any) -> bool:
    return isinstance(x, jax.Array) and not isinstance(x, jax.core.Tracer)
