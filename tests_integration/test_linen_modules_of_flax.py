"""Modules that are written for Flax Linen do the same with linen-lift."""

import dataclasses
import functools
from typing import Any, Generic, NamedTuple, TypeVar

import flax.core
import jax
import jax.numpy as jnp
import pytest
from linen_comparison import (
    KEYS,
    X,
    around,
    changed,
    compare,
    dense,
    pattern,
    raised,
    ramp,
    run,
)

import linen_lift

CASES = []


def case(fn):
    CASES.append(fn)
    return fn


# --- names -----------------------------------------------------------------------------


@case
def names_are_counted_by_class(nn):
    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            x = dense(nn)(x) + dense(nn, name="mine")(x)
            return nn.LayerNorm()(dense(nn)(x))

    return run(Net(), X)


@case
def a_name_that_counting_reaches(nn):
    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            return dense(nn)(dense(nn, name="Dense_0")(x))

    return raised(Net().init, KEYS, X)


@case
def a_name_that_counting_leaves_out(nn):
    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            return dense(nn, name="Dense_5")(dense(nn)(x))

    return run(Net(), X)


@case
def one_name_twice(nn):
    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            return dense(nn, name="a")(dense(nn, name="a")(x))

    return raised(Net().init, KEYS, X)


@case
def a_parameter_and_a_submodule_of_one_name(nn):
    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            self.param("a", ramp())
            return dense(nn, name="a")(x)

    return raised(Net().init, KEYS, X)


@case
def a_submodule_and_a_parameter_of_one_name(nn):
    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            dense(nn, name="a")(x)
            return self.param("a", ramp())

    return raised(Net().init, KEYS, X)


@case
def one_name_in_two_collections(nn):
    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            a = self.variable("stats", "a", lambda: jnp.ones(3))
            return x * self.param("a", ramp()) + a.value

    return run(Net(), X)


@case
def one_variable_twice(nn):
    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            self.variable("stats", "a", lambda: 1)
            self.variable("stats", "a", lambda: 1)

    return raised(Net().init, KEYS, X)


@case
def one_parameter_twice(nn):
    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            return self.param("a", ramp()) + self.param("a", ramp())

    return raised(Net().init, KEYS, X)


@case
def an_attribute_of_setup_and_an_explicit_name(nn):
    class Net(nn.Module):
        def setup(self):
            self.a = dense(nn, name="b")
            self.c = dense(nn)

        def __call__(self, x):
            return self.c(self.a(x))

    return run(Net(), X)


@case
def an_explicit_name_that_is_an_attribute(nn):
    class Net(nn.Module):
        def setup(self):
            self.a = dense(nn, name="b")
            self.b = dense(nn)

        def __call__(self, x):
            return self.b(self.a(x))

    return raised(Net().init, KEYS, X)


@case
def containers_in_setup(nn):
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


@case
def integers_as_keys_of_a_dict(nn):
    class Net(nn.Module):
        def setup(self):
            self.table = {1: dense(nn), "b": dense(nn)}

        def __call__(self, x):
            return self.table["b"](x)

    return raised(Net().init, KEYS, X)


@case
def a_named_tuple_of_modules(nn):
    class Pair(NamedTuple):
        left: Any
        right: Any

    class Net(nn.Module):
        def setup(self):
            self.pair = Pair(dense(nn), dense(nn))

        def __call__(self, x):
            return self.pair.left(x) + self.pair.right(x)

    return run(Net(), X)


@case
def one_module_in_two_attributes(nn):
    class Net(nn.Module):
        def setup(self):
            layer = dense(nn)
            self.a, self.b = layer, layer

        def __call__(self, x):
            return self.a(self.b(x))

    return run(Net(), X)


@case
def one_module_under_two_keys(nn):
    class Net(nn.Module):
        def setup(self):
            layer = dense(nn)
            self.a = {"x": layer, "y": [layer]}

        def __call__(self, x):
            return self.a["x"](self.a["y"][0](x))

    return run(Net(), X)


