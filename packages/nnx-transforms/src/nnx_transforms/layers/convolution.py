"""Convolutions over the axes between the batch and the features."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jax import lax

from nnx_transforms.layers.dtypes import promote_dtype, with_rank
from nnx_transforms.layers.linear import Affine, default_bias_init, default_kernel_init
from nnx_transforms.layers.options import as_tuple
from nnx_transforms.layers.types import Array, DType, Initializer, Promotion
from nnx_transforms.randomness.rngs import Rngs

__all__ = ["Conv", "ConvTranspose"]

Padding: TypeAlias = str | int | Sequence[int | tuple[int, int]]
PerAxis: TypeAlias = int | Sequence[int] | None
_FILLS = {"CIRCULAR": "wrap", "REFLECT": "reflect"}


class _Convolution(Affine):
    """What the two directions have in common.

    Options are kept as they are given; what they mean for each axis is found out when
    a call is traced.
    """

    mask: jax.Array | None = None
    strides: Any = 1
    padding: Any = "SAME"
    kernel_dilation: Any = 1
    use_bias: bool = True

    def _set_up(
        self, arguments: Mapping[str, Any], in_features: int, out_features: int
    ) -> None:
        """Keeps the options, and makes a kernel of so many features and a bias."""
        self.keep(arguments)
        self.in_features: int = arguments["in_features"]
        self.out_features: int = arguments["out_features"]
        self.kernel_size = as_tuple(arguments["kernel_size"])
        self._settings()  # says what does not fit, before anything is drawn
        shape = (*self.kernel_size, in_features, out_features)
        size = (self.out_features,) if arguments["use_bias"] else None
        self._draw(arguments, kernel=shape, bias=size)
        mask = arguments["mask"]
        if mask is not None:
            if jnp.shape(mask) != shape:
                raise ValueError(
                    f"The mask of {type(self).__name__} has the shape "
                    f"{jnp.shape(mask)}: expected that of the kernel, {shape}."
                )
            self.mask = jnp.asarray(mask)

    def _settings(self) -> tuple[Any, ...]:
        """What the options say, or an error if they don't fit."""
        raise NotImplementedError

    @property
    def kernel_shape(self) -> tuple[int, ...]:
        """The shape of the kernel."""
        return tuple(self.kernel.value.shape[-len(self.kernel_size) - 2 :])

    def _applied(
        self, x: Array, convolve: Callable[[jax.Array, jax.Array], jax.Array]
    ) -> jax.Array:
        """What a function of an input with one batch axis, and a kernel, gives.

        It has the batch axes of the input, and the bias is added.
        """
        kernel = self.kernel if self.mask is None else self.kernel.value * self.mask
        x, kernel, bias = self._promoted(x, kernel, self.bias)
        rank = len(self.kernel_size)
        if x.ndim < rank + 1:
            raise ValueError(
                f"{type(self).__name__} with kernel_size={self.kernel_size} expected "
                f"an input of shape (..., {rank} spatial axes, {self.in_features}), "
                f"got {x.shape}."
            )
        batch = x.shape[: x.ndim - rank - 1]
        if len(batch) != 1:
            x = x.reshape((math.prod(batch), *x.shape[len(batch) :]))
        y = convolve(x, kernel)
        if bias is not None:
            y = y + with_rank(bias, y.ndim)
        return y if len(batch) == 1 else y.reshape((*batch, *y.shape[1:]))

    def _per_axis(self, name: str) -> tuple[Any, ...]:
        """An option for each spatial axis; None stands for 1."""
        value, rank = getattr(self, name), len(self.kernel_size)
        value = 1 if value is None else value
        values = tuple(value) if isinstance(value, Iterable) else (value,) * rank
        if len(values) != rank:
            raise ValueError(
                f"{type(self).__name__} got {name}={value!r} for {rank} spatial axes "
                "(as many as kernel_size has numbers): expected one number, or one an "
                "axis."
            )
        return values

    def _padding(self, *modes: str) -> Any:
        """The padding as JAX takes it, or one of the further modes."""
        if not isinstance(self.padding, str):
            return tuple(
                tuple(p) if isinstance(p, Iterable) else (p, p)
                for p in self._per_axis("padding")
            )
        mode = self.padding.upper()
        known = ("SAME", "VALID", "SAME_LOWER", *modes)
        if mode not in known:
            raise ValueError(
                f"The padding {self.padding!r} is unknown: expected one of "
                f"{', '.join(map(repr, known))}, or numbers."
            )
        return mode


