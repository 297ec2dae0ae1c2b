"""Modules that share a scope do not share names."""

from typing import Any

import jax
import jax.numpy as jnp
import pytest

import linen_lift as nn

KEY, X = jax.random.key(0), jnp.ones((2, 4))
ONES = nn.initializers.ones


class Over(nn.Module):
    """Runs a function beside `base`, in the scope of `base`."""

    base: Any
    run: Any

    def setup(self):
        nn.share_scope(self, self.base)

    @nn.compact
    def __call__(self, x):
        return self.run(self, x)


class Named(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(4, name="inner")(x)


class WithSetup(nn.Module):
    def setup(self):
        self.inner = nn.Dense(4)
        self.scale = self.param("scale", ONES, (4,))

    def __call__(self, x):
        return self.inner(x) * self.scale


def bias(over, x):
    return over.param("bias", ONES, (4,)) + x


def scale(over, x):
    return over.param("scale", ONES, (4,)) * x


def inner(over, x):
    return nn.Dense(4, name="inner")(x)


def dense(over, x):
    return nn.Dense(4)(x)


class Auto(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(4)(x)


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize(
    ("base", "take", "name"),
    [
        (nn.Dense(4), bias, "bias"),
        (Auto(), dense, "Dense_0"),
        (Named(), inner, "inner"),
        (WithSetup(), inner, "inner"),
        (WithSetup(), scale, "scale"),
    ],
)
@pytest.mark.parametrize("wrap", [lambda cls: cls, nn.remat])
def test_a_name_of_the_other_module_is_in_use(wrap, base, take, name, first):
    def run(over, x):
        return over.base(take(over, x)) if first else take(over, over.base(x))

    with pytest.raises(nn.errors.NameInUseError, match=f'"{name}"'):
        wrap(Over)(base, run).init(KEY, X)


class Siblings(nn.Module):
    into_parent: bool

    def setup(self):
        self.a, self.b = nn.Dense(4), nn.Dense(4)
        for pair in ((self, self.a), (self, self.b)):
            nn.share_scope(*(pair if self.into_parent else (self.a, self.b)))

    def __call__(self, x):
        return self.b(self.a(x))


class CompactSiblings(nn.Module):
    into_parent: bool

    @nn.compact
    def __call__(self, x):
        a, b = nn.Dense(4), nn.Dense(4)
        for pair in ((self, a), (self, b)):
            nn.share_scope(*(pair if self.into_parent else (a, b)))
        return b(a(x))


@pytest.mark.parametrize("into_parent", [True, False])
@pytest.mark.parametrize("cls", [Siblings, CompactSiblings])
def test_siblings_do_not_share_names(cls, into_parent):
    with pytest.raises(nn.errors.NameInUseError, match='"kernel"'):
        cls(into_parent).init(KEY, X)


def test_collections_share_names():
    def run(over, x):
        return over.base(x + over.variable("state", "bias", jnp.zeros, (4,)).value)

    variables = Over(nn.Dense(4), run).init(KEY, X)
    assert sorted(variables["params"]) == ["bias", "kernel"]
    assert sorted(variables["state"]) == ["bias"]


@pytest.mark.parametrize("wrap", [lambda cls: cls, nn.remat, nn.jit])
def test_modules_that_share_a_scope_can_be_called_again(wrap):
    def run(over, x):
        x = scale(over, x)
        return over.base(over.base(nn.LayerNorm()(nn.Dense(4)(x))))

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            over = wrap(Over)(Named(name="base"), run)
            return over(over(x))

    variables = Net().init(KEY, X)
    names = ["Dense_0", "LayerNorm_0", "inner", "scale"]
    assert sorted(variables["params"]["base"]) == names
    assert Net().apply(variables, X).shape == (2, 4)


def test_sharing_the_scope_of_the_module_around():
    class Part(nn.Module):
        owner: Any

        def setup(self):
            nn.share_scope(self, self.owner)

        @nn.compact
        def __call__(self, x):
            return scale(self, x)

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            return bias(self, Part(self)(nn.Dense(4)(x)))

    class Twice(nn.Module):
        def setup(self):
            self.net = Net()

        def __call__(self, x):
            return self.net(self.net(x))

    variables = Twice().init(KEY, X)
    assert sorted(variables["params"]["net"]) == ["Dense_0", "bias", "scale"]


def test_sharing_once_more_changes_nothing():
    class Again(nn.Module):
        base: Any

        def setup(self):
            nn.share_scope(self, self.base)
            self.scale = self.param("scale", ONES, (4,))
            nn.share_scope(self, self.base)

        @nn.compact
        def __call__(self, x):
            return self.base(x) * scale(self, x)

    with pytest.raises(nn.errors.NameInUseError, match='"scale"'):
        Again(nn.Dense(4)).init(KEY, X)


def test_sharing_twice_the_scope_of_a_module_with_parts():
    class Net(nn.Module):
        base: nn.Module

        def setup(self):
            for _ in range(2):
                nn.share_scope(self, self.base)

        def __call__(self, x):
            return self.base(x)

    assert [*Net(nn.Sequential([nn.Dense(4)])).init(KEY, X)["params"]] == ["layers_0"]


def test_sharing_the_scope_of_a_module_in_another_tree():
    one, two = (nn.Dense(1).bind({"params": {"n": n}}) for n in (1, 2))
    nn.share_scope(one, two)
    assert one.variables == two.variables == {"params": {"n": 2}}


def test_default_names_go_on_after_sharing():
    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            x, norm = nn.Dense(4)(x), nn.LayerNorm()
            nn.share_scope(self, norm)
            return nn.Dense(4)(norm(x))

    params = Net().init(KEY, X)["params"]
    assert sorted(params) == ["Dense_0", "Dense_1", "bias", "scale"]


def test_sharing_in_a_later_call():
    class Mover(nn.Module):
        other: Any

        @nn.compact
        def __call__(self, x, share):
            if share:
                nn.share_scope(self, self.other)
                return nn.LayerNorm()(x)
            return scale(self, x)

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            taken = Over(nn.Dense(4), scale)
            mover = Mover(taken.base)
            return taken(mover(mover(x, False), True))

    params = Net().init(KEY, X)["params"]
    assert sorted(params["Mover_0"]) == ["scale"]
