"""Layers that multiply with a kernel, or look its rows up."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.nn import initializers
from jax.sharding import AxisType, PartitionSpec

from graphcore import Param, VariableMetadata
from nnx_transforms.layers.dtypes import promote_dtype, with_rank
from nnx_transforms.layers.layer import Layer
from nnx_transforms.layers.options import as_tuple, given
from nnx_transforms.layers.types import Array, DType, Initializer, Promotion
from nnx_transforms.randomness.rngs import Rngs

__all__ = [
    "Einsum",
    "Embed",
    "Linear",
    "LinearGeneral",
    "default_bias_init",
    "default_embed_init",
    "default_kernel_init",
]

default_kernel_init = initializers.lecun_normal()
"""Makes kernels where nothing else is said.

Example:
    >>> import jax
    >>> default_kernel_init(jax.random.key(0), (2, 3)).shape
    (2, 3)
"""
default_bias_init = initializers.zeros
"""Makes biases where nothing else is said.

Example:
    >>> import jax
    >>> default_bias_init(jax.random.key(0), (2,)).tolist()
    [0.0, 0.0]
"""
default_embed_init = initializers.variance_scaling(1.0, "fan_in", "normal", out_axis=0)
"""Makes embeddings where nothing else is said.

Example:
    >>> import jax
    >>> default_embed_init(jax.random.key(0), (4, 3)).shape
    (4, 3)
"""
# Compared, to notice that a tool for quantization or adapters has patched it.
_DOT_GENERAL = getattr(lax.dot_general, "__code__", None)


class Affine(Layer):
    """A layer with a kernel and, perhaps, a bias."""

    kernel: Param[jax.Array]
    bias: Param[jax.Array] | None = None
    precision: Any = None
    preferred_element_type: Any = None

    def _options(self, out_sharding: Any) -> dict[str, Any]:
        """What a product is told beside its operands."""
        others = given(
            preferred_element_type=self.preferred_element_type,
            out_sharding=out_sharding,
        )
        return {"precision": self.precision, **others}


class Linear(Affine):
    """A dense layer: `x @ kernel + bias`.

    Args:
        in_features: The size of the input's last axis.
        out_features: The size of the output's last axis.
        use_bias: Whether a bias is added.
        dtype: The dtype to compute in; None for what input and parameters promote to.
        param_dtype: The dtype of the parameters.
        precision: As for `jax.lax.dot_general`.
        kernel_init: Makes the kernel, of shape (in_features, out_features).
        bias_init: Makes the bias, of shape (out_features,).
        dot_general: Takes the place of `jax.lax.dot_general`.
        promote_dtype: `promote_dtype((inputs, kernel, bias), dtype=dtype)` casts them.
        preferred_element_type: As for `jax.lax.dot_general`.
        rngs: Streams; keys are drawn from `params`.
        kernel_metadata: Metadata of the kernel, such as a sharding.
        bias_metadata: Metadata of the bias.

    Example:
        >>> import jax.numpy as jnp
        >>> layer = Linear(3, 2, rngs=Rngs(0))
        >>> layer(jnp.ones((4, 3))).shape, layer.kernel.value.shape
        ((4, 2), (3, 2))
    """

    use_bias: bool = True
    dot_general: Any = staticmethod(lax.dot_general)

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        use_bias: bool = True,
        dtype: DType | None = None,
        param_dtype: DType = jnp.float32,
        precision: Any = None,
        kernel_init: Initializer = default_kernel_init,
        bias_init: Initializer = default_bias_init,
        dot_general: Callable[..., Any] = lax.dot_general,
        promote_dtype: Promotion = promote_dtype,
        preferred_element_type: DType | None = None,
        rngs: Rngs,
        kernel_metadata: Mapping[str, Any] = {},
        bias_metadata: Mapping[str, Any] = {},
    ) -> None:
        super().keep(locals())
        size = (out_features,) if use_bias else None
        self._draw(locals(), kernel=(in_features, out_features), bias=size)

    # Sizes follow from the kernel, so they are not stored beside it.

    @property
    def in_features(self) -> int:
        """The size of the input's last axis, which the kernel tells."""
        return int(self.kernel.value.shape[-2])

    @property
    def out_features(self) -> int:
        """The size of the output's last axis, which the kernel tells."""
        return int(self.kernel.value.shape[-1])

    def __call__(self, inputs: Array, out_sharding: Any = None) -> jax.Array:
        """Applies the layer.

        Args:
            inputs: An array of shape (..., in_features).
            out_sharding: As for `jax.lax.dot_general`.

        Returns:
            An array of shape (..., out_features).

        Example:
            >>> import jax.numpy as jnp
            >>> Linear(3, 2, rngs=Rngs(0))(jnp.ones(3)).shape
            (2,)
        """
        inputs, kernel, bias = self._promoted(inputs, self.kernel, self.bias)
        options = self._options(out_sharding)
        y: jax.Array
        is_default = self.dot_general is lax.dot_general
        code = getattr(lax.dot_general, "__code__", None)
        if is_default and code is _DOT_GENERAL:
            # The same operation, but JAX keeps its derivatives from trace to trace.
            try:
                y = jnp.matmul(inputs, kernel, **options)
            except TypeError as error:
                error.add_note(
                    f"Linear takes {self.in_features} features, and got an input of "
                    f"shape {inputs.shape}."
                )
                raise
        else:
            axes = (((inputs.ndim - 1,), (0,)), ((), ()))
            y = self.dot_general(inputs, kernel, axes, **options)
        return y if bias is None else y + with_rank(bias, y.ndim)