class Conv(_Convolution):
    """A convolution over the axes between the first and the last.

    Args:
        in_features: The size of the input's last axis.
        out_features: The size of the output's last axis.
        kernel_size: The size of the window, one number a spatial axis; an integer for
            one spatial axis.
        strides: How far the window moves; an integer for all axes.
        padding: `'SAME'`, `'VALID'`, `'SAME_LOWER'`; `'CIRCULAR'` or `'REFLECT'` to
            keep the size and fill the border with what is at the other end or mirrored;
            `'CAUSAL'`, for one spatial axis, to see only what is before; or how much
            zero padding, as one number, a number an axis, or a pair an axis.
        input_dilation: As `lhs_dilation` of `jax.lax.conv_general_dilated`.
        kernel_dilation: As `rhs_dilation`.
        feature_group_count: Into how many groups the features are divided.
        use_bias: Whether a bias is added.
        mask: Multiplied with the kernel, whose shape it has.
        dtype: The dtype to compute in; None for what input and parameters promote to.
        param_dtype: The dtype of the parameters.
        precision: As for `jax.lax.conv_general_dilated`.
        kernel_init: Makes the kernel, of shape
            (*kernel_size, in_features // feature_group_count, out_features).
        bias_init: Makes the bias, of shape (out_features,).
        conv_general_dilated: Takes the place of `jax.lax.conv_general_dilated`.
        promote_dtype: See `Linear`.
        preferred_element_type: As for `jax.lax.conv_general_dilated`.
        rngs: Streams; keys are drawn from `params`.
        kernel_metadata: Metadata of the kernel.
        bias_metadata: Metadata of the bias.

    Raises:
        ValueError: If a size does not fit the others, or the padding is unknown.

    Example:
        >>> import jax.numpy as jnp
        >>> layer = Conv(3, 8, kernel_size=(3, 3), strides=2, rngs=Rngs(0))
        >>> layer(jnp.ones((4, 10, 10, 3))).shape
        (4, 5, 5, 8)
    """

    input_dilation: Any = 1
    feature_group_count: int = 1
    conv_general_dilated: Any = staticmethod(lax.conv_general_dilated)

    def __init__(
        self,
        in_features: int,
        out_features: int,
        kernel_size: int | Sequence[int],
        strides: PerAxis = 1,
        *,
        padding: Padding = "SAME",
        input_dilation: PerAxis = 1,
        kernel_dilation: PerAxis = 1,
        feature_group_count: int = 1,
        use_bias: bool = True,
        mask: Array | None = None,
        dtype: DType | None = None,
        param_dtype: DType = jnp.float32,
        precision: Any = None,
        kernel_init: Initializer = default_kernel_init,
        bias_init: Initializer = default_bias_init,
        conv_general_dilated: Callable[..., Any] = lax.conv_general_dilated,
        promote_dtype: Promotion = promote_dtype,
        preferred_element_type: DType | None = None,
        rngs: Rngs,
        kernel_metadata: Mapping[str, Any] = {},
        bias_metadata: Mapping[str, Any] = {},
    ) -> None:
        if in_features % feature_group_count or out_features % feature_group_count:
            raise ValueError(
                f"Cannot divide {in_features} input and {out_features} output features "
                f"into feature_group_count={feature_group_count} groups of equal size."
            )
        super()._set_up(locals(), in_features // feature_group_count, out_features)

    def _settings(self) -> tuple[Any, Any, str | None, dict[str, Any]]:
        """Strides, padding, with what it is filled if not zeros, and more options."""
        padding, fill = self._padding(*_FILLS, "CAUSAL"), None
        dilation = self._per_axis("kernel_dilation")
        reach = [
            (size - 1) * step
            for size, step in zip(self.kernel_size, dilation, strict=True)
        ]
        if padding in _FILLS:
            fill, padding = _FILLS[padding], tuple((r // 2, r - r // 2) for r in reach)
        elif padding == "CAUSAL":
            if len(reach) != 1:
                raise ValueError(
                    f"The padding 'CAUSAL' is for one spatial axis, but kernel_size="
                    f"{self.kernel_size} has {len(reach)}: give pairs of numbers."
                )
            padding = ((reach[0], 0),)
        rank = len(reach)
        layout = (0, rank + 1, *range(1, rank + 1))
        options = {
            "lhs_dilation": self._per_axis("input_dilation"),
            "rhs_dilation": dilation,
            "dimension_numbers": lax.ConvDimensionNumbers(
                layout, (rank + 1, rank, *range(rank)), layout
            ),
            "feature_group_count": self.feature_group_count,
        }
        return self._per_axis("strides"), padding, fill, options

    def __call__(self, inputs: Array, out_sharding: Any = None) -> jax.Array:
        """Applies the convolution.

        Args:
            inputs: An array of shape (..., *spatial, in_features), with any number of
                batch axes, or none.
            out_sharding: As for `jax.lax.conv_general_dilated`.

        Returns:
            An array of shape (..., *spatial, out_features).

        Raises:
            ValueError: If it has fewer axes than the window needs.

        Example:
            >>> import jax.numpy as jnp
            >>> Conv(1, 2, 3, padding='VALID', rngs=Rngs(0))(jnp.ones((5, 1))).shape
            (3, 2)
        """
        strides, padding, fill, options = self._settings()
        options |= self._options(out_sharding)

        def convolve(x: jax.Array, kernel: jax.Array) -> Any:
            if fill is None:
                return self.conv_general_dilated(x, kernel, strides, padding, **options)
            x = jnp.pad(x, ((0, 0), *padding, (0, 0)), mode=fill)
            return self.conv_general_dilated(x, kernel, strides, "VALID", **options)

        return self._applied(inputs, convolve)


class ConvTranspose(_Convolution):
    """A transposed convolution, which makes larger what `Conv` makes smaller.

    Args:
        in_features: The size of the input's last axis.
        out_features: The size of the output's last axis.
        kernel_size: The size of the window, one number a spatial axis; an integer for
            one spatial axis.
        strides: How far the windows in the output are apart; an integer for all axes.
        padding: `'SAME'`, `'VALID'`; `'CIRCULAR'`, where the output wraps around; or
            as numbers, see `jax.lax.conv_transpose`.
        kernel_dilation: As `rhs_dilation` of `jax.lax.conv_transpose`.
        use_bias: Whether a bias is added.
        mask: Multiplied with the kernel, whose shape it has.
        dtype: The dtype to compute in; None for what input and parameters promote to.
        param_dtype: The dtype of the parameters.
        precision: As for `jax.lax.conv_transpose`.
        kernel_init: Makes the kernel, of shape
            (*kernel_size, in_features, out_features).
        bias_init: Makes the bias, of shape (out_features,).
        transpose_kernel: Whether the kernel is that of the `Conv` which this one is the
            transpose of, of shape (*kernel_size, out_features, in_features).
        promote_dtype: See `Linear`.
        preferred_element_type: As for `jax.lax.conv_transpose`.
        rngs: Streams; keys are drawn from `params`.
        kernel_metadata: Metadata of the kernel.
        bias_metadata: Metadata of the bias.

    Raises:
        ValueError: If a size does not fit the others, or the padding is unknown.

    Example:
        >>> import jax.numpy as jnp
        >>> layer = ConvTranspose(3, 8, kernel_size=(3, 3), strides=2, rngs=Rngs(0))
        >>> layer(jnp.ones((4, 5, 5, 3))).shape
        (4, 10, 10, 8)
    """

    strides: Any = None
    kernel_dilation: Any = None
    transpose_kernel: bool = False

    def __init__(
        self,
        in_features: int,
        out_features: int,
        kernel_size: int | Sequence[int],
        strides: PerAxis = None,
        *,
        padding: Padding = "SAME",
        kernel_dilation: PerAxis = None,
        use_bias: bool = True,
        mask: Array | None = None,
        dtype: DType | None = None,
        param_dtype: DType = jnp.float32,
        precision: Any = None,
        kernel_init: Initializer = default_kernel_init,
        bias_init: Initializer = default_bias_init,
        transpose_kernel: bool = False,
        promote_dtype: Promotion = promote_dtype,
        preferred_element_type: DType | None = None,
        rngs: Rngs,
        kernel_metadata: Mapping[str, Any] = {},
        bias_metadata: Mapping[str, Any] = {},
    ) -> None:
        features = (in_features, out_features)
        super()._set_up(locals(), *(features[::-1] if transpose_kernel else features))

    def _settings(self) -> tuple[tuple[int, ...], tuple[int, ...], Any]:
        """Strides, dilation and padding."""
        strides, dilation = map(self._per_axis, ("strides", "kernel_dilation"))
        return strides, dilation, self._padding("CIRCULAR")

    def __call__(self, inputs: Array) -> jax.Array:
        """Applies the convolution.

        Args:
            inputs: An array of shape (..., *spatial, in_features), with any number of
                batch axes, or none.

        Returns:
            An array of shape (..., *spatial, out_features).

        Raises:
            ValueError: If it has fewer axes than the window needs.

        Example:
            >>> import jax.numpy as jnp
            >>> ConvTranspose(1, 2, 3, 2, rngs=Rngs(0))(jnp.ones((5, 1))).shape
            (10, 2)
        """
        strides, dilation, padding = self._settings()
        wraps = padding == "CIRCULAR"

        def convolve(x: jax.Array, kernel: jax.Array) -> jax.Array:
            y: jax.Array = lax.conv_transpose(
                x,
                kernel,
                strides,
                "VALID" if wraps else padding,
                rhs_dilation=dilation,
                transpose_kernel=self.transpose_kernel,
                **self._options(out_sharding=None),
            )
            for axis, stride in enumerate(strides if wraps else (), start=1):
                y = self._wrapped(y, axis, stride * x.shape[axis])
            return y

        return self._applied(inputs, convolve)

    def _wrapped(self, y: jax.Array, axis: int, period: int) -> jax.Array:
        """Adds up what lies a multiple of `period` apart along an axis.

        What reaches beyond the input on both sides comes to lie at the other end. If it
        is longer on one side, by one, that is the side where a `Conv` with the same
        kernel has it, if the kernel is that of a `Conv`.
        """
        extra = -(y.shape[axis] - period) % (2 * period)
        before = extra // 2 if self.transpose_kernel else extra - extra // 2
        widths = [(0, 0)] * y.ndim
        widths[axis] = (before, extra - before)
        y = jnp.pad(y, widths)
        shape = y.shape
        return y.reshape((*shape[:axis], -1, period, *shape[axis + 1 :])).sum(axis)
