import functools
import threading

import jax
import jax.numpy as jnp

import linen_lift as nn

KEY = jax.random.key(0)
X = jnp.ones((1, 3))


class Net(nn.Module):
    @nn.compact
    def __call__(self, x):
        return self.helper(nn.Dense(2)(x))

    def helper(self, x):
        return 2 * x


def test_interceptors_see_every_method():
    seen = []

    def record(next_fun, args, kwargs, context):
        seen.append((type(context.module).__name__, context.method_name))
        return next_fun(*args, **kwargs)

    variables = Net().init(KEY, X)
    with nn.intercept_methods(record):
        Net().apply(variables, X)
    assert seen == [("Net", "__call__"), ("Dense", "__call__"), ("Net", "helper")]
    seen.clear()
    Net().apply(variables, X)
    assert not seen


def test_interceptors_nest_and_change_results():
    add = lambda n: (
        lambda next_fun, args, kwargs, context: next_fun(*args, **kwargs) + n
    )
    twice = lambda next_fun, args, kwargs, context: 2 * next_fun(*args, **kwargs)

    class One(nn.Module):
        def __call__(self):
            return 1

    with nn.intercept_methods(add(10)), nn.intercept_methods(twice):
        assert One().apply({}) == 12
    with nn.intercept_methods(twice), nn.intercept_methods(add(10)):
        assert One().apply({}) == 22
    with nn.intercept_methods(lambda n, a, k, c: c.orig_method() + 5):
        assert One().apply({}) == 6


def test_interceptors_work_in_lifted_transforms():
    variables = nn.remat(Net)().init(KEY, X)
    seen = []

    def record(next_fun, args, kwargs, context):
        seen.append((type(context.module).__name__, context.method_name))
        return next_fun(*args, **kwargs)

    jitted = nn.jit(Net)()
    jitted.apply(variables, X)
    for model in (nn.remat(Net)(), jitted):
        seen.clear()
        with nn.intercept_methods(record):
            model.apply(variables, X)
        # Inside of the transform, the module is of the class that was transformed.
        assert seen == [("Net", "__call__"), ("Dense", "__call__"), ("Net", "helper")]

    class Decorated(nn.Module):
        @nn.remat
        @nn.compact
        def __call__(self, x):
            return nn.Dense(2)(x)

    seen.clear()
    with nn.intercept_methods(record):
        Decorated().init(KEY, X)
    assert seen == [("Decorated", "__call__"), ("Dense", "__call__")]


def test_decorated_methods_below_a_transform_are_intercepted_and_captured():
    seen = []

    def record(next_fun, args, kwargs, context):
        seen.append((type(context.module).__name__, context.method_name))
        return next_fun(*args, **kwargs)

    def checked(method):
        @functools.wraps(method)
        def call(self, x):
            return method(self, x)

        return call

    for transform in (nn.jit, nn.remat):

        class Decorated(nn.Module):
            @transform
            @checked
            @nn.compact
            def __call__(self, x):
                return nn.Dense(2)(x)

        variables = Decorated().init(KEY, X)
        seen.clear()
        with nn.intercept_methods(record):
            out, kept = Decorated().apply(variables, X, capture_intermediates=True)
        assert seen == [("Decorated", "__call__"), ("Dense", "__call__")]
        assert (kept["intermediates"]["__call__"][0] == out).all()


def test_interceptors_are_per_thread():
    seen = []
    with nn.intercept_methods(lambda n, a, k, c: seen.append(1) or n(*a, **k)):
        thread = threading.Thread(target=lambda: Net().init(KEY, X))
        thread.start()
        thread.join()
    assert not seen


def names(fn, *args):
    return jax.jit(fn).lower(*args).as_text(debug_info=True)


def test_operations_carry_the_names_of_modules():
    variables = Net().init(KEY, X)
    run = lambda: lambda v: Net().apply(v, X)
    assert "Net/Dense_0" in names(run(), variables)
    with nn.override_named_call(False):
        assert "Net/Dense_0" not in names(run(), variables)
        with nn.override_named_call(True):
            assert "Net/Dense_0" in names(run(), variables)
    nn.disable_named_call()
    try:
        assert "Net/Dense_0" not in names(run(), variables)

        class Named(nn.Module):
            @nn.named_call
            def __call__(self, x):
                return self.half(x)

            def half(self, x):
                return x / 2

        assert "Named/" in names(lambda x: Named().apply({}, x), X)
        Forced, Lax = nn.named_call(nn.Dense), nn.named_call(nn.Dense, force=False)
        assert Forced.__name__ == "Dense"
        params = {"params": variables["params"]["Dense_0"]}
        assert "Dense/" in names(lambda v: Forced(2).apply(v, X), params)
        assert "Dense/" not in names(lambda v: Lax(2).apply(v, X), params)
    finally:
        nn.enable_named_call()


def test_blocks_may_end_in_the_order_in_which_they_began():
    variables, run = Net().init(KEY, X), lambda v: Net().apply(v, X)
    first, second = nn.override_named_call(True), nn.override_named_call(False)
    with nn.override_named_call(True):  # which ends what the others leave behind
        first.__enter__()
        second.__enter__()
        first.__exit__(None, None, None)
        second.__exit__(None, None, None)
    assert "Net/Dense_0" in names(run, variables)
