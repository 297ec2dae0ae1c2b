"""One call of a differentiated function: what JAX gets, and what becomes of it.

`Differentiation` prepares a call for any of JAX's derivatives. In the arguments each
object is replaced by the `Part` of it that is differentiated, which may be empty; the
values of all other variables are closed over, as JAX itself does it with arguments
that are not differentiated. So JAX sees the user's own arguments where there are no
objects, and its errors are about them.
"""

from __future__ import annotations

import contextlib
import functools
import operator
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import jax
import numpy as np

from graphcore import Filter, Not, Param, api_boundary, is_variable
from graphcore.authors import (
    UNSET,
    Callee,
    Divided,
    Inside,
    enter,
    has_objects,
    is_object,
    lifted,
    psum_cotangents,
    take_objects,
)
from nnx_transforms.adapters.settings import own_settings
from nnx_transforms.arguments import positions_of
from nnx_transforms.prefixes import DiffState, StateAxes
from nnx_transforms.transforms.derivatives.pairs import is_pair, pair_of
from nnx_transforms.transforms.derivatives.tangents import (
    has_parts,
    is_whole,
    layouts_of,
    take_parts,
    to_parts,
    to_states,
)
from nnx_transforms.transforms.derivatives.zeros import abstract, is_inexact

Filters: TypeAlias = Sequence[tuple[int, Filter | None]]
"""Positions of arguments, and the filter of each; None where the default holds."""


def of_all(args: Sequence[Any], wrt: Filter | None) -> Filters:
    """The filters where all arguments are differentiated."""
    return [(number, wrt) for number in range(len(args))]


def _filters(argnums: Any, wrt: Filter | None) -> tuple[Any, Filters]:
    """Which arguments are differentiated, and which of their variables.

    Args:
        argnums: An integer, a `DiffState`, or a sequence of them.
        wrt: The filter where there is no `DiffState`; None for the default.

    Returns:
        The integers in the form that JAX takes; and the filters.

    Raises:
        TypeError: If an entry is neither.
        ValueError: If an argument is named twice.
    """
    argnums = own_settings(argnums)

    def setting(entry: Any) -> tuple[int, Filter | None]:
        if isinstance(entry, DiffState):
            return entry.argnum, entry.filter
        return operator.index(entry), wrt

    for entries in ([argnums], argnums):
        with contextlib.suppress(TypeError):
            found = [*map(setting, entries)]
            break
    else:
        raise TypeError(
            "argnums says which arguments are differentiated: an integer, a "
            f"`DiffState`, or a sequence of these. It is {argnums!r}. Which variables "
            "are, a filter says as `wrt=`, or for one argument as "
            "`argnums=DiffState(0, filter)`."
        )
    numbers = tuple(number for number, _ in found)
    _refuse_repeats(numbers)
    return numbers if entries is argnums else numbers[0], found


def _refuse_repeats(numbers: Sequence[int]) -> None:
    for number in numbers:
        if numbers.count(number) > 1:
            raise ValueError(
                f"The argument {number} is named more than once in argnums: give it "
                "one entry. To select more of its variables, combine filters, as in "
                f"DiffState({number}, Any(filter, filter))."
            )


@dataclass(frozen=True)
class _Choice:
    """Whether a variable is differentiated: the setting of it.

    Two choices are equal if they agree about that, whatever says so.
    """

    is_yes: bool
    why: DiffState | None = field(default=None, compare=False)

    def __repr__(self) -> str:
        return repr(self.why) if self.why else "not differentiated"


_NOT = _Choice(False)


class _Choices(StateAxes):
    """The choices for one object, by filter."""

    __slots__ = ()

    first_path_counts = True


def _choices(tree: Any, argnum: int, filter: Filter | None, default: Filter) -> Any:
    """The settings of one differentiated argument: a prefix of it."""

    def choice(x: Any) -> Any:
        if not is_object(x):
            return _NOT
        chosen = filter
        if chosen is None:
            # A variable that is an argument itself was chosen by that.
            chosen = ... if is_variable(x) else default
        yes = _Choice(True, DiffState(argnum, chosen))
        # In this order, since behind a filter that takes everything there is no other.
        return _Choices([(Not(chosen), _NOT), (..., yes)])

    # No class of the user's is made of choices, unless there are objects in it. A tuple
    # and a dict stay, for `jax.tree_util.Partial` is made of no other things.
    def is_leaf(x: Any) -> bool:
        return is_object(x) or not (type(x) in (tuple, dict) or has_objects((x,)))

    return jax.tree.map(choice, tree, is_leaf=is_leaf)


