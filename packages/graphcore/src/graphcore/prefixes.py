"""Prefixes: settings given for parts of a tree, such as axes or filters."""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Generic, TypeVar

import jax

from graphcore.nodes.registry import is_graph_node
from graphcore.nodes.traversal import places
from graphcore.refmap import RefMap
from graphcore.trails import Path, key_of, path_text
from graphcore.variables.bare_arrays import BareArray
from graphcore.variables.impl import is_variable

__all__ = ["PrefixMapping", "broadcast_prefix"]

A = TypeVar("A")


class PrefixMapping(abc.ABC, Generic[A]):
    """A prefix of a graph node that answers for each variable.

    Attributes:
        settings: The settings that it can answer with, for variables that are not
            there yet.
        is_static: Whether the answer depends on nothing but what a definition says of
            a variable, so that it holds for all graphs of one definition.
        first_path_counts: Whether it is asked about a variable that is reached more
            than once in its node by the first path alone; else the answers for all
            paths must agree.

    Example:
        >>> import graphcore as gc
        >>> class Depth(gc.PrefixMapping):
        ...     def map_prefix(self, path, variable): return len(path)
        >>> Depth().map_prefix(('a', 'b'), gc.Param(1))
        2
    """

    settings: tuple[A, ...] = ()
    is_static: bool = False
    first_path_counts: ClassVar[bool] = False

    @abc.abstractmethod
    def map_prefix(self, path: tuple[Any, ...], variable: Any) -> A:
        """Returns the prefix of one variable.

        Args:
            path: The path of the variable in the node.
            variable: The variable.

        Returns:
            The prefix.
        """


def setting_of(prefix: Any, path: Path, variable: Any) -> Any:
    """The setting of one variable of an object.

    Args:
        prefix: The setting of the object.
        path: The path of the variable in the object.
        variable: The variable, or its state.

    Returns:
        What a `PrefixMapping` answers; any other setting is that of all variables.

    Example:
        >>> import graphcore as gc
        >>> from graphcore.prefixes import setting_of
        >>> setting_of(0, ('w',), gc.Param(1))
        0
    """
    if isinstance(prefix, PrefixMapping):
        shown = variable.get() if type(variable) is BareArray else variable
        return prefix.map_prefix(path, shown)
    return prefix


def broadcast_prefix(
    prefix_tree: Any,
    full_tree: Any,
    prefix_is_leaf: Callable[[Any], bool] | None = None,
    tree_is_leaf: Callable[[Any], bool] | None = None,
    called: tuple[str, str] = ("The prefix", "the tree"),
) -> list[Any]:
    """Lists the prefix of every leaf of a tree.

    Args:
        prefix_tree: A tree prefix of the full tree.
        full_tree: The tree.
        prefix_is_leaf: What counts as a leaf of the prefix.
        tree_is_leaf: What counts as a leaf of the tree.
        called: What the prefix and the tree are called, for messages.

    Returns:
        One entry a leaf of the full tree, in order.

    Raises:
        ValueError: If the one is not a prefix of the other, with the path.

    Example:
        >>> broadcast_prefix((0, 1), ({'a': 'x', 'b': 'y'}, 'z'))
        [0, 0, 1]
    """
    found: list[Any] = []

    def visit(prefix: Any, subtree: Any) -> None:
        found.extend([prefix] * len(jax.tree.leaves(subtree, is_leaf=tree_is_leaf)))

    try:
        jax.tree.map(visit, prefix_tree, full_tree, is_leaf=prefix_is_leaf)
    except ValueError:
        is_leaf = prefix_is_leaf or _never, tree_is_leaf or _never
        path, *both = _first_difference(prefix_tree, full_tree, is_leaf) or ((),)
        given, stands = map(described, both or (prefix_tree, prefix_tree))
        if given == stands:  # What is static in them differs, as JAX tells.
            raise
        at = f" at {path_text(map(key_of, path))!r}" if path else ""
        is_node = is_graph_node(both[1]) if both else False
        hint = (
            ", or a `PrefixMapping` of its variables: in nnx_transforms a `StateAxes` "
            "or `StateSharding`"
        )
        raise ValueError(
            f"{called[0]}{at} is {given}, but {called[1]}{at and ' there'} is "
            f"{stands}. Give it the same structure, or one setting for the whole"
            f"{hint if is_node else ''}."
        ) from None
    return found


