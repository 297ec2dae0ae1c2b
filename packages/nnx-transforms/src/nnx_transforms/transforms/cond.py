"""Branches and loops over live objects.

JAX wants all branches to return the same pytree, and the body of a loop what it was
given. So the values of all variables go in and come out; JAX passes by those that no
branch changes. While it traces, each run is described, and compared with the others:
they must agree on the structure of the objects, and may write different variables.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax

from graphcore.errors import path_text
from graphcore.variable_impl import variable_impl
from nnx_transforms.transforms.agreement import (
    Description,
    describe_inputs,
    describe_left,
    fail,
    merge_outcomes,
)
from nnx_transforms.transforms.lifting import Callee, Inputs, Inside, Outcome, take

__all__ = ["cond", "fori_loop", "switch", "while_loop"]

_MISSING: Any = object()


def cond(
    pred: Any,
    true_fun: Any,
    false_fun: Any,
    *operands: Any,
    operand: Any = _MISSING,
) -> Any:
    """Runs one of two functions of live objects, as a value decides.

    Both are traced. They may write different variables; what no branch writes is left
    alone. They must leave the same structure: objects that both make alike are fine.
    Outside of `jit`, each call with objects traces and compiles them anew.

    Args:
        pred: A scalar: a boolean or a number.
        true_fun: Called as `true_fun(*operands)` if it is true.
        false_fun: Called likewise if not.
        *operands: Any pytrees, with objects in them.
        operand: One operand, by keyword; as in `jax.lax.cond`, which also describes
            the older form `cond(pred, true_operand, true_fun, false_operand,
            false_fun)`.

    Returns:
        What the function returned. Objects in it stand in the same places for both.

    Raises:
        ValueError: If the branches leave different structures or return different
            objects, with the paths.
        TypeError: If a variable or an output has another shape or dtype in one branch
            than in the other, with the path; or as `jax.lax.cond` says.

    Example:
        >>> import nnx_transforms as nnx, jax.numpy as jnp
        >>> count = nnx.Variable(jnp.array(3))
        >>> def halve(n): n.value //= 2
        >>> def grow(n): n.value = 3 * n.value + 1
        >>> nnx.cond(count.value % 2 == 0, halve, grow, count)
        >>> int(count.value)
        10
    """
    if not (callable(true_fun) and callable(false_fun)):
        if callable(false_fun) and len(operands) == 2 and callable(operands[1]):
            f_true, (x_false, f_false) = false_fun, operands
            return cond(
                pred,
                lambda x, _: f_true(x),
                lambda _, x: f_false(x),
                true_fun,
                x_false,
            )
        return jax.lax.cond(pred, true_fun, false_fun, *operands)
    branches = _Branches(
        "cond",
        (true_fun, false_fun),
        ("true_fun", "false_fun"),
        _operands(operands, operand),
    )
    return branches.run(lambda f, g, *args: jax.lax.cond(pred, f, g, *args))


def switch(
    index: Any,
    branches: Any,
    *operands: Any,
    operand: Any = _MISSING,
) -> Any:
    """Runs one of several functions of live objects, as an index decides.

    What is said of the two functions of `cond` holds for all branches.

    Args:
        index: An integer scalar; clamped to the number of branches.
        branches: Functions of the operands.
        *operands: Any pytrees, with objects in them.
        operand: One operand, by keyword.

    Returns:
        What the branch returned.

    Raises:
        ValueError: If branches leave different structures or return different objects,
            with the paths.
        TypeError: If a variable or an output has another shape or dtype in one branch
            than in another, with the path; or as `jax.lax.switch` says.

    Example:
        >>> import nnx_transforms as nnx, jax.numpy as jnp
        >>> x = nnx.Variable(jnp.array(2.0))
        >>> def add(x): x.value += 1
        >>> def double(x): x.value *= 2
        >>> nnx.switch(1, [add, double], x)
        >>> float(x.value)
        4.0
    """
    functions = list(branches) if isinstance(branches, Sequence) else []
    if not functions or not all(map(callable, functions)):
        return jax.lax.switch(index, branches, *operands)
    names = [f"branch {number}" for number in range(len(functions))]
    runner = _Branches("switch", functions, names, _operands(operands, operand))
    return runner.run(lambda *args: jax.lax.switch(index, *_grouped(functions, args)))


def _grouped(functions: Sequence[Any], args: Sequence[Any]) -> tuple[Any, ...]:
    return list(args[: len(functions)]), *args[len(functions) :]


def _operands(operands: tuple[Any, ...], operand: Any) -> tuple[Any, ...]:
    if operand is _MISSING:
        return operands
    if operands:
        raise TypeError(
            "Expected operands either by position or as `operand=`, got both: "
            f"{len(operands)} by position and {operand!r}."
        )
    return (operand,)


class _Run:
    """What both branches and loops are: functions of the same objects.

    Args:
        functions: The functions.
        given: Their arguments, any pytree.
    """

    def __init__(self, functions: Sequence[Callable[..., Any]], given: Any) -> None:
        self.callees = [Callee(f) for f in functions]
        self.inputs: Inputs = take(
            given, bound=[x for c in self.callees for x in c.bound]
        )
        rest = iter(self.inputs.bound)
        self._bound = [[next(rest) for _ in c.bound] for c in self.callees]
        # What the runs left, in the order in which JAX traced them.
        self.found: list[Description] = []

    def enter(
        self, number: int, values: Sequence[Any], plain: Any
    ) -> tuple[Inside, Callable[..., Any], Any]:
        """Builds the objects for one of the functions; see `Inputs.enter`."""
        inside = Inside(self.inputs.joint, values)
        bound = [inside.roots[n] for n in self._bound[number]]
        function = self.callees[number].on(bound)
        return inside, function, self.inputs.skeleton.fill(plain, inside.roots)

    def blaming(self, function: Callable[..., Any], *args: Any) -> Any:
        """Calls a function; an error of JAX about a variable's value has its path."""
        try:
            return function(*args)
        except TypeError as error:
            inputs = self.inputs
            given = describe_inputs(inputs, inputs.values(), inputs.plain)
            for description in (given, *self.found):
                description.check_types(error)
            raise

    def publish(self, values: Sequence[Any], new: Sequence[Any], tree: Any) -> Any:
        """Publishes what the runs that were seen have done together."""
        outcomes = [d.outcome for d in self.found if d.outcome is not None]
        outcome: Outcome = merge_outcomes(self.inputs, outcomes)
        written = [values[p] for p in outcome.positions if p is not None]
        return self.inputs.publish(outcome, [*written, *new], tree)


