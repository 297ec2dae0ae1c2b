"""`jit`: errors of JAX's about arrays say which variables these are in."""

import array
import itertools

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import nnx_transforms as nnx

several_devices = pytest.mark.devices(2)


class Model(nnx.Module):
    def __init__(self):
        self.first = nnx.Linear(3, 3, rngs=nnx.Rngs(0))
        self.last = nnx.Linear(3, 3, rngs=nnx.Rngs(1))
        self.calls = nnx.Variable(jnp.array(0))


def step(x, model):
    model.calls.value += 1
    return model.last(model.first(x))


def notes_of(call, *args):
    """What stands below the error that a call ends in."""
    with pytest.raises((ValueError, TypeError, RuntimeError)) as caught:
        call(*args)
    return "\n".join(caught.value.__notes__)


def scattered():
    model = Model()
    kernel = model.last.kernel
    kernel.value = jax.device_put(kernel.value, jax.devices()[1])
    return model


HOW = [{}, {"donate_state": True}, {"donate_argnums": 1}, {"donate_argnums": (0, 1)}]


@several_devices
@pytest.mark.parametrize("options", HOW)
def test_a_variable_on_another_device_is_named(options):
    x = jax.device_put(jnp.ones((1, 3)), jax.devices()[0])
    notes = notes_of(nnx.jit(step, **options), x, scattered())
    assert "at 'args/1/last/kernel'" in notes
    assert "first/kernel" not in notes


@several_devices
@pytest.mark.parametrize("options", HOW)
def test_a_part_of_a_value_on_another_device_names_the_variable(options):
    one, other = (jax.device_put(jnp.ones(3), d) for d in jax.devices()[:2])
    model = nnx.Dict(a=nnx.Param(one), b=nnx.Param([one + 1, other]))
    add = nnx.jit(lambda x, m: m.a.value + sum(m.b.value), **options)
    assert "at 'args/1/b'" in notes_of(add, 1.0, model)


@several_devices
def test_what_was_compiled_for_other_devices_names_the_variable():
    x = jnp.ones((1, 3))
    compiled = nnx.jit(step).lower(x, Model()).compile()
    assert "at 'args/1/last/kernel'" in notes_of(compiled, x, scattered())


def test_a_number_that_is_too_large_is_named():
    model = Model()
    model.calls.value = 1 << 40
    with pytest.raises(OverflowError) as caught:
        nnx.jit(step)(jnp.ones((1, 3)), model)
    assert any("at 'args/1/calls'" in note for note in caught.value.__notes__)


def test_what_was_compiled_for_other_shapes_names_the_variable():
    x, other = jnp.ones((1, 3)), Model()
    compiled = nnx.jit(step).lower(x, Model()).compile()
    other.first.bias.value = jnp.ones((1, 3))
    assert "at 'args/1/first/bias'" in notes_of(compiled, x, other)


@several_devices
@pytest.mark.parametrize("options", HOW)
def test_a_sharding_that_does_not_divide_names_the_variable(options):
    count = jax.device_count()
    mesh = jax.make_mesh((count,), ("x",))
    kernels = nnx.StateSharding(
        {nnx.PathContains("kernel"): NamedSharding(mesh, P("x")), ...: None}
    )
    model = Model()
    model.first.kernel.value = jnp.ones((count, 3))  # this one can be divided
    f = nnx.jit(step, in_shardings=(None, kernels), **options)
    notes = notes_of(f, jnp.ones((1, count)), model)
    assert "at 'args/1/last/kernel'" in notes
    assert "first/kernel" not in notes


@several_devices
def test_arrays_that_lie_otherwise_than_asked_are_named():
    mesh = jax.make_mesh((jax.device_count(),), ("x",))
    model = nnx.Dict({f"w{i}": nnx.Param(jnp.ones(8)) for i in range(9)})
    for i in range(2, 9):
        w = model[f"w{i}"]
        w.value = jax.device_put(w.value, NamedSharding(mesh, P("x")))
    model.w2.value = jax.device_put(model.w2.value, NamedSharding(mesh, P()))
    whole = NamedSharding(mesh, P())
    notes = notes_of(nnx.jit(lambda model: None, in_shardings=whole), model)
    assert "It is the variable at 'args/0/w3'." in notes
    assert "w1" not in notes  # it may be moved
    assert "w2" not in notes  # it is where it should be
    assert "So are 1 more." in notes


