"""Convolutions: `Conv`, `ConvLocal`, `ConvTranspose`."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from numbers import Integral  # NumPy's are of it, too
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jax import lax
from jax.nn import initializers

from ..lift.statics import as_tuple
from ..module import Module, compact, nowrap
from .dtypes import Promotion, promote_dtype, with_rank
from .linear import Initializer, chosen, default_kernel_init, kernel_and_bias

__all__ = ["Conv", "ConvLocal", "ConvTranspose"]

Shape: TypeAlias = tuple[int, ...]
Plan: TypeAlias = tuple[jax.Array, Shape, Shape, Callable[..., jax.Array]]
"""The input, the shapes of kernel and bias, and what to do with input and kernel."""

_WRAPS = {"CIRCULAR": "wrap", "REFLECT": "reflect"}


def _per_axis(value: Any, count: int, name: str) -> tuple[int, ...]:
    if value is None:
        value = 1
    if isinstance(value, Integral):
        return (int(value),) * count
    if len(value) != count:
        raise ValueError(
            f"A convolution needs one {name} per axis of kernel_size ({count}); found "
            f"{value!r}."
        )
    return tuple(value)


def padding_pairs(padding: Any, size: tuple[int, ...]) -> Any:
    """Padding as JAX takes it: a name, or a pair of integers per axis.

    Args:
        padding: a name, an integer, or an integer or a pair of them per axis.
        size: the size of the window along each axis.
    """
    if isinstance(padding, str):
        return padding
    if isinstance(padding, Integral):
        padding = (padding,) * len(size)
    pairs = [(p, p) if isinstance(p, Integral) else p for p in padding]
    if len(pairs) != len(size) or not all(
        isinstance(pair, Sequence) and len(pair) == 2 for pair in pairs
    ):
        raise ValueError(
            "padding needs an integer or a pair of integers per axis of the window "
            f"{size}; found {padding!r}."
        )
    return [tuple(pair) for pair in pairs]


class _Convolution(Module):
    """What convolutions have in common: a kernel, a bias, and any number of batches."""

    @compact
    def __call__(self, inputs: jax.Array) -> jax.Array:
        """Convolves.

        Args:
            inputs: an array of shape `(*batch, *spatial, in)`, with any number of
                batch axes, none included.

        Returns:
            An array of shape `(*batch, *spatial, features)`.

        Raises:
            ValueError: if the inputs or options do not fit the kernel's axes, or the
                channels do not fit the groups or the mask.
        """
        layer: Any = self
        size = as_tuple(layer.kernel_size)
        x, mask = jnp.asarray(inputs), layer.mask
        if x.ndim <= len(size):
            raise ValueError(
                f"A kernel of size {size} needs inputs of shape (*batch, *spatial, "
                f"in), with {len(size) + 1} axes at least; found shape {x.shape}."
            )
        batch = x.shape[: x.ndim - len(size) - 1]
        flat = x.reshape((math.prod(batch), *x.shape[len(batch) :]))
        flat, shape, bias_shape, convolve = layer._plan(flat, size)
        kernel, bias = kernel_and_bias(layer, shape, bias_shape)
        if mask is not None:
            if mask.shape != shape:
                raise ValueError(
                    f"The mask must have the kernel's shape {shape}; found "
                    f"{mask.shape}."
                )
            kernel = kernel * mask
        flat, kernel, bias = layer.promote_dtype(flat, kernel, bias, dtype=layer.dtype)
        out: jax.Array = convolve(flat, kernel)
        if bias is not None:
            out = out + with_rank(bias, out.ndim)
        return out.reshape((*batch, *out.shape[1:]))


class Conv(_Convolution):
    """A convolution over the axes before the last one.

    Args:
        features: the number of output channels.
        kernel_size: the size of the kernel along each spatial axis; an integer for one
            axis.
        strides: an integer, or one per spatial axis.
        padding: 'SAME', 'VALID', 'CIRCULAR' (wraps around), 'REFLECT' (mirrors),
            'CAUSAL' (one axis, looks back only), an integer, or an integer or a pair of
            them per axis.
        input_dilation: see `jax.lax.conv_general_dilated`.
        kernel_dilation: see `jax.lax.conv_general_dilated`.
        feature_group_count: see `jax.lax.conv_general_dilated`.
        use_bias: whether to add a bias.
        mask: multiplied with the kernel, if given.
        dtype: the type to compute in; None for that of input and parameters.
        param_dtype: the type of the parameters.
        precision: see `jax.lax.Precision`.
        kernel_init: makes the kernel, of shape `(*kernel_size, in / groups, features)`.
        bias_init: makes the bias, of shape `(features,)`.
        promote_dtype: see `Dense`.
        conv_general_dilated: used in place of `jax.lax.conv_general_dilated`.
        conv_general_dilated_cls: called for such a function.

    Example:
        >>> import linen_lift as nn, jax, jax.numpy as jnp
        >>> image, conv = jnp.ones((1, 8, 8, 3)), nn.Conv(16, (3, 3), strides=2)
        >>> conv.init_with_output(jax.random.key(0), image)[0].shape
        (1, 4, 4, 16)
    """

    features: int
    kernel_size: int | Sequence[int]
    strides: int | Sequence[int] | None = 1
    padding: Any = "SAME"
    input_dilation: int | Sequence[int] | None = 1
    kernel_dilation: int | Sequence[int] | None = 1
    feature_group_count: int = 1
    use_bias: bool = True
    mask: Any = None
    dtype: Any = None
    param_dtype: Any = jnp.float32
    precision: Any = None
    kernel_init: Initializer = default_kernel_init
    bias_init: Initializer = initializers.zeros
    promote_dtype: Promotion = promote_dtype
    conv_general_dilated: Callable[..., Any] | None = None
    conv_general_dilated_cls: Any = None

    @property
    def shared_weights(self) -> bool:
        """Whether all places of the output have one kernel and one bias."""
        return True

    @nowrap
    def _plan(self, flat: jax.Array, size: Shape) -> Plan:
        rank = len(size)
        dilation = _per_axis(self.kernel_dilation, rank, "kernel_dilation")
        padding = padding_pairs(self.padding, size)
        reach = [d * (k - 1) for k, d in zip(size, dilation, strict=True)]
        if isinstance(padding, str) and padding in _WRAPS:
            widths = [(r // 2, r - r // 2) for r in reach]
            flat = jnp.pad(flat, [(0, 0), *widths, (0, 0)], mode=_WRAPS[padding])
            padding = "VALID"
        elif padding == "CAUSAL":
            if rank != 1:
                raise ValueError(
                    f"CAUSAL padding is for one spatial axis; found kernel_size={size}."
                )
            flat, padding = jnp.pad(flat, [(0, 0), (reach[0], 0), (0, 0)]), "VALID"
        layout = (0, rank + 1, *range(1, rank + 1))
        options = {
            "window_strides": _per_axis(self.strides, rank, "stride"),
            "padding": padding,
            "lhs_dilation": _per_axis(self.input_dilation, rank, "input_dilation"),
            "rhs_dilation": dilation,
            "dimension_numbers": lax.ConvDimensionNumbers(
                layout, (rank + 1, rank, *range(rank)), layout
            ),
            "precision": self.precision,
        }
        channels, groups = flat.shape[-1], self.feature_group_count
        if not self.shared_weights:
            if groups != 1:
                raise ValueError(
                    "A kernel at each place has no groups; found feature_group_count="
                    f"{groups}."
                )
            shared = jax.ShapeDtypeStruct((*size, channels, self.features), flat.dtype)
            everywhere = functools.partial(lax.conv_general_dilated, **options)
            places = jax.eval_shape(everywhere, flat, shared).shape[1:-1]
            shape = (*places, math.prod(size) * channels, self.features)
            each = functools.partial(
                lax.conv_general_dilated_local, filter_shape=size, **options
            )
            return flat, shape, (*places, self.features), each
        if channels % groups:
            raise ValueError(
                f"The {channels} input channels cannot be split into "
                f"feature_group_count={groups} groups."
            )
        options["feature_group_count"] = groups
        given = (self.conv_general_dilated_cls, self.conv_general_dilated)
        convolve = chosen(*given, lax.conv_general_dilated)
        shape = (*size, channels // groups, self.features)
        return flat, shape, shape[-1:], functools.partial(convolve, **options)


class ConvLocal(Conv):
    """A convolution with a kernel and a bias of its own at each place of the output.

    The options are those of `Conv`; `feature_group_count` must be 1. With places of the
    output of shape `spatial`, the kernel has the shape `(*spatial, prod(kernel_size) *
    in, features)` and the bias `(*spatial, features)`.

    Example:
        >>> import linen_lift as nn, jax, jax.numpy as jnp
        >>> layer = nn.ConvLocal(4, (3,), padding='VALID')
        >>> variables = layer.init(jax.random.key(0), jnp.ones((1, 8, 2)))
        >>> variables['params']['kernel'].shape
        (6, 6, 4)
    """

    @property
    def shared_weights(self) -> bool:
        return False


class ConvTranspose(_Convolution):
    """A transposed convolution over the axes before the last one.

    Args:
        features: the number of output channels.
        kernel_size: the size of the kernel along each spatial axis; an integer for one
            axis.
        strides: an integer, or one per spatial axis.
        padding: 'SAME', 'VALID', 'CIRCULAR' (the output wraps around), an integer, or
            an integer or a pair of them per axis.
        kernel_dilation: an integer, or one per spatial axis.
        use_bias: whether to add a bias.
        mask: multiplied with the kernel, if given.
        dtype: the type to compute in; None for that of input and parameters.
        param_dtype: the type of the parameters.
        precision: see `jax.lax.Precision`.
        kernel_init: makes the kernel, of shape `(*kernel_size, in, features)`.
        bias_init: makes the bias, of shape `(features,)`.
        transpose_kernel: whether the kernel is that of the `Conv` that this one is the
            transpose of, of shape `(*kernel_size, features, in)`.
        promote_dtype: see `Dense`.
        preferred_element_type: see `jax.lax.conv_transpose`.

    Example:
        >>> import linen_lift as nn, jax, jax.numpy as jnp
        >>> layer = nn.ConvTranspose(16, (3, 3), strides=2)
        >>> layer.init_with_output(jax.random.key(0), jnp.ones((1, 8, 8, 3)))[0].shape
        (1, 16, 16, 16)
    """

    features: int
    kernel_size: int | Sequence[int]
    strides: int | Sequence[int] | None = None
    padding: Any = "SAME"
    kernel_dilation: int | Sequence[int] | None = None
    use_bias: bool = True
    mask: Any = None
    dtype: Any = None
    param_dtype: Any = jnp.float32
    precision: Any = None
    kernel_init: Initializer = default_kernel_init
    bias_init: Initializer = initializers.zeros
    transpose_kernel: bool = False
    promote_dtype: Promotion = promote_dtype
    preferred_element_type: Any = None

    @nowrap
    def _plan(self, flat: jax.Array, size: Shape) -> Plan:
        strides = _per_axis(self.strides, len(size), "stride")
        padding = padding_pairs(self.padding, size)
        channels = (flat.shape[-1], self.features)
        if self.transpose_kernel:
            channels = channels[::-1]
        dilation = _per_axis(self.kernel_dilation, len(size), "kernel_dilation")

        def convolve(flat: jax.Array, kernel: jax.Array) -> jax.Array:
            out = lax.conv_transpose(
                flat,
                kernel,
                strides,
                "VALID" if padding == "CIRCULAR" else padding,
                rhs_dilation=dilation,
                transpose_kernel=self.transpose_kernel,
                precision=self.precision,
                preferred_element_type=self.preferred_element_type,
            )
            if padding == "CIRCULAR":
                for axis, stride in enumerate(strides, start=1):
                    out = self._wrapped(out, axis, stride * flat.shape[axis])
            return out

        return flat, (*size, *channels), (self.features,), convolve

    @nowrap
    def _wrapped(self, out: jax.Array, axis: int, period: int) -> jax.Array:
        """Adds up what lies a multiple of `period` apart along an axis.

        The parts that reach beyond the input on both sides come to lie at the other
        end. Where they differ by one, the longer is at the end that a `Conv` with the
        same kernel has it, if the kernel is that of a `Conv`.
        """
        extra = -(out.shape[axis] - period) % (2 * period)
        before = extra // 2 if self.transpose_kernel else extra - extra // 2
        widths = [(0, 0)] * out.ndim
        widths[axis] = (before, extra - before)
        out = jnp.pad(out, widths)
        shape = out.shape
        return out.reshape((*shape[:axis], -1, period, *shape[axis + 1 :])).sum(axis)
