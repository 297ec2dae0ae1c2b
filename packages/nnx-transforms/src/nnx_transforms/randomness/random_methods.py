"""The functions of `jax.random` as methods of random streams.

`rngs.normal((2, 3))` draws a key and hands it to `jax.random.normal`;
`rngs.params.lecun_normal()((2, 3))` does so for an initializer.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax

# `normal`, `orthogonal`, `truncated_normal` and `uniform` are functions of
# `jax.random` as well as initializers; the functions are meant.
_FUNCTIONS = (
    "ball bernoulli beta binomial bits categorical cauchy chisquare choice dirichlet "
    "double_sided_maxwell exponential f gamma generalized_normal geometric gumbel "
    "laplace loggamma logistic lognormal maxwell multinomial multivariate_normal "
    "normal orthogonal pareto permutation poisson rademacher randint rayleigh t "
    "triangular truncated_normal uniform wald weibull_min"
)
_INITIALIZERS = (
    "delta_orthogonal glorot_normal glorot_uniform he_normal he_uniform "
    "kaiming_normal kaiming_uniform lecun_normal lecun_uniform variance_scaling "
    "xavier_normal xavier_uniform"
)


def _drawing(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return function(self(), *args, **kwargs)

    return method


def _initializing(make: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(make)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        initializer = make(*args, **kwargs)
        return lambda *args, **kwargs: initializer(self(), *args, **kwargs)

    return method


class RandomMethods:
    """What draws a key by being called, with a method for each use of a key.

    The methods take what the functions of `jax.random` of their names take after the
    key. Those named as initializers take what makes one, and return it without its
    first parameter, the key; it is drawn when that is called.

    Example:
        >>> from nnx_transforms.randomness.rngs import Rngs
        >>> rngs = Rngs(0, params=1)
        >>> rngs.normal((2, 3)).shape, rngs.params.lecun_normal()((4, 2)).shape
        ((2, 3), (4, 2))
        >>> int(rngs.default.count.value), int(rngs.params.count.value)
        (1, 1)
    """

    __slots__ = ()

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...


for _name in _FUNCTIONS.split():
    setattr(RandomMethods, _name, _drawing(getattr(jax.random, _name)))
for _name in _INITIALIZERS.split():
    setattr(RandomMethods, _name, _initializing(getattr(jax.nn.initializers, _name)))
