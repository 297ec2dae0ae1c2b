"""What compiled functions read of objects that they close over.

JAX compiles arrays that a function closes over in, as constants. Which of them are the
values of variables, the constants of the trace tell. Of traced values it does not tell:
there all that it may have read count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from operator import is_
from typing import Any, NamedTuple

import jax

from graphcore.authors import Bodies, enter, path_text


class CapturedReads:
    """The variables whose arrays a function has compiled in, and these arrays.

    Example:
        >>> import nnx_transforms as nnx, jax.numpy as jnp
        >>> w, reads = nnx.Param(jnp.ones(2)), CapturedReads()
        >>> def f(x): return w.value * x
        >>> reads.note([w], lambda: jax.jit(f).trace(1.0))[0] is w
        True
        >>> [*reads.changed()]
        []
        >>> w.value = jnp.zeros(2)
        >>> [*reads.changed()]
        ['<captured Param>']
    """

    def __init__(self) -> None:
        # By the ids of the variables, which it keeps.
        self._found: dict[tuple[int, ...], _Reads] = {}

    def __bool__(self) -> bool:
        return bool(self._found)

    def note(self, objects: Sequence[Any], trace: Callable[[], Any]) -> list[Any]:
        """Notes what a trace has as constants.

        Args:
            objects: The objects that the function closes over.
            trace: Returns JAX's trace of it.

        Returns:
            The variables of the objects whose arrays are surely among the constants.
        """
        read: list[Any] = []
        constants = _constants(trace().jaxpr) if objects else set()

        def is_read(x: Any) -> bool:
            return isinstance(x, jax.core.Tracer) or id(x) in constants

        for root in objects:
            try:
                entry = enter(iter, (root,), cache=Bodies(), only_read=True)
            except Exception:  # Nobody asked for it to be taken apart.
                continue
            layout, held = entry.joint.layout, entry.variables
            arrays = [*map(_arrays, layout.values(held))]
            chosen = [i for i, xs in enumerate(arrays) if any(map(is_read, xs))]
            if chosen:
                of = f"<captured {type(root).__name__}>"
                paths = entry.body.structure.joint.paths
                where = [path_text((of, *paths[i][1:])) for i in chosen]
                known = [arrays[i] for i in chosen]
                reads = _Reads(where, layout, held, chosen, known)
                self._found[tuple([id(held[i]) for i in chosen])] = reads
                read += [
                    held[i]
                    for i in chosen
                    if any(id(x) in constants for x in arrays[i])
                ]
        return read

    def changed(self) -> Iterator[str]:
        """The paths of those variables that hold other arrays now."""
        for reads in self._found.values():
            yield from reads.changed()

    def clear(self) -> None:
        """Forgets all of them."""
        self._found.clear()


class _Reads(NamedTuple):
    """What was read of one object.

    Args:
        where: The paths of the variables that were read.
        layout: What all of its variables are.
        variables: All of them.
        chosen: The numbers of those that were read.
        arrays: What these held: one array, or the leaves of a pytree.
    """

    where: Sequence[str]
    layout: Any
    variables: Sequence[Any]
    chosen: Sequence[int]
    arrays: Sequence[Sequence[Any]]

    def changed(self) -> Iterator[str]:
        try:
            now = self.layout.values(self.variables)
        except (AttributeError, LookupError):  # An array whose attribute is gone.
            yield from self.where
            return
        found = [now[i] for i in self.chosen]
        # In C, since a function may have read a whole model.
        if all(map(is_, found, [xs[0] for xs in self.arrays])):
            return
        for path, value, known in zip(self.where, found, self.arrays, strict=True):
            arrays = _arrays(value)
            if len(arrays) != len(known) or not all(map(is_, arrays, known)):
                yield path


def _arrays(value: Any) -> Sequence[Any]:
    return (value,) if isinstance(value, jax.Array) else jax.tree.leaves(value)


def _constants(jaxpr: Any) -> set[int]:
    """The constants of a trace, and of those within it, by id."""
    found: set[int] = set()
    seen: set[int] = set()
    pending = [jaxpr]
    while pending:
        at = pending.pop()
        if id(at) in seen or not hasattr(at, "eqns"):
            continue
        seen.add(id(at))
        arrays = [x for x in getattr(at, "consts", ()) if isinstance(x, jax.Array)]
        found.update(map(id, arrays))
        for equation in at.eqns:
            for x in equation.params.values():
                pending += x if isinstance(x, tuple | list) else [x]
    return found
