"""Layers that normalize the weights of another layer before they call it.

The normalized weights take the place of the others, in the layer itself: what is seen
after a call, and updated by an optimizer, is what the call used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.nn import initializers

from graphcore import All, BatchStat, Filter, Param, PathContains, Variable, variables
from nnx_transforms.layers.dtypes import (
    canonicalize_dtype,
    cast,
    keep_dtype,
    promote_dtype,
)
from nnx_transforms.layers.layer import Layer
from nnx_transforms.layers.moments import canonical_axes
from nnx_transforms.layers.types import Array, Axes, DType, Initializer, Promotion
from nnx_transforms.randomness.rngs import Rngs

__all__ = ["SpectralNorm", "WeightNorm"]

Path = tuple[Any, ...]
_KERNELS = PathContains("kernel")


def _selected(layer: Any, kind: Filter) -> Iterator[tuple[Path, Variable[Any]]]:
    return iter(variables(layer, kind).flat_state())


def _unit(x: jax.Array, epsilon: float, axes: tuple[int, ...] | None) -> jax.Array:
    """`x` over its Euclidean norm along axes."""
    return x * lax.rsqrt((x * x).sum(axes, keepdims=True) + epsilon)


class WeightNorm(Layer):
    """Separates the length of weights from their direction.

    See Salimans and Kingma, "Weight Normalization: A Simple Reparameterization to
    Accelerate Training of Deep Neural Networks", https://arxiv.org/abs/1602.07868.

    Args:
        layer_instance: The layer whose weights are normalized.
        feature_axes: The axes of a weight that have lengths of their own; None for one
            length of all.
        use_scale: Whether the lengths are parameters, `scales`; otherwise they are 1.
        scale_init: Makes the scales.
        epsilon: Added to the squared lengths.
        dtype: The dtype of the normalized weights; None for what weights and scales
            promote to.
        param_dtype: The dtype of the scales.
        variable_filter: Selects the parameters that are weights.
        promote_dtype: Kept for code that reads it.
        rngs: Streams; keys for scales are drawn from `params`, unless they are ones.

    Example:
        >>> import nnx_transforms as nnx, jax.numpy as jnp
        >>> rngs = nnx.Rngs(0)
        >>> layer = nnx.WeightNorm(nnx.Linear(3, 4, rngs=rngs), rngs=rngs)
        >>> y = layer(jnp.ones((1, 3)))
        >>> jnp.linalg.norm(layer.layer_instance.kernel.value, axis=0).round(3).tolist()
        [1.0, 1.0, 1.0, 1.0]
    """

    use_scale: bool = True
    scale_init: Any = staticmethod(initializers.ones)
    epsilon: float = 1e-12
    variable_filter: Filter = _KERNELS
    scales: dict[Path, Param[jax.Array]] | None = None

    def __init__(
        self,
        layer_instance: Callable[..., Any],
        *,
        feature_axes: Axes | None = -1,
        use_scale: bool = True,
        scale_init: Initializer = initializers.ones,
        epsilon: float = 1e-12,
        dtype: DType | None = None,
        param_dtype: DType = jnp.float32,
        variable_filter: Filter = _KERNELS,
        promote_dtype: Promotion = promote_dtype,
        rngs: Rngs,
    ) -> None:
        super().keep(locals())
        self.layer_instance = layer_instance
        self.feature_axes = () if feature_axes is None else feature_axes
        if not use_scale:
            return
        self.scales = {}
        for path, weight in self._weights():
            shape = weight.value.shape
            lengths = tuple(shape[axis] for axis in self._axes(weight.value))
            # Ones need no key, and so later layers get the keys that they would have.
            key = None if scale_init is initializers.ones else rngs.params()
            self.scales[path] = Param(scale_init(key, lengths, param_dtype))

    def _weights(self) -> Iterator[tuple[Path, Variable[Any]]]:
        return _selected(self.layer_instance, All(Param, self.variable_filter))

    def _axes(self, weight: jax.Array) -> tuple[int, ...]:
        return canonical_axes(self.feature_axes, weight.ndim)

    def __call__(self, x: Array, *args: Any, **kwargs: Any) -> Any:
        """Normalizes the weights and calls the layer.

        Args:
            x: The layer's input.
            *args: For the layer.
            **kwargs: For the layer.

        Returns:
            What the layer returns.

        Raises:
            ValueError: If the layer got weights that it didn't have before.

        Example:
            >>> import jax.numpy as jnp
            >>> from nnx_transforms.layers.linear import Linear
            >>> layer = WeightNorm(Linear(3, 4, rngs=Rngs(0)), rngs=Rngs(1))
            >>> layer(jnp.ones((1, 3))).shape
            (1, 4)
        """
        for path, variable in self._weights():
            weight = variable.value
            axes = self._axes(weight)
            others = tuple(i for i in range(weight.ndim) if i not in axes)
            unit, scale = _unit(weight, self.epsilon, others), None
            if self.scales is not None:
                scale = _known(self.scales, path, "scale").value
                unit = unit * jnp.expand_dims(scale, others)
            dtype = canonicalize_dtype(weight, scale, dtype=self.dtype)
            variable.value = cast(unit, dtype)
        return self.layer_instance(x, *args, **kwargs)


class SpectralNorm(Layer):
    """Divides weights by their largest singular value.

    It is approximated by power iteration, which goes on from where it was at the call
    before. See Miyato et al., "Spectral Normalization for Generative Adversarial
    Networks", https://arxiv.org/abs/1802.05957.

    Args:
        layer_instance: The layer whose parameters of two and more axes are normalized;
            of more than two, all but the last are taken as one.
        n_steps: How many steps of power iteration a call makes.
        epsilon: Added to squared lengths.
        dtype: The dtype that normalized parameters are rounded to, before they are
            kept in their own; None for what they are computed in.
        param_dtype: The dtype of what is kept between calls, `batch_stats`.
        error_on_non_matrix: Whether more than two axes are refused.
        update_stats: Whether calls keep what they compute. `train()` and `eval()`
            switch it.
        rngs: Streams; keys are drawn from `params`.

    Raises:
        ValueError: If a parameter is refused.

    Example:
        >>> import nnx_transforms as nnx, jax.numpy as jnp
        >>> rngs = nnx.Rngs(0)
        >>> layer = nnx.SpectralNorm(
        ...     nnx.Linear(3, 4, rngs=rngs), n_steps=50, rngs=rngs)
        >>> y = layer(jnp.ones((1, 3)))
        >>> jnp.linalg.norm(layer.layer_instance.kernel.value, 2).round(3).tolist()
        1.0
    """

    n_steps: int = 1
    epsilon: float = 1e-12
    error_on_non_matrix: bool = False

    def __init__(
        self,
        layer_instance: Callable[..., Any],
        *,
        n_steps: int = 1,
        epsilon: float = 1e-12,
        dtype: DType | None = None,
        param_dtype: DType = jnp.float32,
        error_on_non_matrix: bool = False,
        update_stats: bool = True,
        rngs: Rngs,
    ) -> None:
        super().keep(locals())
        self.layer_instance = layer_instance
        # Under this name `train()` and `eval()` find it.
        self.use_running_average = not update_stats
        self.batch_stats: dict[Path, BatchStat[jax.Array]] = {}
        for path, _, matrix in self._matrices():
            shape = (1, matrix.shape[-1])
            u = initializers.normal()(rngs.params(), shape, param_dtype)
            self.batch_stats[(*path, "u")] = BatchStat(u)
            self.batch_stats[(*path, "sigma")] = BatchStat(jnp.ones((), param_dtype))

    def _matrices(self) -> Iterator[tuple[Path, Variable[Any], jax.Array]]:
        if self.n_steps < 1:
            return
        for path, variable in _selected(self.layer_instance, Param):
            weight = variable.value
            if weight.ndim > 2 and self.error_on_non_matrix:
                raise ValueError(
                    f"SpectralNorm normalizes matrices, got {'/'.join(map(str, path))} "
                    f"of shape {weight.shape}. With `error_on_non_matrix=False` all "
                    "axes but the last are taken as one."
                )
            if weight.ndim > 1:
                yield path, variable, weight.reshape((-1, weight.shape[-1]))

    def __call__(self, x: Array, update_stats: bool | None = None) -> Any:
        """Normalizes the weights and calls the layer.

        Args:
            x: The layer's input.
            update_stats: Takes the place of the attribute, for this call.

        Returns:
            What the layer returns.

        Raises:
            ValueError: If the layer got weights that it didn't have before, or one is
                refused.

        Example:
            >>> import jax.numpy as jnp
            >>> from nnx_transforms.layers.linear import Linear
            >>> layer = SpectralNorm(Linear(3, 4, rngs=Rngs(0)), rngs=Rngs(1))
            >>> layer(jnp.ones((1, 3)), update_stats=False).shape
            (1, 4)
        """
        if update_stats is None:
            update_stats = not self.use_running_average
        for path, variable, matrix in self._matrices():
            kept_u = _known(self.batch_stats, (*path, "u"), "vector")
            u = kept_u.value
            for _ in range(self.n_steps):
                v = _unit(u @ matrix.T, self.epsilon, None)
                u = _unit(v @ matrix, self.epsilon, None)
            u, v = lax.stop_gradient((u, v))
            sigma = (v @ matrix @ u.T)[0, 0]
            if update_stats:
                keep_dtype(kept_u, u)
                keep_dtype(self.batch_stats[(*path, "sigma")], sigma)
            normalized = matrix / jnp.where(sigma != 0, sigma, 1)
            dtype = canonicalize_dtype(normalized, u, dtype=self.dtype)
            rounded = cast(normalized.reshape(variable.value.shape), dtype)
            variable.value = cast(rounded, variable.value.dtype)
        return self.layer_instance(x)


def _known(kept: dict[Path, Any], path: Path, what: str) -> Any:
    if path in kept:
        return kept[path]
    raise ValueError(
        f"There is no {what} for {'/'.join(map(str, path))}: the parameters of the "
        f"layer are not those it was made with, which have {list(kept)}."
    )
