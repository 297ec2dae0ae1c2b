"""Prefixes: what a transformation is to do with each variable of an object.

`in_axes`, `in_shardings` and their like take a setting for each argument. Where an
argument is an object, these give one for each filter: a variable gets the setting of
the first filter that selects it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax

from graphcore import (
    Filter,
    Param,
    Predicate,
    PrefixMapping,
    State,
    create_path_filters,
    filters_to_predicates,
    is_graph_node,
    is_variable,
    to_predicate,
    variables,
)
from graphcore.authors import is_object, key_path, looks_at_no_value, path_text
from nnx_transforms.transforms.graph_mode import accepts_graph_mode

__all__ = ["Carry", "DiffState", "StateAxes", "StateSharding", "prefix"]


class _Marker(type):
    def __repr__(cls) -> str:
        return cls.__name__


class Carry(metaclass=_Marker):
    """Stands for an axis in `scan`: the value is threaded through the iterations.

    A class, so that annotations may name it.

    Example:
        >>> import jax.numpy as jnp, nnx_transforms as nnx
        >>> axes = {'in_axes': (nnx.Carry, 0), 'out_axes': nnx.Carry}
        >>> add = nnx.scan(lambda total, x: total + x, **axes)
        >>> int(add(0, jnp.arange(4)))
        6
    """


class _ByFilter(PrefixMapping[Any]):
    """A mapping from filters to settings; the first match counts.

    Args:
        mapping: From filters to settings, pairs of them, or a `State` whose leaves are
            settings, which stand for the variables at their paths.

    Raises:
        ValueError: If a filter stands behind one that takes everything.
    """

    __slots__ = ("_predicates", "filters", "is_static", "settings")

    def __init__(
        self, mapping: Mapping[Any, Any] | Iterable[tuple[Filter, Any]]
    ) -> None:
        given: Any = mapping
        if isinstance(mapping, State):
            given = create_path_filters(mapping)
        if isinstance(given, Mapping | type(self)):
            given = given.items()
        try:
            pairs = [(f, setting) for f, setting in given]
        except (TypeError, ValueError):
            raise TypeError(
                f"{type(self).__name__} takes a mapping from filters to settings, such "
                f"as {{nnx.Param: ..., ...: ...}}, got {mapping!r}."
            ) from None
        # A filter may be a list, which is hashable only as a predicate.
        self.filters: tuple[Any, ...] = tuple(
            to_predicate(f) if isinstance(f, list) else f for f, _ in pairs
        )
        self.settings = tuple(setting for _, setting in pairs)
        self._predicates: tuple[Predicate, ...] = filters_to_predicates(self.filters)
        self.is_static = all(map(looks_at_no_value, self._predicates))

    def map_prefix(self, path: tuple[Any, ...], variable: Any) -> Any:
        """Returns the setting of one variable.

        Args:
            path: The path of the variable in its object.
            variable: The variable.

        Returns:
            The setting of the first filter that selects it.

        Raises:
            ValueError: If no filter does, with the path.
        """
        for predicate, setting in zip(self._predicates, self.settings, strict=True):
            if predicate(path, variable):
                return setting
        raise ValueError(
            f"No filter of {self!r} selects the {type(variable).__name__} at "
            f"{path_text(path)!r}: add `...` as the last filter."
        )

    def items(self) -> tuple[tuple[Any, Any], ...]:
        """Pairs of filters and settings."""
        return tuple(zip(self.filters, self.settings, strict=True))

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return self._predicates == other._predicates and self.settings == other.settings

    def __hash__(self) -> int:
        return hash((type(self), self._predicates, self.settings))

    def __repr__(self) -> str:
        texts = [f"{_filter_text(f)}: {setting!r}" for f, setting in self.items()]
        return f"{type(self).__name__}({{{', '.join(texts)}}})"


def _filter_text(filter: Any) -> str:
    if filter is ...:
        return "..."
    return filter.__name__ if isinstance(filter, type) else repr(filter)


class StateAxes(_ByFilter):
    """Mapped axes of the variables of an object, by filter.

    Args:
        mapping: From filters to an axis (an integer), None for variables that are not
            mapped, or, in `scan`, `Carry`. May be a `State` of axes.

    Raises:
        ValueError: If a filter stands behind one that takes everything.

    Example:
        >>> import nnx_transforms as nnx
        >>> axes = nnx.StateAxes({nnx.Param: 0, ...: None})
        >>> axes, axes == nnx.StateAxes([(nnx.Param, 0), (True, None)])
        (StateAxes({Param: 0, ...: None}), True)
    """

    __slots__ = ()

    # `dict(axes)` takes these, so that one can be made of another.
    def keys(self) -> tuple[Any, ...]:
        """The filters."""
        return self.filters

    def values(self) -> tuple[Any, ...]:
        """The axes, in the order of the filters."""
        return self.settings

    def __iter__(self) -> Iterator[Any]:
        return iter(self.filters)

    def __len__(self) -> int:
        return len(self.filters)

    def __getitem__(self, filter: Any) -> Any:
        try:
            return self.settings[self._predicates.index(to_predicate(filter))]
        except ValueError:
            raise KeyError(filter) from None

    @property
    def axes(self) -> tuple[Any, ...]:
        """The axis of each filter."""
        return self.settings


@accepts_graph_mode
def prefix(
    node: Any, settings: Mapping[Filter, Any] | Callable[[tuple[Any, ...], Any], Any], /
) -> Any:
    """Turns settings of variables into a prefix of an argument, such as `in_axes`.

    Args:
        node: A graph node, or a pytree with graph nodes and variables.
        settings: From filters to axes, of which the first match counts; or a function
            of the path and the variable that returns an axis.

    Returns:
        `StateAxes` for a graph node; for a pytree the same tree, with `StateAxes` or
        axes for its leaves.

    Raises:
        ValueError: If no filter selects a variable, with the path.

    Example:
        >>> import nnx_transforms as nnx, jax.numpy as jnp
        >>> tree = {'a': nnx.Param(jnp.array(2)), 'b': nnx.BatchStat(jnp.arange(3))}
        >>> axes = nnx.prefix(tree, {nnx.Param: None, nnx.BatchStat: 0}); axes
        {'a': None, 'b': 0}
        >>> nnx.vmap(lambda tree: tree['a'] * tree['b'], in_axes=(axes,))(tree).tolist()
        [0, 2, 4]
    """
    choose = settings if callable(settings) else StateAxes(settings).map_prefix

    def of_leaf(keys: Any, leaf: Any) -> Any:
        path = key_path(keys)
        if is_variable(leaf) or not is_graph_node(leaf):
            return choose(path, leaf)
        return StateAxes(variables(leaf).map(lambda p, v: choose((*path, *p), v)))

    return jax.tree_util.tree_map_with_path(of_leaf, node, is_leaf=is_object)


class StateSharding(_ByFilter):
    """Shardings of the variables of an object, by filter.

    Args:
        mapping: From filters to a `jax.sharding.Sharding`, or a `PartitionSpec` where
            a mesh is in force. None leaves the choice to JAX. May be a `State`.

    Raises:
        ValueError: If a filter stands behind one that takes everything.

    Example:
        >>> import jax, nnx_transforms as nnx
        >>> from jax.sharding import PartitionSpec as P
        >>> layer = nnx.Linear(2, 4, rngs=nnx.Rngs(0))
        >>> where = nnx.StateSharding({nnx.PathContains('kernel'): P('x'), ...: P()})
        >>> apply = nnx.jit(lambda layer, x: layer(x), in_shardings=(where, P()))
        >>> with jax.set_mesh(jax.make_mesh((1,), ('x',))):
        ...     apply(layer, jax.numpy.ones(2)).shape
        (4,)
    """

    __slots__ = ()

    @property
    def shardings(self) -> tuple[Any, ...]:
        """The sharding of each filter."""
        return self.settings


@dataclass(frozen=True)
class DiffState:
    """Says which variables of an argument are differentiated.

    Args:
        argnum: The position of the argument.
        filter: Selects its differentiated variables.

    Example:
        >>> import nnx_transforms as nnx
        >>> nnx.DiffState(0, nnx.PathContains('head'))
        DiffState(0, PathContains('head'))
    """

    argnum: int
    filter: Filter = field(default=Param, compare=False)
    predicate: Predicate = field(init=False)  # compared in place of the filter

    def __post_init__(self) -> None:
        object.__setattr__(self, "predicate", to_predicate(self.filter))

    def __repr__(self) -> str:
        return f"DiffState({self.argnum}, {_filter_text(self.filter)})"
