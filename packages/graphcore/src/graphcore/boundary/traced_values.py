"""Which values JAX means where it refuses to tell the value of a traced array.

JAX names traced values by their places among the arguments of what it traces, as in
`variables[0][3]`. Each transformation puts them elsewhere; but a tracer tells its own
name, so what is meant is found here for all of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import jax

from graphcore.trails import Path, path_text

__all__ = ["explain_traced"]

ARGUMENT = "the argument at"
VALUE = "the value of the variable at"

# What was traced, and the names of values.
_ORIGIN = re.compile(
    r"(The error occurred while tracing .*? depends on the value)s? "
    r"of the arguments? (.*)\.$",
    re.MULTILINE,
)
# Each takes a search, and nobody reads a hundred.
_MAX_NAMES = 8
_BETWEEN = re.compile(r", and |, | and ")
_NO_NAME = "unknown"


def explain_traced(
    error: Exception, leaves: Iterable[tuple[Any, Path, str, tuple[str, ...]]]
) -> None:
    """Adds notes to an error of JAX that say what its traced values are.

    Args:
        error: What a function raised.
        leaves: What it was given: each value with its path, what stands there, and
            possible ends of the name that JAX has for it. These spare asking most
            tracers for their names, which takes time.
    """
    found = _ORIGIN.search(str(error))
    if found is None:
        return
    told = [note.partition(" is ")[0] for note in getattr(error, "__notes__", ())]
    told.append(_NO_NAME)
    names = [n for n in _BETWEEN.split(found[2])[:_MAX_NAMES] if n not in told]
    for leaf, path, what, ends in leaves:
        may_be_meant = any(name.endswith(ends) for name in names)
        if not may_be_meant or not isinstance(leaf, jax.core.Tracer):
            continue
        own = _ORIGIN.search(str(jax.errors.ConcretizationTypeError(leaf)))
        if own is None or own[1] != found[1]:
            return  # It is about another function, which this one calls.
        if own[2] in names:
            names.remove(own[2])
            place = path_text(path)
            # JAX's name may say the same, as `args[0]['x']` does for `args/0/x`, or
            # begin with the name of the parameter.
            said = re.sub(r"['\[\]]+", "/", own[2]).strip("/").partition("args/")[2]
            is_parameter = own[2].removesuffix(ends[0]).isidentifier()
            if said != place.removeprefix("args/") and not (
                what == ARGUMENT and is_parameter
            ):
                error.add_note(f"{own[2]} is {what} {place!r}.")
