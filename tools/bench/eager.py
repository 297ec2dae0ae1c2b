"""Calls outside of `jit`, where a transform runs at each call.

JAX keeps the traces of loops and branches with their functions, so a second call of the
same function is a lookup. What is measured is such a call; what is counted is how often
Python runs the functions in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp

import nnx_transforms as nnx
from tools.bench import peers
from tools.bench.measuring import Effort, Measured, compare
from tools.bench.results import Bar, Row, Section, Spread, Table

LIMIT = 2.0
CONSTANT = 60e-6
PER_OBJECT = 20e-6
"""What a call may take: so many times JAX's own, and so many seconds beside it."""
ARRAYS, OBJECTS = "arrays", "objects"
LENGTH = 4

Calls = dict[str, Callable[[], Any]]


class _Runs:
    """Counts how often Python runs some functions."""

    def __init__(self) -> None:
        self.count = 0

    def counted(self, f: Callable[..., Any]) -> Callable[..., Any]:
        """The function, counted."""

        def run(*args: Any) -> Any:
            self.count += 1
            return f(*args)

        return run


def run(effort: Effort) -> Section:
    """Measures second calls.

    Args:
        effort: How long to measure.

    Returns:
        The tables and bars.
    """
    section = Section("eager", "Outside of jit")
    table = Table(
        "eager",
        "A second call of the same function, outside of jit",
        "s",
        peers.BY_HAND,
        [peers.BY_HAND, peers.NNX, peers.FLAX],
        [],
    )
    section.tables.append(table)
    for case, objects, calls, runs in _cases():
        measured: dict[str, Measured] = {}
        for name, call in calls.items():
            try:
                call()
            except Exception:  # a peer that can't do this
                if name != peers.FLAX:
                    raise
                continue
            measured[name] = call
        by_hand, ours = (_runs_in(runs, calls[n]) for n in (peers.BY_HAND, peers.NNX))
        more = float(max(0, ours - by_hand))
        bar = f"runs of functions beyond JAX's own: {case}"
        section.bars.append(Bar(bar, Spread(more, more, more), 0))
        cells = compare(measured, effort.of(0.2))
        table.rows.append(Row(case, None, cells))
        found = cells[peers.NNX].ratio
        assert found is not None
        extra = CONSTANT + PER_OBJECT * objects
        limit = LIMIT + extra / cells[peers.BY_HAND].value.median
        section.bars.append(Bar(f"second call over by hand: {case}", found, limit))
    return section


def _runs_in(runs: _Runs, call: Callable[[], Any]) -> int:
    before = runs.count
    call()
    return runs.count - before


def _cases() -> Iterator[tuple[str, int, Calls, _Runs]]:
    """Name, number of objects, what each library does, and what it runs."""
    for of in (ARRAYS, OBJECTS):
        runs = _Runs()
        libraries = {peers.BY_HAND: _by_hand(runs), peers.NNX: _of(nnx, of, runs)}
        if peers.flax_nnx is not None:
            # As it is by default, which is not always what follows changes.
            libraries[peers.FLAX] = _of(peers.flax_nnx, of, _Runs())
        for name in libraries[peers.BY_HAND]:
            calls = {library: found[name] for library, found in libraries.items()}
            yield f"{name} of {of}", int(of == OBJECTS), calls, runs


def _by_hand(runs: _Runs) -> Calls:
    lax, x, w = jax.lax, jnp.float32(1.0), jnp.full((3,), 0.5)
    stack = jnp.full((LENGTH, 3), 0.5)
    add = runs.counted(lambda w, x: x + w)
    times = runs.counted(lambda w, x: x * w)
    step = runs.counted(lambda x, w: (x + w, None))
    below = runs.counted(lambda c: c[0] < LENGTH)
    count = runs.counted(lambda c: (c[0] + 1, c[1] * 0.5))
    index = runs.counted(lambda i, w: w * 0.5)
    remat = jax.checkpoint(times)
    vmapped = jax.vmap(times, in_axes=(0, None))
    return {
        "scan": lambda: lax.scan(step, w, stack),
        "cond": lambda: lax.cond(True, add, times, w, x + w),
        "switch": lambda: lax.switch(1, [add, times], w, x + w),
        "while_loop": lambda: lax.while_loop(below, count, (0, w)),
        "fori_loop": lambda: lax.fori_loop(0, LENGTH, index, w),
        "vmap": lambda: vmapped(stack, x),
        "remat": lambda: remat(w, x),
    }


def _of(library: Any, of: str, runs: _Runs) -> Calls:
    """The same through a library, of its objects or of arrays."""
    x, w, stack = jnp.float32(1.0), jnp.full((3,), 0.5), jnp.full((LENGTH, 3), 0.5)
    model, layers = w, stack
    if of == OBJECTS:

        class Model(library.Module):  # type: ignore[misc]
            def __init__(self, w: Any) -> None:
                self.w = library.Param(w)

        model, layers = Model(w), Model(stack)

    def read(m: Any) -> Any:
        return m if of == ARRAYS else m.w[...]

    add = runs.counted(lambda m, x: x + read(m))
    times = runs.counted(lambda m, x: x * read(m))
    step = runs.counted(lambda x, m: x + read(m))
    below = runs.counted(lambda c: c[0] < LENGTH)

    def halve(m: Any) -> Any:
        if of == ARRAYS:
            return m * 0.5
        m.w[...] = m.w[...] * 0.5
        return m

    count = runs.counted(lambda c: (c[0] + 1, halve(c[1])))
    index = runs.counted(lambda i, m: halve(m))
    scan = library.scan(step, in_axes=(library.Carry, 0), out_axes=library.Carry)
    remat = library.remat(times)
    vmapped = library.vmap(times, in_axes=(0, None))
    return {
        "scan": lambda: scan(w, layers),
        "cond": lambda: library.cond(True, add, times, model, x + w),
        "switch": lambda: library.switch(1, [add, times], model, x + w),
        "while_loop": lambda: library.while_loop(below, count, (0, model)),
        "fori_loop": lambda: library.fori_loop(0, LENGTH, index, model),
        "vmap": lambda: vmapped(layers, x),
        "remat": lambda: remat(model, x),
    }