def test_an_error_of_the_function_about_shardings_is_left_alone():
    def fail(model):
        raise ValueError("Sharding is out of order")

    model = Model()
    model.scale = nnx.Param(2.0)
    mesh = jax.make_mesh((1,), ("x",))
    with pytest.raises(ValueError, match="Sharding is out of order"):
        nnx.jit(fail, in_shardings=NamedSharding(mesh, P()))(model)


def test_a_function_that_fails_runs_once_on_values_that_are_no_arrays():
    runs = itertools.count()

    def fail(model):
        next(runs)
        raise ValueError("out of order")

    with pytest.raises(ValueError, match="out of order"):
        nnx.jit(fail)(nnx.Dict(scale=nnx.Param(2.0)))
    assert next(runs) == 1


@pytest.mark.parametrize("options", HOW)
def test_an_array_that_is_gone_is_named(options):
    model = Model()
    model.last.bias.value.delete()
    notes = notes_of(nnx.jit(step, **options), jnp.ones((1, 3)), model)
    assert "The array of the variable at 'args/1/last/bias' is gone" in notes
    assert notes.count("is gone") == 1


def test_the_object_of_a_method_is_called_self():
    model = Model()
    call = nnx.jit(model.first.__call__)
    model.first.kernel.value.delete()
    assert "at 'self/kernel' is gone" in notes_of(call, jnp.ones((1, 3)))


def test_a_value_that_decides_what_is_traced_is_named():
    @nnx.jit
    def halve(model, last):
        return 1 if model.calls.value > last.bias.value[0] else 2

    notes = notes_of(halve, Model(), Model().last)
    assert "at 'args/0/calls'" in notes
    assert "at 'args/1/bias'" in notes


def test_the_innermost_call_tells_what_its_variables_are():
    @nnx.jit
    def inner(last, model):
        return 1 if model.calls.value > 0 else 2

    @nnx.jit
    def outer(model):
        return inner(nnx.Dict(a=model.first.bias), model)

    notes = notes_of(outer, Model())
    assert "at 'args/1/calls'" in notes
    assert notes.count("is the value of the variable") == 1

    @nnx.jit
    def branches(model):
        return nnx.cond(
            True, lambda m: 1 if m.calls.value > 0 else 2, lambda m: 1, model
        )

    notes = notes_of(branches, Model())
    assert "at 'operands/0/calls'" in notes
    assert notes.count("is the value of the variable") == 1


@pytest.mark.parametrize("args", [(Model(),), (1.0,)])
def test_a_wrong_output_is_told_with_its_path(args):
    match = r"'f' returned a value of type str at 'output/1/name', .*: 'text'"

    def f(*args):
        return 1.0, {"name": "text"}

    with pytest.raises(TypeError, match=match):
        nnx.jit(f)(*args)


VOCABULARY = array.array("l", range(100_000))  # can be neither hashed nor looked into
WITH_VOCABULARY = {
    "attribute": lambda: nnx.jit(step)(1.0, nnx.Dict(words=VOCABULARY)),
    "static": lambda: nnx.jit(step, static_argnums=0)(VOCABULARY, Model()),
    "output": lambda: nnx.jit(lambda m: VOCABULARY)(Model()),
    "variable": lambda: nnx.jit(step)(1.0, nnx.Dict(words=nnx.Variable(VOCABULARY))),
    "write": lambda: nnx.jit(lambda m: setattr(m.calls, "value", VOCABULARY))(Model()),
    "mapped": lambda: nnx.vmap(len)(nnx.Dict(words=nnx.Variable(VOCABULARY))),
    "pair": lambda: nnx.grad(lambda m: VOCABULARY, has_aux=True)(Model()),
}


@pytest.mark.parametrize("call", WITH_VOCABULARY.values(), ids=WITH_VOCABULARY)
def test_an_error_about_a_large_value_is_short(call):
    with pytest.raises((TypeError, ValueError)) as caught:
        call()
    assert "array('l', [0, 1, 2" in str(caught.value)
    assert len(str(caught.value)) < 500


def test_errors_of_the_function_are_left_alone():
    def f(model):
        raise ValueError("variables[0] is too small, as its argument is")

    with pytest.raises(ValueError, match="too small") as caught:
        nnx.jit(f)(Model())
    assert not any("'args" in note for note in getattr(caught.value, "__notes__", ()))
