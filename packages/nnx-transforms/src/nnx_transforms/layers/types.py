"""What the signatures of the layers say."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

Array: TypeAlias = Any
"""An array or what JAX takes for one."""
Axes: TypeAlias = int | Sequence[int]
"""One axis or several."""
DType: TypeAlias = Any
"""What `numpy.dtype` accepts."""
Initializer: TypeAlias = Callable[..., Any]
"""`init(key, shape, dtype)`, as in `jax.nn.initializers`."""
Promotion: TypeAlias = Callable[..., Any]
"""A function like `promote_dtype`, `promote(arrays, dtype=dtype)`."""
