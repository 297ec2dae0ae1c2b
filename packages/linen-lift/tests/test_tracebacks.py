"""An error in a module shows the frames of users."""

import functools
import os
import traceback

import jax
import jax.numpy as jnp
import pytest

import graphcore
import linen_lift as nn

PACKAGES = tuple(os.path.dirname(p.__file__) + os.sep for p in (nn, graphcore))


class Refused(Exception):
    """An error of a user."""


class Inner(nn.Module):
    @nn.compact
    def __call__(self, x):
        self.param("w", nn.initializers.ones, ())
        raise Refused("not today")


class Scanned(Inner):
    def __call__(self, carry):
        return super().__call__(carry), None


class Outer(nn.Module):
    transform: object = staticmethod(lambda kind: kind)

    @nn.compact
    def __call__(self, x):
        return self.transform(Inner)()(x)


class WithSetup(nn.Module):
    def setup(self):
        raise Refused("not today")

    def __call__(self, x):
        return x


class WithRule(nn.Module):
    @nn.compact
    def __call__(self, x):
        call = lambda module, x: module(x)
        forward = functools.partial(nn.vjp, call)
        return nn.custom_vjp(call, forward, refuse)(nn.Dense(1), x)


def of_scope(scope, x):
    return scope.child(lambda scope, x: Inner(parent=None).init(KEY, x))(x)


def refuse(*args):
    raise Refused("not today")


KEY, X = jax.random.key(0), jnp.ones((2, 3))
VARIABLES = {"params": {"w": 1.0}}
SPLIT = {"variable_axes": {"params": 0}, "split_rngs": {"params": True}}

CALLS = {
    "init": lambda: Inner().init(KEY, X),
    "init_with_output": lambda: Inner().init_with_output(KEY, X),
    "lazy_init": lambda: Inner().lazy_init(KEY, X),
    "apply": lambda: Inner().apply(VARIABLES, X),
    "bound": lambda: Inner().bind(VARIABLES)(X),
    "tabulate": lambda: Inner().tabulate(KEY, X),
    "setup": lambda: WithSetup().init(KEY, X),
    "child": lambda: Outer().init(KEY, X),
    "jit": lambda: Outer(nn.jit).init(KEY, X),
    "remat": lambda: Outer(nn.remat).init(KEY, X),
    "vmap": lambda: Outer(lambda kind: nn.vmap(kind, **SPLIT)).init(KEY, X),
    "scan": lambda: Outer(
        lambda kind: functools.partial(
            nn.scan(Scanned, length=2, **SPLIT), name="scanned"
        )
    ).init(KEY, X),
    "in jax.jit": lambda: jax.jit(Outer(nn.remat).init)(KEY, X),
    "later rule": lambda: jax.grad(
        lambda x: WithRule().init_with_output(KEY, x)[0].sum()
    )(X),
    "function": lambda: nn.init(lambda m, x: m(x), Inner())(KEY, X),
    "function with output": lambda: nn.apply(lambda m, x: m(x), Inner())(VARIABLES, X),
    "scope": lambda: nn.scope.init(of_scope)(KEY, X),
    "applied scope": lambda: nn.scope.apply(nn.lift.remat(refuse))({}, X),
    "lazy scope": lambda: nn.scope.lazy_init(refuse)(KEY, X),
}


def raised_by(call):
    with pytest.raises(Exception) as caught:
        call()
    return caught.value


def files_of_packages(error):
    """The files of frames in a traceback that are of these packages."""
    frames = traceback.extract_tb(error.__traceback__)
    return [f.filename for f in frames if f.filename.startswith(PACKAGES)]


@pytest.mark.parametrize("name", CALLS)
def test_only_frames_of_users_are_shown(name):
    error = raised_by(CALLS[name])
    assert isinstance(error, Refused), error
    assert files_of_packages(error) == []


def test_what_a_scope_refuses_shows_where():
    error = raised_by(lambda: Inner().apply({}, X))
    assert isinstance(error, nn.errors.ScopeCollectionNotFound)
    assert len(files_of_packages(error)) == 1
