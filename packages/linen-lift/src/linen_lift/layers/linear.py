"""Layers that multiply with a kernel: `Dense`, `DenseGeneral`, `Einsum`, `Embed`."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.nn import initializers

from ..lift.statics import as_tuple
from ..metadata import AxisMetadata
from ..module import Module, compact, merge_param
from .dtypes import Promotion, promote_dtype, with_rank

__all__ = [
    *("Dense", "DenseGeneral", "Einsum", "Embed"),
    *("default_embed_init", "default_kernel_init"),
]

Initializer = Callable[..., Any]

default_kernel_init = initializers.lecun_normal()
default_embed_init = initializers.variance_scaling(1.0, "fan_in", "normal", out_axis=0)


def chosen(cls: Any, given: Any, default: Callable[..., Any]) -> Callable[..., Any]:
    """The function that a layer was given a class of, or was given, or JAX's."""
    found: Callable[..., Any] = (given or default) if cls is None else cls()
    return found


def kernel_and_bias(
    layer: Any,
    shape: tuple[int, ...],
    bias_shape: tuple[int, ...],
    kernel_init: Initializer | None = None,
    bias_init: Initializer | None = None,
) -> tuple[jax.Array, jax.Array | None]:
    """Declares the parameters of a layer that multiplies with a kernel.

    Args:
        layer: the layer, with options as those of `Dense`.
        shape: the shape of the kernel.
        bias_shape: the shape of the bias.
        kernel_init: makes the kernel, in place of the layer's option.
        bias_init: makes the bias, likewise.

    Returns:
        The kernel, and the bias; None in its place for a layer without.
    """
    dtype = layer.param_dtype
    kernel = layer.param("kernel", kernel_init or layer.kernel_init, shape, dtype)
    if not layer.use_bias:
        return kernel, None
    return kernel, layer.param("bias", bias_init or layer.bias_init, bias_shape, dtype)


class Dense(Module):
    """A linear map of the last axis.

    Args:
        features: the size of the output.
        use_bias: whether to add a bias.
        dtype: the type to compute in; None for that of input and parameters.
        param_dtype: the type of the parameters.
        precision: see `jax.lax.Precision`.
        kernel_init: makes the kernel, of shape `(in, features)`.
        bias_init: makes the bias, of shape `(features,)`.
        promote_dtype: used in place of `promote_dtype`: a function `(inputs, kernel,
            bias, dtype=...)` of arrays of one type.
        dot_general: used in place of `jax.lax.dot_general`.
        dot_general_cls: called for such a function, often a module with state.

    Example:
        >>> import linen_lift as nn, jax, jax.numpy as jnp
        >>> out, _ = nn.Dense(5).init_with_output(jax.random.key(0), jnp.ones((2, 3)))
        >>> out.shape
        (2, 5)
    """

    features: int
    use_bias: bool = True
    dtype: Any = None
    param_dtype: Any = jnp.float32
    precision: Any = None
    kernel_init: Initializer = default_kernel_init
    bias_init: Initializer = initializers.zeros
    promote_dtype: Promotion = promote_dtype
    dot_general: Callable[..., Any] | None = None
    dot_general_cls: Any = None

    @compact
    def __call__(self, inputs: jax.Array) -> jax.Array:
        """Maps the last axis.

        Args:
            inputs: an array of shape `(..., in)`.

        Returns:
            An array of shape `(..., features)`.
        """
        x = jnp.asarray(inputs)
        shape = (x.shape[-1], self.features)
        kernel, bias = kernel_and_bias(self, shape, shape[1:])
        x, kernel, bias = self.promote_dtype(x, kernel, bias, dtype=self.dtype)
        product = chosen(self.dot_general_cls, self.dot_general, lax.dot_general)
        axes = (((x.ndim - 1,), (0,)), ((), ()))
        out: jax.Array = product(x, kernel, axes, precision=self.precision)
        return out if bias is None else out + with_rank(bias, out.ndim)


def _reshaped(init: Initializer, flat: tuple[int, ...]) -> Initializer:
    """An initializer that makes an array of the shape `flat` and reshapes it.

    Initializers count the axes of a kernel, so it must be made as the matrix that it
    stands for.
    """

    def make(key: jax.Array, shape: tuple[int, ...], dtype: Any) -> Any:
        made = init(key, flat, dtype)
        if isinstance(made, AxisMetadata):
            return made.replace_boxed(jnp.reshape(made.unbox(), shape))
        return jnp.reshape(made, shape)

    return make