def _values_in(inside: Inside) -> list[Any]:
    return [variable_impl(type(v)).get_value(v) for v in inside.variables]


class _Branches(_Run):
    def __init__(
        self,
        name: str,
        functions: Sequence[Callable[..., Any]],
        names: Sequence[str],
        operands: tuple[Any, ...],
    ) -> None:
        super().__init__(functions, {"operands": operands})
        self._name = name
        self._names = names
        self._functions = functions
        self._first = names[0]
        self._has_objects = bool(self.inputs.roots)

    def run(self, choose: Callable[..., Any]) -> Any:
        """Has JAX choose a branch.

        Args:
            choose: Called with the pure branches and their arguments.

        Returns:
            What the branch returned.
        """
        branches = [self._pure(number) for number in range(len(self.callees))]
        plain = self.inputs.plain["operands"]
        if self._has_objects:
            out = self.blaming(choose, *branches, self.inputs.values(), plain)
        else:
            out = self.blaming(choose, *branches, *plain)
            if not self._returns_objects():
                return out
        values, new, tree = out
        return self.publish(values, new, tree)["output"]

    def _pure(self, number: int) -> Callable[..., Any]:
        def with_objects(values: Any, plain: Any) -> Any:
            inside, function, given = self.enter(number, values, {"operands": plain})
            left = inside.leave({"output": function(*given["operands"])})
            self._compare(self._names[number], describe_left(self.inputs, inside, left))
            new = [w.value for w in left.written if w.position is None]
            return _values_in(inside), new, left.tree

        def without_objects(*operands: Any) -> Any:
            # The arguments are JAX's own, and so are its messages about the output.
            values, new, tree = with_objects([], operands)
            return (values, new, tree) if self._returns_objects() else tree["output"]

        pure = with_objects if self._has_objects else without_objects
        # JAX should show the user's function. Not its `__dict__`: it may be an object.
        return functools.update_wrapper(pure, self._functions[number], updated=())

    def _returns_objects(self) -> bool:
        return bool(self.found[-1].outcome.skeleton.spots)  # type: ignore[union-attr]

    def _compare(self, name: str, left: Description) -> None:
        if not self.found:
            self._first = name
        self.found.append(left)
        first = self.found[0]
        if first is left:
            return
        first.check_graph(
            left,
            f"All branches of `{self._name}` must leave the same structure and return "
            "the same objects, because only at run time it is known which of them "
            f"runs. They differ ({self._first} -> {name}):",
        )
        if self._has_objects or self._returns_objects():
            first.check_values(
                left,
                f"All branches of `{self._name}` must leave and return values of the "
                f"same shapes and dtypes. They differ ({self._first} -> {name}):",
                promotes=False,
            )


