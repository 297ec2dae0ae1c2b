"""A live graph with its plain twin, and the steps of a program on both."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import sys
import threading
from collections.abc import Callable
from typing import Any

import jax
import jax.experimental
import numpy as np

import nnx_transforms as nnx
from tools.soak import layers
from tools.soak.actions import (
    ANYWHERE,
    BEHIND,
    STRUCTURE,
    Action,
    Survey,
    act,
    digest,
    pick,
)
from tools.soak.comparing import LIVE, PLAIN, Different, Twins, abstract
from tools.soak.kits import FUSE, Planned, leaves, mapped

__all__ = ["Again", "Call", "Edit", "Rebuild", "Step", "Threads", "World", "draw_step"]

Choose = Callable[[int], int]
"""Gives a number below another one: of a random generator, or of Hypothesis."""


@dataclasses.dataclass(frozen=True)
class Edit:
    """Actions on the graph as it is, by plain Python."""

    actions: tuple[Action, ...]


@dataclasses.dataclass(frozen=True)
class Call:
    """A call of a new transformed function.

    Args:
        transforms: Their names, the outermost first.
        actions: What the function does.
        second: Another argument: an inner node, by number; -1 for none.
        returned: The inner object that it returns; -1 for none.
        fails: What raises an error after all that; a name in `_FAILURES`.
        fuse: Which call of the functions that registered types have raises; 0 for none.
        attempts: Whether it calls a function in it that fails, and goes on.
    """

    transforms: tuple[str, ...]
    actions: tuple[Action, ...]
    second: int = -1
    returned: int = -1
    fails: str = ""
    fuse: int = 0
    attempts: bool = False


@dataclasses.dataclass(frozen=True)
class Again:
    """Calls of a function that was called before."""

    number: int
    times: int = 1


@dataclasses.dataclass(frozen=True)
class Rebuild:
    """The graph is taken apart and put together again.

    Args:
        way: How; a method of `World`.
        number: Something that the way depends on.
        fuse: As for a call.
    """

    way: str
    number: int = 0
    fuse: int = 0


@dataclasses.dataclass(frozen=True)
class Threads:
    """Programs on graphs of their own in several threads, with common functions."""

    programs: tuple[tuple[Any, ...], ...]


Step = Edit | Call | Again | Rebuild | Threads
# What raises an error, with the transforms in which JAX does not take it.
_FAILURES = {
    "function": {""},
    "hook": {""},
    "callback": {"jit_donating", "remat", "gradient", "custom_rule", "vmap"},
}
_WAYS = ("clone", "merge", "flatten", "update", "pop", "hold", "eval_shape")
_ALL = (
    *layers.COMPILED,
    *("remat", "gradient", "context", "cond", "switch", "fori_loop", "while_loop"),
    *("custom_rule", "vmap", "scan"),
)


def draw_action(choose: Choose, names: tuple[str, ...]) -> Action:
    return Action(pick(names, choose(len(names))), *(choose(16) for _ in range(3)))


def draw_step(choose: Choose, *, alone: bool = True) -> Step:
    """Draws a step of a program.

    Args:
        choose: The source of numbers; 0 gives what is simplest.
        alone: Whether other threads may be started.
    """
    kind = choose(20)
    if kind < 5:
        names = STRUCTURE + ANYWHERE + BEHIND
        return Edit(tuple(draw_action(choose, names) for _ in range(1 + choose(4))))
    if kind < 12:
        return draw_call(choose)
    if kind < 16:
        return Again(choose(6), 1 + choose(3))
    if kind < 19 or not alone:
        way = _WAYS[choose(len(_WAYS))]
        return Rebuild(way, choose(16), _draw_fuse(choose))
    return Threads(
        tuple(
            tuple(draw_step(choose, alone=False) for _ in range(1 + choose(4)))
            for _ in range(2 + choose(3))
        )
    )


def draw_call(choose: Choose) -> Call:
    """Draws a call, of transforms that go together."""
    transforms: list[str] = []
    for _ in range(1 + choose(3)):
        name = _ALL[choose(len(_ALL))]
        if _fits(name, transforms):
            transforms.append(name)
    reshaping = all(name in layers.RESHAPING for name in transforms)
    names = ANYWHERE + STRUCTURE if reshaping and choose(2) else ANYWHERE
    actions = tuple(draw_action(choose, names) for _ in range(1 + choose(4)))
    objects_leave = all(n in (*layers.COMPILED, "remat") for n in transforms)
    return Call(
        tuple(transforms),
        actions,
        second=choose(6) - 1,
        returned=choose(6) - 1 if objects_leave else -1,
        fails=_draw_failure(choose, transforms),
        # An error after the call itself can't bring donated buffers back.
        fuse=0 if "jit_donating" in transforms else _draw_fuse(choose),
        attempts=choose(6) == 5,
    )


def _draw_failure(choose: Choose, transforms: list[str]) -> str:
    names = [n for n, bad in _FAILURES.items() if not bad.intersection(transforms)]
    return pick(names, choose(16)) if choose(6) == 5 else ""


def _draw_fuse(choose: Choose) -> int:
    return max(choose(16) - 8, 0)


def _fits(name: str, outer: list[str]) -> bool:
    if name in layers.MAPS:
        return not any(m in outer for m in layers.MAPS)
    if name in ("context", "jit_donating"):  # what they need is outside of any trace
        return not outer
    if name == "gradient":
        return not any(n in outer for n in ("gradient", "custom_rule"))
    if name in ("while_loop", "custom_rule"):  # JAX can't differentiate them as it is
        return not any(n in outer for n in ("gradient", "custom_rule"))
    return True


class Function:
    """A transformed function with its plain twin.

    Args:
        call: What it is.
    """

    def __init__(self, call: Call) -> None:
        self.about = call
        self.traces = 0
        # What it was called with: without the numbers, and which arrays are shared.
        self.known: dict[Any, set[Any]] = {}
        count = 1 + (call.second >= 0)
        self.live = self._body(LIVE)
        self.plain = self._body(PLAIN)
        for name in reversed(call.transforms):
            self.live = layers.live(name, self.live, count)
            self.plain = layers.plain(name, self.plain)

    def _body(self, kit: Any) -> Callable[..., Any]:
        call = self.about
        mapped = "vmap" in call.transforms

        def body(*args: Any) -> Any:
            *roots, x = args
            self.traces += kit is LIVE
            for number, action in enumerate(call.actions):
                act(kit, roots, x, action, mapped)
                if number == 0 and call.attempts and kit is LIVE:
                    _attempt(roots, x, call)
            if call.fails and kit is LIVE:
                _fail(call, roots)
            y = digest(kit, roots, x)
            if call.returned < 0:
                return y
            found = Survey(kit, roots)
            return y, pick(found.nodes + found.variables, call.returned)

        return body

    def args(self, kit: Any, root: Any) -> tuple[Any, ...]:
        """The arguments of a call with a graph."""
        depth = sum(name in layers.MAPS for name in self.about.transforms)
        x = np.asarray(3, np.float32)
        if depth:
            x = np.arange(layers.SIZE, dtype=np.float32) + 1
        roots = [root]
        if self.about.second >= 0:
            roots.append(pick(Survey(kit, roots).nodes, self.about.second))
        return *roots, kit.array(x)


def _attempt(roots: list[Any], x: Any, call: Call) -> None:
    """A call that fails in the middle must leave no trace of itself."""

    @nnx.jit
    def failing(*roots: Any) -> None:
        for action in call.actions:
            act(LIVE, roots, x, action._replace(i=action.i + 1))
        raise Planned

    try:
        failing(*roots)
    except Planned:
        return
    raise Different("a nested function did not raise its error")


def _fail(call: Call, roots: list[Any]) -> None:
    """Raises an error, now or when the compiled function runs."""
    if call.fails == "callback":
        jax.experimental.io_callback(_refuse, None)
        return
    found = Survey(LIVE, roots).variables
    if call.fails == "hook" and found:
        v = pick(found, call.second)
        LIVE.note(v, {**LIVE.notes(v), "on_set_value": _refuse})
        v.value = mapped(lambda a: a + 1, v.value)
        raise Different("a hook was not called")
    raise Planned


def _refuse(*args: Any) -> None:
    raise Planned


class World:
    """A live graph with its plain twin, and what was done with them.

    Args:
        functions: Functions that were made before, in another world.
    """

    def __init__(self, functions: tuple[Function, ...] = ()) -> None:
        self.live, self.plain = (self._first(kit) for kit in (LIVE, PLAIN))
        # Objects that the caller holds on to, whether the root reaches them or not.
        self.held: list[tuple[Any, Any]] = []
        self.functions: list[Function] = [*functions]
        self._twins = Twins()
        self._counts_traces = not functions
        self.check()

    @staticmethod
    def _first(kit: Any) -> Any:
        root, inner, bag = (kit.node(kind) for kind in ("Node", "List", "Bag"))
        value = kit.array(np.asarray(2, np.float32))
        root.a = kit.variable("Param", value, {})
        root.b, root.c, bag.a = inner, bag, root.a
        inner.append(root.a)
        inner.append(kit.variable("Stacked", kit.array(np.ones(2, np.float32)), {}))
        return root

    def check(self) -> None:
        """Compares everything.

        Raises:
            Different: If anything is not as it should be.
        """
        live, plain = zip((self.live, self.plain), *self.held, strict=True)
        self._twins.check(live, plain)

    def do(self, step: Any) -> None:
        """Does a step on both graphs, and compares them.

        Raises:
            Different: If they are not the same afterwards.
        """
        if isinstance(step, Edit):
            for kit, root in ((LIVE, self.live), (PLAIN, self.plain)):
                for action in step.actions:
                    act(kit, [root], kit.array(np.asarray(3, np.float32)), action)
        elif isinstance(step, Call):
            self.functions = [*self.functions[-5:], Function(step)]
            self.call(self.functions[-1])
        elif isinstance(step, Again):
            if self.functions:
                for _ in range(step.times):
                    self.call(pick(self.functions, step.number))
        elif isinstance(step, Rebuild):
            with FUSE.lit(step.fuse), contextlib.suppress(Planned):
                getattr(self, step.way)(step.number)
        else:
            self.in_threads(step.programs)
        self.check()

    def call(self, function: Function) -> None:
        """Calls a function with both graphs."""
        about = function.about
        args = function.args(PLAIN, self.plain)
        key = abstract(args[:-1])
        live_args = function.args(LIVE, self.live)
        # A buffer of two variables is not given away, which may take another trace.
        donates = about.transforms[0] == "jit_donating"
        shared = donates and _shared_arrays(live_args[:-1])
        if donates:  # What holds one besides is lost with it, as in JAX.
            given = _places_of_arrays(live_args[:-1])
            self.held = [h for h in self.held if not _is_given(h[0], given)]
        traces = function.traces
        try:
            with FUSE.lit(about.fuse):
                found = function.live(*live_args)
        except (Planned, jax.errors.JaxRuntimeError):
            if about.fails or about.fuse:
                return
            raise
        if about.fails:
            raise Different("the error of the function did not come out")
        expected = function.plain(*args)
        counts_traces = self._counts_traces and not about.fuse
        if counts_traces and about.transforms[0] in layers.COMPILED:
            traced = function.traces > traces
            if key not in function.known and not traced:
                raise Different("no trace of a function for its arguments")
            if shared in function.known.get(key, ()) and traced:
                raise Different("another trace of a function for its arguments")
            function.known.setdefault(key, set()).add(shared)
        if about.returned >= 0:
            (found, held), (expected, plain_held) = found, expected
            self.held = [*self.held[-2:], (held, plain_held)]
        if not np.array_equal(found, expected):
            raise Different(f"the function returned {found}, not {expected}")

    # Taking the graph apart and putting it together

    def clone(self, _: int) -> None:
        self._now(nnx.clone(self.live))

    def merge(self, number: int) -> None:
        filters: Any = [(), (nnx.Param, ...), (Survey(LIVE, []), ...)][number % 2]
        self._now(nnx.merge(*nnx.split(self.live, *filters)))

    def flatten(self, _: int) -> None:
        graphdef, state = nnx.flatten(self.live)
        self._now(nnx.unflatten(graphdef, state))

    def _now(self, live: Any) -> None:
        """The root is a new graph that looks the same."""
        if live is self.live:
            raise Different("a copy is the object itself")
        self.check()  # The old one is as it was.
        self.live, self.plain = live, copy.deepcopy(self.plain)
        self.held = []

    def update(self, number: int) -> None:
        """What was overwritten is brought back from a state."""
        saved = nnx.state(self.live)
        x = LIVE.array(np.asarray(3, np.float32))
        for k in range(3):
            act(LIVE, [self.live], x, Action("add", number + k, number, 0))
            act(LIVE, [self.live], x, Action("write_bare", number + k, number, 0))
        before = digest(LIVE, [self.live], x)
        try:
            nnx.update(self.live, saved)
        except Planned:
            if not np.array_equal(digest(LIVE, [self.live], x), before):
                raise Different("half of a state was written") from None
            nnx.update(self.live, saved)

    def pop(self, number: int) -> None:
        kind = ("BatchStat", "Count")[number % 2]
        if self._may_pop(kind):
            nnx.pop(self.live, type(LIVE.variable(kind, 0, {})))
            for holder in Survey(PLAIN, [self.plain]).nodes:
                for key, child in reversed(PLAIN.children(holder) or ()):
                    if PLAIN.is_variable(child) and child.kind == kind:
                        PLAIN.drop(holder, key)

    def _may_pop(self, kind: str) -> bool:
        """A plain container has no way to lose a child, a list would close up."""
        places = Survey(PLAIN, [self.plain]).places
        holders = [holder for holder, variable in places if variable.kind == kind]
        return bool(holders) and all(
            PLAIN.is_node(holder) and holder.kind != "List" for holder in holders
        )

    def hold(self, number: int) -> None:
        """The caller keeps an inner object."""
        live, plain = Survey(LIVE, [self.live]), Survey(PLAIN, [self.plain])
        pair = (pick(found.nodes + found.variables, number) for found in (live, plain))
        self.held = [*self.held[-2:], tuple(pair)]  # type: ignore[list-item]

    def eval_shape(self, number: int) -> None:
        """The graph is looked at, and nothing is done to it."""
        if self.functions:
            function = pick(self.functions, number)
            # JAX may take the trace for a call later on, or not.
            key = abstract(function.args(PLAIN, self.plain)[:-1])
            function.known.setdefault(key, set())
            nnx.eval_shape(function.live, *function.args(LIVE, self.live))

    # Threads

    def in_threads(self, programs: Any) -> None:
        """Runs programs with graphs of their own, and reads this one from all."""
        errors: list[BaseException] = []
        barrier = threading.Barrier(len(programs))
        reader = nnx.jit(lambda root, x: digest(LIVE, [root], x))
        x = LIVE.array(np.asarray(3, np.float32))
        expected = digest(PLAIN, [self.plain], np.asarray(3, np.float32))
        common = tuple(self.functions[-2:])

        def work(program: Any) -> None:
            try:
                world = World(common)
                barrier.wait()
                for step in program:
                    if not np.array_equal(reader(self.live, x), expected):
                        raise Different("a thread read something else")
                    world.do(step)
                for function in common:
                    world.call(function)
                    world.check()
            except BaseException as error:
                errors.append(error)
                barrier.abort()  # Nobody waits for a thread that failed.

        threads = [threading.Thread(target=work, args=(p,)) for p in programs]
        interval = sys.getswitchinterval()
        sys.setswitchinterval(1e-5)
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        finally:
            sys.setswitchinterval(interval)
        if errors:
            raise errors[0]


def _places_of_arrays(roots: tuple[Any, ...]) -> list[tuple[Any, int]]:
    """Where the arrays of live objects are, and which these are."""
    found = Survey(LIVE, roots)
    places = [(id(v), id(x)) for v in found.variables for x in leaves(v.raw_value)]
    return [*places, *(((id(node), key), id(x)) for node, key, x in found.arrays)]


def _shared_arrays(roots: tuple[Any, ...]) -> Any:
    """Which values of live variables are the very same arrays."""
    arrays = [array for _, array in _places_of_arrays(roots)]
    return tuple(arrays.index(each) for each in arrays)


def _is_given(held: Any, given: list[tuple[Any, int]]) -> bool:
    """Whether an object has an array that is given, in a place that is not."""
    arrays = {array for _, array in given}
    others = {*_places_of_arrays((held,))} - {*given}
    return any(array in arrays for _, array in others)
