"""Keyword arguments become positional ones, as the signature says."""

import functools
import inspect
import sys
import textwrap

import jax.numpy as jnp
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nnx_transforms as nnx
from nnx_transforms import Module
from nnx_transforms.arguments import positions_of, resolve_kwargs


def f(a, b=2, c=3, *rest):
    return a, b, c, rest


def test_positions_in_front_get_defaults_and_those_behind_stay_out():
    assert resolve_kwargs(f, (1,), {"c": 5}) == (1, 2, 5)
    assert resolve_kwargs(f, (1,), {"b": 5}) == (1, 5)
    assert resolve_kwargs(f, (), {"a": 5}) == (5,)
    assert resolve_kwargs(f, (1, 2, 3, 4), {}) == (1, 2, 3, 4)


def test_methods_callables_and_partials():
    class Net(Module):
        def __call__(self, x, y):
            return x - y

        def scale(self, x, by):
            return x * by

    net = Net()
    assert resolve_kwargs(net, (), {"y": 1, "x": 2}) == (2, 1)
    assert resolve_kwargs(net.scale, (3,), {"by": 2}) == (3, 2)
    assert resolve_kwargs(functools.partial(f, 0), (), {"b": 1}) == (1,)


def test_keyword_only_arguments_are_named():
    def g(a, *, flag=False, **more):
        return a

    with pytest.raises(TypeError, match=r"'flag', 'size' of 'g'.*\(a, \*, flag"):
        resolve_kwargs(g, (1,), {"flag": True, "size": 3})
    assert positions_of(g, (), {"size": 3, "a": 1}) == ((1,), {"size": 3})
    assert resolve_kwargs(g, (1,), {}) == (1,)


def test_arguments_that_do_not_fit():
    with pytest.raises(TypeError, match=r"'f'.*multiple values for argument 'a'"):
        resolve_kwargs(f, (1,), {"a": 1})
    with pytest.raises(TypeError, match=r"missing a required argument: 'a'"):
        resolve_kwargs(f, (), {"b": 1})
    with pytest.raises(TypeError, match="unexpected keyword argument 'z'"):
        resolve_kwargs(f, (1,), {"z": 1})


def test_without_signature():
    assert resolve_kwargs(max, (1, 2), {}) == (1, 2)
    with pytest.raises(TypeError, match=r"'key' of 'max'.*not known"):
        resolve_kwargs(max, (1, 2), {"key": None})


def test_parameters_that_a_call_leaves_out_are_spoken_of_by_position():
    def scaled(w, x, by=2.0):
        return w.value * x * by

    def step(carry, w, x, by=2.0):
        return carry + scaled(w, x, by)

    w, xs = nnx.Param(jnp.array(3.0)), jnp.arange(3.0)
    assert nnx.vmap(scaled, in_axes=(None, 0, None))(w, xs).tolist() == [0, 6, 12]
    assert nnx.vmap(scaled, in_axes=(None, 0, None))(w, x=xs).tolist() == [0, 6, 12]
    axes = (nnx.Carry, None, 0, None)
    assert nnx.scan(step, in_axes=axes, out_axes=nnx.Carry)(0.0, w, xs) == 18
    of_w, of_by = nnx.grad(scaled, argnums=(0, 2))(w, 5.0)
    assert (of_w.value, of_by) == (10, 15)
    branching = lambda w, x, by=2: w.value * x if by == 2 else x
    assert nnx.remat(branching, static_argnums=2)(w, 5.0) == 15
    with pytest.raises(ValueError, match="4 entries"):
        nnx.vmap(scaled, in_axes=(None, 0, None, 0))(w, xs)
    with pytest.raises(ValueError, match="2 entries"):
        nnx.vmap(lambda w, x: x, in_axes=(None, 0))(w)


@pytest.mark.parametrize("decorate", [resolve_kwargs, resolve_kwargs()])
def test_decorator(decorate):
    @decorate
    def g(a, b=2, /, c=3):
        """Says."""
        return a, b, c

    assert g(1, c=4) == (1, 2, 4)
    assert (g.__name__, g.__doc__) == ("g", "Says.")
    assert inspect.signature(g) == inspect.signature(g.__wrapped__)


@given(st.data())
def test_a_call_by_position_is_the_call_by_keyword(data):
    count = data.draw(st.integers(0, 5))
    required = data.draw(st.integers(0, count))
    names = [f"p{i}" for i in range(count)]
    parameters = [n if i < required else f"{n}={-i}" for i, n in enumerate(names)]
    space = {}
    exec(f"def g({', '.join([*parameters, '*rest'])}): return {names}, rest", space)
    g = space["g"]
    positional = data.draw(st.integers(0, count))
    keywords = data.draw(st.permutations(names[positional:]))
    kwargs = {n: names.index(n) * 10 for n in keywords}
    for name in names[max(required, positional) :]:
        if data.draw(st.booleans()):
            del kwargs[name]
    args = tuple(range(100, 100 + positional))
    assert g(*resolve_kwargs(g, args, kwargs)) == g(*args, **kwargs)


@pytest.mark.skipif(sys.version_info < (3, 14), reason="asks for all names at once")
def test_annotations_may_name_what_is_defined_further_down():
    space = {"nnx": nnx, "jnp": jnp}
    exec(
        textwrap.dedent("""
            class Counter(nnx.Module):
                def __init__(self):
                    self.n = nnx.Variable(jnp.zeros(()))

                @nnx.jit(static_argnames="by")
                def add(self, other: Counter, by: Undefined = 1) -> Counter:
                    self.n.value += other.n.value + by
                    return other

            @nnx.custom_vjp
            def twice(counter: Later, x: Later) -> Later:
                return 2 * x

            twice.defvjp(lambda m, x: (2 * x, None), lambda _, g: (None, 3 * g[1]))
        """),
        space,
    )
    counter, other = space["Counter"](), space["Counter"]()
    other.n.value += 2
    assert counter.add(other, by=5) is other
    assert float(counter.n.value) == 7.0
    assert float(nnx.jit(space["twice"])(counter, 2.0)) == 4.0