class LinearGeneral(Affine):
    """A dense layer over any axes of the input.

    Args:
        in_features: The size of each axis that is contracted, or of one.
        out_features: The sizes of the axes that come in their place, at the end.
        axis: The axes that are contracted, in ascending order.
        batch_axis: From the first axes, each of which has kernels of its own, to their
            sizes.
        use_bias: Whether a bias is added.
        dtype: The dtype to compute in; None for what input and parameters promote to.
        param_dtype: The dtype of the parameters.
        kernel_init: Makes the kernel, of shape
            (*batch sizes, *in_features, *out_features); called for two axes.
        bias_init: Makes the bias, of shape (*batch sizes, *out_features); called for
            one axis.
        precision: As for `jax.lax.dot_general`.
        promote_dtype: See `Linear`.
        dot_general: Takes the place of `jax.lax.dot_general`.
        dot_general_cls: Called for such a function.
        preferred_element_type: As for `jax.lax.dot_general`.
        rngs: Streams; keys are drawn from `params`.
        kernel_metadata: Metadata of the kernel.
        bias_metadata: Metadata of the bias.

    Raises:
        ValueError: If there are not as many `in_features` as axes, or the batch axes
            are not the first ones.

    Example:
        >>> import jax.numpy as jnp
        >>> layer = LinearGeneral((2, 3), (4, 5), axis=(1, -1), rngs=Rngs(0))
        >>> layer(jnp.ones((7, 2, 3))).shape, layer.kernel.value.shape
        ((7, 4, 5), (2, 3, 4, 5))
    """

    axis: tuple[int, ...] = (-1,)
    batch_axis: Mapping[int, int] = {}
    use_bias: bool = True
    dot_general: Any = None
    dot_general_cls: Any = None

    def __init__(
        self,
        in_features: int | Sequence[int],
        out_features: int | Sequence[int],
        *,
        axis: int | Sequence[int] = -1,
        batch_axis: Mapping[int, int] = {},
        use_bias: bool = True,
        dtype: DType | None = None,
        param_dtype: DType = jnp.float32,
        kernel_init: Initializer = default_kernel_init,
        bias_init: Initializer = default_bias_init,
        precision: Any = None,
        promote_dtype: Promotion = promote_dtype,
        dot_general: Callable[..., Any] | None = None,
        dot_general_cls: Any = None,
        preferred_element_type: DType | None = None,
        rngs: Rngs,
        kernel_metadata: Mapping[str, Any] = {},
        bias_metadata: Mapping[str, Any] = {},
    ) -> None:
        axis, batch_axis = as_tuple(axis), dict(batch_axis)
        super().keep(locals())
        self.in_features = as_tuple(in_features)
        self.out_features = as_tuple(out_features)
        if len(axis) != len(self.in_features):
            raise ValueError(
                f"LinearGeneral got in_features={self.in_features} for axis={axis}: "
                "expected as many sizes as axes."
            )
        if sorted(batch_axis) != list(range(len(batch_axis))):
            raise ValueError(
                f"LinearGeneral got batch_axis={batch_axis}: expected the first "
                "axes, as in `{0: size, 1: size}`."
            )
        batch = tuple(batch_axis.values())
        outputs = math.prod(self.out_features)
        shape = (*batch, *self.in_features, *self.out_features)
        flat = (math.prod(batch) * math.prod(self.in_features), outputs)
        kernel_init = _reshaped(kernel_init, flat)
        bias_init = _reshaped(bias_init, (math.prod(batch) * outputs,))
        of_bias = (*batch, *self.out_features) if use_bias else None
        self._draw(locals(), kernel=shape, bias=of_bias)

    def __call__(self, inputs: Array, out_sharding: Any = None) -> jax.Array:
        """Applies the layer.

        Args:
            inputs: An array with the contracted axes.
            out_sharding: As for `jax.lax.dot_general`.

        Returns:
            An array of shape (*batch sizes, *other axes, *out_features).

        Example:
            >>> import jax.numpy as jnp
            >>> LinearGeneral(3, (2, 4), rngs=Rngs(0))(jnp.ones((5, 3))).shape
            (5, 2, 4)
        """
        inputs, kernel, bias = self._promoted(inputs, self.kernel, self.bias)
        axes = tuple(sorted(axis % inputs.ndim for axis in self.axis))
        batch = tuple(range(len(self.batch_axis)))
        contracted = tuple(range(len(batch), len(batch) + len(axes)))
        if self.dot_general_cls is not None:
            dot_general = self.dot_general_cls()
        else:
            dot_general = self.dot_general or lax.dot_general
        pairs = ((axes, contracted), (batch, batch))
        options = self._options(out_sharding)
        y: jax.Array = dot_general(inputs, kernel, pairs, **options)
        if bias is None:
            return y
        sizes = bias.shape[: len(batch)]
        between = (1,) * (inputs.ndim - len(batch) - len(axes))
        y += bias.reshape((*sizes, *between, *self.out_features))
        return y


