"""What attributes of an object are: data that is traced, or static.

Which one an attribute is shows in its value: arrays, variables and objects are data,
alone or in containers, and anything else is static. So there is nothing to declare;
these functions check what is said, and turn a number that is to be data into an array.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable
from typing import Annotated, Any, TypeAlias, TypeVar, dataclass_transform

import jax
import jax.numpy as jnp
import numpy as np

from graphcore import Object, is_node_type
from graphcore.authors import UNSET, is_object
from nnx_transforms.transforms.loops.agreement import has_type

__all__ = [
    "Data",
    "Pytree",
    "data",
    "dataclass",
    "has_data",
    "is_data",
    "register_data_type",
    "static",
]

A = TypeVar("A")
T = TypeVar("T", bound=type[Any])
_NUMBERS = (bool, int, float, complex, np.generic)
_IS_DATA = "is_data"
_DATA_IN_TEXT = re.compile(r"(\w+\.)*Data\[")

Pytree = Object
"""The base class of objects and modules.

Example:
    >>> import graphcore as gc, nnx_transforms as nnx
    >>> class Statistics(nnx.Pytree):
    ...     def __init__(self):
    ...         self.mean = gc.Variable(0.0)
    >>> list(gc.state(Statistics()))
    ['mean']
"""

Data: TypeAlias = Annotated[A, _IS_DATA]
"""Says in an annotation, `bias: Data[Param | None]`, that a `dataclass` field is data.

Example:
    >>> import nnx_transforms as nnx
    >>> @nnx.dataclass
    ... class Scaled(nnx.Module):
    ...     factor: nnx.Data[float]
    >>> nnx.state(Scaled(2.0)).factor.dtype.name
    'float32'
