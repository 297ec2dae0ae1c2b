"""Derivatives of functions of modules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from .. import lift
from ..module.base import Module
from ..signatures import parameters_of
from .frame import Frame, without_modules
from .targets import check_function, core_of, with_module

__all__ = ["custom_vjp", "grad", "jvp", "value_and_grad", "vjp"]


def _cotangents(pull_back: Callable[..., Any], *cotangent: Any) -> Any:
    # Of several, JAX says how one is written.
    return without_modules(pull_back(*cotangent))


def _with_cotangents(result: Any) -> Any:
    out, pull_back, *aux = result
    return (out, jax.tree_util.Partial(_cotangents, pull_back), *aux)


@with_module(lift.vjp, ("fn",), "primals", _with_cotangents)
def vjp(*_: Any, **__: Any) -> Any:
    """Lifted `jax.vjp`, with respect to variables and arguments.

    Args:
        fn: a function `(module, *primals)`.
        mdl: the module; others may be in its fields and among `primals`.
        *primals: the arguments to differentiate at.
        has_aux: whether `fn` returns a pair `(out, aux)`.
        reduce_axes: named axes to sum cotangents over, for what is not mapped over
            them.
        vjp_variables: the collections to differentiate.
        variables: further collections that `fn` sees.
        rngs: the streams that it sees.
        multi_scope: whether several scopes may take part. The cotangents of the
            variables are then a list, one dict per scope: modules among the arguments
            first, then those in fields, depth first, `mdl` last. A scope inside of
            another one belongs to that.

    Returns:
        `(out, pull_back)`, or `(out, pull_back, aux)`. `pull_back(cotangent)` gives
        `(variable_cotangents, *primal_cotangents)`; it is a pytree. A module among the
        primals has None there: its cotangents are among those of the variables.

    Raises:
        MultipleScopesError: if there are several scopes and `multi_scope` is False.

    Example:
        >>> import linen_lift as nn, jax, jax.numpy as jnp
        >>> class Net(nn.Module):
        ...     @nn.compact
        ...     def __call__(self, x):
        ...         dense = nn.Dense(1, use_bias=False)
        ...         out, pull_back = nn.vjp(lambda dense, x: dense(x), dense, x)
        ...         params, x_grad = pull_back(jnp.ones_like(out))
        ...         return params['params']['kernel']
        >>> Net().init_with_output(jax.random.key(0), jnp.full((1, 2), 5.0))[0].tolist()
        [[5.0], [5.0]]
    """


@with_module(lift.value_and_grad, ("fn",), "primals", without_modules)
def value_and_grad(*_: Any, **__: Any) -> Any:
    """The value of a function of a module and its gradients in the arguments.

    Args:
        fn: a function `(module, *primals)` with a scalar result.
        mdl: the module; others may be in its fields and among `primals`.
        *primals: the arguments to differentiate at.
        has_aux: whether `fn` returns a pair `(out, aux)`.
        reduce_axes: named axes to sum cotangents over, for what is not mapped over
            them.
        variables: the collections that `fn` sees.
        rngs: the streams that it sees.

    Returns:
        `(out, grads)`, or `((out, aux), grads)`; `grads` is a tuple with one entry per
        argument, which is None for a module.

    Raises:
        ValueError: if the result is not a scalar.

    Example:
        >>> import linen_lift as nn, jax, jax.numpy as jnp
        >>> class Energy(nn.Module):
        ...     @nn.compact
        ...     def __call__(self, x):
        ...         scale = nn.Dense(1, kernel_init=nn.initializers.ones)
        ...         f = lambda scale, x: scale(x).sum()
        ...         return nn.value_and_grad(f, scale, x)
        >>> out, _ = Energy().init_with_output(jax.random.key(0), jnp.ones(2))
        >>> float(out[0]), out[1][0].tolist()
        (2.0, [1.0, 1.0])
    """


@with_module(lift.grad, ("fn",), "primals", without_modules)
def grad(*_: Any, **__: Any) -> Any:
    """The gradients of a function of a module in its arguments.

    Args:
        fn: a function `(module, *primals)` with a scalar result.
        mdl: the module; others may be in its fields and among `primals`.
        *primals: the arguments to differentiate at.
        has_aux: whether `fn` returns a pair `(out, aux)`.
        reduce_axes: named axes to sum cotangents over, for what is not mapped over
            them.
        variables: the collections that `fn` sees.
        rngs: the streams that it sees.

    Returns:
        `grads`, or `(grads, aux)`; `grads` is a tuple with one entry per argument.

    Raises:
        ValueError: if the result is not a scalar.

    Example:
        >>> import linen_lift as nn, jax, jax.numpy as jnp
        >>> class Slope(nn.Module):
        ...     @nn.compact
        ...     def __call__(self, x):
        ...         scale = nn.Dense(1, kernel_init=nn.initializers.ones)
        ...         return nn.grad(lambda scale, x: scale(x).sum(), scale, x)[0]
        >>> Slope().init_with_output(jax.random.key(0), jnp.ones(2))[0].tolist()
        [1.0, 1.0]
    """


@with_module(lift.jvp, ("fn",), "primals")
def jvp(*_: Any, **__: Any) -> Any:
    """Lifted `jax.jvp`, along variables and arguments.

    Args:
        fn: a function `(module, *primals)`.
        mdl: the module; others may be in its fields and among `primals`.
        primals: the arguments.
        tangents: their tangents.
        variable_tangents: `{collection: tangents}`; where several scopes take part, a
            list of such dicts in the order that `vjp` describes. Collections that are
            left out are constant.
        variables: the collections that `fn` sees.
        rngs: the streams that it sees.

    Returns:
        `(out, out_tangent)`.

    Raises:
        ValueError: if `variable_tangents` does not fit the scopes.

    Example:
        >>> import linen_lift as nn, jax, jax.numpy as jnp
        >>> class Net(nn.Module):
        ...     @nn.compact
        ...     def __call__(self, x):
        ...         dense = nn.Dense(1)
        ...         y = dense(x)
        ...         f = lambda dense, x: dense(x)
        ...         return nn.jvp(f, dense, (x,), (x,), {})[1] - y
        >>> Net().init_with_output(jax.random.key(0), jnp.ones(2))[0].tolist()
        [0.0]
    """


@parameters_of(lift.custom_vjp)
def custom_vjp(fn: Any, forward_fn: Any, *_rule: Any, **_options: Any) -> Any:
    """Lifted `jax.custom_vjp`: a function of a module with its own backward rule.

    Args:
        fn: a function `(module, *args)`; it runs where nothing is differentiated.
        forward_fn: the same arguments; returns `(out, residuals)`. The `pull_back` of
            `vjp` can be a residual.
        backward_fn: a function `(*nondiff_args, residuals, cotangent)` that returns
            `(variable_cotangents, *argument_cotangents)`. The cotangents of the
            variables are one dict, or a list in the order that `vjp` describes.
        grad_vars: the collections that have cotangents.
        nondiff_argnums: the positions of arguments that have none, the module being 0.

    Returns:
        A function with the arguments of `fn`.

    Raises:
        TransformTargetError: if `fn` or `forward_fn` is no function.
        ValueError: if `nondiff_argnums` names the module, or if `backward_fn` returns
            cotangents that do not fit the scopes and the arguments.

    Example:
        >>> import linen_lift as nn, jax, jax.numpy as jnp
        >>> def f(dense, x):
        ...     return dense(x)
        >>> def fwd(dense, x):
        ...     return nn.vjp(f, dense, x)
        >>> def bwd(pull_back, g):
        ...     params, x = pull_back(g)
        ...     return jax.tree.map(jnp.sign, params), x
        >>> class SignGrad(nn.Module):
        ...     @nn.compact
        ...     def __call__(self, x):
        ...         return nn.custom_vjp(f, fwd, bwd)(nn.Dense(1), x).sum()
        >>> model, x = SignGrad(), jnp.full((2, 3), 7.0)
        >>> variables = model.init(jax.random.key(0), x)
        >>> grads = jax.grad(lambda v: model.apply(v, x))(variables)
        >>> grads['params']['Dense_0']['bias'].tolist()
        [1.0]
    """
    for each in (fn, forward_fn):
        check_function("custom_vjp", each)
    lift.custom_vjp(fn, forward_fn, *_rule, **_options)  # refuses wrong options early

    def wrapper(mdl: Module, *args: Any) -> Any:
        frame = Frame(mdl, args, {}, "custom_vjp")
        # JAX keeps the functions beyond the call.
        inner = frame.detached()
        f, forward = (core_of("custom_vjp", inner, g) for g in (fn, forward_fn))
        rule = lift.custom_vjp(f, forward, *_rule, **_options)
        return rule(frame.scopes, *frame.args)

    return wrapper
