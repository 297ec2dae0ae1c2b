"""An immutable dict that JAX knows as a pytree.

Variables are plain dicts. Who wants to be sure that nobody changes them wraps them
with `freeze`; a `FrozenDict` is accepted wherever variables are.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from typing import Any, TypeVar

import jax

__all__ = ["FrozenDict", "copy", "freeze", "pop", "pretty_repr", "unfreeze"]

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class FrozenDict(Mapping[K, V]):
    """A dict whose content, nested dicts included, cannot be changed.

    It is a pytree with the same order of leaves as the dict, and hashable if its
    values are.

    Args:
        *args: what `dict` takes.
        **kwargs: what `dict` takes.

    Example:
        >>> import linen_lift as nn
        >>> frozen = nn.FrozenDict({'a': {'b': 1}})
        >>> frozen['a']
        FrozenDict({'b': 1})
    """

    __slots__ = ("_dict",)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._dict: dict[Any, Any] = unfreeze(dict(*args, **kwargs))

    @classmethod
    def _wrap(cls, plain: dict[Any, Any]) -> FrozenDict[Any, Any]:
        new = cls.__new__(cls)
        new._dict = plain
        return new

    def __getitem__(self, key: K) -> Any:
        value = self._dict[key]
        return FrozenDict._wrap(value) if type(value) is dict else value

    def __setitem__(self, key: K, value: V) -> None:
        # A ValueError, as Flax has it, where Python's own would be a TypeError.
        raise ValueError(
            f"A FrozenDict is immutable: {key!r} cannot be set. Use "
            "copy({key: value}), which makes a new one, or unfreeze()."
        )

    def __iter__(self) -> Iterator[K]:
        return iter(self._dict)

    def __len__(self) -> int:
        return len(self._dict)

    def __repr__(self) -> str:
        return f"FrozenDict({self._dict!r})"

    def __hash__(self) -> int:
        return hash(frozenset(self.items()))

    def __reduce__(self) -> Any:
        return FrozenDict, (self._dict,)

    def copy(self, add_or_replace: Mapping[K, Any] | None = None) -> FrozenDict[K, Any]:
        """A new frozen dict with entries added or replaced.

        Args:
            add_or_replace: the entries; None for a plain copy.

        Returns:
            The new frozen dict.
        """
        return type(self)({**self, **dict(add_or_replace or {})})

    def pop(self, key: K) -> tuple[FrozenDict[K, Any], Any]:
        """A new frozen dict without `key`, and what was there.

        Args:
            key: an existing key.

        Returns:
            The pair `(rest, value)`.

        Raises:
            KeyError: if there is no such key.
        """
        value, rest = self[key], dict(self._dict)
        del rest[key]
        return self._wrap(rest), value

    def unfreeze(self) -> dict[K, Any]:
        """A plain nested dict with the same content."""
        plain: dict[K, Any] = unfreeze(self)
        return plain

    def pretty_repr(self, num_spaces: int = 4) -> str:
        """An indented representation.

        Args:
            num_spaces: how far each level is indented.

        Returns:
            The text, one line per leaf.
        """
        return f"FrozenDict({pretty_repr(self._dict, num_spaces)})"


def pretty_repr(x: Any, num_spaces: int = 4) -> str:
    """An indented representation of a nested dict.

    Args:
        x: a dict or `FrozenDict`; the `repr` of anything else is given.
        num_spaces: how far each level is indented.

    Returns:
        The text, one line per leaf.

    Example:
        >>> import linen_lift as nn
        >>> print(nn.pretty_repr({'a': {'b': 1}}, 2))
        {
          a: {
            b: 1,
          },
        }
    """
    if isinstance(x, FrozenDict):
        return x.pretty_repr(num_spaces)

    def lines(value: Any, depth: int) -> str:
        if not isinstance(value, dict):
            return repr(value)
        if not value:
            return "{}"
        pad = " " * (num_spaces * (depth + 1))
        rows = (f"{pad}{k}: {lines(v, depth + 1)},\n" for k, v in value.items())
        return "{\n" + "".join(rows) + " " * (num_spaces * depth) + "}"

    return lines(x, 0)


def _flatten(frozen: FrozenDict[Any, Any]) -> Any:
    keys = sorted(frozen._dict)
    return [frozen._dict[k] for k in keys], tuple(keys)


def _flatten_with_keys(frozen: FrozenDict[Any, Any]) -> Any:
    children, keys = _flatten(frozen)
    named = zip(map(jax.tree_util.DictKey, keys), children, strict=True)
    return list(named), keys


def _unflatten(keys: Any, children: Any) -> FrozenDict[Any, Any]:
    plain = {
        k: v._dict if isinstance(v, FrozenDict) else v
        for k, v in zip(keys, children, strict=True)
    }
    return FrozenDict._wrap(plain)


jax.tree_util.register_pytree_with_keys(
    FrozenDict, _flatten_with_keys, _unflatten, _flatten
)


def freeze(xs: Mapping[Any, Any]) -> FrozenDict[Any, Any]:
    """Makes a mapping and the dicts in it immutable.

    Args:
        xs: a mapping.

    Returns:
        A `FrozenDict` that shares no dict with `xs`.

    Example:
        >>> import linen_lift as nn
        >>> nn.freeze({'a': 1})
        FrozenDict({'a': 1})
    """
    return xs if isinstance(xs, FrozenDict) else FrozenDict(xs)


def unfreeze(x: Any) -> Any:
    """Makes plain nested dicts of frozen ones, and of other mappings.

    Mappings in it are copied as well: dicts, those that JAX takes for a leaf, such as a
    `types.MappingProxyType`, and frozen ones, Flax's among them. A mapping of another
    type that is registered as a pytree is the value of a variable, and stays.

    Args:
        x: a mapping; what is not a mapping is returned as it is.

    Returns:
        A nested dict that shares no dict with `x`.

    Example:
        >>> import linen_lift as nn
        >>> nn.unfreeze(nn.freeze({'a': {'b': 1}}))
        {'a': {'b': 1}}
    """
    if isinstance(x, FrozenDict):
        x = x._dict
    if not isinstance(x, Mapping):
        return x
    return {k: unfreeze(v) if _is_nested(v) else v for k, v in x.items()}


def _is_nested(x: Any) -> bool:
    if isinstance(x, dict) or not isinstance(x, Mapping):
        return isinstance(x, dict)  # most values are dicts or arrays
    return hasattr(x, "unfreeze") or jax.tree_util.all_leaves((x,))


def copy(
    tree: Mapping[Any, Any], add_or_replace: Mapping[Any, Any] | None = None
) -> Any:
    """Copies a dict or `FrozenDict`, adding or replacing entries.

    Args:
        tree: a dict or `FrozenDict`.
        add_or_replace: the entries; None for none.

    Returns:
        A new mapping of the same kind.

    Raises:
        TypeError: if `tree` is neither.

    Example:
        >>> import linen_lift as nn
        >>> nn.copy({'a': 1}, {'b': 2})
        {'a': 1, 'b': 2}
    """
    if isinstance(tree, FrozenDict):
        return tree.copy(add_or_replace)
    if isinstance(tree, dict):
        return {**jax.tree.map(lambda x: x, tree), **dict(add_or_replace or {})}
    raise TypeError(f"Expected a dict or a FrozenDict, found {type(tree).__name__}.")


def pop(tree: Mapping[Any, Any], key: Any) -> tuple[Any, Any]:
    """Takes one entry out of a dict or `FrozenDict`, without changing it.

    Args:
        tree: a dict or `FrozenDict`.
        key: an existing key.

    Returns:
        The pair `(rest, value)`; `rest` is of the same kind as `tree`.

    Raises:
        KeyError: if there is no such key.
        TypeError: if `tree` is neither.

    Example:
        >>> import linen_lift as nn
        >>> nn.pop({'params': 1, 'state': 2}, 'params')
        ({'state': 2}, 1)
    """
    if isinstance(tree, FrozenDict):
        return tree.pop(key)
    rest = copy(tree)
    return rest, rest.pop(key)