class Differentiation:
    """A call of a function, prepared for one of JAX's derivatives.

    Args:
        f: The user's function.
        args: Its positional arguments.
        kwargs: Its keyword arguments.
        filters: Those of the arguments that are differentiated. Positions that are
            out of range are left for JAX to refuse.
        has_aux: Whether the function returns a pair of which the second is not
            differentiated.
        reduce_axes: Named axes over which cotangents are summed.
        scalar: Whether the differentiated output must be a number.
        as_objects: Whether derivatives are objects, and not states; then the default
            is to differentiate by everything in them.

    Raises:
        ValueError: If an object can't be flattened, belongs to another trace, or is
            differentiated in one argument and not in another; or if an argument is
            named twice.

    Attributes:
        args: The positional arguments with parts in the place of objects.
        kwargs: The keyword arguments, likewise.
        entry: The call.
        has_objects: Whether objects take part.
    """

    def __init__(
        self,
        f: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        filters: Filters,
        *,
        has_aux: bool,
        reduce_axes: Hashable = (),
        scalar: bool = False,
        as_objects: bool = False,
    ) -> None:
        among = has_objects((*args, *kwargs.values()))
        if among:
            due = max((n for n, _ in filters), default=-1) + 1
            args, kwargs = positions_of(f, args, kwargs, due)
        numbers = [n + len(args) if n < 0 else n for n, _ in filters]
        _refuse_repeats(numbers)
        of_args = dict(zip(numbers, (chosen for _, chosen in filters), strict=True))
        settings: Any = UNSET
        if among:
            default = ... if as_objects else Param
            settings = tuple(
                _choices(x, i, of_args[i], default) if i in of_args else _NOT
                for i, x in enumerate(args)
            )
        self._f = f
        self.entry = entry = enter(
            f,
            args,
            dict(kwargs),
            settings=settings,
            kwargs_settings=_NOT,
            bound_setting=_NOT,
        )
        self._has_aux = has_aux
        self._reduce_axes = reduce_axes
        self._scalar = scalar
        self._as_objects = as_objects
        self._differentiated = [n for n in range(len(args)) if n in of_args]
        self.has_objects = entry.has_objects
        of_variables = entry.body.structure.settings.variables
        chosen = {
            i for i, setting in enumerate(of_variables) if setting == _Choice(True)
        }
        layouts = layouts_of(entry, as_objects)
        parts = self._whole = to_parts((args, dict(kwargs)), entry, layouts, chosen)
        if self.has_objects:
            # What is static has no derivative, and neither have integers beside it.
            parts = Divided.map(lambda whole: whole.only(is_inexact), parts)
        self.args, self.kwargs = parts

    def check(self, derivative: Callable[..., Any], **options: Any) -> None:
        """Checks that the selected variables can be differentiated.

        Args:
            derivative: The derivative of JAX's that is going to be taken.
            **options: Its options.

        Raises:
            TypeError: JAX's own, with the path.
        """
        kind = np.complexfloating if options.get("holomorphic") else np.floating
        for number, value in take_parts(self.args)[1].items():
            for leaf in jax.tree.leaves(value):
                dtype = getattr(leaf, "dtype", None)
                if dtype is not None and jax.dtypes.issubdtype(dtype, kind):
                    continue
                # JAX says best what is wrong, if anything is.
                try:
                    derivative(lambda _: (0.0, ()), has_aux=True, **options)(leaf)
                except TypeError as error:
                    where = self.entry.body.place(self.entry.joint.paths[number])
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

        def function(*args: Any, **kwargs: Any) -> Any:
            return self._run(args, kwargs)

        # For what JAX says of it.
        function.__name__ = function.__qualname__ = Callee(self._f).name
        function.__wrapped__ = self._f  # type: ignore[attr-defined]
        return function

    def _run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._reduce_axes != ():
            numbers = self._differentiated
            chosen = [args[n] for n in numbers]
            new = iter(psum_cotangents(chosen, self._reduce_axes))
            args = tuple(next(new) if i in numbers else x for i, x in enumerate(args))
        body = self.entry.body
        given: Any = args, kwargs
        if self.has_objects:
            given = jax.tree.map(_joined, self._whole, given, is_leaf=is_whole)
        (args, kwargs), values = take_parts(given)
        raw = enumerate(self.entry.raw)
        found = [_joined(value, values.get(i, value)) for i, value in raw]
        inside = Inside(body.structure.joint, found)
        args, kwargs = body.fill(inside, args, kwargs)
        out = body.bind(inside)(*args, **kwargs)
        differentiated = out
        if self._has_aux:
            if not self.has_objects and not is_pair(out):
                return out  # JAX refuses it in its own words.
            what = f"With has_aux=True, {body.__name__!r}"
            differentiated, _ = pair_of(out, what, "(value, aux)")
        if self._scalar:
            self._refuse_objects(differentiated)
        left = inside.leave(out)
        if left.change.places.spots or left.change.has_divided:
            differentiated = _parts_of_output(differentiated, self._as_objects)
        return differentiated, (left.values(), left.out, left.change)

    def _refuse_objects(self, value: Any) -> None:
        for found in take_objects(value)[2][:1]:
            hint = " Return its value." if is_variable(found) else ""
            raise TypeError(
                "Gradient only defined for scalar-output functions, but "
                f"{self.entry.body.__name__!r} returned a "
                f"{type(found).__name__}.{hint}"
            )

    def result(self, rest: Any) -> tuple[Any, ...]:
        """Brings what the function did to the caller's objects: all of it, or nothing.

        Args:
            rest: The second half of what `function` returned.

        Returns:
            The output of the user's function; and the second one, if it has one.
        """
        values, tree, change = rest
        out = self.entry.commit([values], tree, change)
        return tuple(out) if self._has_aux else (out,)


