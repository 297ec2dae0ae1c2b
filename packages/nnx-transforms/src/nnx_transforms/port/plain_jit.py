"""What functions under plain `jax.jit` are likely to change in place.

Flax's objects are pytrees, so a program may write to one in `jax.jit`, and return it.
Here an object that JAX put together is written only if the function says so.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

__all__ = ["changed_arguments"]

_Function = ast.FunctionDef | ast.AsyncFunctionDef


def changed_arguments(tree: ast.Module) -> Iterator[tuple[ast.arg, str, str]]:
    """Finds arguments of functions under `jax.jit` that these may change.

    Such are random streams, and what is returned, unless a statement binds its name to
    something new.

    Args:
        tree: a program.

    Yields:
        The argument, a name for it, and what to do about it.

    Example:
        >>> program = '''
        ... @jax.jit
        ... def decode(model, cache, token):
        ...     return model(token, cache), cache
        ... '''
        >>> [name for _, name, _ in changed_arguments(ast.parse(program))]
        ['decode(cache)']
    """
    nodes = [*ast.walk(tree)]
    jitted = {
        argument.id
        for call in nodes
        if isinstance(call, ast.Call) and _is_jit(call.func)
        for argument in call.args[:1]
        if isinstance(argument, ast.Name)
    }
    for function in nodes:
        if not isinstance(function, _Function):
            continue
        decorators = [n for each in function.decorator_list for n in ast.walk(each)]
        if function.name in jitted or any(map(_is_jit, decorators)):
            yield from _changed_by(function)


def _is_jit(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and ast.unparse(node) == "jax.jit"


def _changed_by(function: _Function) -> Iterator[tuple[ast.arg, str, str]]:
    nodes = [n for statement in function.body for n in ast.walk(statement)]
    names = [n for n in nodes if isinstance(n, ast.Name)]
    bound = {n.id for n in names if not isinstance(n.ctx, ast.Load)}
    values = [n.value for n in nodes if isinstance(n, ast.Return) and n.value]
    for value in values:
        if isinstance(value, ast.Tuple | ast.List):
            values += value.elts
    returned = {value.id for value in values if isinstance(value, ast.Name)}
    given = function.args
    for argument in (*given.posonlyargs, *given.args, *given.kwonlyargs):
        if (name := argument.arg) in bound:
            continue
        kind = ast.unparse(argument.annotation) if argument.annotation else ""
        advice = f"`{name} = nnx.by_value({name})` first, or nnx.jit for jax.jit"
        if name == "rngs" or kind.split(".")[-1] == "Rngs":
            reason = "drawing from it in jax.jit needs "
        elif name in returned:
            reason = "it is returned; if it is an object that is changed, this needs "
        else:
            continue
        yield argument, f"{function.name}({name})", reason + advice
