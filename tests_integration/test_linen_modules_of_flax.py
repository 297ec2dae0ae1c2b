"""Modules that are written for Flax Linen do the same with linen-lift."""

import dataclasses
import functools
from typing import Any, Generic, TypeVar

import flax.struct
import jax.numpy as jnp
from linen_comparison import (
    KEYS,
    X,
    both,
    dense,
    raised,
    ramp,
    run,
)


@both
def test_variables_in_setup(nn):
    class Net(nn.Module):
        def setup(self):
            self.w = self.param("w", ramp())
            self.n = self.variable("stats", "n", lambda: jnp.zeros(()))

        def __call__(self, x):
            if self.is_mutable_collection("stats"):
                self.n.value += 1
            return x * self.w + self.n.value

    return run(Net(), X)


@both
def test_a_variable_outside_of_compact(nn):
    class Net(nn.Module):
        def __call__(self, x):
            return self.variable("stats", "n", lambda: 0)

    return raised(Net().init, KEYS, X)


@both
def test_a_parameter_outside_of_compact(nn):
    class Net(nn.Module):
        def __call__(self, x):
            return self.param("w", ramp())

    return raised(Net().init, KEYS, X)


@both
def test_a_submodule_outside_of_compact(nn):
    class Net(nn.Module):
        def __call__(self, x):
            return dense(nn)(x)

    return raised(Net().init, KEYS, X)


@both
def test_setup_and_compact_together(nn):
    class Net(nn.Module):
        def setup(self):
            self.first = dense(nn)

        @nn.compact
        def __call__(self, x):
            return dense(nn)(self.first(x))

    return run(Net(), X)


@both
def test_compact_called_twice(nn):
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


@both
def test_compact_that_calls_itself(nn):
    class Net(nn.Module):
        @nn.compact
        def __call__(self, x, depth=1):
            y = dense(nn)(x)
            return self(y, depth - 1) if depth else y

    return run(Net(), X)


@both
def test_a_compact_helper(nn):
    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            return self.block(self.block(x))

        def block(self, x):
            return dense(nn)(x)

    return run(Net(), X)


@both
def test_a_nowrap_helper_makes_a_sibling(nn):
    class Net(nn.Module):
        @nn.nowrap
        def layer(self, **fields):
            return dense(nn, **fields)

        @nn.compact
        def __call__(self, x):
            return self.layer()(self.layer(name="b")(x))

    return run(Net(), X)


@both
def test_assignment_outside_of_setup(nn):
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


@both
def test_wrong_uses_of_unbound_modules(nn):
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


@both
def test_wrong_methods(nn):
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


@flax.struct.dataclass
class Sides:
    left: Any
    right: Any


@both
def test_modules_in_a_pytree_dataclass(nn):
    class Net(nn.Module):
        sides: Any

        @nn.compact
        def __call__(self, x):
            return self.sides.left(self.sides.right(x))

    return run(Net(Sides(dense(nn), dense(nn))), X)


@both
def test_fields_of_a_dataclass(nn):
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


@both
def test_reserved_fields(nn):
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


@both
def test_containers_in_fields(nn):
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
        net.apply({}, method=lambda m: m.options["a"] + sum((*m.widths, 3))),
    )


@both
def test_a_generic_module(nn):
    T = TypeVar("T")

    class Net(nn.Module, Generic[T]):
        size: int

        @nn.compact
        def __call__(self, x):
            return dense(nn, self.size)(x)

    return run(Net[int](2), X)


@both
def test_properties_and_descriptors(nn):
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


@both
def test_a_property_of_a_submodule(nn):
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


@both
def test_post_init_of_a_subclass(nn):
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


@both
def test_attributes_before_init(nn):
    class Net(nn.Module):
        a: int = 1

        def __post_init__(self):
            assert not hasattr(self, "_cache")
            super().__post_init__()

        def __call__(self, x):
            return x * self.a

    return run(Net(), X)


@both
def test_inheritance_of_methods(nn):
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


@both
def test_compact_in_a_base_class(nn):
    class Base(nn.Module):
        @nn.compact
        def __call__(self, x):
            return dense(nn)(x)

    class Derived(Base):
        @nn.compact
        def __call__(self, x):
            return dense(nn)(super().__call__(x))

    return run(Derived(), X)


@both
def test_a_method_as_an_attribute(nn):
    class Net(nn.Module):
        def setup(self):
            self.inner = dense(nn)
            self.call = self.inner.__call__

        def __call__(self, x):
            return self.call(x)

    return run(Net(), X)


@both
def test_a_function_as_a_field(nn):
    class Net(nn.Module):
        act: Any = jnp.tanh

        def __call__(self, x):
            return self.act(x)

    return run(Net(), X), run(Net(lambda x: 2 * x), X)
