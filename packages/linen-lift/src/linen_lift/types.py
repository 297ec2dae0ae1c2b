"""Types for annotations, with the names that code for Flax Linen gives them.

Example:
    >>> import linen_lift as nn
    >>> from linen_lift.types import Array, Dtype, PrecisionLike
    >>> class Scaled(nn.Module):
    ...     dtype: Dtype | None = None
    ...     precision: PrecisionLike = None
    ...     @nn.compact
    ...     def __call__(self, x: Array) -> Array:
    ...         return nn.Dense(3, dtype=self.dtype, precision=self.precision)(x)
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import jax
from jax.lax import PrecisionLike
from jax.nn.initializers import Initializer

from .filters import CollectionFilter, StreamFilter
from .frozen_dict import FrozenDict
from .lift.axes import AxisSpec

__all__ = [
    "Array",
    "Axes",
    "CollectionFilter",
    "Dtype",
    "FrozenVariableDict",
    "InOutAxis",
    "InOutScanAxis",
    "Initializer",
    "MutableVariableDict",
    "PRNGKey",
    "PRNGSequenceFilter",
    "PaddingLike",
    "PrecisionLike",
    "Shape",
    "Target",
    "VariableDict",
]

Array: TypeAlias = jax.Array
PRNGKey: TypeAlias = jax.Array
Dtype: TypeAlias = jax.typing.DTypeLike
Shape: TypeAlias = Sequence[int]
Axes: TypeAlias = int | Sequence[int]
PaddingLike: TypeAlias = str | int | Sequence[int | tuple[int, int]]
VariableDict: TypeAlias = Mapping[str, Mapping[str, Any]]
FrozenVariableDict: TypeAlias = FrozenDict[str, Any]
MutableVariableDict: TypeAlias = dict[str, dict[str, Any]]
PRNGSequenceFilter: TypeAlias = StreamFilter
InOutAxis: TypeAlias = AxisSpec
InOutScanAxis: TypeAlias = AxisSpec
Target: TypeAlias = Callable[..., Any]
