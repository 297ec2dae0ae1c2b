"""Submodules that are written for Flax Linen get the same names with linen-lift."""

from typing import Any, NamedTuple

import jax.numpy as jnp
from linen_comparison import (
    KEYS,
    X,
    around,
    both,
    dense,
    raised,
    ramp,
    run,
)


@both
def test_names_are_counted_by_class(nn):
    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            x = dense(nn)(x) + dense(nn, name="mine")(x)
            return nn.LayerNorm()(dense(nn)(x))

    return run(Net(), X)


@both
def test_a_name_that_counting_reaches(nn):
    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            return dense(nn)(dense(nn, name="Dense_0")(x))

    return raised(Net().init, KEYS, X)


@both
def test_a_name_that_counting_leaves_out(nn):
    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            return dense(nn, name="Dense_5")(dense(nn)(x))

    return run(Net(), X)


@both
def test_one_name_twice(nn):
    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            return dense(nn, name="a")(dense(nn, name="a")(x))

    return raised(Net().init, KEYS, X)


@both
def test_a_parameter_and_a_submodule_of_one_name(nn):
    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            self.param("a", ramp())
            return dense(nn, name="a")(x)

    return raised(Net().init, KEYS, X)


@both
def test_a_submodule_and_a_parameter_of_one_name(nn):
    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            dense(nn, name="a")(x)
            return self.param("a", ramp())

    return raised(Net().init, KEYS, X)


@both
def test_one_name_in_two_collections(nn):
    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            a = self.variable("stats", "a", lambda: jnp.ones(3))
            return x * self.param("a", ramp()) + a.value

    return run(Net(), X)


@both
def test_one_variable_twice(nn):
    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            self.variable("stats", "a", lambda: 1)
            self.variable("stats", "a", lambda: 1)

    return raised(Net().init, KEYS, X)


@both
def test_one_parameter_twice(nn):
    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            return self.param("a", ramp()) + self.param("a", ramp())

    return raised(Net().init, KEYS, X)


@both
def test_an_attribute_of_setup_and_an_explicit_name(nn):
    class Net(nn.Module):
        def setup(self):
            self.a = dense(nn, name="b")
            self.c = dense(nn)

        def __call__(self, x):
            return self.c(self.a(x))

    return run(Net(), X)


@both
def test_an_explicit_name_that_is_an_attribute(nn):
    class Net(nn.Module):
        def setup(self):
            self.a = dense(nn, name="b")
            self.b = dense(nn)

        def __call__(self, x):
            return self.b(self.a(x))

    return raised(Net().init, KEYS, X)


@both
def test_containers_in_setup(nn):
    class Net(nn.Module):
        def setup(self):
            self.layers = [dense(nn), dense(nn)]
            self.table = {"x": dense(nn), "y": (dense(nn), {"z": dense(nn)})}

        def __call__(self, x):
            for layer in self.layers:
                x = layer(x)
            first, rest = self.table["y"]
            return rest["z"](first(self.table["x"](x)))

    return run(Net(), X), type(Net().bind({}).layers).__name__


@both
def test_integers_as_keys_of_a_dict(nn):
    class Net(nn.Module):
        def setup(self):
            self.table = {1: dense(nn), "b": dense(nn)}

        def __call__(self, x):
            return self.table["b"](x)

    return raised(Net().init, KEYS, X)


@both
def test_a_named_tuple_of_modules(nn):
    class Pair(NamedTuple):
        left: Any
        right: Any

    class Net(nn.Module):
        def setup(self):
            self.pair = Pair(dense(nn), dense(nn))

        def __call__(self, x):
            return self.pair.left(x) + self.pair.right(x)

    return run(Net(), X)


@both
def test_one_module_in_two_attributes(nn):
    class Net(nn.Module):
        def setup(self):
            layer = dense(nn)
            self.a, self.b = layer, layer

        def __call__(self, x):
            return self.a(self.b(x))

    return run(Net(), X)


@both
def test_one_module_under_two_keys(nn):
    class Net(nn.Module):
        def setup(self):
            layer = dense(nn)
            self.a = {"x": layer, "y": [layer]}

        def __call__(self, x):
            return self.a["x"](self.a["y"][0](x))

    return run(Net(), X)