@case
def a_field_and_its_module_in_one_attribute(nn):
    Around = around(nn)

    class Net(nn.Module):
        def setup(self):
            layer = dense(nn)
            self.both = Around(layer), layer

        def __call__(self, x):
            return self.both[0](x) + self.both[1](x)

    return run(Net(), X)


@case
def a_field_whose_module_is_an_attribute_later(nn):
    Around = around(nn)

    class Net(nn.Module):
        def setup(self):
            layer = dense(nn)
            self.a = Around(Around(layer))
            self.b = layer

        def __call__(self, x):
            return self.a(x) + self.b(x)

    return run(Net(), X)


@case
def a_field_whose_module_was_an_attribute_before(nn):
    Around = around(nn)

    class Net(nn.Module):
        def setup(self):
            self.b = dense(nn)
            self.a = Around(self.b)

        def __call__(self, x):
            return self.a(x) + self.b(x)

    return run(Net(), X)


@case
def a_module_from_outside(nn):
    Around = around(nn)
    return run(Around(Around(dense(nn, name="lost"))), X)


@case
def a_module_from_outside_in_two_places(nn):
    Around = around(nn)

    class Net(nn.Module):
        inner: Any

        @nn.compact
        def __call__(self, x):
            return Around(self.inner)(x) + Around(self.inner)(x)

    return run(Net(dense(nn)), X)


@case
def modules_from_outside_in_containers(nn):
    class Net(nn.Module):
        layers: Any
        table: Any

        def __call__(self, x):
            for layer in self.layers:
                x = layer(x)
            return self.table["a"](x)

    shared = dense(nn)
    return run(Net([dense(nn), shared], {"a": shared}), X)


@case
def preserved_names_of_adopted_modules(nn):
    class Net(nn.Module):
        a: Any
        b: Any
        preserve_adopted_names = True

        def __call__(self, x):
            return self.a(self.b(x))

    return run(Net(dense(nn, name="mine"), dense(nn)), X)


@case
def sequential_of_modules_and_functions(nn):
    return run(nn.Sequential([dense(nn), jnp.tanh, dense(nn)]), X)


@case
def sequential_of_layers_made_when_called(nn):
    return run(nn.Sequential([lambda x: dense(nn)(x), dense(nn)]), X)


@case
def name_scopes(nn):
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


@case
def a_name_scope_and_a_submodule_of_one_name(nn):
    class Net(nn.Module):
        @nn.compact_name_scope
        def up(self, x):
            return dense(nn)(x)

        @nn.compact
        def __call__(self, x):
            return self.up(dense(nn, name="up")(x))

    return raised(Net().init, KEYS, X)


@case
def several_compact_methods(nn):
    class Net(nn.Module):
        @nn.compact
        def encode(self, x):
            return dense(nn, name="a")(x)

        @nn.compact
        def __call__(self, x):
            return self.encode(x) + dense(nn)(x)

    return run(Net(), X), run(Net(), X, method="encode")


@case
def paths_of_modules(nn):
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


@case
def paths_of_tabulated_modules(nn):
    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            return nn.remat(nn.Dense)(3)(nn.Sequential([dense(nn), jnp.tanh])(x))

    return list(nn.Module.module_paths(Net(), KEYS, X))


# --- setup, compact, fields ------------------------------------------------------------


@case
def variables_in_setup(nn):
    class Net(nn.Module):
        def setup(self):
            self.w = self.param("w", ramp())
            self.n = self.variable("stats", "n", lambda: jnp.zeros(()))

        def __call__(self, x):
            if self.is_mutable_collection("stats"):
                self.n.value += 1
            return x * self.w + self.n.value

    return run(Net(), X)


@case
def a_variable_outside_of_compact(nn):
    class Net(nn.Module):
        def __call__(self, x):
            return self.variable("stats", "n", lambda: 0)

    return raised(Net().init, KEYS, X)


