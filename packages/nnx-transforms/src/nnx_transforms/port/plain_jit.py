"""What functions under plain `jax.jit` are likely to change in place.

Flax's objects are pytrees, so a program may write to one in `jax.jit`, and return it.
Here an object that JAX put together is written only if the function says so.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence

__all__ = ["changed_arguments"]

_Function = ast.FunctionDef | ast.AsyncFunctionDef
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
_Names = Mapping[str, Sequence[_Function]]


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
    for function in dict.fromkeys(_jitted(tree, _names_of_jit(tree), {}, {})):
        yield from _changed_by(function)


def _names_of_jit(tree: ast.Module) -> set[str]:
    """What a program calls `jax.jit`, also with some of its arguments given."""
    names = {"jax.jit"}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "jax":
            names |= {a.asname or a.name for a in node.names if a.name == "jit"}
        elif isinstance(node, ast.Import):
            names |= {f"{a.asname}.jit" for a in node.names if a.name == "jax"}
        elif isinstance(node, ast.Assign) and _is_jit(node.value, names):
            names |= {ast.unparse(target) for target in node.targets}
    return names


def _is_jit(node: ast.expr, names: set[str]) -> bool:
    if isinstance(node, ast.Call) and node.args:
        if ast.unparse(node.func) in ("partial", "functools.partial"):
            node = node.args[0]
    return ast.unparse(node) in names


def _jitted(
    scope: ast.AST, jits: set[str], seen: _Names, methods: _Names
) -> Iterator[_Function]:
    """The functions that a scope and those in it compile."""
    nodes = [*_of_scope(scope)]
    # Several of one name are those of branches; none, if it names something else.
    own: dict[str, list[_Function]] = {}
    for node in nodes:
        if isinstance(node, ast.arg):
            own.setdefault(node.arg, [])
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            own.setdefault(node.id, [])
        elif isinstance(node, _Function):
            own.setdefault(node.name, []).append(node)
    for node in nodes:
        if isinstance(node, ast.Global | ast.Nonlocal):
            own = {name: x for name, x in own.items() if name not in node.names}
    methods = own if isinstance(scope, ast.ClassDef) else methods
    names = {**seen, **own}
    for node in nodes:
        if isinstance(node, ast.Call) and _is_jit(node.func, jits):
            match [*node.args, *[k.value for k in node.keywords if k.arg == "fun"]]:
                case [ast.Name(id=name), *_]:
                    yield from names.get(name, ())
                case [ast.Attribute(value=ast.Name(id="self"), attr=name), *_]:
                    yield from methods.get(name, ())
        elif isinstance(node, _Function):
            decorators = [n for each in node.decorator_list for n in ast.walk(each)]
            if any(
                isinstance(n, ast.expr) and ast.unparse(n) in jits for n in decorators
            ):
                yield node
        if isinstance(node, _SCOPES):
            # The names of a class are not seen in its methods.
            inner = seen if isinstance(scope, ast.ClassDef) else names
            yield from _jitted(node, jits, inner, methods)


def _of_scope(scope: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a scope, without what is in the scopes in it."""
    for node in ast.iter_child_nodes(scope):
        yield node
        if not isinstance(node, _SCOPES):
            yield from _of_scope(node)


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
        kind = ast.unparse(argument.annotation) if argument.annotation else ""
        if (name := argument.arg) in bound or kind.split(".")[-1] == "Array":
            continue
        advice = f"`{name} = nnx.by_value({name})` first, or nnx.jit for jax.jit"
        if name == "rngs" or kind.split(".")[-1] == "Rngs":
            reason = "drawing from it in jax.jit needs "
        elif name in returned:
            reason = "it is returned; if it is an object that is changed, this needs "
        else:
            continue
        yield argument, f"{function.name}({name})", reason + advice
