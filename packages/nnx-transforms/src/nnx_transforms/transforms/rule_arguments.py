"""The arguments of functions with derivative rules.

Rules have one tangent for each argument, so every argument has a position, and those
that are not differentiated are told by it.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from nnx_transforms.prefixes import DiffState
from nnx_transforms.transforms.argument_states import Arguments
from nnx_transforms.transforms.guards import without_tangents
from nnx_transforms.transforms.lifting import Inputs, is_object, take


@dataclass(frozen=True)
class RuleCall:
    """A call of a function with derivative rules, taken apart.

    Args:
        inputs: The differentiable arguments.
        arguments: The same as rules see them.
        differentiable: Their positions.
        pure_args: All arguments, None in the place of objects; if there are objects,
            the values of their variables come last.
    """

    inputs: Inputs
    arguments: Arguments
    differentiable: tuple[int, ...]
    pure_args: list[Any]

    @classmethod
    def of(
        cls,
        fun: Callable[..., Any],
        name: str,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        nondiff: Sequence[int],
        hidden: Sequence[Any],
    ) -> RuleCall:
        """Takes a call apart.

        Args:
            fun: The function.
            name: What it is called.
            args: The positional arguments.
            kwargs: The keyword arguments.
            nondiff: The positions of the arguments that are not differentiated.
            hidden: Objects that the function and its rules are bound to.

        Returns:
            The call.

        Raises:
            TypeError: If an argument has no position, or one that is not
                differentiated holds a graph node.
            IndexError: If an argument that is not differentiated is missing.
            ValueError: If an object can't be flattened or belongs to another trace.
        """
        args = bind_positions(fun, name, args, kwargs)
        names = argument_names(fun, len(args))
        for position in nondiff:
            if position >= len(args):
                raise IndexError(
                    f"nondiff_argnums of {name!r} names argument {position}, but the "
                    f"call has {len(args)} arguments."
                )
            _refuse_objects(args[position], f"{names[position]} of {name!r}")
        differentiable = tuple(i for i in range(len(args)) if i not in nondiff)
        chosen = tuple(args[i] for i in differentiable)
        inputs = take(chosen, bound=hidden)
        arguments = Arguments(inputs, chosen, [names[i] for i in differentiable])
        pure_args = list(args)
        for position, plain in zip(differentiable, inputs.plain, strict=True):
            pure_args[position] = plain
        if arguments.has_objects:
            pure_args.append(_guarded(inputs.values(), arguments, name))
        return cls(inputs, arguments, differentiable, pure_args)


def _guarded(values: list[Any], arguments: Arguments, name: str) -> list[Any]:
    """Sees to it that nobody differentiates by an object that a function is bound to.

    No rule is told of its tangents, and gives any.
    """
    hidden = [i for i, owner in enumerate(arguments.owners) if owner is None]
    if not hidden:
        return values

    def error() -> TypeError:
        return TypeError(
            f"{name!r} is bound to an object, or one of its rules is, by which it is "
            "being differentiated; but derivative rules go by arguments. Decorate the "
            "method in its class, or pass the object as an argument."
        )

    guarded = without_tangents([values[i] for i in hidden], error)
    whole = dict(enumerate(values)) | dict(zip(hidden, guarded, strict=True))
    return [whole[i] for i in range(len(values))]


def bind_positions(
    f: Callable[..., Any], name: str, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[Any, ...]:
    """Turns the arguments of a call into positional ones, defaults included.

    A rule has one tangent for each argument, so every argument has a position, as in
    `jax.custom_vjp`.

    Args:
        f: The function.
        name: What it is called.
        args: Positional arguments.
        kwargs: Keyword arguments.

    Returns:
        All of the function's arguments.

    Raises:
        TypeError: If the arguments do not fit, or one has no position.
    """
    # The defaults of a partial function are no arguments of the rules, as in JAX.
    if isinstance(f, functools.partial) and not kwargs:
        return tuple(args)
    try:
        bound = inspect.signature(f).bind(*args, **kwargs)
    except (TypeError, ValueError) as error:
        if isinstance(error, ValueError) and not kwargs:
            return tuple(args)  # some functions of C have no signature
        raise TypeError(f"The arguments of {name!r} have no positions: {error}.") from (
            error
        )
    bound.apply_defaults()
    if bound.kwargs:
        raise TypeError(
            f"The keyword arguments {', '.join(map(repr, bound.kwargs))} of {name!r} "
            "have no positions, which derivative rules go by: let the function take "
            "them by position too."
        )
    return bound.args


def argument_names(f: Callable[..., Any], count: int) -> list[str]:
    """What the arguments of a function are called in messages.

    Args:
        f: The function.
        count: The number of its arguments in a call.

    Returns:
        Names such as `argument 1 ('x')`.
    """
    try:
        parameters = list(inspect.signature(f).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    names: list[str] = []
    for position in range(count):
        name = f"argument {position}"
        if position < len(parameters):
            parameter = parameters[position]
            if parameter.kind is not parameter.VAR_POSITIONAL:
                name += f" ({parameter.name!r})"
            else:
                parameters = []
        names.append(name)
    return names


def _refuse_objects(x: Any, where: str) -> None:
    for leaf in jax.tree.leaves(x, is_leaf=is_object):
        if is_object(leaf):
            raise TypeError(
                f"{where} holds a {type(leaf).__name__}, but an integer in "
                "nondiff_argnums must not name an argument with graph nodes: leave the "
                "integer out, and give no tangent for it. In `custom_vjp`, "
                "`DiffState(argnum, filter)` says what is differentiable in it."
            )


def positions_of_names(
    fun: Callable[..., Any], name: str, argnames: Sequence[str]
) -> list[int]:
    """Finds the positions of arguments by name.

    Args:
        fun: The function.
        name: What it is called.
        argnames: Names of its parameters.

    Returns:
        Their positions.

    Raises:
        ValueError: If it has no such parameter.
    """
    if not argnames:
        return []
    known = list(inspect.signature(fun).parameters)
    argnames = [argnames] if isinstance(argnames, str) else list(argnames)
    for argname in argnames:
        if argname not in known:
            raise ValueError(
                f"nondiff_argnames of {name!r} has {argname!r}, but its arguments are "
                f"{', '.join(map(repr, known))}."
            )
    return [known.index(argname) for argname in argnames]


def divide_argnums(
    positions: Sequence[int | DiffState], name: str
) -> tuple[list[int], dict[int, DiffState]]:
    """Divides `nondiff_argnums` into integers and filters.

    Args:
        positions: What the user gave.
        name: What the function is called.

    Returns:
        The integers, sorted; and the filters by position.

    Raises:
        ValueError: If a position is negative or there twice.
        TypeError: If there is anything else.
    """
    integers: list[int] = []
    filters: dict[int, DiffState] = {}
    for entry in positions:
        if isinstance(entry, DiffState):
            argnum = entry.argnum
        elif isinstance(entry, int):
            argnum = entry
        else:
            raise TypeError(
                f"nondiff_argnums of {name!r} holds a {type(entry).__name__}: expected "
                "integers and `DiffState`s."
            )
        if argnum < 0:
            raise ValueError(
                f"nondiff_argnums of {name!r} holds {entry!r}: count positions from 0."
            )
        if argnum in integers or argnum in filters:
            raise ValueError(
                f"nondiff_argnums of {name!r} names argument {argnum} twice: "
                f"{list(positions)!r}."
            )
        if isinstance(entry, DiffState):
            filters[argnum] = entry
        else:
            integers.append(argnum)
    return sorted(integers), filters