@case
def a_parameter_outside_of_compact(nn):
    class Net(nn.Module):
        def __call__(self, x):
            return self.param("w", ramp())

    return raised(Net().init, KEYS, X)


@case
def a_submodule_outside_of_compact(nn):
    class Net(nn.Module):
        def __call__(self, x):
            return dense(nn)(x)

    return raised(Net().init, KEYS, X)


@case
def setup_and_compact_together(nn):
    class Net(nn.Module):
        def setup(self):
            self.first = dense(nn)

        @nn.compact
        def __call__(self, x):
            return dense(nn)(self.first(x))

    return run(Net(), X)


@case
def compact_called_twice(nn):
    class Leaf(nn.Module):
        @nn.compact
        def __call__(self, x):
            return dense(nn)(x) * self.param("w", ramp())

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            leaf = Leaf()
            return leaf(leaf(x))

    return run(Net(), X)


@case
def compact_that_calls_itself(nn):
    class Net(nn.Module):
        @nn.compact
        def __call__(self, x, depth=1):
            y = dense(nn)(x)
            return self(y, depth - 1) if depth else y

    return run(Net(), X)


@case
def a_compact_helper(nn):
    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            return self.block(self.block(x))

        def block(self, x):
            return dense(nn)(x)

    return run(Net(), X)


@case
def a_nowrap_helper_makes_a_sibling(nn):
    class Net(nn.Module):
        @nn.nowrap
        def layer(self, **fields):
            return dense(nn, **fields)

        @nn.compact
        def __call__(self, x):
            return self.layer()(self.layer(name="b")(x))

    return run(Net(), X)


@case
def assignment_outside_of_setup(nn):
    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            self.y = x

    class Fields(nn.Module):
        a: int = 1

        def setup(self):
            self.a = 2

        def __call__(self, x):
            return x

    def unbound():
        net = Net()
        net.a = 1
        return net.a

    return (
        raised(Net().init, KEYS, X),
        raised(Fields().init, KEYS, X),
        unbound(),
        raised(setattr, Fields().bind({}), "b", 1),
    )


@case
def wrong_uses_of_unbound_modules(nn):
    class Net(nn.Module):
        def setup(self):
            self.inner = dense(nn)

        def __call__(self, x):
            return self.inner(x)

        def draw(self):
            return self.make_rng("noise")

    class Compact(nn.Module):
        @nn.compact
        def __call__(self, x):
            return x

    class Plain(nn.Module):
        def double(self, x):
            return 2 * x

    unbound = Net()
    return (
        raised(unbound, X),
        raised(lambda: unbound.inner),
        raised(lambda: unbound.missing),
        raised(lambda: Plain().missing),
        raised(Compact(), X),
        raised(unbound.draw),
        raised(unbound.unbind),
        raised(lambda: unbound.path),
        raised(lambda: unbound.variables),
        raised(unbound.has_variable, "params", "a"),
        raised(unbound.get_variable, "params", "a"),
        raised(unbound.put_variable, "params", "a", 1),
        raised(unbound.is_initializing),
        raised(unbound.is_mutable_collection, "params"),
        raised(unbound.has_rng, "params"),
        raised(unbound.sow, "a", "b", 1),
        raised(unbound.perturb, "a", X),
        Plain().double(2),
    )


@case
def wrong_methods(nn):
    class Net(nn.Module):
        value = 3

        def other(self, x):
            return x

    net = Net()
    return (
        raised(net.init, KEYS, X),
        raised(net.apply, {}, X),
        raised(net.apply, {}, X, method="missing"),
        raised(net.apply, {}, X, method="value"),
        raised(net.apply, {}, X, method=3),
        raised(Net.init, KEYS, X),
        raised(Net.apply, {}, X),
        net.apply({}, X, method=net.other),
        net.apply({}, X, method=Net.other),
        net.apply({}, X, method=lambda m, x: m.other(2 * x)),
        net.apply({}, X, method="other"),
    )