"""


def is_data(x: Any, /) -> bool:
    """Tells whether a value is data by itself: an array, a variable, or an object.

    Args:
        x: Any value.

    Returns:
        False for numbers and text, and for plain containers, whose contents count.

    Example:
        >>> import jax.numpy as jnp, nnx_transforms as nnx
        >>> nnx.is_data(jnp.ones(2)), nnx.is_data(nnx.Param(1)), nnx.is_data([1])
        (True, True, False)
    """
    is_array = isinstance(x, jax.Array | jax.ShapeDtypeStruct | jax.Ref) or (
        isinstance(x, np.ndarray) and has_type(x)
    )
    return is_array or is_object(x)


def has_data(tree: Any, /) -> list[Any]:
    """Lists the data in a pytree.

    Args:
        tree: A pytree.

    Returns:
        Its arrays, variables and objects; an empty list if there is none.

    Example:
        >>> import nnx_transforms as nnx
        >>> nnx.has_data({'a': [nnx.Param(1), 2]}), nnx.has_data([3])
        ([Param(1)], [])
    """
    return list(filter(is_data, jax.tree.leaves(tree, is_leaf=is_object)))


def register_data_type(type: T, /) -> T:
    """Says that attributes of a type are data; a decorator.

    A pytree's arrays are data without it, so this only checks that it is one.

    Args:
        type: The class.

    Returns:
        The class.

    Raises:
        TypeError: If it is no pytree, so that no transform could take it.

    Example:
        >>> import jax, nnx_transforms as nnx
        >>> from typing import NamedTuple
        >>> @nnx.register_data_type
        ... class Scaled(NamedTuple):
        ...     values: jax.Array
    """
    if not is_node_type(type):
        raise TypeError(
            f"{type.__qualname__} can't be data: expected a pytree, whose arrays a "
            "transform can take. Use `jax.tree_util.register_dataclass` on it before."
        )
    return type


def data(value: Any = UNSET, /, **field: Any) -> Any:
    """Says that an attribute is data: a number becomes an array.

    Numbers inside a container stay as they are: Python code may branch on them, as on
    the sizes of windows or the options in another library's pytree.

    Args:
        value: The attribute's value, a pytree. If it is left out, this is a field of
            a `dataclass`.
        **field: The arguments of `dataclasses.field`.

    Returns:
        The value; or the field. What is no array or object in it stays static.

    Example:
        >>> import jax, nnx_transforms as nnx
        >>> class Schedule(nnx.Module):
        ...     def __init__(self):
        ...         self.rate, self.name = nnx.data(0.5), 'constant'
        >>> [float(x) for x in jax.tree.leaves(Schedule())]
        [0.5]
    """
    if value is UNSET:
        return _field(True, field)

    return jnp.asarray(value) if isinstance(value, _NUMBERS) else value


def static(value: Any = UNSET, /, **field: Any) -> Any:
    """Says that an attribute is static: part of the structure, never traced.

    Args:
        value: The attribute's value. If it is left out, this is a field of a
            `dataclass`.
        **field: The arguments of `dataclasses.field`.

    Returns:
        The value; or the field.

    Raises:
        ValueError: If there is data in it, with its path. A `jax.ShapeDtypeStruct` is
            data, since it stands for an array.

    Example:
        >>> import jax, nnx_transforms as nnx
        >>> class Shaped(nnx.Module):
        ...     def __init__(self): self.shape = nnx.static((2, 3))
        >>> jax.tree.leaves(Shaped())
        []
    """
    if value is UNSET:
        return _field(False, field)
    for path, x in jax.tree_util.tree_flatten_with_path(value, is_leaf=is_object)[0]:
        if is_data(x):
            raise ValueError(
                f"The {type(x).__name__} at {jax.tree_util.keystr(path) or '<root>'} "
                "of what is to be static is data. Leave `static` out; or hold what is "
                "constant in a dataclass, which is static as a whole."
            )
    return value


def _field(is_data: bool, arguments: dict[str, Any]) -> Any:
    metadata = {**(arguments.pop("metadata", None) or {}), _IS_DATA: is_data}
    return dataclasses.field(**arguments, metadata=metadata)


@dataclass_transform(field_specifiers=(dataclasses.field, data, static))
def dataclass(cls: Any = None, /, **options: Any) -> Any:
    """Makes a dataclass of a class of objects.

    Its fields may be declared as `data()` or `static()`. Objects compare by identity,
    so `eq` is off, and they have a `repr` already.

    Args:
        cls: The class; if it is left out, a decorator is returned.
        **options: Those of `dataclasses.dataclass`.

    Returns:
        The class.

    Example:
        >>> import jax, nnx_transforms as nnx
        >>> @nnx.dataclass
        ... class Schedule(nnx.Pytree):
        ...     rate: float = nnx.data(default=0.5)
        ...     name: str = nnx.static(default='constant')
        >>> [float(x) for x in jax.tree.leaves(Schedule())]
        [0.5]
    """
    options = {"eq": False, "repr": False, **options}
    if cls is None:
        return functools.partial(dataclass, **options)
    made = dataclasses.dataclass(**options)(cls)
    declared: dict[str, Callable[[Any], Any]] = {
        field.name: data if kind else static
        for field in dataclasses.fields(made)
        if (kind := field.metadata.get(_IS_DATA, _is_annotated(field))) is not None
    }
    if declared and "__init__" in vars(made):
        made.__init__ = _checking(made.__init__, declared)
    return made


def _is_annotated(field: dataclasses.Field[Any]) -> bool | None:
    """True if the annotation says that a field is data, None if it says nothing."""
    kind = field.type
    if isinstance(kind, str):  # `from __future__ import annotations`
        return True if _DATA_IN_TEXT.match(kind) else None
    return True if _IS_DATA in getattr(kind, "__metadata__", ()) else None


def _checking(init: Any, declared: dict[str, Callable[[Any], Any]]) -> Any:
    @functools.wraps(init)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        init(self, *args, **kwargs)
        for name, check in declared.items():
            # As the `__init__` of a frozen dataclass does it.
            object.__setattr__(self, name, check(getattr(self, name)))

    return __init__