def _reshaped(init: Initializer, drawn: tuple[int, ...]) -> Initializer:
    """An initializer that is asked for another shape, which is then reshaped."""

    def reshaped(key: Any, shape: tuple[int, ...], dtype: DType) -> Any:
        made = init(key, drawn, dtype)
        if isinstance(made, VariableMetadata):
            return dataclasses.replace(made, raw_value=made.raw_value.reshape(shape))
        return made.reshape(shape)

    return reshaped


class Einsum(Affine):
    """An Einstein sum of the input and a kernel.

    Args:
        einsum_str: The equation, with the input before the kernel, such as
            `'...a,ab->...b'`.
        kernel_shape: The shape of the kernel.
        bias_shape: The shape of a bias; None for no bias.
        dtype: The dtype to compute in; None for what input and parameters promote to.
        param_dtype: The dtype of the parameters.
        precision: As for `jax.numpy.einsum`.
        kernel_init: Makes the kernel.
        bias_init: Makes the bias.
        promote_dtype: See `Linear`.
        einsum_op: Takes the place of `jax.numpy.einsum`.
        preferred_element_type: As for `jax.numpy.einsum`.
        rngs: Streams; keys are drawn from `params`.
        kernel_metadata: Metadata of the kernel.
        bias_metadata: Metadata of the bias.

    Raises:
        ValueError: If the equation does not say how two operands make a result.

    Example:
        >>> import jax.numpy as jnp
        >>> layer = Einsum('nta,hab->nthb', (8, 2, 4), (8, 4), rngs=Rngs(0))
        >>> layer(jnp.ones((16, 11, 2))).shape
        (16, 11, 8, 4)
    """

    bias_shape: tuple[int, ...] | None = None
    einsum_op: Any = staticmethod(jnp.einsum)

    def __init__(
        self,
        einsum_str: str,
        kernel_shape: int | Sequence[int],
        bias_shape: int | Sequence[int] | None = None,
        *,
        dtype: DType | None = None,
        param_dtype: DType = jnp.float32,
        precision: Any = None,
        kernel_init: Initializer = default_kernel_init,
        bias_init: Initializer = default_bias_init,
        promote_dtype: Promotion = promote_dtype,
        einsum_op: Callable[..., Any] = jnp.einsum,
        preferred_element_type: DType | None = None,
        rngs: Rngs,
        kernel_metadata: Mapping[str, Any] = {},
        bias_metadata: Mapping[str, Any] = {},
    ) -> None:
        super().keep(locals())
        self.einsum_str = _checked(einsum_str)
        self.kernel_shape = as_tuple(kernel_shape)
        of_bias = None if bias_shape is None else as_tuple(bias_shape)
        self._draw(locals(), kernel=self.kernel_shape, bias=of_bias)

    def __call__(
        self, inputs: Array, einsum_str: str | None = None, out_sharding: Any = None
    ) -> jax.Array:
        """Applies the layer.

        Args:
            inputs: An array that fits the equation.
            einsum_str: Takes the place of the layer's equation, for this call.
            out_sharding: As for `jax.numpy.einsum`.

        Returns:
            The sum, and the bias along the axes that are the kernel's.

        Raises:
            ValueError: If the equation is none for two operands.

        Example:
            >>> import jax.numpy as jnp
            >>> layer = Einsum('...a,ab->...b', (2, 3), rngs=Rngs(0))
            >>> layer(jnp.ones((4, 3)), '...b,ab->...a').shape
            (4, 2)
        """
        equation = self.einsum_str if einsum_str is None else _checked(einsum_str)
        inputs, kernel, bias = self._promoted(inputs, self.kernel, self.bias)
        options = self._options(out_sharding)
        y: jax.Array = self.einsum_op(equation, inputs, kernel, **options)
        if bias is None:
            return y
        # As if all sizes of the input were 1: the axes that it adds are so in the bias.
        shapes = ((1,) * inputs.ndim, kernel.shape)
        operands = [jax.ShapeDtypeStruct(shape, kernel.dtype) for shape in shapes]
        y += bias.reshape(_traced_einsum.eval_shape(equation, *operands).shape)
        return y