@case
def fields_of_a_dataclass(nn):
    class Base(nn.Module):
        a: int
        b: int = 2

    class Derived(Base):
        c: int = dataclasses.field(default=3, kw_only=True)

    class Keywords(nn.Module, kw_only=True):
        a: int = 1
        b: int

    one = Derived(1, c=5)
    return (
        [f.name for f in dataclasses.fields(Derived)],
        one == Derived(1, 2, c=5),
        hash(one) == hash(Derived(1, c=5)),
        (one.a, one.b, one.c, one.name, one.parent),
        raised(Derived),
        raised(Keywords, 1, 2),
        (Keywords(b=3).a, Keywords(b=3).b),
        dataclasses.replace(one, b=9, parent=None).b,
        one.clone(a=7).a,
    )


@case
def reserved_fields(nn):
    def number():
        class Net(nn.Module):
            name: int

    def parent():
        class Net(nn.Module):
            parent: int

    class Net(nn.Module):
        name: str | None = "x"
        size: int = 2

        @nn.compact
        def __call__(self, x):
            return dense(nn, self.size)(x)

    net = nn.Sequential([Net(size=3), Net(name="y")])
    return raised(number), raised(parent), Net(3).name, Net(3).size, run(net, X)


@case
def containers_in_fields(nn):
    class Net(nn.Module):
        widths: Any
        options: Any

        def __call__(self):
            return type(self.widths).__name__, type(self.options).__name__

    net = Net([1, 2], {"a": 1})
    return (
        type(net.widths).__name__,
        type(net.options).__name__,
        net.apply({}),
        net.apply({}, method=lambda m: m.options["a"] + sum(m.widths + (3,))),
    )


@case
def a_generic_module(nn):
    T = TypeVar("T")

    class Net(nn.Module, Generic[T]):
        size: int

        @nn.compact
        def __call__(self, x):
            return dense(nn, self.size)(x)

    return run(Net[int](2), X)


@case
def properties_and_descriptors(nn):
    class Net(nn.Module):
        a: int = 2

        @property
        def twice(self):
            return 2 * self.a

        @property
        def broken(self):
            return self.missing

        @functools.cached_property
        def cached(self):
            return 3 * self.a

        @staticmethod
        def helper(x):
            return x + 1

        @classmethod
        def make(cls):
            return cls(a=5)

        def __call__(self, x):
            return x * self.twice

    return (
        Net().twice,
        Net().helper(1),
        Net.make().a,
        Net().apply({}, X),
        raised(lambda: Net().broken),
        raised(lambda: Net().bind({}).broken),
        Net().cached,
    )


@case
def a_property_of_a_submodule(nn):
    class Inner(nn.Module):
        def setup(self):
            self.d = dense(nn)

        @property
        def kernel(self):
            return self.d.variables["params"]["kernel"]

        def __call__(self, x):
            return self.d(x)

    class Net(nn.Module):
        def setup(self):
            self.inner = Inner()

        def __call__(self, x):
            return self.inner(x), self.inner.kernel

    return run(Net(), X)


@case
def post_init_of_a_subclass(nn):
    class Net(nn.Module):
        a: int = 1

        def __post_init__(self):
            self.b = self.a + 1
            super().__post_init__()

        def __call__(self, x):
            return x * self.b

    class Wrong(nn.Module):
        a: int = 1

        def __post_init__(self):
            self.b = 2

        def __call__(self, x):
            return x

    return run(Net(3), X), Net(3).clone(a=4).b, raised(Wrong().init, KEYS, X)


@case
def attributes_before_init(nn):
    class Net(nn.Module):
        a: int = 1

        def __post_init__(self):
            assert not hasattr(self, "_cache")
            super().__post_init__()

        def __call__(self, x):
            return x * self.a

    return run(Net(), X)