class DenseGeneral(Module):
    """A linear map of several axes at once, to one or more new ones at the end.

    Args:
        features: the sizes of the new axes.
        axis: the axes to map, which are summed over; the kernel has them in the order
            of the input.
        batch_dims: leading axes, from 0 on, that have a kernel per entry.
        use_bias: whether to add a bias.
        dtype: the type to compute in; None for that of input and parameters.
        param_dtype: the type of the parameters.
        kernel_init: makes the kernel, as a matrix whose rows are the mapped axes (with
            `batch_dims` before them) and whose columns are the new ones.
        bias_init: makes the bias, as a vector.
        precision: see `jax.lax.Precision`.
        promote_dtype: see `Dense`.
        dot_general: used in place of `jax.lax.dot_general`.
        dot_general_cls: called for such a function, often a module with state.

    Example:
        >>> import linen_lift as nn, jax, jax.numpy as jnp
        >>> heads = nn.DenseGeneral((4, 8), axis=(-2, -1))
        >>> out, variables = heads.init_with_output(
        ...     jax.random.key(0), jnp.ones((2, 3, 5)))
        >>> out.shape, variables['params']['kernel'].shape
        ((2, 4, 8), (3, 5, 4, 8))
    """

    features: int | Sequence[int]
    axis: int | Sequence[int] = -1
    batch_dims: Sequence[int] = ()
    use_bias: bool = True
    dtype: Any = None
    param_dtype: Any = jnp.float32
    kernel_init: Initializer = default_kernel_init
    bias_init: Initializer = initializers.zeros
    precision: Any = None
    promote_dtype: Promotion = promote_dtype
    dot_general: Callable[..., Any] | None = None
    dot_general_cls: Any = None

    @compact
    def __call__(self, inputs: jax.Array) -> jax.Array:
        """Maps the axes.

        Args:
            inputs: an array.

        Returns:
            An array with the axes of `inputs` that are not mapped (`batch_dims` first),
            then the new ones.

        Raises:
            ValueError: if `batch_dims` are not the first axes.
        """
        x = jnp.asarray(inputs)
        features = as_tuple(self.features)
        axes = tuple(sorted(a % x.ndim for a in as_tuple(self.axis)))
        batch = tuple(sorted(a % x.ndim for a in as_tuple(self.batch_dims)))
        if set(batch) != set(range(len(batch))):
            raise ValueError(
                "batch_dims must be the first axes, counted from 0, such as (0, 1); "
                f"found {tuple(self.batch_dims)}."
            )
        sizes = [tuple(x.shape[a] for a in some) for some in (batch, axes)]
        shape = (*sizes[0], *sizes[1], *features)
        groups, rows, columns = map(math.prod, (*sizes, features))
        kernel, bias = kernel_and_bias(
            self,
            shape,
            (*sizes[0], *features),
            _reshaped(self.kernel_init, (groups * rows, columns)),
            _reshaped(self.bias_init, (groups * columns,)),
        )
        x, kernel, bias = self.promote_dtype(x, kernel, bias, dtype=self.dtype)
        count = len(batch)
        summed = tuple(range(count, count + len(axes)))
        product = chosen(self.dot_general_cls, self.dot_general, lax.dot_general)
        pairs = ((axes, summed), (batch, tuple(range(count))))
        out: jax.Array = product(x, kernel, pairs, precision=self.precision)
        if bias is None:
            return out
        kept = x.ndim - count - len(axes)
        return out + jnp.reshape(bias, (*sizes[0], *(1,) * kept, *features))


