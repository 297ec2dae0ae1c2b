"""The compiled form of a function for one structure of its objects."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Protocol

import jax

from graphcore import RefMap, State, VariableState, broadcast_prefix
from graphcore.build import set_values
from graphcore.errors import path_text
from graphcore.joint import Joint
from graphcore.plans import Plan, check_traces
from graphcore.state import nested_from_flat
from graphcore.walk import Visit, walk
from nnx_transforms.prefixes import StateSharding
from nnx_transforms.transforms.constrain_state import constrain
from nnx_transforms.transforms.donation import OtherWrites, abstract_key, held_twice
from nnx_transforms.transforms.explain_recompile import Signature
from nnx_transforms.transforms.lifting import (
    Callee,
    Inside,
    Left,
    NoPrefix,
    Outcome,
    Path,
    Written,
    is_object,
    prefix_of,
    publish,
)

__all__ = ["Arrangement", "CompiledFunction", "Fill", "Options"]


class Fill(Protocol):
    """Puts inner objects and static arguments where they belong."""

    def __call__(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], objects: Sequence[Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]: ...


@dataclass(frozen=True)
class Options:
    """What `jit` was told.

    Args:
        out_shardings: As given.
        has_shardings: Whether any shardings were given.
        donate_argnums: Positions of donated arguments.
        donate_argnames: Names of donated arguments.
        donate_state: Whether to donate what is overwritten.
        constrain_state: Whether, or how, to constrain shardings.
        passed_on: Further arguments for `jax.jit`.
    """

    out_shardings: Any = None
    has_shardings: bool = False
    donate_argnums: tuple[int, ...] = ()
    donate_argnames: tuple[str, ...] = ()
    donate_state: bool = False
    constrain_state: bool | Callable[[Any], Any] = False
    passed_on: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Arrangement:
    """What is known of a structure of objects before it is traced.

    Args:
        joint: Their description.
        bound: The numbers of the roots that the function is bound to.
        places: The path of each root in the call.
        root_prefixes: The sharding, or mapping to shardings, of each root.
        prefixes: The sharding of each variable.
        plain_shardings: Those of the other arguments, by position; None if not given.
        donated_roots: The numbers of the roots that stand in donated arguments.
        statics: The static arguments by name, to explain a compilation.
    """

    joint: Joint
    bound: tuple[int, ...]
    places: tuple[str, ...]
    root_prefixes: tuple[Any, ...]
    prefixes: tuple[Any, ...]
    plain_shardings: tuple[Any, ...] | None
    donated_roots: frozenset[int]
    statics: dict[str, Any]


class CompiledFunction:
    """A function, compiled for one structure of its objects and its static arguments.

    Holds no object. JAX decides by abstract values whether to trace again.

    Args:
        callee: The user's function.
        fill: Puts the inner objects in their places among the arguments.
        arrangement: The structure.
        options: What `jit` was told.
        traced: Called with the signature whenever the function is traced.

    Attributes:
        is_direct: Whether the values enter and leave as one list, none donated.
        direct: JAX's function for that case.
    """

    def __init__(
        self,
        callee: Callee,
        fill: Fill,
        arrangement: Arrangement,
        options: Options,
        traced: Callable[[Signature], None],
    ) -> None:
        self._callee = callee
        self._fill = fill
        self._arrangement = arrangement
        self._options = options
        self._traced = traced
        joint = arrangement.joint
        self._always_donated = frozenset(
            position
            for position, (number, *_) in enumerate(joint.paths)
            if number in arrangement.donated_roots
        )
        self._shardings: list[Any] = []
        if options.has_shardings:
            out = jax.tree.leaves(
                options.out_shardings, is_leaf=lambda p: isinstance(p, StateSharding)
            )
            found = [None, *arrangement.prefixes]
            for prefix in (*arrangement.root_prefixes, *out):
                is_mapping = isinstance(prefix, StateSharding)
                found += prefix.shardings if is_mapping else [prefix]
            found = [None if p is NoPrefix else p for p in found]
            self._shardings = list(dict.fromkeys(found))
        # None leaves the choice to JAX, so it contradicts no other sharding.
        self._root_prefixes = [
            NoPrefix if p is None else p for p in arrangement.root_prefixes
        ]
        self._out_prefix: Any = NoPrefix
        if options.out_shardings is not None:
            self._out_prefix = jax.tree.map(
                lambda p: NoPrefix if p is None else p,
                options.out_shardings,
                is_leaf=lambda p: p is None or isinstance(p, StateSharding),
            )
        donates = self._always_donated or options.donate_state
        self.is_direct = not donates and not self._shardings
        self._variants: dict[Any, Callable[..., Any]] = {}
        # What the function overwrites, while that does not depend on shapes.
        self._writes: frozenset[int] | None = None
        self._writes_by_shape: dict[Any, frozenset[int]] = {}
        self.direct = self._variant(None, frozenset())

    # Outside

    def run(
        self,
        roots: Sequence[Any],
        plans: Sequence[Plan],
        joint: Joint,
        args: Sequence[Any],
        kwargs: dict[str, Any],
    ) -> Any:
        """Runs the function and publishes what it did.

        Args:
            roots: The objects.
            plans: Their plans, which hold.
            joint: Their description, equal to the one that this was made for.
            args: The other arguments, None in the place of objects.
            kwargs: Likewise.

        Returns:
            What the function returned.
        """
        check_traces(plans)
        variables, values, all_owned = joint.read(plans)
        try:
            if self.is_direct:
                out, tree, outcome = self.direct(values, args, kwargs)
            else:
                out, tree, outcome = self._call_arranged(values, args, kwargs)
        except TypeError as error:
            self.blame(error, values)
            raise
        if not outcome.is_in_place:
            return publish(roots, joint, plans, outcome, out, tree)
        if out:
            if not outcome.is_in_order:
                variables = [variables[p] for p in outcome.positions]
            set_values(variables, out, all_owned)
        return tree

    def _call_arranged(
        self, values: list[Any], args: Sequence[Any], kwargs: dict[str, Any]
    ) -> tuple[Any, Any, Outcome]:
        function, given, named = self.prepare(values, args, kwargs)
        try:
            out, tree, outcome = function(*given, **named)
        except OtherWrites as found:
            # Another shape, another set of overwritten variables: from now on, look
            # up which it is.
            self._writes = None
            key = abstract_key((values, args, kwargs))
            self._writes_by_shape[key] = found.positions
            return self._call_arranged(values, args, kwargs)
        return self.flat(out), tree, outcome

    def flat(self, out: Any) -> list[Any]:
        """The written values as one list."""
        return list(chain.from_iterable(out)) if self._shardings else out

    def prepare(
        self, values: list[Any], args: Sequence[Any], kwargs: dict[str, Any]
    ) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
        """Chooses the compiled variant for a call, and arranges the values for it.

        Args:
            values: The raw values of the variables.
            args: The other arguments.
            kwargs: Likewise.

        Returns:
            A function of JAX and its arguments.
        """
        if self.is_direct:
            return self.direct, (values, args, kwargs), {}
        writes: frozenset[int] | None = None
        donated = self._always_donated
        if self._options.donate_state:
            writes = self._find_writes(values, args, kwargs)
            donated = donated | writes
        if donated:
            donated = donated - held_twice(values, (args, kwargs))
        key = (writes, donated)
        function = self._variants.get(key)
        if function is None:
            function = self._variants[key] = self._variant(writes, donated)
        kept_groups, donated_groups = self._groups(donated)
        kept, given = (
            [[values[i] for i in group] for group in groups]
            for groups in (kept_groups, donated_groups)
        )
        return function, (kept, given, *args), kwargs

    def _find_writes(
        self, values: list[Any], args: Sequence[Any], kwargs: dict[str, Any]
    ) -> frozenset[int]:
        if self._writes is not None:
            return self._writes
        key = abstract_key((values, args, kwargs))
        known = self._writes_by_shape.get(key)
        if known is None:
            _, _, outcome = jax.eval_shape(
                self._pure_without_donation, values, args, kwargs
            )
            known = frozenset(p for p in outcome.positions if p is not None)
            if not self._writes_by_shape:
                self._writes = known
            self._writes_by_shape[key] = known
        return known

    def blame(self, error: TypeError, values: Sequence[Any]) -> None:
        """Says which variable holds what JAX does not accept."""
        arrangement = self._arrangement
        for (number, *path), value in zip(arrangement.joint.paths, values, strict=True):
            for leaf in jax.tree.leaves(value):
                try:
                    jax.typeof(leaf)
                except TypeError:
                    where = path_text((arrangement.places[number], *path))
                    raise TypeError(
                        f"The variable at {where!r} holds a value of type "
                        f"{type(leaf).__name__}, which JAX does not accept: {leaf!r}. "
                        "Values of variables are arrays; keep anything else as a "
                        "static attribute or in the variable's metadata."
                    ) from error

    # Arranging values

    def _groups(self, donated: frozenset[int]) -> tuple[list[Any], list[Any]]:
        """The numbers of the kept and the donated values, by sharding."""
        kept: list[list[int]] = [[] for _ in self._shardings or (None,)]
        given: list[list[int]] = [[] for _ in self._shardings or (None,)]
        for position, prefix in enumerate(self._arrangement.prefixes):
            group = self._group_of(prefix)
            (given if position in donated else kept)[group].append(position)
        return kept, given

    def _group_of(self, prefix: Any) -> int:
        if not self._shardings:
            return 0
        return self._shardings.index(None if prefix is NoPrefix else prefix)

    def _variant(
        self, writes: frozenset[int] | None, donated: frozenset[int]
    ) -> Callable[..., Any]:
        options = self._options
        passed_on = dict(options.passed_on)
        plain_donated = [2 + i for i in options.donate_argnums]
        if donated or plain_donated:
            passed_on["donate_argnums"] = (1, *plain_donated)
        if options.donate_argnames:
            passed_on["donate_argnames"] = options.donate_argnames
        if self._shardings:
            groups = self._shardings
            plain = self._arrangement.plain_shardings
            if plain is not None:
                passed_on["in_shardings"] = (groups, groups, *plain)
            passed_on["out_shardings"] = (groups, _plain(options.out_shardings), None)
        if self.is_direct:
            # The arguments as they are: to spread them takes longer than to flatten.
            def direct(values: Any, args: Any, kwargs: Any) -> Any:
                return self._pure_without_donation(values, args, kwargs)

            direct.__name__ = direct.__qualname__ = self._callee.name
            return jax.jit(direct, **passed_on)
        kept_groups, donated_groups = self._groups(donated)
        order = [
            *chain.from_iterable(kept_groups),
            *chain.from_iterable(donated_groups),
        ]

        def pure(kept: Any, given: Any, /, *args: Any, **kwargs: Any) -> Any:
            values: list[Any] = [None] * len(order)
            arranged = chain(chain.from_iterable(kept), chain.from_iterable(given))
            for position, value in zip(order, arranged, strict=True):
                values[position] = value
            # A donated variable is returned even if the function left it alone: its
            # old buffer is gone, and handing it through costs nothing.
            left = self._run(values, args, kwargs, keep=donated)
            if writes is not None:
                found = _overwritten(left.written, values)
                if found != writes:
                    raise OtherWrites(found)
            return self._grouped(left)

        pure.__name__ = pure.__qualname__ = self._callee.name
        return jax.jit(pure, **passed_on)

    def _grouped(self, left: Left) -> tuple[Any, Any, Outcome]:
        if not self._shardings:
            return left.values(), left.tree, left.outcome
        groups: list[list[int]] = [[] for _ in self._shardings]
        for number, written in enumerate(left.written):
            groups[self._group_of(written.prefix)].append(number)
        values = left.values()
        outcome = left.outcome.select(list(chain.from_iterable(groups)))
        return [[values[i] for i in group] for group in groups], left.tree, outcome

    # Inside

    def _pure_without_donation(
        self, values: Any, args: Any, kwargs: Any
    ) -> tuple[Any, Any, Outcome]:
        left = self._run(values, args, kwargs)
        return left.values(), left.tree, left.outcome

    def _run(
        self,
        values: Sequence[Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        keep: frozenset[int] = frozenset(),
    ) -> Left:
        arrangement = self._arrangement
        signature = Signature.of(
            arrangement.joint,
            arrangement.places,
            values,
            (args, kwargs),
            arrangement.statics,
        )
        self._traced(signature)
        inside = Inside(arrangement.joint, values)
        if self._options.constrain_state:
            self._constrain(
                list(zip(inside.variables, arrangement.joint.paths, strict=True))
            )
        args, kwargs = self._fill(args, kwargs, inside.roots)
        function = self._callee.on([inside.roots[n] for n in arrangement.bound])
        out = function(*args, **kwargs)
        prefixes: Sequence[Any] = arrangement.prefixes
        if self._out_prefix is not NoPrefix:
            prefixes, keep = self._place_returned(out, inside, keep)
        left = inside.leave(out, self._root_prefixes, prefixes, self._out_prefix, keep)
        for written in left.written:
            self._check_value(written)
        if self._options.constrain_state:
            self._constrain([(w.variable, w.path) for w in left.written])
        return left

    def _place_returned(
        self, out: Any, inside: Inside, keep: frozenset[int]
    ) -> tuple[list[Any], frozenset[int]]:
        """Has arguments that are returned placed where the output is to be.

        Args:
            out: What the function returned.
            inside: Its objects.
            keep: The variables that are returned in any case.

        Returns:
            The sharding of each variable, and the variables that are returned, if only
            for their sharding.
        """
        prefixes, placed = list(self._arrangement.prefixes), set(keep)
        positions = RefMap((x, number) for number, x in enumerate(inside.variables))
        per_leaf = broadcast_prefix(
            self._out_prefix,
            out,
            prefix_is_leaf=lambda p: isinstance(p, StateSharding),
            tree_is_leaf=is_object,
        )
        leaves = jax.tree.leaves(out, is_leaf=is_object)
        for x, prefix in zip(leaves, per_leaf, strict=True):
            if prefix is NoPrefix or not is_object(x):
                continue
            visit = Visit()
            walk(x, RefMap(), visit)
            for leaf in visit.leaves:
                position = positions.get(leaf.variable)
                if position is not None and prefixes[position] in (None, NoPrefix):
                    prefixes[position] = prefix_of(prefix, leaf.path, leaf.variable)
                    placed.add(position)
        return prefixes, frozenset(placed)

    def _check_value(self, written: Written) -> None:
        """Says which variable was written what JAX does not accept."""
        for leaf in jax.tree.leaves(written.value):
            try:
                jax.typeof(leaf)
            except TypeError as error:
                number, *path = written.path
                roots = {-1: "output", -2: "a removed object"}
                root = roots.get(number) or self._arrangement.places[number]
                raise TypeError(
                    f"The {type(written.variable).__name__} at "
                    f"{path_text((root, *path))!r} was given a value of type "
                    f"{type(leaf).__name__} inside {self._callee.name!r}, which JAX "
                    f"does not accept: {leaf!r}. Values of variables are arrays."
                ) from error

    def _constrain(self, variables: list[tuple[Any, Path]]) -> None:
        how = self._options.constrain_state
        if not callable(how):
            for variable, path in variables:
                constrain(variable, path_text(path))
            return
        by_path = {path: variable for variable, path in variables}
        given: State[Any, Any] = State._view(
            nested_from_flat(
                (path, VariableState.from_variable(v)) for path, v in by_path.items()
            )
        )
        for path, leaf in how(given).flat_state():
            by_path[path].raw_value = leaf.value


def _overwritten(written: Sequence[Written], values: Sequence[Any]) -> frozenset[int]:
    return frozenset(
        w.position
        for w in written
        if w.position is not None and w.value is not values[w.position]
    )


def _plain(shardings: Any) -> Any:
    return jax.tree.map(
        lambda p: None if isinstance(p, StateSharding) else p,
        shardings,
        is_leaf=lambda p: p is None or isinstance(p, StateSharding),
    )