@case
def inheritance_of_methods(nn):
    class Base(nn.Module):
        def setup(self):
            self.a = dense(nn)

        def __call__(self, x):
            return self.a(x)

    class Derived(Base):
        def setup(self):
            super().setup()
            self.b = dense(nn)

        def __call__(self, x):
            return self.b(super().__call__(x))

    class Mixed(Base):
        @nn.compact
        def __call__(self, x):
            return dense(nn)(super().__call__(x))

    return run(Derived(), X), run(Mixed(), X)


@case
def compact_in_a_base_class(nn):
    class Base(nn.Module):
        @nn.compact
        def __call__(self, x):
            return dense(nn)(x)

    class Derived(Base):
        @nn.compact
        def __call__(self, x):
            return dense(nn)(super().__call__(x))

    return run(Derived(), X)


@case
def a_method_as_an_attribute(nn):
    class Net(nn.Module):
        def setup(self):
            self.inner = dense(nn)
            self.call = self.inner.__call__

        def __call__(self, x):
            return self.call(x)

    return run(Net(), X)


@case
def a_function_as_a_field(nn):
    class Net(nn.Module):
        act: Any = jnp.tanh

        def __call__(self, x):
            return self.act(x)

    return run(Net(), X), run(Net(lambda x: 2 * x), X)


# --- variables, collections, streams ---------------------------------------------------


@case
def reading_and_writing_variables(nn):
    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            before = self.has_variable("cache", "n"), self.get_variable("cache", "n", 7)
            if self.is_mutable_collection("cache"):
                self.put_variable("cache", "n", x.sum())
            after = self.has_variable("cache", "n"), self.get_variable("cache", "n")
            return before, after, sorted(self.variables)

    return run(Net(), X, mutable=["cache"])


@case
def writing_what_is_not_mutable(nn):
    class Put(nn.Module):
        def __call__(self):
            self.put_variable("cache", "n", 1)

    class Write(nn.Module):
        @nn.compact
        def __call__(self):
            self.variable("cache", "n", lambda: 0).value = 3

    variables = {"cache": {"n": 1}}
    return (
        raised(Put().apply, variables),
        raised(Write().apply, variables),
        raised(Write().apply, variables, mutable=["other"]),
        Write().apply(variables, mutable=True),
        Put().apply({}, mutable="cache"),
    )


@case
def variables_that_are_missing(nn):
    class Param(nn.Module):
        @nn.compact
        def __call__(self):
            return self.param("w", ramp())

    class Variable(nn.Module):
        @nn.compact
        def __call__(self):
            return self.variable("cache", "n", lambda: 0).value

    class Without(nn.Module):
        @nn.compact
        def __call__(self):
            return self.variable("cache", "n").value

    wrong = {"params": {"w": jnp.ones(4)}}
    return (
        raised(Param().apply, {}),
        raised(Param().apply, {"params": {}}),
        raised(Param().apply, {"params": {"v": 1}}),
        raised(Param().apply, wrong),
        raised(Variable().apply, {}),
        raised(Variable().apply, {"cache": {"m": 1}}),
        raised(Variable().apply, {"cache": {"m": 1}}, mutable=["cache"]),
        raised(Without().apply, {}, mutable=["cache"]),
        raised(Without().init, KEYS),
        raised(Param().apply, {"params": {"params": {"w": jnp.ones(3)}}}),
        raised(Param().apply, jnp.ones(3)),
        raised(Param().apply, {"params": jnp.ones(3)}),
        raised(Param().apply, None),
    )


@case
def what_mutable_returns(nn):
    class Net(nn.Module):
        @nn.compact
        def __call__(self):
            n = self.variable("cache", "n", lambda: jnp.zeros(()))
            m = self.variable("stats", "m", lambda: jnp.zeros(()))
            if self.is_mutable_collection("cache"):
                n.value += 1
            return n.value + m.value

    variables = Net().init({})
    filters = [False, True, [], "cache", ["cache"], ("cache", "stats"), ["none"]]
    filters += [{"cache"}, nn.DenyList("stats") if hasattr(nn, "DenyList") else None]
    deny = linen_lift.DenyList if nn is linen_lift else flax.core.DenyList
    filters[-1] = deny("stats")
    return variables, [Net().apply(variables, mutable=each) for each in filters]


