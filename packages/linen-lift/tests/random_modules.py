"""Random modules for differential tests.

A `Spec` says what a module has: submodules (perhaps called twice, perhaps shared
between two parents), updated collections, streams it draws from, and whether it is
written with `setup` or compact. All modules map an array of shape (3,) to another.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from hypothesis import strategies as st

import linen_lift as nn

SIZE = 3


class Spec(NamedTuple):
    style: str
    stats: bool
    cache: bool
    streams: tuple[str, ...]
    children: tuple["Spec", ...]
    twice: bool
    shared: bool


def _spec(children):
    return st.builds(
        Spec,
        style=st.sampled_from(["setup", "compact"]),
        stats=st.booleans(),
        cache=st.booleans(),
        streams=st.sampled_from([(), ("noise",), ("dropout",), ("noise", "dropout")]),
        children=children,
        twice=st.booleans(),
        shared=st.booleans(),
    )


specs = st.recursive(
    _spec(st.just(())),
    lambda inner: _spec(st.lists(inner, max_size=2).map(tuple)),
    max_leaves=3,
)


class Around(nn.Module):
    """Calls a module that it is given."""

    inner: nn.Module

    def __call__(self, x):
        return self.inner(x)


def _own(module, spec, x, w, stats, cache):
    x = jnp.tanh(x @ w)
    if stats is not None:
        before = stats.value
        if stats.is_mutable() and not module.is_initializing():
            stats.value = 0.5 * before + 0.5 * x
        x = x + 0.1 * before
    if cache is not None:
        before = cache.value
        if cache.is_mutable() and not module.is_initializing():
            cache.value = before + 1
        x = x * (1 + 0.1 * before)
    for stream in spec.streams:
        x = x + 0.1 * jax.random.normal(module.make_rng(stream), x.shape)
    return x


class Compact(nn.Module):
    spec: Any

    @nn.compact
    def __call__(self, x):
        spec = self.spec
        w = self.param("w", nn.initializers.normal(0.5), (SIZE, SIZE))
        stats = cache = None
        if spec.stats:
            stats = self.variable("stats", "mean", jnp.zeros, (SIZE,))
        if spec.cache:
            cache = self.variable("cache", "n", jnp.zeros, ())
        x = _own(self, spec, x, w, stats, cache)
        for child_spec in spec.children:
            child = build(child_spec)
            x = child(x)
            if spec.twice:
                x = child(x)
            if spec.shared:
                x = Around(child)(x) + Around(child)(x)
        return x


class Setup(nn.Module):
    spec: Any

    def setup(self):
        spec = self.spec
        self.w = self.param("w", nn.initializers.normal(0.5), (SIZE, SIZE))
        self.stats = self.cache = None
        if spec.stats:
            self.stats = self.variable("stats", "mean", jnp.zeros, (SIZE,))
        if spec.cache:
            self.cache = self.variable("cache", "n", jnp.zeros, ())
        self.children = [build(child) for child in spec.children]
        self.arounds = [(Around(c), Around(c)) for c in self.children if spec.shared]

    def __call__(self, x):
        x = _own(self, self.spec, x, self.w, self.stats, self.cache)
        for i, child in enumerate(self.children):
            x = child(x)
            if self.spec.twice:
                x = child(x)
            if self.spec.shared:
                x = self.arounds[i][0](x) + self.arounds[i][1](x)
        return x


def build(spec, **kwargs):
    return (Compact if spec.style == "compact" else Setup)(spec, **kwargs)


def kind(spec):
    """The class that `build` makes an instance of."""
    return Compact if spec.style == "compact" else Setup