def while_loop(cond_fun: Any, body_fun: Any, init_val: Any) -> Any:
    """Repeats a function of live objects while a condition holds.

    Args:
        cond_fun: Called with the carry, returns a boolean scalar. It may only read.
        body_fun: Called with the carry, returns the next one: objects must come back
            in their places. What it writes to them goes on to the next iteration.
        init_val: The first carry, any pytree with objects in it.

    Returns:
        The last carry; objects in it are the caller's own.

    Raises:
        ValueError: If an iteration changes the structure of the objects or rewires
            their references, or `cond_fun` writes; with the paths.
        TypeError: If a shape or dtype changes, with the path; or as
            `jax.lax.while_loop` says.

    Example:
        >>> import nnx_transforms as nnx, jax.numpy as jnp
        >>> x = nnx.Variable(jnp.array(1))
        >>> def double(x):
        ...     x.value *= 2
        ...     return x
        >>> nnx.while_loop(lambda x: x.value < 100, double, x) is x, int(x.value)
        (True, 128)
    """
    if not (callable(cond_fun) and callable(body_fun)):
        return jax.lax.while_loop(cond_fun, body_fun, init_val)
    loop = _Loop("while_loop", (body_fun, cond_fun), init_val)
    if not loop.inputs.roots:
        return jax.lax.while_loop(cond_fun, body_fun, init_val)

    def body(carry: Any) -> Any:
        return loop.step(*carry)

    def condition(carry: Any) -> Any:
        return loop.ask(*carry)

    return loop.run(functools.partial(jax.lax.while_loop, condition, body))


def fori_loop(
    lower: Any,
    upper: Any,
    body_fun: Any,
    init_val: Any,
    *,
    unroll: int | bool | None = None,
) -> Any:
    """Repeats a function of live objects for each integer of a range.

    Args:
        lower: The first integer.
        upper: One beyond the last.
        body_fun: Called with the integer and the carry, returns the next carry:
            objects must come back in their places.
        init_val: The first carry, any pytree with objects in it.
        unroll: As for `jax.lax.fori_loop`.

    Returns:
        The last carry; objects in it are the caller's own.

    Raises:
        ValueError: If an iteration changes the structure of the objects or rewires
            their references, with the paths.
        TypeError: If a shape or dtype changes, with the path; or as
            `jax.lax.fori_loop` says.

    Example:
        >>> import nnx_transforms as nnx, jax.numpy as jnp
        >>> total = nnx.Variable(jnp.array(0))
        >>> def add(i, total):
        ...     total.value += i
        ...     return total
        >>> int(nnx.fori_loop(0, 5, add, total).value), int(total.value)
        (10, 10)
    """
    if not callable(body_fun):
        return jax.lax.fori_loop(lower, upper, body_fun, init_val, unroll=unroll)
    loop = _Loop("fori_loop", (body_fun,), init_val)
    if not loop.inputs.roots:
        return jax.lax.fori_loop(lower, upper, body_fun, init_val, unroll=unroll)

    def body(i: Any, carry: Any) -> Any:
        return loop.step(*carry, i)

    repeat = functools.partial(jax.lax.fori_loop, lower, upper, body, unroll=unroll)
    return loop.run(repeat)


class _Loop(_Run):
    def __init__(
        self, name: str, functions: Sequence[Callable[..., Any]], init_val: Any
    ) -> None:
        super().__init__(functions, {"carry": init_val})
        self._name = name

    def run(self, repeat: Callable[[Any], Any]) -> Any:
        """Runs the pure loop and publishes its last carry.

        Args:
            repeat: Returns the last carry for the first one.

        Returns:
            The last carry, with objects.
        """
        first = self.inputs.values(), self.inputs.plain["carry"]
        values, plain = self.blaming(repeat, first)
        tree = {"carry": plain}
        if not self.found:  # no iteration, and nothing was traced
            return self.inputs.skeleton.fill(tree, self.inputs.roots)["carry"]
        return self.publish(values, [], tree)["carry"]

    def step(self, values: Any, plain: Any, *leading: Any) -> tuple[Any, Any]:
        """Runs one iteration, purely."""
        inside, function, given = self.enter(0, values, {"carry": plain})
        before = describe_inputs(self.inputs, values, {"carry": plain})
        left = inside.leave({"carry": function(*leading, given["carry"])})
        after = describe_left(self.inputs, inside, left)
        before.check_graph(
            after,
            "Carry references must be the same between iterations, and so must the "
            f"structure of what is carried. An iteration of `{self._name}` changes "
            "(before -> after):",
        )
        # JAX itself promotes weak types in the first carry, and then traces again.
        before.check_values(
            after,
            f"An iteration of `{self._name}` must keep shapes and dtypes. It changes "
            "(before -> after):",
            promotes=True,
        )
        self.found.append(after)
        return _values_in(inside), left.tree["carry"]

    def ask(self, values: Any, plain: Any) -> Any:
        """Evaluates the condition, purely."""
        given: Any = {"carry": plain}
        before = describe_inputs(self.inputs, values, given)
        inside, function, given = self.enter(1, values, given)
        holds = function(given["carry"])
        left = inside.leave(given)
        message = (
            f"The condition of `{self._name}` may only read, since what it writes "
            "would be lost: write in the body. It changes"
        )
        before.check_graph(
            describe_left(self.inputs, inside, left), f"{message} (before -> after):"
        )
        if left.written:
            positions = [w.position for w in left.written if w.position is not None]
            paths = [path_text(self.inputs.variable_path(p)) for p in positions]
            fail(ValueError, f"{message}:", paths)
        return holds
