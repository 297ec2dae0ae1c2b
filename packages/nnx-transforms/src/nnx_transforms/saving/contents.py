"""What a graph consists of, told without its arrays: names, types, shapes, sharing.

A checkpoint holds this description beside the arrays. It is what a graph is compared
with before anything is read, and it keeps what arrays cannot: the variable types, the
metadata, which random keys are keys, and values that are no arrays.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from graphcore import (
    Filter,
    VariableState,
    find_duplicates,
    state,
    variable_name_from_type,
)
from graphcore.authors import raw_value_of
from nnx_transforms.saving.names import name_of, text_of
from nnx_transforms.sharding.placement_table import shape_text
from nnx_transforms.sharding.shardings import PLACEMENT
from nnx_transforms.transforms.derivatives.key_data import is_key

_FORMAT = 1
# Stands for the collection of an array that is an attribute without a variable.
BARE = "array"
_PLAIN = (bool, int, float, complex, str)


class Leaf(NamedTuple):
    """One array of a variable, or another value.

    Args:
        type: The collection name of the variable's type; `array` for an array without a
            variable; None if it is not known.
        form: `array`, `weak` for an array whose type is weak, `numpy`, or `python`.
        shape: The shape; empty for a Python value.
        dtype: The name of the dtype, or of the type of a Python value.
        value: A Python value.

    Example:
        >>> print(Leaf('params', 'array', (2, 3), 'float32'))
        params float32[2,3]
    """

    type: str | None
    form: str
    shape: tuple[int, ...]
    dtype: str
    value: Any = None

    def __str__(self) -> str:
        shape = "" if self.form == "python" else shape_text(self.shape)
        return f"{self.type or ''} {self.dtype}{shape}".lstrip()

    @property
    def is_key(self) -> bool:
        """Whether it is an array of random keys."""
        return self.dtype.startswith("key<")

    @property
    def is_stored(self) -> bool:
        """Whether it is among the arrays of the file; empty arrays are not."""
        return self.form != "python" and 0 not in self.shape


class Contents(NamedTuple):
    """What a file or a graph consists of.

    Args:
        leaves: By name; a leaf inside the value of a variable has a `#` in its name.
        metadata: That of each variable, as far as it can be written, by name.
        shared: The further names of objects that have several, with their first name.
    """

    leaves: dict[str, Leaf]
    metadata: dict[str, dict[str, Any]]
    shared: dict[str, str]

    def first_name(self, name: str) -> str:
        """The name of the leaf that a name leads to, where it may have others.

        Args:
            name: Of a leaf; it may lead through shared objects.

        Returns:
            The name under which the leaf is, if there is one.

        Example:
            >>> Contents({}, {}, {'me': '', 'tied': 'layers/0'}).first_name('me/tied/w')
            'layers/0/w'
        """
        variable, mark, inside = name.partition("#")
        found = ""
        for piece in variable.split("/"):
            found = f"{found}/{piece}" if found else piece
            found = self.shared.get(found, found)
        return found + mark + inside

    def to_json(self) -> dict[str, Any]:
        """The description in terms of JSON."""
        graph = {
            "leaves": {
                name: {**leaf._asdict(), "value": encoded(leaf.value)}
                for name, leaf in self.leaves.items()
            },
            "metadata": {
                name: {key: encoded(item) for key, item in items.items()}
                for name, items in self.metadata.items()
                if items
            },
            "shared": self.shared,
        }
        return {"format": _FORMAT, "checksum": _checksum(graph), "graph": graph}

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Contents:
        """Reads what `to_json` made.

        Raises:
            NotImplementedError: If it was made by a newer version of this package.
            KeyError, TypeError, ValueError: If it is something else.
        """
        if found["format"] != _FORMAT:
            raise NotImplementedError(
                f"The checkpoint has format {found['format']}, this version of "
                f"nnx-transforms reads {_FORMAT}: install a newer one."
            )
        graph = found["graph"]
        if found["checksum"] != _checksum(graph):
            raise ValueError("its description is not what was written")
        leaves = {
            name: Leaf(**leaf)._replace(
                shape=tuple(leaf["shape"]), value=decoded(leaf["value"])
            )
            for name, leaf in graph["leaves"].items()
        }
        metadata = {
            name: {key: decoded(item) for key, item in items.items()}
            for name, items in graph["metadata"].items()
        }
        return cls(leaves, metadata, dict(graph["shared"]))


def _checksum(graph: Any) -> int:
    return zlib.crc32(json.dumps(graph).encode())


def contents_of(node: Any, filter: Filter) -> tuple[Contents, dict[str, Any]]:
    """Describes a graph.

    Args:
        node: A graph node, or a pytree with such in it.
        filter: Which variables.

    Returns:
        The description, and the values of the leaves by name.
    """
    contents = Contents({}, {}, {})
    values: dict[str, Any] = {}
    for path, variable in state(node, filter).flat_state():
        name, kind = name_of(path), BARE
        if isinstance(variable, VariableState):
            kind = variable_name_from_type(variable.type)
            contents.metadata[name] = {
                key: item
                for key, item in variable.get_metadata().items()
                # The program that loads a value decides where it lies.
                if key not in PLACEMENT and _can_be_written(item)
            }
        for leaf, value in named_leaves(name, variable):
            if leaf != name and not (hasattr(value, "dtype") or is_plain(value)):
                continue  # the static part of a pytree, which belongs to the graph
            values[leaf] = value
            contents.leaves[leaf] = leaf_of(kind, value)
    for first, *others in find_duplicates(node):
        contents.shared.update(dict.fromkeys(map(name_of, others), name_of(first)))
    return contents, values


def check_selection(contents: Contents, node: Any, filter: Filter) -> None:
    """Refuses a filter that selects nothing, which may have been written wrongly.

    Args:
        contents: What it selects.
        node: The graph.
        filter: The filter.

    Raises:
        ValueError: If there is nothing, with paths that the graph has.
    """
    if filter is ... or contents.leaves or contents.metadata:
        return
    names = [text_of(name_of(path)) for path, _ in state(node).flat_state()]
    raise ValueError(
        f"The filter {filter!r} selects nothing of the graph, which has "
        f"{', '.join(names[:5]) or 'no variables'}{', ...' * (len(names) > 5)}. A "
        "shared variable is known to filters by the first of its paths."
    )


def named_leaves(name: str, variable: Any) -> Iterator[tuple[str, Any]]:
    """The leaves of the value of a variable that has a name, with the name of each."""
    for path, value in jax.tree_util.tree_leaves_with_path(raw_value_of(variable)):
        yield (f"{name}#{jax.tree_util.keystr(path)}" if path else name), value


def leaf_of(kind: str | None, value: Any) -> Leaf:
    """Describes a leaf.

    Args:
        kind: The collection name of the variable's type.
        value: An array, a stand-in for one, or a Python value.

    Returns:
        The description.

    Example:
        >>> import numpy as np
        >>> leaf_of(None, np.zeros(2, np.int8)), leaf_of('params', 3).form
        (Leaf(type=None, form='numpy', shape=(2,), dtype='int8', value=None), 'python')
    """
    if not hasattr(value, "dtype"):
        return Leaf(kind, "python", (), type(value).__name__, value)
    form = "weak" if getattr(value, "weak_type", False) else "array"
    if isinstance(value, np.ndarray | np.generic):
        form = "numpy"
    dtype = f"key<{key_impl(value)}>" if is_key(value) else str(value.dtype)
    return Leaf(kind, form, tuple(value.shape), dtype)


def without_keys(value: Any) -> Any:
    """The data of random keys; any other value as it is."""
    return jax.random.key_data(value) if is_key(value) else value


def key_impl(keys: Any) -> Any:
    """The implementation of keys, as `jax.random.wrap_key_data` takes it.

    Args:
        keys: An array of keys, or a stand-in for one.

    Returns:
        The name of the implementation.

    Example:
        >>> key_impl(jax.eval_shape(jax.random.key, 0))
        'threefry2x32'
    """
    found: list[Any] = []
    jax.eval_shape(lambda keys: found.append(jax.random.key_impl(keys)), keys)
    return found[0]


def is_plain(value: Any) -> bool:
    """Whether a value that is no array can be written."""
    return type(value) in _PLAIN


def _can_be_written(item: Any) -> bool:
    if type(item) is dict:
        return all(map(_can_be_written, [*item.keys(), *item.values()]))
    if type(item) in (tuple, list):
        return all(map(_can_be_written, item))
    return item is None or is_plain(item)


def encoded(item: Any) -> Any:
    """A Python value in terms of JSON, which has no tuples and no complex numbers.

    Example:
        >>> encoded((1, None, {'a': 2j}))
        {'tuple': [1, None, {'dict': [['a', {'complex': [0.0, 2.0]}]]}]}
    """
    if isinstance(item, tuple):
        return {"tuple": [encoded(x) for x in item]}
    if isinstance(item, list):
        return [encoded(x) for x in item]
    if isinstance(item, dict):
        return {"dict": [[encoded(k), encoded(v)] for k, v in item.items()]}
    if isinstance(item, complex):
        return {"complex": [item.real, item.imag]}
    return item


def decoded(item: Any) -> Any:
    """The inverse of `encoded`.

    Example:
        >>> decoded(encoded((1, [2.5, None], {'a': 2j})))
        (1, [2.5, None], {'a': 2j})
    """
    if isinstance(item, list):
        return [decoded(x) for x in item]
    if not isinstance(item, dict):
        return item
    [(kind, parts)] = item.items()
    if kind == "tuple":
        return tuple(decoded(x) for x in parts)
    if kind == "dict":
        return {decoded(k): decoded(v) for k, v in parts}
    return complex(*parts)
