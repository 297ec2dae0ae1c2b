"""What JAX refuses to tell of a traced value: the error says which value it is."""

import functools
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import graphcore as gc
import nnx_transforms as nnx


class Model(nnx.Module):
    def __init__(self, size=None):
        shape = () if size is None else (size,)
        self.layer = nnx.Dict(w=nnx.Param(jnp.ones((*shape, 3))))
        self.calls = nnx.Variable(jnp.zeros(shape, int))


def asks(model, *_):
    if model.calls.value > 0:
        return model
    return model


def same(model, *_):
    return model


def with_rule(rules, define):
    """A function that asks, with a rule of its own, compiled."""
    function = rules(lambda m: asks(m).layer.w.value.sum())
    define(function)
    return nnx.jit(function)


def notes_of(call, *args, **kwargs):
    """What stands below the error that a call ends in, of the values concerned."""
    with pytest.raises((jax.errors.JAXTypeError, TypeError)) as caught:
        call(*args, **kwargs)
    return [note for note in caught.value.__notes__ if " is the " in note]


mesh = jax.make_mesh((1,), ("x",))
stacked = nnx.StateAxes({nnx.Param: None, ...: 0})

CALLS = {
    "jit": ("args/0/calls", lambda: nnx.jit(asks)(Model())),
    "donating": ("args/0/calls", lambda: nnx.jit(asks, donate_argnums=0)(Model())),
    "eval_shape": ("0/calls", lambda: nnx.eval_shape(asks, Model())),
    "remat": ("0/calls", lambda: nnx.remat(asks)(Model())),
    "method": ("self/calls", lambda: nnx.remat(asks.__get__(Model()))()),
    "cond": ("operands/0/calls", lambda: nnx.cond(True, same, asks, Model())),
    "switch": ("operands/0/calls", lambda: nnx.switch(0, [same, asks], Model())),
    "while body": (
        "carry/calls",
        lambda: nnx.while_loop(lambda _: jnp.array(True), asks, Model()),
    ),
    "while condition": (
        "carry/calls",
        lambda: nnx.while_loop(lambda m: asks(m) is m, same, Model()),
    ),
    "fori": (
        "carry/0/calls",
        lambda: nnx.fori_loop(0, 3, lambda _, c: [asks(c[0])], [Model()]),
    ),
    "scan, carried": (
        "0/calls",
        lambda: nnx.scan(lambda m, x: (asks(m), x))(Model(), jnp.ones(2)),
    ),
    "scan, own and shared": (
        "1/calls",
        lambda: nnx.scan(
            lambda i, m: (i, asks(m)), in_axes=(nnx.Carry, stacked), length=2
        )(0, Model(2)),
    ),
    "scan, shared": (
        "0/calls",
        lambda: nnx.scan(lambda m, x: asks(m) and x, in_axes=(None, 0), out_axes=0)(
            Model(), jnp.ones(2)
        ),
    ),
    "map": ("0/calls", lambda: nnx.map(lambda m: asks(m) and 1, Model(2))),
    "shard_map": (
        "0/calls",
        lambda: nnx.jit(nnx.shard_map(asks, mesh=mesh, in_specs=P(), out_specs=P()))(
            Model()
        ),
    ),
    "custom_jvp": (
        "0/calls",
        lambda: with_rule(nnx.custom_jvp, lambda f: f.defjvp(lambda p, t: (0.0, 0.0)))(
            Model()
        ),
    ),
    "linear_call": (
        "0/calls",
        lambda: nnx.linear_call(
            lambda m, x: asks(m) and x, lambda m, x: x, Model(), 1.0
        ),
    ),
    "closure_convert": ("0/calls", lambda: nnx.closure_convert(asks, Model())),
    "grad, compiled": (
        "args/0/calls",
        lambda: nnx.jit(nnx.grad(lambda m: asks(m).layer.w.value.sum()))(Model()),
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_the_variable_is_named(name):
    place, call = CALLS[name]
    (note,) = notes_of(call)
    assert note.endswith(f" is the value of the variable at {place!r}.")


def test_nothing_is_said_of_a_value_that_jax_cannot_name():
    rule = with_rule(
        nnx.custom_vjp, lambda f: f.defvjp(lambda m: (0.0, m), lambda *_: ())
    )
    assert notes_of(rule, Model()) == []
    add = nnx.custom_vjp(lambda m, x: asks(m) and x)
    add.defvjp(lambda m, x: (x, None), lambda _, g: (None, g))
    assert notes_of(nnx.jit(add), Model(), 1.0) == []


WAYS = {
    "a truth value": lambda x: 1 if x else 2,
    "an index": lambda x: [1, 2][x],
    "a shape": lambda x: jnp.ones(x).sum(),
    "a number": lambda x: float(x),
    "an array of NumPy's": lambda x: np.asarray(x),
    "a range": lambda x: jnp.arange(x).sum(),
}


@pytest.mark.parametrize("way", WAYS)
def test_whatever_the_value_was_needed_for(way):
    (note,) = notes_of(nnx.remat(lambda m: WAYS[way](m.calls.value)), Model())
    assert "at '0/calls'" in note


def test_each_of_several_values_is_named():
    def step(carry, model, x, *, scale):
        total = model.calls.value + carry[1]["n"] + x["y"][0] + scale
        return carry if total > 0 else None

    scanned = nnx.scan(
        functools.partial(step, scale=1),
        in_axes=(nnx.Carry, None, 0),
        out_axes=nnx.Carry,
    )
    given = [Model(), {"n": jnp.array(1)}], Model(), {"y": [jnp.ones(2)]}
    of_carry, of_model, of_x = sorted(
        note.partition(" is the ")[2] for note in notes_of(scanned, *given)
    )
    assert of_carry == "argument at '0/1/n'."
    assert of_model == "argument at '2/y/0'."
    assert of_x == "value of the variable at '1/calls'."


def test_the_integer_of_a_loop_is_named():
    def body(i, model):
        return model if i > 2 else None

    (note,) = notes_of(nnx.fori_loop, 0, 3, body, Model())
    assert note.endswith("is the argument at 'index'.")


def test_a_value_inside_of_a_pytree_is_named():
    model = nnx.Dict(a=nnx.Variable({"b": [jnp.array(1), jnp.array(2)]}))
    (note,) = notes_of(nnx.remat(lambda m: 1 if m.a.value["b"][1] else 2), model)
    assert note.endswith("is the value of the variable at '0/a/b/1'.")


def test_what_jax_calls_as_the_user_does_is_not_told_twice():
    def f(model, x, *, y):
        return 1 if x["z"] + y + model.calls.value else 2

    for transform in (nnx.jit, nnx.remat):
        notes = notes_of(transform(f), Model(), {"z": 1}, y=2)
        assert len(notes) == 1
        assert "/calls'" in notes[0]


def test_only_the_innermost_call_tells():
    inner = nnx.remat(lambda m, _: asks(m))

    @nnx.jit
    def outer(first, model):
        return nnx.cond(True, inner, lambda m, _: m, model, first)

    (note,) = notes_of(outer, Model(), Model())
    assert note.endswith("is the value of the variable at '0/calls'.")


def test_a_call_of_the_function_in_itself_tells_once():
    left = [2]

    @nnx.jit
    def f(model):
        left[0] -= 1
        return f(nnx.Dict(inner=model)) if left[0] else asks(model.inner)

    (note,) = notes_of(lambda model: f(model), Model())
    assert note.endswith("is the value of the variable at 'args/0/inner/calls'.")


def test_of_very_many_values_some_are_named():
    model = nnx.List([nnx.Param(jnp.array(1.0)) for _ in range(50)])
    notes = notes_of(nnx.remat(lambda m: 1 if sum(p.value for p in m) else 2), model)
    assert 0 < len(notes) < 20
    assert "at '0/0'" in notes[0]


def test_errors_of_the_function_are_left_alone():
    def f(model):
        raise ValueError(
            "The error occurred while tracing, as it depends on the value of the "
            "argument variables[0][0]."
        )

    with pytest.raises(ValueError, match="occurred") as caught:
        nnx.remat(f)(Model())
    assert not any(
        " is the " in note for note in getattr(caught.value, "__notes__", ())
    )


def test_a_compiled_function_has_its_own_names_of_arguments():
    def f(model, x, batch, *rest, flag):
        if flag > 0:
            return model.layer.w[...] * x + batch["y"] + rest[0]
        return None

    given = Model(), jnp.ones(3), {"y": jnp.ones(3)}, jnp.ones(3)
    with pytest.raises(jax.errors.TracerBoolConversionError, match="argument flag"):
        nnx.jit(f)(*given, flag=1)

    @nnx.jit
    def g(model, x, batch, *rest, flag):
        return f(model, x, batch, *rest, flag=1) * flag

    text = g.lower(*given, flag=2).as_text(debug_info=True)
    named = set(re.findall(r'loc\("([^"]+)"\)', text))
    assert {"x", "batch['y']", "rest[0]", "flag"} <= named

    static = nnx.jit(lambda model, *, size, x: x[:size], static_argnames="size")
    text = static.lower(Model(), size=2, x=jnp.ones(3)).as_text(debug_info=True)
    assert 'loc("x")' in text


def test_a_compiled_method_has_its_own_names_of_arguments():
    class Scale(Model):
        def times(self, x, args):
            return self.layer.w[...] * x * args["y"]

        def __call__(self, x, *, args):
            return self.times(x, args)

    def partly(x, scale, *, args):
        return scale(x, args=args)

    scale, x, args = Scale(), jnp.ones(3), {"y": jnp.ones(3)}
    for bound in scale, scale.times, functools.partial(partly, scale=scale):
        jitted = nnx.jit(bound)
        assert jitted(x, args=args).tolist() == scale(x, args=args).tolist()
        text = jitted.lower(x, args=args).as_text(debug_info=True)
        named = set(re.findall(r'loc\("([^"]+)"\)', text))
        assert {"x", "args['y']"} <= named


def test_a_keyword_may_be_called_as_an_argument_by_position():
    def f(model, x, /, **named):
        return model.layer.w[...] * x + named["x"]

    assert nnx.jit(f)(Model(), 2.0, x=1.0).tolist() == [3, 3, 3]


# Lines of operations


def doubles(model, *_):
    model.layer.w *= 2
    return model


def check_lines(files):
    """The files are those of the user, not of the library."""
    ours = tuple(str(Path(package.__file__).parent) for package in (gc, nnx))
    # Lines of layers may be shown.
    shown = str(Path(nnx.__file__).parent / "layers")
    assert __file__ in files
    assert not [x for x in files if x.startswith(ours) and not x.startswith(shown)]


@pytest.mark.parametrize(
    "function",
    [
        lambda m, _: doubles(m),
        lambda m, rngs: m.layer.w[...] + rngs.uniform((3,)),
        lambda m, _: m.perturb("seen", jnp.sin(m.layer.w)),
        lambda m, _: nnx.grad(nnx.remat(lambda m: doubles(m).layer.w.sum()))(m),
        lambda m, _: nnx.scan(doubles, in_axes=nnx.Carry, out_axes=nnx.Carry, length=2)(
            m
        ),
        lambda m, _: nnx.vmap(doubles)(Model(2)),
        lambda m, _: nnx.cond(m.calls[...] > 0, doubles, same, m),
        lambda m, _: nnx.fori_loop(0, 2, lambda _, m: doubles(m), m),
        lambda m, _: nnx.while_loop(lambda m: m.layer.w[0] < 5, doubles, m),
    ],
)
def test_operations_come_from_lines_of_the_user(function):
    jax.clear_caches()  # It keeps traces of its functions with who called them first.
    lowered = nnx.jit(function).lower(Model(), nnx.Rngs(0))
    check_lines(re.findall(r'loc\("([^"]+\.py)"', lowered.as_text(debug_info=True)))


def test_an_error_about_a_leaked_tracer_names_lines_of_the_user():
    leaked = []
    nnx.jit(lambda m: leaked.append(m.layer.w * 2))(Model())
    with pytest.raises(jax.errors.UnexpectedTracerError) as caught:
        leaked.pop() + 1
    assert f"created on line {__file__}" in str(caught.value)
    check_lines(re.findall(r"\S+\.py(?=:)", str(caught.value)))