@case
def wrong_filters(nn):
    net = dense(nn)
    variables = net.init(KEYS, X)
    return raised(net.apply, variables, X, mutable=3)


@case
def what_init_makes_with_mutable(nn):
    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            self.sow("intermediates", "x", x)
            self.sow("other", "x", x)
            self.variable("cache", "n", lambda: jnp.zeros(()))
            return dense(nn)(x)

    return [
        Net().init(KEYS, X),
        Net().init(KEYS, X, mutable=True),
        raised(Net().init, KEYS, X, mutable=["params"]),
        Net().init(KEYS, X, mutable=["params", "cache"]),
        raised(Net().init, KEYS, X, mutable=["cache"]),
        Net().init(KEYS, X, capture_intermediates=True),
    ]


@case
def sowing(nn):
    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            stored = self.sow("intermediates", "x", x)
            self.sow("intermediates", "x", 2 * x)
            self.sow(
                "sums", "s", x.sum(), reduce_fn=jnp.add, init_fn=lambda: jnp.ones(())
            )
            return stored

    variables = Net().init(KEYS, X)
    return (
        variables,
        Net().apply({}, X),
        Net().apply({}, X, mutable=["intermediates", "sums"]),
        Net().apply(variables, X, mutable=["sums"]),
    )


@case
def sowing_where_something_else_is(nn):
    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            self.sow("intermediates", "a", x)
            return dense(nn, name="a")(x)

    class Other(nn.Module):
        @nn.compact
        def __call__(self, x):
            x = dense(nn, name="a")(x)
            self.sow("intermediates", "a", x)
            return x

    return [raised(m.init, KEYS, X, mutable=True) for m in (Net(), Other())]


@case
def capturing_intermediates(nn):
    class Inner(nn.Module):
        @nn.compact
        def __call__(self, x):
            return dense(nn)(x)

        def other(self, x):
            return 2 * x

    class Net(nn.Module):
        def setup(self):
            self.inner = Inner()

        def __call__(self, x):
            return self.inner.other(self.inner(self.inner(x)))

    variables = Net().init(KEYS, X)
    only = lambda module, name: isinstance(module, Inner) and name == "other"
    return (
        Net().apply(variables, X, capture_intermediates=True),
        Net().apply(variables, X, capture_intermediates=only),
        Net().apply(variables, X, capture_intermediates=True, mutable=["stats"]),
        Net().apply(variables, X, mutable=["intermediates"]),
    )


@case
def perturbing(nn):
    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            x = self.perturb("first", dense(nn)(x))
            return self.perturb("second", 2 * x, collection="mine")

    variables = Net().init(KEYS, X)
    params = {"params": variables["params"]}

    def loss(perturbations):
        both = {**params, "perturbations": perturbations}
        return Net().apply(both, X).sum()

    return (
        variables,
        Net().apply(params, X),
        jax.grad(loss)(variables["perturbations"]),
        raised(Net().apply, {**params, "perturbations": {}}, X),
        raised(Net().apply, {**params, "perturbations": {"x": X}}, X),
    )


@case
def initializing_and_scopes(nn):
    class Net(nn.Module):
        @nn.compact
        def __call__(self):
            return self.is_initializing(), self.scope.path, self.name, self.path

    return Net().init_with_output({}), Net().apply({}), Net(name="n").apply({})


@case
def which_keys_are_equal(nn):
    class Leaf(nn.Module):
        @nn.compact
        def __call__(self):
            return [self.make_rng("noise"), self.make_rng("noise"), self.make_rng()]

    class Net(nn.Module):
        @nn.compact
        def __call__(self):
            leaf = Leaf()
            keys = leaf() + leaf() + Leaf()() + [self.make_rng("params")]
            return keys + [self.make_rng("other"), self.make_rng("params")]

    return pattern(*Net().apply({}, rngs=KEYS)), pattern(*Net().init_with_output(KEYS)[0])


