"""Objects that a `functools.partial` binds: they take part as those of methods do."""

import functools
import gc
import weakref

import jax
import jax.numpy as jnp
import pytest

import nnx_transforms as nnx

X = jnp.ones((1, 3))
partial = functools.partial


class Scale(nnx.Module):
    def __init__(self):
        self.w = nnx.Param(jnp.ones(3))
        self.calls = nnx.Variable(jnp.array(0))

    def times(self, k, x):
        self.calls.value += k
        return self.w.value * x

    def __call__(self, x, by=1):
        return self.times(by, x)


def of_one(scale):
    return partial(scale.times, 2)


def of_a_callable_object(scale):
    return partial(scale, by=2)


def of_a_function(scale):
    return partial(Scale.times, scale, 2)


def of_a_named_argument(scale):
    return partial(lambda x, scale: scale.times(2, x), scale=scale)


def of_a_partial(scale):
    return partial(partial(Scale.times, scale), 2)


def of_a_jitted_function(scale):
    return partial(nnx.jit(Scale.times), scale, 2)


def of_a_pytree(scale):
    return jax.tree_util.Partial(Scale.times, scale, 2)


def of_jit_partial(scale):
    return nnx.jit_partial(Scale.times, scale, 2)


BOUND = [
    of_one,
    of_a_callable_object,
    of_a_function,
    of_a_named_argument,
    of_a_partial,
    of_a_jitted_function,
    of_a_pytree,
    of_jit_partial,
]
TRANSFORMS = {
    "jit": nnx.jit,
    "remat": nnx.remat,
    "pmap": nnx.pmap,
    "jit of jit": lambda f: nnx.jit(nnx.jit(f)),
    "jit of remat": lambda f: nnx.jit(nnx.remat(f)),
    "remat of jit": lambda f: nnx.remat(nnx.jit(f)),
    "cond": lambda f: lambda x: nnx.cond(True, f, f, x),
    "vmap": lambda f: nnx.vmap(f, in_axes=0),
    "checkify": lambda f: lambda x: nnx.checkify(f)(x)[1],
    "vjp": lambda f: lambda x: nnx.vjp(f, x)[0],
}


@pytest.mark.parametrize("bound", BOUND)
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_it_is_read_and_written(transform, bound):
    scale = Scale()
    f = TRANSFORMS[transform](bound(scale))
    f(X)
    scale.w.value *= 3
    assert f(X).tolist() == [[3.0, 3.0, 3.0]]
    assert int(scale.calls.value) == 4


def test_several_objects_of_which_one_comes_twice():
    a, b = Scale(), Scale()

    def f(first, k, second, x, *, third):
        for scale in (first, second, third):
            scale.calls.value += k
        return first.w.value * second.w.value * x

    step = nnx.jit(partial(f, a, 2, b, third=a))
    step(X)
    b.w.value *= 2
    assert step(X).tolist() == [[2.0, 2.0, 2.0]]
    assert (int(a.calls.value), int(b.calls.value)) == (8, 4)


def several_in_front(f, a, b):
    return partial(f, a, b, 3.0)


def several_by_name(f, a, b):
    return partial(lambda a, x, y=1.0, *, by, b: f(a, b, by, x, y), a, by=3.0, b=b)


def one_behind_another_argument(f, a, b):
    return partial(lambda by, b, x, y=1.0: f(a, b, by, x, y), 3.0, b)


OF_TWO_TRANSFORMS = {
    "jit of vmap": lambda f, x: nnx.jit(nnx.vmap(f, in_axes=0))(x=x)[0],
    "remat of vmap": lambda f, x: nnx.remat(nnx.vmap(f, in_axes=(0,)))(x)[0],
    "jit of scan": lambda f, x: nnx.jit(nnx.scan(f, in_axes=0, out_axes=0))(x)[0],
    "jit of grad": lambda f, x: nnx.jit(nnx.grad(f))(x[0]),
    "jit of remat": lambda f, x: nnx.jit(nnx.remat(f))(x=x, y=1.0),
}


@pytest.mark.parametrize(
    "bound", [several_in_front, several_by_name, one_behind_another_argument]
)
@pytest.mark.parametrize("transform", OF_TWO_TRANSFORMS)
def test_arguments_keep_their_places_behind_several_objects(transform, bound):
    def f(a, b, by, x, y=1.0):
        return (a.w.value * b.w.value * by * x * y).sum()

    a, b = Scale(), Scale()
    a.w.value *= 2
    found = OF_TWO_TRANSFORMS[transform](bound(f, a, b), X)
    assert jnp.unique(found).tolist() == [18.0 if found.ndim == 0 else 6.0]


@pytest.mark.parametrize("name", ["jit", "jit of jit", "jit of remat"])
def test_it_is_traced_once(name):
    traces = []

    def f(scale, k, x):
        traces.append(k)
        return scale.times(k, x)

    step = TRANSFORMS[name](partial(f, Scale(), 2))
    for _ in range(3):
        step(X)
    assert len(traces) == 1


def test_a_partial_of_an_inner_object_is_not_kept():
    @nnx.jit
    def outer(scale, x):
        step = nnx.jit(partial(scale.times, 3))
        return step(step(x))

    scale = Scale()
    outer(scale, X)
    assert int(scale.calls.value) == 6


def test_an_object_of_another_trace_is_read_and_not_written():
    scale = Scale()
    read = nnx.jit(lambda x: nnx.remat(partial(lambda s, x: s.w.value * x, scale))(x))
    assert read(X).tolist() == X.tolist()
    with pytest.raises(nnx.TraceContextError):
        nnx.jit(lambda x: nnx.remat(of_one(scale))(x))(X)


def test_the_object_is_freed_with_the_function():
    scale = Scale()
    step = nnx.jit(of_one(scale))
    step(X)
    alive = weakref.ref(scale)
    gc.disable()
    try:
        del scale, step
        assert alive() is None
    finally:
        gc.enable()


def test_compiled_ahead_of_time():
    scale = Scale()
    nnx.jit(of_one(scale)).lower(X).compile()(X)
    assert int(scale.calls.value) == 2