# By `jit`, which keeps what it traced.
_traced_einsum = jax.jit(jnp.einsum, static_argnums=0)


def _checked(equation: str) -> str:
    equation = equation.replace(" ", "")
    if equation.count("->") != 1 or equation.count(",") != 1:
        raise ValueError(
            "Einsum needs an equation of two operands, the input and the kernel, and "
            f"their result, such as '...a,ab->...b'; got {equation!r}."
        )
    return equation


class Embed(Layer):
    """A table of vectors, looked up by integers.

    Args:
        num_embeddings: How many vectors.
        features: The size of each.
        dtype: The dtype of the result; None for that of the table.
        param_dtype: The dtype of the table.
        embedding_init: Makes the table, of shape (num_embeddings, features).
        promote_dtype: See `Linear`; for what is looked up, it is called with
            `inexact=False`.
        rngs: Streams; a key is drawn from `params`.
        embedding_metadata: Metadata of the table.

    Example:
        >>> import jax.numpy as jnp
        >>> embed = Embed(10, 4, rngs=Rngs(0))
        >>> vectors = embed(jnp.array([[1, 2, 3]]))
        >>> vectors.shape, embed.attend(vectors).shape
        ((1, 3, 4), (1, 3, 10))
    """

    embedding: Param[jax.Array]

    def __init__(
        self,
        num_embeddings: int,
        features: int,
        *,
        dtype: DType | None = None,
        param_dtype: DType = jnp.float32,
        embedding_init: Initializer = default_embed_init,
        promote_dtype: Promotion = promote_dtype,
        rngs: Rngs,
        embedding_metadata: Mapping[str, Any] = {},
    ) -> None:
        super().keep(locals())
        self._draw(locals(), embedding=(num_embeddings, features))
        if dtype is None:
            self.dtype = self.embedding.value.dtype

    @property
    def num_embeddings(self) -> int:
        """How many vectors there are."""
        return int(self.embedding.value.shape[-2])

    @property
    def features(self) -> int:
        """The size of each vector."""
        return int(self.embedding.value.shape[-1])

    def __call__(self, inputs: Array, out_sharding: Any = None) -> jax.Array:
        """Looks vectors up.

        Args:
            inputs: Integers of any shape, below `num_embeddings`. What is out of range
                gives NaN, as `jax.numpy.take` does; in a table of one vector every
                integer stands for that.
            out_sharding: The sharding of the result, on a mesh with explicit axes.

        Returns:
            An array of shape (*inputs.shape, features).

        Raises:
            ValueError: If they are not integers.

        Example:
            >>> Embed(10, 4, rngs=Rngs(0))(3).shape
            (4,)
        """
        inputs, table = jnp.asarray(inputs), self.embedding.value
        if not jnp.issubdtype(inputs.dtype, jnp.integer):
            raise ValueError(
                f"Embed looks integers up, got inputs of dtype {inputs.dtype} and "
                f"shape {inputs.shape}. Cast them, or use Linear for other inputs."
            )
        if self.num_embeddings == 1:
            found = jnp.broadcast_to(table, (*inputs.shape, self.features))
        else:
            found = _rows(table, inputs, out_sharding)
        vectors: jax.Array
        (vectors,) = self.promote_dtype((found,), dtype=self.dtype, inexact=False)
        return vectors

    def attend(self, query: Array, out_sharding: Any = None) -> jax.Array:
        """Multiplies a query with every vector of the table.

        This is how an output layer shares its weights with the embedding; see Press
        and Wolf, "Using the Output Embedding to Improve Language Models",
        https://arxiv.org/abs/1608.05859.

        Args:
            query: An array of shape (..., features).
            out_sharding: As for `jax.numpy.dot`.

        Returns:
            An array of shape (..., num_embeddings).

        Example:
            >>> import jax.numpy as jnp
            >>> Embed(10, 4, rngs=Rngs(0)).attend(jnp.ones(4)).shape
            (10,)
        """
        query, table = self._promoted(query, self.embedding)
        products: jax.Array = jnp.dot(query, table.T, out_sharding=out_sharding)
        return products


def _rows(table: jax.Array, indices: jax.Array, out_sharding: Any) -> jax.Array:
    take: Callable[..., jax.Array] = functools.partial(jnp.take, axis=0)
    mesh = jax.sharding.get_abstract_mesh()
    if out_sharding is None and AxisType.Explicit in mesh.axis_types:
        # Over explicit axes JAX wants to be told that the result is divided as the
        # indices are, and its rows as those of the table.
        where, rows = (jax.typeof(x).sharding.spec for x in (indices, table))
        out_sharding = PartitionSpec(*where, *rows[1:])
    if out_sharding is not None:
        take = jax.sharding.auto_axes(take, out_sharding=out_sharding)
    return take(table, indices)