@both
def test_a_field_and_its_module_in_one_attribute(nn):
    Around = around(nn)

    class Net(nn.Module):
        def setup(self):
            layer = dense(nn)
            self.both = Around(layer), layer

        def __call__(self, x):
            return self.both[0](x) + self.both[1](x)

    return run(Net(), X)


@both
def test_a_field_whose_module_is_an_attribute_later(nn):
    Around = around(nn)

    class Net(nn.Module):
        def setup(self):
            layer = dense(nn)
            self.a = Around(Around(layer))
            self.b = layer

        def __call__(self, x):
            return self.a(x) + self.b(x)

    return run(Net(), X)


@both
def test_a_field_whose_module_was_an_attribute_before(nn):
    Around = around(nn)

    class Net(nn.Module):
        def setup(self):
            self.b = dense(nn)
            self.a = Around(self.b)

        def __call__(self, x):
            return self.a(x) + self.b(x)

    return run(Net(), X)


@both
def test_a_module_from_outside(nn):
    Around = around(nn)
    return run(Around(Around(dense(nn, name="lost"))), X)


@both
def test_a_module_from_outside_in_two_places(nn):
    Around = around(nn)

    class Net(nn.Module):
        inner: Any

        @nn.compact
        def __call__(self, x):
            return Around(self.inner)(x) + Around(self.inner)(x)

    return run(Net(dense(nn)), X)


@both
def test_modules_from_outside_in_containers(nn):
    class Net(nn.Module):
        layers: Any
        table: Any

        def __call__(self, x):
            for layer in self.layers:
                x = layer(x)
            return self.table["a"](x)

    shared = dense(nn)
    return run(Net([dense(nn), shared], {"a": shared}), X)


@both
def test_preserved_names_of_adopted_modules(nn):
    class Net(nn.Module):
        a: Any
        b: Any
        preserve_adopted_names = True

        def __call__(self, x):
            return self.a(self.b(x))

    return run(Net(dense(nn, name="mine"), dense(nn)), X)


@both
def test_sequential_of_modules_and_functions(nn):
    return run(nn.Sequential([dense(nn), jnp.tanh, dense(nn)]), X)


@both
def test_sequential_of_layers_made_when_called(nn):
    return run(nn.Sequential([lambda x: dense(nn)(x), dense(nn)]), X)


@both
def test_name_scopes(nn):
    class Net(nn.Module):
        @nn.compact_name_scope
        def up(self, x):
            return dense(nn)(x) * self.param("up_scale", ramp())

        @nn.compact_name_scope
        def down(self, x):
            self.sow("intermediates", "x", x)
            return dense(nn)(dense(nn, name="b")(x))

        @nn.compact
        def __call__(self, x):
            return self.down(self.up(x)) + dense(nn)(x) + self.down(x)

    variables = Net().init(KEYS, X)
    up = Net().apply(variables, X, method="down")
    return run(Net(), X, mutable=["intermediates"]), up


@both
def test_a_name_scope_and_a_submodule_of_one_name(nn):
    class Net(nn.Module):
        @nn.compact_name_scope
        def up(self, x):
            return dense(nn)(x)

        @nn.compact
        def __call__(self, x):
            return self.up(dense(nn, name="up")(x))

    return raised(Net().init, KEYS, X)


@both
def test_several_compact_methods(nn):
    class Net(nn.Module):
        @nn.compact
        def encode(self, x):
            return dense(nn, name="a")(x)

        @nn.compact
        def __call__(self, x):
            return self.encode(x) + dense(nn)(x)

    return run(Net(), X), run(Net(), X, method="encode")


@both
def test_paths_of_modules(nn):
    seen = []

    class Leaf(nn.Module):
        def __call__(self, x):
            seen.append((self.name, self.path))
            return x

    class Net(nn.Module):
        def setup(self):
            self.items = [Leaf(), Leaf()]

        @nn.compact
        def __call__(self, x):
            seen.append((self.name, self.path))
            return Leaf(name="b")(self.items[1](self.items[0](x)))

    Net().apply({}, X)
    return seen


@both
def test_paths_of_tabulated_modules(nn):
    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            return nn.remat(nn.Dense)(3)(nn.Sequential([dense(nn), jnp.tanh])(x))

    return list(nn.Module.module_paths(Net(), KEYS, X))
