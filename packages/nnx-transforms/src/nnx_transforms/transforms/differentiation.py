"""One call of a differentiated function: what JAX gets, and what becomes of it.

`Differentiation` prepares a call for any of JAX's derivatives. In the arguments each
object is replaced by the `Part` of it that is differentiated, which may be empty; the
values of all other variables are closed over, as JAX itself does it with arguments
that are not differentiated. So JAX sees the user's own arguments where there are no
objects, and its errors are about them.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, TypeAlias

import jax
import numpy as np

from graphcore import Filter, Param, RefMap, is_variable
from graphcore.errors import path_text
from graphcore.named_axes import psum_cotangents
from nnx_transforms.arguments import positions_of
from nnx_transforms.prefixes import DiffState
from nnx_transforms.transforms.lifting import Callee, Inside, Skeleton, is_object, take
from nnx_transforms.transforms.tangents import (
    Part,
    PartLayout,
    is_part,
    parts_of_outputs,
    without_parts,
)

Path: TypeAlias = tuple[Any, ...]
_MISSING: Any = object()


class Argnums:
    """Which arguments are differentiated, and which of their variables.

    Args:
        argnums: An integer, a `DiffState`, or a sequence of them.
        wrt: The filter where there is no `DiffState`; None for the default.

    Raises:
        TypeError: If an entry is neither.
        ValueError: If an argument is named twice.

    Attributes:
        numbers: The integers in the form that JAX takes.
    """

    def __init__(self, argnums: Any, wrt: Filter | None) -> None:
        if isinstance(argnums, DiffState):
            self.numbers: Any = argnums.argnum
            entries: tuple[Any, ...] = (argnums,)
        else:
            try:
                self.numbers = operator.index(argnums)
                entries = (self.numbers,)
            except TypeError:
                entries = tuple(argnums)
                self.numbers = tuple(
                    e.argnum if isinstance(e, DiffState) else operator.index(e)
                    for e in entries
                )
        numbers = self.numbers if isinstance(self.numbers, tuple) else (self.numbers,)
        self._settings = [
            (number, entry.filter if isinstance(entry, DiffState) else wrt)
            for number, entry in zip(numbers, entries, strict=True)
        ]
        _refuse_repeats(numbers)

    def filters(self, count: int) -> dict[int, Filter | None]:
        """The filter of each differentiated argument.

        Args:
            count: How many positional arguments there are.

        Returns:
            By position; None where the default holds. Positions that are out of
            range are left for JAX to refuse.

        Raises:
            ValueError: If an argument is named twice.
        """
        numbers = [n + count if n < 0 else n for n, _ in self._settings]
        _refuse_repeats(numbers)
        return dict(zip(numbers, (f for _, f in self._settings), strict=True))


def all_arguments(wrt: Filter | None) -> Callable[[int], dict[int, Filter | None]]:
    """The filters where all arguments are differentiated.

    Args:
        wrt: The filter; None for the default.

    Returns:
        As `Argnums.filters`.
    """
    return lambda count: dict.fromkeys(range(count), wrt)


def _refuse_repeats(numbers: Sequence[int]) -> None:
    for number in numbers:
        if numbers.count(number) > 1:
            raise ValueError(
                f"The argument {number} is named more than once in argnums: give it "
                "one entry. To select more of its variables, combine filters, as in "
                f"DiffState({number}, Any(filter, filter))."
            )


class Differentiation:
    """A call of a function, prepared for one of JAX's derivatives.

    Args:
        f: The user's function.
        args: Its positional arguments.
        kwargs: Its keyword arguments.
        filters: Given the number of positional arguments, the filter of each one that
            is differentiated.
        has_aux: Whether the function returns a pair of which the second is not
            differentiated.
        reduce_axes: Named axes over which cotangents are summed.
        scalar: Whether the differentiated output must be a number.

    Raises:
        ValueError: If an object can't be flattened, belongs to another trace, or is
            differentiated in one argument and not in another.

    Attributes:
        args: The positional arguments with parts in the place of objects.
        kwargs: The keyword arguments, likewise.
        has_objects: Whether there are objects among the arguments.
    """

    def __init__(
        self,
        f: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        filters: Callable[[int], Mapping[int, Filter | None]],
        *,
        has_aux: bool = False,
        reduce_axes: Hashable = (),
        scalar: bool = False,
    ) -> None:
        if kwargs and any(
            map(is_object, jax.tree.leaves((args, kwargs), is_leaf=is_object))
        ):
            args, kwargs = positions_of(f, args, kwargs)
        self._f = f
        self._callee = Callee(f)
        self._inputs = take((args, dict(kwargs)), bound=self._callee.bound)
        self._values = self._inputs.values()
        self._has_aux = has_aux
        self._reduce_axes = reduce_axes
        self._scalar = scalar
        self.has_objects = bool(self._inputs.roots)
        self._filters = dict(filters(len(args)))
        self._parts: list[Part] = []
        # For each part, the positions of its variables among all.
        self._positions: list[list[int]] = []
        self._divide()
        self.args, self.kwargs = _place(
            self._inputs.skeleton, self._inputs.plain, self._parts
        )

    def _divide(self) -> None:
        """Decides for each place of an object which variables it contributes."""
        inputs = self._inputs
        position_of: RefMap[Any, int] = RefMap(
            (variable, i) for i, variable in enumerate(inputs.variables)
        )
        # The places of each variable, to see whether they agree.
        places: list[list[tuple[Path, bool, Any]]] = [[] for _ in self._values]
        spots = [(path, root) for path, root, _ in inputs.spots]
        hidden = [((2, "self"), inputs.roots[number]) for number in inputs.bound]
        for path, root in (*spots, *hidden):
            plan = next(
                plan
                for plan, known in zip(inputs.plans, inputs.roots, strict=True)
                if known is root
            )
            argnum = path[1] if path[0] == 0 else None
            selects, setting = self._predicate(argnum, root)
            chosen = []
            positions = []
            for inner, definition, variable in zip(
                plan.layout.paths, plan.layout.definitions, plan.variables, strict=True
            ):
                position = position_of[variable]
                selected = bool(selects(inner, variable))
                found = places[position]
                if selected and not found:
                    chosen.append((inner, definition))
                    positions.append(position)
                found.append(((*path[1:], *inner), selected, setting))
                if found[0][1] is not selected:
                    raise _inconsistent(variable, found)
            layout = PartLayout(
                tuple(p for p, _ in chosen),
                tuple(d for _, d in chosen),
                is_variable(root),
            )
            self._parts.append(Part(layout, [self._values[p] for p in positions]))
            self._positions.append(positions)

    def _predicate(self, argnum: Any, root: Any) -> tuple[Callable[..., Any], Any]:
        """Which variables of an object are differentiated, and why."""
        if argnum not in self._filters:
            return _nothing, "not differentiated"
        chosen = self._filters[argnum]
        if chosen is None:
            # A variable that is an argument itself was chosen by that.
            chosen = ... if is_variable(root) else Param
        setting = DiffState(argnum, chosen)
        return setting.predicate, setting

    def check(self, derivative: Callable[..., Any], **options: Any) -> None:
        """Checks that the selected variables can be differentiated.

        Args:
            derivative: The derivative of JAX's that is going to be taken.
            **options: Its options.

        Raises:
            TypeError: JAX's own, with the path.
        """
        kind = np.complexfloating if options.get("holomorphic") else np.floating
        for (path, _, _), part in zip(self._inputs.spots, self._parts, strict=False):
            for inner, value in zip(part.layout.paths, part.values, strict=True):
                for leaf in jax.tree.leaves(value):
                    dtype = getattr(leaf, "dtype", None)
                    if dtype is not None and jax.dtypes.issubdtype(dtype, kind):
                        continue
                    # JAX says best what is wrong, if anything is.
                    try:
                        derivative(lambda _: 0.0, **options)(leaf)
                    except TypeError as error:
                        where = path_text((*path[1:], *inner))
                        raise TypeError(
                            f"The variable at {where!r} is selected to be "
                            f"differentiated: {error}"
                        ) from None

    @property
    def function(self) -> Callable[..., Any]:
        """What JAX differentiates, with `has_aux=True`.

        It takes `args` and `kwargs`. It returns the differentiated output with parts
        in the place of objects, and what `publish` needs besides.
        """

        @functools.wraps(self._f, updated=())
        def function(*args: Any, **kwargs: Any) -> Any:
            return self._run(args, kwargs)

        return function

    def _run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        inputs = self._inputs
        if self._reduce_axes != ():
            args = self._sum_cotangents(args)
        values = list(self._values)
        leaves = jax.tree.leaves((args, kwargs), is_leaf=is_part)
        spots = inputs.skeleton.spots
        for (place, _), positions in zip(spots, self._positions, strict=False):
            for position, value in zip(positions, leaves[place].values, strict=True):
                values[position] = value
        inside = Inside(inputs.joint, values)
        if spots:
            for place, number in spots:
                leaves[place] = inside.roots[number]
            args, kwargs = jax.tree.unflatten(inputs.skeleton.structure, leaves)
        function = self._callee.on([inside.roots[n] for n in inputs.bound])
        out = function(*args, **kwargs)
        differentiated = out
        if self._has_aux:
            if not isinstance(out, tuple | list) or len(out) != 2:
                return out  # JAX refuses it.
            differentiated, _ = out
        if self._scalar:
            self._refuse_objects(differentiated)
        left = inside.leave(out)
        if left.outcome.skeleton.spots:
            differentiated = parts_of_outputs(differentiated)
        return differentiated, (left.values(), left.tree, left.outcome)

    def _sum_cotangents(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        numbers = [n for n in self._filters if 0 <= n < len(args)]
        summed = psum_cotangents([args[n] for n in numbers], self._reduce_axes)
        every = list(args)
        for number, x in zip(numbers, summed, strict=True):
            every[number] = x
        return tuple(every)

    def _refuse_objects(self, value: Any) -> None:
        for leaf in jax.tree.leaves(value, is_leaf=is_object):
            if is_object(leaf):
                hint = " Return its value." if is_variable(leaf) else ""
                raise TypeError(
                    "Gradient only defined for scalar-output functions, but "
                    f"{self._callee.name!r} returned a {type(leaf).__name__}.{hint}"
                )

    def publish(self, rest: Any, out: Any = _MISSING) -> Any:
        """Brings what the function did to the caller's objects: all of it, or nothing.

        Args:
            rest: The second half of what `function` returned.
            out: The first half, if JAX returned it.

        Returns:
            The output of the user's function.
        """
        values, tree, outcome = rest
        if out is not _MISSING:
            # JAX has made arrays of the numbers in it.
            plain = without_parts(out) if outcome.skeleton.spots else out
            tree = (plain, tree[1]) if self._has_aux else plain
        return self._inputs.publish(outcome, values, tree)


def _nothing(path: Path, variable: Any) -> bool:
    return False


def _place(skeleton: Skeleton, plain: Any, parts: Sequence[Part]) -> Any:
    """Puts a part into each place of an object."""
    if not skeleton.spots:
        return plain
    leaves = jax.tree.leaves(plain)
    for (position, _), part in zip(skeleton.spots, parts, strict=False):
        leaves.insert(position, part)
    return jax.tree.unflatten(skeleton.structure, leaves)


def _inconsistent(
    variable: Any, places: Sequence[tuple[Path, bool, Any]]
) -> ValueError:
    lines = "\n".join(f"  {path_text(path)}: {setting}" for path, _, setting in places)
    return ValueError(
        f"Inconsistent aliasing detected: a {type(variable).__name__} is "
        f"differentiated where it is reached by one path, and not by another:\n"
        f"{lines}\n"
        "Differentiate both arguments with filters that agree about it, or neither."
    )
