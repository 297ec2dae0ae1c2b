"""Layers that normalize the weights of another layer: `WeightNorm`, `SpectralNorm`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.nn import initializers

from ..module import Module, compact, nowrap
from ..transforms import map_variables
from ..types import Axes
from .dtypes import canonicalize_dtype
from .linear import Initializer
from .normalization import canonical_axes

__all__ = ["SpectralNorm", "WeightNorm"]


def _unit(x: jax.Array, epsilon: float, axes: tuple[int, ...] | None) -> jax.Array:
    """`x` over its Euclidean norm along `axes`."""
    return x * lax.rsqrt((x * x).sum(axes, keepdims=True) + epsilon)


def _with_weights(
    layer: Module,
    change: Callable[[str, jax.Array], jax.Array],
    mutable: bool,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Calls a layer with every variable replaced.

    Args:
        layer: the layer.
        change: makes the replacement of the path and the value of a variable; the
            path starts with the layer's name.
        mutable: whether the layer may change its own variables.
        *args: for the layer.
        **kwargs: for the layer.
    """

    def view(collections: Any) -> Any:
        def replace(path: Any, value: Any) -> Any:
            # The first key is the collection's.
            place = jax.tree_util.keystr(path[1:], simple=True, separator="/")
            return change(f"{layer.name}/{place}", jnp.asarray(value))

        return jax.tree_util.tree_map_with_path(replace, collections)

    call: Any = map_variables(
        lambda layer: layer(*args, **kwargs),
        True,
        view,
        init=layer.is_initializing(),
        mutable=mutable,
    )
    return call(layer)


class WeightNorm(Module):
    """Calls a layer with weights of norm one, times a learned scale.

    The length and the direction of a weight are parameters of their own then (Salimans
    and Kingma, 2016). The scales are parameters of this module, named by the path of
    the weight, such as `Dense_0/kernel/scale`; the layer keeps its own.

    Args:
        layer_instance: the layer.
        epsilon: added to the square of a norm.
        dtype: the type of the weights that the layer sees; None for that of weight and
            scale.
        param_dtype: the type of the scales.
        use_scale: whether there are scales.
        scale_init: makes them.
        feature_axes: the axes of a weight that have a norm and a scale per entry; None
            for one norm of all.
        variable_filter: normalizes only weights whose path has one of these names in
            it; None for all.

    Example:
        >>> import linen_lift as nn, jax, jax.numpy as jnp
        >>> class Model(nn.Module):
        ...     @nn.compact
        ...     def __call__(self, x):
        ...         return nn.WeightNorm(nn.Dense(2))(x)
        >>> variables = Model().init(jax.random.key(0), jnp.ones((1, 3)))
        >>> jax.tree.map(jnp.shape, variables['params']['WeightNorm_0'])
        {'Dense_0/kernel/scale': (2,)}
    """

    layer_instance: Module
    epsilon: float = 1e-12
    dtype: Any = None
    param_dtype: Any = jnp.float32
    use_scale: bool = True
    scale_init: Initializer = initializers.ones
    feature_axes: Axes | None = -1
    variable_filter: Iterable[str] | None = frozenset({"kernel"})

    @compact
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the layer.

        Args:
            *args: for the layer.
            **kwargs: for the layer.

        Returns:
            What the layer returns.
        """
        layer = self.layer_instance
        return _with_weights(layer, self._normalized, False, *args, **kwargs)

    @nowrap
    def _normalized(self, path: str, weight: jax.Array) -> jax.Array:
        if self.variable_filter and not any(n in path for n in self.variable_filter):
            return weight
        axes = () if self.feature_axes is None else self.feature_axes
        kept = canonical_axes(axes, weight.ndim)
        others = tuple(a for a in range(weight.ndim) if a not in kept)
        out, scale = _unit(weight, self.epsilon, others), None
        if self.use_scale:
            shape = tuple(weight.shape[a] for a in kept)
            scale = self.param(
                f"{path}/scale", self.scale_init, shape, self.param_dtype
            )
            out = out * jnp.expand_dims(scale, others)
        return out.astype(canonicalize_dtype(weight, scale, dtype=self.dtype))


class SpectralNorm(Module):
    """Calls a layer with matrices whose largest singular value is one.

    The value is found by power iteration (Miyato et al., 2018), which starts where it
    ended before: for each matrix the collection `batch_stats` has the vector and the
    value, named by the path, such as `Dense_0/kernel/u` and `Dense_0/kernel/sigma`.

    Args:
        layer_instance: the layer.
        n_steps: the number of iterations in a call.
        epsilon: added to the square of a norm.
        dtype: the type of the weights that the layer sees; None for that of weight and
            vectors.
        param_dtype: the type of the vector and the value.
        error_on_non_matrix: whether weights of more than two axes are an error;
            otherwise all axes but the last are taken as one.
        collection_name: the collection of the vector and the value.

    Example:
        >>> import linen_lift as nn, jax, jax.numpy as jnp
        >>> class Model(nn.Module):
        ...     @nn.compact
        ...     def __call__(self, x, train):
        ...         return nn.SpectralNorm(nn.Dense(2))(x, update_stats=train)
        >>> variables = Model().init(jax.random.key(0), jnp.ones((1, 3)), train=False)
        >>> sorted(variables['batch_stats']['SpectralNorm_0'])
        ['Dense_0/kernel/sigma', 'Dense_0/kernel/u']
    """

    layer_instance: Module
    n_steps: int = 1
    epsilon: float = 1e-12
    dtype: Any = None
    param_dtype: Any = jnp.float32
    error_on_non_matrix: bool = False
    collection_name: str = "batch_stats"

    @compact
    def __call__(self, *args: Any, update_stats: bool, **kwargs: Any) -> Any:
        """Calls the layer.

        Args:
            *args: for the layer.
            update_stats: whether to keep what power iteration found.
            **kwargs: for the layer.

        Returns:
            What the layer returns.

        Raises:
            ValueError: if there is a weight of more than two axes and
                `error_on_non_matrix` is set.
        """

        def change(path: str, weight: jax.Array) -> jax.Array:
            return self._normalized(path, weight, update_stats)

        return _with_weights(self.layer_instance, change, True, *args, **kwargs)

    @nowrap
    def _normalized(self, path: str, weight: jax.Array, update: bool) -> jax.Array:
        if weight.ndim <= 1 or self.n_steps < 1:
            return weight
        if weight.ndim > 2 and self.error_on_non_matrix:
            raise ValueError(
                f"SpectralNorm is for matrices; the weight {path} has the shape "
                f"{weight.shape}. With error_on_non_matrix=False all axes but the last "
                "are taken as one."
            )
        matrix = weight.reshape((-1, weight.shape[-1]))
        name, collection = f"{path}/u", self.collection_name
        start = self.variable(
            collection,
            name,
            lambda: jax.random.normal(
                self.make_rng("params"), (1, matrix.shape[-1]), self.param_dtype
            ),
        )
        found = self.variable(
            collection, f"{path}/sigma", jnp.ones, (), self.param_dtype
        )
        u = start.value
        for _ in range(self.n_steps):
            v = _unit(u @ matrix.T, self.epsilon, None)
            u = _unit(v @ matrix, self.epsilon, None)
        u, v = lax.stop_gradient(u), lax.stop_gradient(v)
        sigma = (v @ matrix @ u.T)[0, 0]
        out = (matrix / jnp.where(sigma != 0, sigma, 1)).reshape(weight.shape)
        if update:
            start.value, found.value = u, sigma
        return out.astype(canonicalize_dtype(weight, u, v, sigma, dtype=self.dtype))