@case
def streams_that_are_missing(nn):
    class Net(nn.Module):
        @nn.compact
        def __call__(self):
            has = self.has_rng("noise"), self.has_rng("params")
            self.make_rng("noise")
            return has

    return (
        raised(Net().apply, {}),
        raised(Net().apply, {}, rngs={"other": KEYS["noise"]}),
        Net().apply({}, rngs={"params": KEYS["noise"]}),
        Net().apply({}, rngs=KEYS["noise"]),
        raised(Net().apply, {}, rngs={"noise": 3}),
        raised(Net().init, 3),
        raised(dense(nn).init, {}, X),
        raised(dense(nn).init, {"noise": KEYS["noise"]}, X),
        Net().init(jax.random.PRNGKey(0)),
    )


@case
def an_initializer_without_a_key(nn):
    class Net(nn.Module):
        @nn.compact
        def __call__(self):
            return self.variable("cache", "n", jnp.zeros, (2,)).value

    return Net().init({}), Net().init(KEYS)


@case
def initializers_with_keywords(nn):
    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            w = self.param("w", ramp(), shape=(3, 3))
            v = self.variable("stats", "v", lambda a, b=1: a + b, jnp.ones(3), b=4)
            return x @ w + v.value

    return run(Net(), X)


@case
def a_parameter_that_is_a_tree(nn):
    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            w = self.param("w", lambda key: {"a": jnp.ones(3), "b": (jnp.ones(()),)})
            return x * w["a"] + w["b"][0]

    return run(Net(), X), raised(Net().apply, {"params": {"w": {"a": X}}}, X)


@case
def variables_may_be_frozen(nn):
    library = linen_lift if nn is linen_lift else flax.core
    net = dense(nn)
    variables = library.freeze(net.init(KEYS, X))
    return net.apply(variables, X), net.apply(variables, X, mutable=["stats"])


@case
def the_variables_of_a_submodule(nn):
    class Net(nn.Module):
        def setup(self):
            self.inner = dense(nn)

        def __call__(self, x):
            y = self.inner(x)
            return y, self.inner.variables, self.variables

    return run(Net(), X)


# --- bind, unbind, clone ---------------------------------------------------------------


@case
def binding(nn):
    class Net(nn.Module):
        def setup(self):
            self.inner = dense(nn)
            self.n = self.variable("cache", "n", lambda: jnp.zeros(()))

        def __call__(self, x):
            self.n.value += 1
            return self.inner(x)

    variables = Net().init(KEYS, X)
    bound = Net().bind(variables, mutable=["cache"])
    outputs = bound(X), bound.inner(X), bound.variables
    inner, inner_variables = bound.inner.unbind()
    module, again = bound.unbind()
    return (
        outputs,
        inner.apply(inner_variables, X),
        inner.name,
        module == Net(),
        again,
        raised(Net().bind(variables), X),
        raised(Net().unbind),
        raised(Net.bind, variables),
    )


@case
def binding_a_submodule_of_a_field(nn):
    Around = around(nn)
    model = Around(Around(dense(nn)))
    bound = model.bind(model.init(KEYS, X))
    inner, variables = bound.inner.unbind()
    return inner.init(KEYS, X), variables, inner.apply(variables, X)


@case
def copies_and_clones(nn):
    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            first = dense(nn)
            second = first.copy()
            third = first.copy(name="third", features=4)
            fourth = first.clone(parent=self, name="fourth")
            return fourth(first(x)) + second(x), third(x)

    return run(Net(), X)