def derivative_function(
    derivative: Callable[..., Any],
    f: Callable[..., Any],
    argnums: Any,
    has_aux: bool,
    wrt: Filter | None,
    *,
    with_value: bool = False,
    reduce_axes: Hashable = (),
    scalar: bool = False,
    as_objects: bool = False,
    **options: bool,
) -> Callable[..., Any]:
    """Makes the function that computes a derivative of a function of live objects.

    Args:
        derivative: Makes it for a pure function that has further output.
        f: The function.
        argnums: Which arguments are differentiated: an integer, a `DiffState`, or a
            sequence of them.
        has_aux: Whether the function has further output.
        wrt: The filter of arguments for which there is no other.
        with_value: Whether the output of the function is returned as well.
        reduce_axes: As for `Differentiation`.
        scalar: Likewise.
        as_objects: Likewise.
        **options: Further ones for `derivative`.

    Returns:
        A function of the same arguments.

    Raises:
        TypeError: If `argnums` holds anything else.
        ValueError: If an argument is named twice.
    """
    numbers, filters = _filters(argnums, wrt)
    how: Any = {"has_aux": has_aux, "reduce_axes": reduce_axes, "scalar": scalar}
    how["as_objects"] = as_objects

    @lifted(f)
    def compute(f: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        call = Differentiation(f, args, kwargs, filters, **how)
        call.check(derivative, **options)
        derive = derivative(call.function, numbers, has_aux=True, **options)
        with call.entry.blaming():
            derived, rest = derive(*call.args, **call.kwargs)
        found = to_states(derived)
        out, *aux = call.result(rest)
        if with_value:
            return (out, *aux) if has_aux else out, found
        return (found, *aux) if has_aux else found

    return compute


def linear_map(
    derivative: Callable[..., Any],
    apply: Callable[..., Any],
    backward: bool,
    f: Callable[..., Any],
    primals: tuple[Any, ...],
    wrt: Filter | None,
    more: dict[str, Any],
    **how: Any,
) -> Any:
    """Runs a function of live objects, and makes its derivative, a linear function.

    Args:
        derivative: JAX's, which does that for a pure function.
        apply: What the linear function does, given the abstract values of what it
            takes tangents of, JAX's linear function, and the tangents.
        backward: Whether it takes the cotangent of the output, and not tangents of the
            arguments.
        f: The function.
        primals: Its arguments; all of them are differentiated.
        wrt: The filter of their variables.
        more: Further options for `derivative`.
        **how: Options for `Differentiation`.

    Returns:
        The output of the function, the linear function, and the further output.
    """
    call = Differentiation(f, primals, {}, of_all(primals, wrt), **how)
    with call.entry.blaming():
        out, linear, rest = derivative(call.function, *call.args, has_aux=True, **more)
    if call.has_objects or has_parts(out):
        due = abstract(out if backward else call.args)
        linear = LinearMap(functools.partial(apply, due), linear)
    out, *aux = call.result(rest)
    return out, linear, *aux


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class LinearMap:
    """A linear function of tangents; as JAX's own, a pytree that may pass `jit`.

    Args:
        apply: Calls JAX's function with them.
        linear: JAX's function.
    """

    apply: Callable[..., Any] = field(metadata={"static": True})
    linear: Any

    @api_boundary
    def __call__(self, *tangents: Any) -> Any:
        """Maps tangents, or a cotangent; see `vjp` and `linearize`."""
        return self.apply(self.linear, *tangents)

    @property
    def with_logs(self) -> LinearMap:
        """The function that also returns what backward rules log, from JAX 0.12 on."""
        return LinearMap(self.apply, self.linear.with_logs)


def _joined(whole: Any, given: Any) -> Any:
    """The pytree that was divided, with what JAX gives of it."""
    return given.over(whole).join() if Divided.matches(given) else given


def _returned(out: Any) -> None:
    """What the objects of an output enter."""


def _parts_of_output(out: Any, as_objects: bool) -> Any:
    """Replaces the objects that a function returned by their inexact variables."""
    entry = enter(_returned, (out,))
    chosen = {
        i for i, x in enumerate(entry.raw) if any(map(is_inexact, jax.tree.leaves(x)))
    }
    return to_parts(out, entry, layouts_of(entry, as_objects), chosen)
