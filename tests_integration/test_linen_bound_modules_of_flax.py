"""What is done to modules from outside does the same as with Flax Linen."""

import dataclasses
from typing import Any

import jax.numpy as jnp
import pytest
from linen_comparison import (
    KEYS,
    X,
    around,
    both,
    changed,
    dense,
    raised,
    ramp,
    run,
)


@both
def test_binding(nn):
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


@both
def test_names_are_taken_off(nn):
    class Wrap(nn.Module):
        inner: nn.Module

        @nn.compact
        def __call__(self, x):
            return self.inner(x)

    class Net(nn.Module):
        def setup(self):
            inner = dense(nn, name="given", parent=None)
            self.first = Wrap(inner, name="own")

        def __call__(self, x):
            return self.first(x)

    net = Net(name="net")
    bound = net.bind(net.init(KEYS, X))
    module, _ = bound.unbind()
    first, variables = bound.first.unbind()
    return module.name, first.name, first.inner.name, first.apply(variables, X)


@both
def test_binding_a_submodule_of_a_field(nn):
    Around = around(nn)
    model = Around(Around(dense(nn)))
    bound = model.bind(model.init(KEYS, X))
    inner, variables = bound.inner.unbind()
    return inner.init(KEYS, X), variables, inner.apply(variables, X)


@both
def test_copies_and_clones(nn):
    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            first = dense(nn)
            second = first.copy()
            third = first.copy(name="third", features=4)
            fourth = first.clone(parent=self, name="fourth")
            return fourth(first(x)) + second(x), third(x)

    return run(Net(), X)


@pytest.mark.parametrize("copying", ["clone", "copy"])
@pytest.mark.parametrize("held", ["own", "shared", "field", "in a wrapper and alone"])
@both
def test_copies_of_a_module_that_holds_modules(nn, copying, held):
    Around = around(nn)

    class Net(nn.Module):
        field: Any

        def setup(self):
            if held == "own":
                self.layer = Around(dense(nn))
            elif held == "shared":
                self.dense = dense(nn)
                self.layer = Around(self.dense)
            elif held == "field":
                self.layer = Around(self.field)
            else:
                one = dense(nn, parent=None)
                self.layer = nn.Sequential([Around(one, parent=None), one])
            self.second = getattr(self.layer, copying)()

        def __call__(self, x):
            return self.second(self.layer(x))

    return run(Net(dense(nn)), X)


@both
def test_unbound_modules_share_as_bound_ones_do(nn):
    Around = around(nn)
    layer = dense(nn)
    results = []
    for layers in ([layer, layer], [Around(layer), layer], [layer, Around(layer)]):
        model = nn.Sequential([layers[0], nn.Sequential(layers)])
        bound = model.bind(changed(model.init(KEYS, X)))
        for one in (bound, bound.layers[1]):
            module, variables = one.unbind()
            again = raised(module.apply, variables, X)
            results.append((module.init(KEYS, X), variables, again))
        results.append(bound.copy().init(KEYS, X))
    return results


@both
def test_a_clone_of_a_bound_module_with_other_variables(nn):
    model = around(nn)(dense(nn))
    variables = model.init(KEYS, X)
    clone = model.bind(variables).clone(scale=3.0)
    return clone.apply(changed(variables), X), clone.init(KEYS, X)


@both
def test_a_clone_of_a_field(nn):
    class Net(nn.Module):
        inner: Any

        @nn.compact
        def __call__(self, x):
            return [self.inner.copy(name=f"copy{i}")(x) for i in range(2)]

    return run(Net(dense(nn)), X)


@both
def test_initialization_inside_of_a_module(nn):
    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            layer = dense(nn, parent=None)
            params = self.param("inner", lambda key: layer.init(key, x)["params"])
            return layer.apply({"params": params}, x)

    return run(Net(), X)


@both
def test_a_parent_that_is_given(nn):
    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            inner = nn.Sequential([dense(nn)], name="list")
            loose = dense(nn, parent=None)
            return inner(x), loose.scope is None, dense(nn, parent=self, name="p")(x)

    return run(Net(), X)


@both
def test_functions_of_a_module(nn):
    def body(module, x, scale=1):
        return module(x) * scale

    net = dense(nn)
    variables = nn.init(body, net)(KEYS, X, scale=2)
    out = nn.apply(body, net)(variables, X, scale=2)
    return variables, out, nn.init_with_output(body, net)(KEYS, X)


@both
def test_sharing_a_scope(nn):
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


@pytest.mark.parametrize("order", ["base first", "base last", "two over one"])
@both
def test_sharing_a_scope_of_a_module_that_is_also_called(nn, order):
    class Over(nn.Module):
        base: Any

        def setup(self):
            nn.share_scope(self, self.base)

        @nn.compact
        def __call__(self, x):
            return self.base(x) * self.param("scale", ramp())

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            base = dense(nn)
            if order == "base first":
                return Over(base)(base(x))
            if order == "base last":
                return base(Over(base)(x))
            return Over(base)(Over(base)(x))

    return run(Net(), X)


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("taken", ["kernel", "Dense_0", "inner", "a"])
@both
def test_names_in_a_scope_that_is_shared(nn, taken, first):
    class Base(nn.Module):
        @nn.compact
        def __call__(self, x):
            x = x * self.param("kernel", ramp())
            return dense(nn)(dense(nn, name="inner")(x))

    class Over(nn.Module):
        base: Any

        def setup(self):
            nn.share_scope(self, self.base)

        def take(self, x):
            if taken == "Dense_0":
                return dense(nn)(x)
            if taken == "inner":
                return dense(nn, name="inner")(x)
            return x * self.param(taken, ramp())

        @nn.compact
        def __call__(self, x):
            x = self.take(x) if first else x
            x = self.base(self.base(x))
            return x if first else self.take(x)

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            over = Over(Base())
            return over(over(x))

    fails = raised(Net().init, KEYS, X)
    return fails if isinstance(fails, Exception) else run(Net(), X)


@both
def test_siblings_that_share_a_scope(nn):
    class Net(nn.Module):
        into_self: bool

        def setup(self):
            self.a, self.b = dense(nn), dense(nn)
            nn.share_scope(self if self.into_self else self.a, self.b)
            if self.into_self:
                nn.share_scope(self, self.a)

        def __call__(self, x):
            return self.b(self.a(x))

    return [raised(Net(into_self).init, KEYS, X) for into_self in (True, False)]


@both
def test_bound_modules_are_compared(nn):
    variables = dense(nn).init(KEYS, X)
    bound = dense(nn).bind(variables)
    others = dense(nn).bind(variables), dense(nn).bind({}), dense(nn)
    return bound == bound, [bound == other for other in others]


@both
def test_intercepting_methods(nn):
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


@both
def test_an_interceptor_that_skips(nn):
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


@both
def test_merging_parameters(nn):
    return (
        nn.merge_param("a", None, 1),
        nn.merge_param("a", 0, None),
        raised(nn.merge_param, "a", 1, 2),
        raised(nn.merge_param, "a", None, None),
    )


@both
def test_representations(nn):
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
