"""A function that is compiled at each call, for a static value, says so once."""

import warnings

import jax.numpy as jnp
import pytest

import nnx_transforms as nnx


class Counter(nnx.Module):
    """A model that counts its calls in a static attribute."""

    def __init__(self):
        self.scale, self.step = nnx.Param(jnp.ones(2)), 0

    @nnx.jit
    def method(self, x):
        self.step += 1
        return self.scale.value * x


@pytest.fixture
def step():
    def function(model, x):  # another one for each test: what is compiled stays with it
        model.step += 1
        return model.scale.value * x

    return nnx.jit(function)


def warnings_of(call, count):
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        for number in range(count):
            call(number)
    return found


def test_a_static_value_that_changes_at_each_call(step):
    model = Counter()
    assert warnings_of(lambda _: step(model, 1.0), 8) == []
    (found,) = warnings_of(lambda _: step(model, 1.0), 10)
    assert found.category is UserWarning and found.filename == __file__
    said = str(found.message)
    assert "'function' was compiled 8 times in a row" in said
    assert "args/0/step: 7 -> 8" in said
    assert model.step == 18


def test_a_method():
    model = Counter()
    (found,) = warnings_of(lambda _: model.method(1.0), 20)
    assert found.filename == __file__
    assert "'method'" in str(found.message)
    assert "args/0/step: 7 -> 8" in str(found.message)


def test_other_shapes_are_no_reason_to_warn(step):
    model = Counter()
    assert warnings_of(lambda n: step(model, jnp.ones((n + 1, 2))), 20) == []
    # There have to be as many in a row.
    assert warnings_of(lambda _: step(model, 1.0), 8) == []
    assert len(warnings_of(lambda _: step(model, 1.0), 1)) == 1


def test_a_value_that_goes_back_and_forth():
    model = Counter()
    forward = nnx.jit(lambda model, x: model.scale.value * x + model.step)

    def call(number):
        model.step = number % 2
        forward(model, 1.0)

    assert warnings_of(call, 40) == []


def test_no_warning_after_the_cache_is_cleared(step):
    model = Counter()

    def call(number):
        if number % 5 == 0:
            step.clear_cache()
        step(model, 1.0)

    assert warnings_of(call, 30) == []


def test_where_a_warning_is_an_error_nothing_is_written(step):
    model = Counter()
    for _ in range(8):
        step(model, 1.0)
    with pytest.raises(UserWarning, match="8 times in a row"):
        step(model, 1.0)
    assert model.step == 8
    step(model, 1.0)
    assert model.step == 9


def test_a_variable_that_a_function_closes_over():
    model = Counter()
    forward = nnx.jit(lambda x: model.scale.value * x)

    def call(number):
        model.scale.value = jnp.full(2, float(number))
        forward(1.0)

    (found,) = warnings_of(call, 20)
    assert found.filename == __file__
    assert "<captured Counter>/scale: compiled in -> another array" in str(
        found.message
    )
