"""Which modules and calls share what a transform keeps, and which must not."""

import functools
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import linen_lift as nn

KEY = jax.random.key(0)


class Typed(nn.Module):
    """Doubles with a number of another type than `int`, wherever it stands."""

    held: Any = None
    other: Any = None

    @functools.partial(nn.jit, static_argnums=(2,))
    def __call__(self, x, given=1):
        numbers = jax.tree.leaves((given, self.held))
        return x * (1 if {*map(type, numbers)} == {int} else 2)

    @nn.jit
    def keys(self, x):
        return x * (1 if {*map(type, self.held)} == {int} else 2)

    @nn.jit
    def product(self, x):
        is_array = isinstance(self.other, jax.Array)
        return x * self.held * (self.other if is_array else 2)


def test_static_arguments_of_another_type_are_others():
    for given, due in ((1, 1), (True, 2), (1.0, 2), (1, 1)):
        assert Typed().apply({}, 1, given) == due


@pytest.mark.parametrize("hold", [lambda n: {"a": n}, lambda n: {"a": {"b": (n,)}}])
def test_numbers_of_another_type_in_fields_are_others(hold):
    for n, due in ((1, 1), (True, 2), (1.0, 2), (1, 1)):
        assert Typed(hold(n)).apply({}, 1) == due


def test_keys_of_another_type_in_fields_are_others():
    for key, due in ((1, 1), (True, 2), (1, 1)):
        assert Typed({key: 0}).apply({}, 1, method="keys") == due


def test_no_field_looks_like_an_array():
    array = jnp.array(3)
    for other in (("array", 0), 0, (0,)):
        assert Typed(array, other).apply({}, 1, method="product") == 6
        assert Typed(array, array).apply({}, 1, method="product") == 9


@pytest.mark.parametrize("lift", [nn.remat, nn.jit, nn.named_call])
def test_a_method_that_was_replaced_is_transformed_anew(lift):
    class Scale(nn.Module):
        def __call__(self, x):
            return x

    assert lift(Scale)().apply({}, 1) == 1
    with mock.patch.object(Scale, "__call__", lambda self, x: 3 * x):
        assert lift(Scale)().apply({}, 1) == 3
    assert lift(Scale)().apply({}, 1) == 1


class Derived(nn.Module):
    """Sets an attribute when all else is done, as modules may: they are not frozen."""

    n: int
    factor = 1

    def __post_init__(self):
        super().__post_init__()
        object.__setattr__(self, "factor", 2 * self.n)

    def setup(self):
        self.more = self.factor

    def __call__(self, x):
        return x * self.factor * self.more


class Outer(nn.Module):
    lift: Any
    where: str

    def setup(self):
        if self.where == "setup":
            self.inner = self.lift(Derived)(3)

    @nn.compact
    def __call__(self, x):
        inner = self.inner if self.where == "setup" else self.lift(Derived)(3)
        return inner(inner(x))


@pytest.mark.parametrize("lift", [nn.jit, nn.remat, lambda cls: cls])
@pytest.mark.parametrize("where", ["setup", "compact"])
def test_what_is_set_last_is_seen_inside(lift, where):
    assert lift(Derived)(2).apply({}, 1) == 16
    assert Outer(lift, where).apply({}, 1) == 36 * 36


def test_a_cached_property_is_computed_anew_inside():
    class Cached(nn.Module):
        @functools.cached_property
        def place(self):
            return self.scope

    class Net(nn.Module):
        @nn.compact
        def __call__(self):
            cached = Cached()
            assert cached.place is cached.scope
            return nn.fold_rngs(lambda cached: cached.place is cached.scope)(cached)

    assert Net().apply({})


class Sized:
    """An initializer with a width of its own, shown as the one that it wraps."""

    def __init__(self, init, width):
        functools.update_wrapper(self, init)
        self.width = width

    def __call__(self, key, shape):
        return self.__wrapped__(key, (self.width, *shape))


def test_an_initializer_is_not_taken_for_what_it_wraps():
    class Holds(nn.Module):
        width: int

        @nn.compact
        def __call__(self):
            return self.param("w", Sized(nn.initializers.ones, self.width), (2,))

    variables = Holds(3).init(KEY)
    assert Holds(3).apply(variables).shape == (3, 2)
    with pytest.raises(nn.errors.ScopeParamShapeError):
        Holds(4).apply(variables)


def test_a_module_may_hold_itself():
    class Own(nn.Module):
        n: int

        def __post_init__(self):
            super().__post_init__()
            object.__setattr__(self, "me", self)
            object.__setattr__(self, "twice", 2 * self.n)

        @functools.cached_property
        def table(self):
            return lambda x: x  # another one for each module

        @nn.jit
        def __call__(self, x):
            traces.append("traced")
            return self.table(x) * self.twice

        def read(self, x):
            return self.table(self(x))

    traces = []
    for _ in range(3):
        assert Own(3).apply({}, 1, method="read") == 6
    assert len(traces) == 1


class Only:
    """Captures what modules of one class return; does not show which."""

    def __init__(self, kind):
        self.kind = kind

    def __call__(self, module, method):
        return isinstance(module, self.kind)

    def __repr__(self):
        return "Only()"


def test_functions_that_look_alike_capture_what_each_says():
    class Model(nn.Module):
        @nn.jit
        @nn.compact
        def __call__(self, x):
            return nn.LayerNorm(name="norm")(nn.Dense(2, name="dense")(x))

    x = jnp.ones(3)
    variables = Model().init(KEY, x)
    for kind, name in ((nn.Dense, "dense"), (nn.LayerNorm, "norm")):
        _, found = Model().apply(variables, x, capture_intermediates=Only(kind))
        assert [*found["intermediates"]] == [name]


def test_flags_are_compared_by_all_that_they_hold():
    total = nn.lift.jit(lambda scope: scope.get_flag("weights").sum())
    weights = np.zeros(2000)
    for place, due in ((1000, 1), (1001, 2)):
        weights[place] = 1
        assert nn.scope.apply(total, flags={"weights": weights})({}) == due


def test_unbound_modules_as_arguments_keep_their_names():
    class Around(nn.Module):
        @nn.jit
        @nn.compact
        def __call__(self, x, module):
            return module.clone(parent=self)(x)

    for name in "ab":
        layer = nn.Dense(2, name=name)
        assert [*Around().init(KEY, jnp.ones(3), layer)["params"]] == [name]


def test_a_transformed_class_keeps_the_options_that_it_was_made_with():
    class Model(nn.Module):
        @nn.compact
        def __call__(self, x):
            return x * self.param("w", nn.initializers.ones, ())

    def shape(cls):
        return jax.tree.map(jnp.shape, cls().init(KEY, jnp.ones(3))["params"])

    axes = {"params": None}
    first = nn.vmap(Model, variable_axes=axes, split_rngs={"params": False})
    axes["params"] = 0
    same = nn.vmap(Model, variable_axes={"params": None}, split_rngs={"params": False})
    other = nn.vmap(Model, variable_axes=axes, split_rngs={"params": False})
    assert [shape(cls)["w"] for cls in (first, same, other)] == [(), (), (3,)]
