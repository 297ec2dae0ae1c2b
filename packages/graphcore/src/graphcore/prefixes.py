"""Prefixes: settings given for parts of a tree, such as axes or filters."""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Generic, TypeVar

import jax

from graphcore.nodes.registry import is_graph_node
from graphcore.nodes.traversal import places
from graphcore.refmap import RefMap
from graphcore.trails import key_of, path_text
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

    first_path_counts: ClassVar[bool] = False

    @property
    def settings(self) -> tuple[A, ...]:
        return ()

    @property
    def is_static(self) -> bool:
        return False

    @abc.abstractmethod
    def map_prefix(self, path: tuple[Any, ...], variable: Any) -> A:
        """Returns the prefix of one variable.

        Args:
            path: The path of the variable in the node.
            variable: The variable.

        Returns:
            The prefix.
        """


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
        hint = ", or a `PrefixMapping` of its variables, as `StateSharding` is"
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

    __slots__ = ("_conflict", "_found")

    def __init__(self) -> None:
        self._found: RefMap[Any, list[tuple[tuple[Any, ...], Any]]] = RefMap()
        # The first object of which two prefixes differ.
        self._conflict: Any = None

    def add(self, path: tuple[Any, ...], root: Any, prefix: Any) -> None:
        """Takes note of everything that is reached from a node under a prefix.

        Args:
            path: The path of the node.
            root: The node or variable.
            prefix: Its prefix.
        """
        answers = isinstance(prefix, PrefixMapping)
        once = answers and prefix.first_path_counts
        seen: RefMap[Any, None] = RefMap()
        for inner, _, x in places(root):
            if once and x in seen:
                continue
            seen[x] = None
            found = prefix
            if answers and is_variable(x):
                shown = x.get() if type(x) is BareArray else x
                found = prefix.map_prefix(inner, shown)
            self._note(x, (*path, *inner), found)

    def _note(self, x: Any, path: tuple[Any, ...], prefix: Any) -> None:
        known = self._found.setdefault(x, [])
        known.append((path, prefix))
        first = known[0][1]
        if isinstance(first, PrefixMapping) or isinstance(prefix, PrefixMapping):
            # Of a node; it says nothing but what its variables are asked about.
            return
        if self._conflict is None and (
            type(first) is not type(prefix) or first != prefix
        ):
            self._conflict = x

    def check(self) -> None:
        """Says which object was reached under different prefixes, if one was.

        Raises:
            ValueError: With all its paths.
        """
        if self._conflict is None:
            return
        known = self._found[self._conflict]
        lines = "\n".join(f"  {path_text(p)}: {found!r}" for p, found in known)
        kind = type(self._conflict)
        name = "jax.Array" if kind is BareArray else kind.__name__
        raise ValueError(
            f"Inconsistent aliasing detected: a {name} is reached under different "
            f"prefixes:\n{lines}\nGive all of its paths the same prefix."
        )