class Einsum(Module):
    """An Einstein sum of the input and a kernel.

    Args:
        shape: the shape of the kernel.
        einsum_str: the equation, with the input before the kernel, such as
            `'abc,cd->abd'`; given here or in the call.
        use_bias: whether to add a bias along the axes that the result has of the
            kernel.
        dtype: the type to compute in; None for that of input and parameters.
        param_dtype: the type of the parameters.
        precision: see `jax.lax.Precision`.
        kernel_init: makes the kernel.
        bias_init: makes the bias.
        promote_dtype: see `Dense`.
        preferred_element_type: see `jax.numpy.einsum`.

    Example:
        >>> import linen_lift as nn, jax, jax.numpy as jnp
        >>> layer = nn.Einsum((5, 6, 7), '...c,cde->...de')
        >>> layer.init_with_output(jax.random.key(0), jnp.ones((3, 5)))[0].shape
        (3, 6, 7)
    """

    shape: Sequence[int]
    einsum_str: str | None = None
    use_bias: bool = True
    dtype: Any = None
    param_dtype: Any = jnp.float32
    precision: Any = None
    kernel_init: Initializer = default_kernel_init
    bias_init: Initializer = initializers.zeros
    promote_dtype: Promotion = promote_dtype
    preferred_element_type: Any = None

    @compact
    def __call__(self, inputs: jax.Array, einsum_str: str | None = None) -> jax.Array:
        """Sums.

        Args:
            inputs: an array.
            einsum_str: the equation, if the layer has none.

        Returns:
            The sum, with the bias.

        Raises:
            ValueError: if the equation is not one of two operands with `->`, or the
                subscripts of the kernel do not fit its shape.
        """
        equation = merge_param("einsum_str", self.einsum_str, einsum_str)
        equation = equation.replace(" ", "")
        operands, arrow, _ = equation.partition("->")
        if not arrow or operands.count(",") != 1:
            raise ValueError(
                "Einsum needs an equation of two operands, the input and the kernel, "
                f"and their result, such as 'ab,bc->ac'; found {equation!r}."
            )
        shape = tuple(self.shape)
        sizes: tuple[int | None, ...] = ()
        if self.use_bias:
            sizes = _sizes(equation, jnp.ndim(inputs), shape)
        bias_shape = tuple(size for size in sizes if size is not None)
        kernel, bias = kernel_and_bias(self, shape, bias_shape)
        x, kernel, bias = self.promote_dtype(inputs, kernel, bias, dtype=self.dtype)
        out: jax.Array = jnp.einsum(
            equation,
            x,
            kernel,
            precision=self.precision,
            preferred_element_type=self.preferred_element_type,
        )
        if bias is not None:
            out = out + bias.reshape([size or 1 for size in sizes])
        return out


@functools.lru_cache(maxsize=1024)
def _sizes(equation: str, ndim: int, shape: tuple[int, ...]) -> tuple[int | None, ...]:
    """The size of each axis of the result that is one of the kernel, else None."""
    # Axes of size 1 fit any other, so what is larger in the result is the kernel's.
    x = jax.ShapeDtypeStruct((1,) * ndim, jnp.float32)
    kernel = jax.ShapeDtypeStruct([size + 1 for size in shape], jnp.float32)
    try:
        result = jax.eval_shape(functools.partial(jnp.einsum, equation), x, kernel)
    except ValueError as error:
        raise ValueError(
            f"The subscripts of {equation!r} do not fit an input with {ndim} axes and "
            f"a kernel of shape {shape}."
        ) from error
    return tuple(size - 1 if size > 1 else None for size in result.shape)


class Embed(Module):
    """A table of vectors, looked up by integers.

    Args:
        num_embeddings: the number of vectors.
        features: the size of each.
        dtype: the type of the result; None for that of the table.
        param_dtype: the type of the table.
        embedding_init: makes the table, of shape `(num_embeddings, features)`.
        promote_dtype: see `Dense`; for a lookup it is called with `inexact=False`.

    Example:
        >>> import linen_lift as nn, jax, jax.numpy as jnp
        >>> ids = jnp.array([[0, 4]])
        >>> out, _ = nn.Embed(10, 3).init_with_output(jax.random.key(0), ids)
        >>> out.shape
        (1, 2, 3)
    """

    num_embeddings: int
    features: int
    dtype: Any = None
    param_dtype: Any = jnp.float32
    embedding_init: Initializer = default_embed_init
    promote_dtype: Promotion = promote_dtype

    def setup(self) -> None:
        self.embedding = self.param(
            "embedding",
            self.embedding_init,
            (self.num_embeddings, self.features),
            self.param_dtype,
        )

    def __call__(self, inputs: jax.Array) -> jax.Array:
        """Looks vectors up.

        Args:
            inputs: an array of integers.

        Returns:
            An array of shape `(*inputs.shape, features)`.

        Raises:
            ValueError: if `inputs` are no integers.
        """
        inputs = jnp.asarray(inputs)
        if not jnp.issubdtype(inputs.dtype, jnp.integer):
            raise ValueError(
                f"Embed looks vectors up by integers; found dtype {inputs.dtype}."
            )
        (table,) = self.promote_dtype(self.embedding, dtype=self.dtype, inexact=False)
        if self.num_embeddings == 1:
            # Any index means the one vector, also those that are out of range.
            return jnp.broadcast_to(table, (*inputs.shape, self.features))
        found: jax.Array = jnp.take(table, inputs, axis=0)
        return found

    def attend(self, query: jax.Array) -> jax.Array:
        """The inner product of a query with each vector.

        Args:
            query: an array of shape `(..., features)`.

        Returns:
            An array of shape `(..., num_embeddings)`.
        """
        query, table = self.promote_dtype(query, self.embedding, dtype=self.dtype)
        return jnp.dot(query, table.T)
