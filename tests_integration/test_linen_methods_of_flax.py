"""Methods that are transformed do what they do with Flax Linen."""

import jax.numpy as jnp
from linen_comparison import (
    ALL,
    KEYS,
    SPLIT,
    X,
    around,
    block,
    both,
    changed,
    dense,
    raised,
    ramp,
    run,
)


@both
def test_decorated_methods(nn):
    class Net(nn.Module):
        def setup(self):
            self.inner = dense(nn)

        @nn.jit
        def first(self, x):
            return self.inner(x)

        @nn.remat
        def second(self, x, *, scale):
            return self.inner(x) * scale

        def __call__(self, x):
            return self.first(self.second(self.first(x), scale=2.0))

    return run(Net(), X)


@both
def test_decorated_compact_methods(nn):
    class Net(nn.Module):
        @nn.remat
        @nn.compact
        def __call__(self, x):
            return dense(nn)(x) * self.param("w", ramp())

    return run(Net(), X)


@both
def test_decorated_helpers_of_compact_methods(nn):
    class Net(nn.Module):
        @nn.remat
        def helper(self, x):
            return dense(nn)(x)

        @nn.compact
        def __call__(self, x):
            return self.helper(dense(nn)(self.helper(x)))

    return run(Net(), X)


@both
def test_modules_as_arguments_of_methods(nn):
    class Net(nn.Module):
        @nn.jit
        def call(self, inner, x, others=()):
            for other in others:
                x = other(x)
            return inner(x)

        @nn.compact
        def __call__(self, x):
            a, b = dense(nn), dense(nn, name="b")
            return self.call(a, x, others=[b, a])

    return run(Net(), X)


@both
def test_modules_in_fields_under_a_transform(nn):
    Around = around(nn)

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            inner = dense(nn)
            return nn.remat(Around)(nn.jit(Around)(inner))(x) + inner(x)

    return run(Net(), X), run(nn.jit(Around)(dense(nn)), X)


@both
def test_a_variable_as_an_argument(nn):
    class Net(nn.Module):
        @nn.jit
        def add(self, variable, x):
            variable.value += x.sum()
            return variable.value

        @nn.compact
        def __call__(self, x):
            n = self.variable("stats", "n", lambda: jnp.zeros(()))
            return self.add(n, x) + n.value

    return Net().init_with_output(KEYS, X), Net().apply(
        {"stats": {"n": jnp.ones(())}}, X, mutable=["stats"]
    )


@both
def test_what_a_transformed_method_must_not_return(nn):
    class Net(nn.Module):
        @nn.jit
        def module(self, x):
            return dense(nn)

        @nn.jit
        def variable(self, x):
            return self.variable("stats", "n", lambda: 0)

        @nn.compact
        def __call__(self, x, method):
            getattr(self, method)(x)

    return [raised(Net().init, KEYS, X, m) for m in ("module", "variable")]


@both
def test_wrong_targets(nn):
    return raised(nn.jit, nn.Dense(3)), raised(nn.vmap, 3)


@both
def test_a_name_that_is_passed_and_declared(nn):
    class Net(nn.Module):
        @nn.jit
        def call(self, x, other):
            return dense(nn, name="a")(other(x))

        @nn.compact
        def __call__(self, x):
            return self.call(x, dense(nn, name="a"))

    return raised(Net().init, KEYS, X)


@both
def test_a_name_that_is_free_again(nn):
    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            call = nn.remat(lambda self, x: dense(nn, name="a")(x))
            return call(self, call(self, x))

    return run(Net(), X)


@both
def test_capturing_inside_of_transforms(nn):
    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            x = nn.jit(block(nn))()(nn.remat(nn.Dense)(3, kernel_init=ramp())(x))
            return nn.vmap(block(nn), ALL, SPLIT)()(jnp.stack([x, x])).sum(0)

    variables = changed(Net().init(KEYS, X))
    return Net().apply(variables, X, capture_intermediates=True)


@both
def test_intercepting_inside_of_transforms(nn):
    def twice(next_fun, args, kwargs, context):
        out = next_fun(*args, **kwargs)
        return 2 * out if isinstance(context.module, nn.Dense) else out

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            return nn.remat(around(nn))(dense(nn))(x)

    variables = Net().init(KEYS, X)
    with nn.intercept_methods(twice):
        return Net().apply(variables, X)


@both
def test_operators(nn):
    class Linear(nn.Module):
        @nn.compact
        def __matmul__(self, x):
            return dense(nn)(x)

        def __getitem__(self, x):
            return self.param("w", ramp()) * x

        def __len__(self):
            return 3

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            linear = Linear()
            return (linear @ x) * len(linear)

    class Plain(nn.Module):
        @nn.compact
        def __call__(self, x):
            return Linear()[x]

    return (
        run(Net(), X),
        run(Linear(), X, method="__matmul__"),
        raised(Plain().init, KEYS, X),
    )