@case
def a_clone_of_a_field(nn):
    class Net(nn.Module):
        inner: Any

        @nn.compact
        def __call__(self, x):
            return [self.inner.copy(name=f"copy{i}")(x) for i in range(2)]

    return run(Net(dense(nn)), X)


@case
def initialization_inside_of_a_module(nn):
    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            layer = dense(nn, parent=None)
            params = self.param("inner", lambda key: layer.init(key, x)["params"])
            return layer.apply({"params": params}, x)

    return run(Net(), X)


@case
def a_parent_that_is_given(nn):
    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            inner = nn.Sequential([dense(nn)], name="list")
            loose = dense(nn, parent=None)
            return inner(x), loose.scope is None, dense(nn, parent=self, name="p")(x)

    return run(Net(), X)


@case
def functions_of_a_module(nn):
    def body(module, x, scale=1):
        return module(x) * scale

    net = dense(nn)
    variables = nn.init(body, net)(KEYS, X, scale=2)
    out = nn.apply(body, net)(variables, X, scale=2)
    return variables, out, nn.init_with_output(body, net)(KEYS, X)


@case
def sharing_a_scope(nn):
    class Lora(nn.Module):
        base: Any

        def setup(self):
            nn.share_scope(self, self.base)

        @nn.compact
        def __call__(self, x):
            return self.base(x) + x * self.param("a", ramp())

    class Down(nn.Module):
        def setup(self):
            self.child = dense(nn)
            nn.share_scope(self, self.child)

        @nn.compact
        def __call__(self, x):
            return self.child(x) + x * self.param("a", ramp())

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            layer = dense(nn)
            return Lora(layer)(x) + Down()(x)

    class Clash(nn.Module):
        @nn.compact
        def __call__(self, x):
            layer = dense(nn)
            nn.share_scope(self, layer)
            return layer(x) + self.param("kernel", ramp(), (3, 3))

    return (
        run(Net(), X),
        run(Lora(dense(nn)), X),
        run(Down(), X),
        raised(Clash().init, KEYS, X),
        raised(nn.share_scope, dense(nn), dense(nn)),
    )


@case
def intercepting_methods(nn):
    seen = []

    def first(next_fun, args, kwargs, context):
        seen.append(("first", type(context.module).__name__, context.method_name))
        return next_fun(*args, **kwargs)

    def second(next_fun, args, kwargs, context):
        seen.append(("second", type(context.module).__name__, context.method_name))
        out = next_fun(*args, **kwargs)
        return out if out is None else out + 1

    class Net(nn.Module):
        def setup(self):
            self.inner = dense(nn)

        def helper(self, x):
            return 2 * x

        def __call__(self, x):
            return self.helper(self.inner(x))

    net = Net()
    variables = net.init(KEYS, X)
    with nn.intercept_methods(first), nn.intercept_methods(second):
        out = net.apply(variables, X)
    return out, seen


@case
def an_interceptor_that_skips(nn):
    def skip(next_fun, args, kwargs, context):
        if isinstance(context.module, nn.Dense):
            return args[0]
        return context.orig_method(*args, **kwargs)

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            return 2 * dense(nn)(x)

    with nn.intercept_methods(skip):
        return Net().init_with_output(KEYS, X)


@case
def merging_parameters(nn):
    return (
        nn.merge_param("a", None, 1),
        nn.merge_param("a", 0, None),
        raised(nn.merge_param, "a", 1, 2),
        raised(nn.merge_param, "a", None, None),
    )


@case
def representations(nn):
    class Inner(nn.Module):
        act: Any = jnp.tanh
        hidden: int = dataclasses.field(default=1, repr=False)

        def __call__(self, x):
            return self.act(x)

    class Net(nn.Module):
        sizes: Any = (1, 2)

        @nn.compact
        def __call__(self, x):
            Inner(name="a")(x)
            return repr(self)

    return repr(Net()), Net().apply({}, X), repr(Inner(name="b"))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("fn", CASES, ids=lambda fn: fn.__name__)
def test_case(fn):
    compare(fn)