_LEAF = jax.tree.structure(0)


def _never(x: Any) -> bool:
    return False


def _first_difference(
    prefix: Any, tree: Any, is_leaf: Sequence[Callable[[Any], bool]]
) -> tuple[Any, ...] | None:
    """Where one tree is no prefix of another: the path, and what each has there."""
    pairs, structure = _one_level(prefix, is_leaf[0])
    if structure == _LEAF:
        return None
    others, other = _one_level(tree, is_leaf[1])
    if structure != other:
        return (), prefix, tree
    for (way, x), (_, y) in zip(pairs, others, strict=True):
        found = _first_difference(x, y, is_leaf)
        if found is not None:
            return (*way, *found[0]), *found[1:]
    return None


def _one_level(tree: Any, is_leaf: Callable[[Any], bool]) -> Any:
    return jax.tree_util.tree_flatten_with_path(
        tree, is_leaf=lambda x: x is not tree or is_leaf(x)
    )


def described(tree: Any) -> str:
    """What stands somewhere in a pytree, for messages."""
    if isinstance(tree, jax.Array):
        return "an array"
    name = type(tree).__name__
    if isinstance(tree, dict):
        return f"a {name} with the keys {[*tree]}"
    return f"a {name} of {len(tree)}" if isinstance(tree, tuple | list) else f"a {name}"


class AliasCheck:
    """Makes sure that whatever is reached twice is reached under equal prefixes.

    Example:
        >>> import graphcore as gc
        >>> shared, check = gc.Param(1), AliasCheck()
        >>> check.add((0,), gc.Dict(a=shared), 0)
        >>> check.add((1,), gc.Dict(b=shared), None)
        >>> try: check.check()
        ... except ValueError as error: print(str(error).splitlines()[0])
        Inconsistent aliasing detected: a Param is reached under different prefixes:
    """

    def __init__(self) -> None:
        self._found: RefMap[Any, list[tuple[Path, Any]]] = RefMap()

    def add(self, path: Path, root: Any, prefix: Any) -> None:
        """Takes note of everything that is reached from a node under a prefix.

        Args:
            path: The path of the node.
            root: The node or variable.
            prefix: Its prefix.
        """
        once = isinstance(prefix, PrefixMapping) and prefix.first_path_counts
        seen: RefMap[Any, None] = RefMap()
        for inner, _, x in places(root):
            if not (once and x in seen):
                seen[x] = None
                found = setting_of(prefix, inner, x) if is_variable(x) else prefix
                self._found.setdefault(x, []).append(((*path, *inner), found))

    def check(self) -> None:
        """Says which object was reached under different prefixes, if one was.

        Raises:
            ValueError: With all its paths.
        """
        for x, known in self._found.items():
            if all(_agree(known[0][1], prefix) for _, prefix in known):
                continue
            lines = "\n".join(f"  {path_text(p)}: {found!r}" for p, found in known)
            name = "jax.Array" if type(x) is BareArray else type(x).__name__
            raise ValueError(
                f"Inconsistent aliasing detected: a {name} is reached under different "
                f"prefixes:\n{lines}\nGive all of its paths the same prefix."
            )


def _agree(a: Any, b: Any) -> bool:
    # Of a node, a mapping says nothing but what its variables are asked about.
    is_any_mapping = isinstance(a, PrefixMapping) or isinstance(b, PrefixMapping)
    return is_any_mapping or (type(a) is type(b) and bool(a == b))
