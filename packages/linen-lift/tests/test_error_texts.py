"""Errors that say which mistake it was where JAX or Python would say something else."""

from typing import Any

import jax
import jax.numpy as jnp
import pytest

import linen_lift as nn
from linen_lift import errors

KEY, X = jax.random.key(0), jnp.ones((2, 4))
ONES = nn.initializers.ones


class Calls(nn.Module):
    fn: Any

    @nn.compact
    def __call__(self, x):
        return self.fn(self, x)


def call(module, x):
    return module(x)


# --- loops --------------------------------------------------------------------------


@pytest.mark.parametrize("state", [{}, {"state": {"old": 1}}])
def test_a_variable_made_in_a_while_loop(state):
    def body(module, c):
        module.put_variable("state", "new", c)
        return c + 1

    def loop(module, x):
        less = lambda _, c: c < 3
        return nn.while_loop(less, body, module, 0, carry_variables="state")

    words = r'"new" in collection "state" at path "/".*while_loop.*before the loop'
    with pytest.raises(errors.CarriedVariableError, match=words):
        Calls(loop).apply(state, X, mutable="state")
    out, new = Calls(loop).apply({"state": {"new": 9}}, X, mutable="state")
    assert (int(out), int(new["state"]["new"])) == (3, 2)


class Count(nn.Module):
    @nn.compact
    def __call__(self, x, _):
        n = self.variable("state", "n", lambda: 0)
        n.value += 1
        return x, None


@pytest.mark.parametrize("length", [None, 0])
def test_a_carried_variable_made_in_no_iteration(length):
    counts = nn.scan(Count, variable_carry="state", length=length)()
    empty = jnp.zeros((0,))
    words = (
        r'"n" in collection "state" at path "/".* none can be created in 0 iterations'
    )
    with pytest.raises(errors.CarriedVariableError, match=words):
        counts.init(KEY, X, empty)
    (_, ys), new = counts.apply({"state": {"n": 3}}, X, empty, mutable="state")
    assert (ys, int(new["state"]["n"])) == (None, 3)


class Step(nn.Module):
    from_carry: bool = False

    @nn.compact
    def __call__(self, x, _):
        if self.from_carry:
            x = x + self.variable("params", "bias", lambda: x).value
        return nn.Dense(4)(x), None


def test_a_shared_parameter_from_a_stream_that_is_split():
    def init(**options):
        layers = nn.scan(Step, variable_broadcast="params", length=2, **options)
        return layers().init({"params": KEY, "dropout": KEY}, X, None)

    with pytest.raises(
        errors.BroadcastVariableError, match=r'split_rngs splits \("params"\)'
    ):
        init(split_rngs={"params": True, "dropout": False})
    split = {"params": False, "dropout": True}
    assert "Dense_0" in init(split_rngs=split)["params"]


def test_a_shared_parameter_from_the_carry_alone():
    layers = nn.scan(
        Step, variable_broadcast="params", split_rngs={"params": False}, length=2
    )
    with pytest.raises(errors.BroadcastVariableError, match="the carry or on scanned"):
        layers(from_carry=True).init(KEY, X, None)


def test_an_axis_that_an_argument_has_not():
    layers = nn.vmap(nn.Dense, {"params": 0}, {"params": True}, in_axes=2)
    with pytest.raises(IndexError, match=r"shape \(3, 2\) over axis 2: in_axes"):
        layers(4).init(KEY, jnp.ones((3, 2)))


# --- derivatives --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"bias": None}, r'no tangent for variable "bias" .*\(/Dense_0/bias\)'),
        (
            {"other": X},
            r'a tangent for variable "other" .*\(/Dense_0/other\).*leave it',
        ),
    ],
)
def test_tangents_that_do_not_fit(change, words):
    def along(module, x):
        dense = nn.Dense(3)
        dense(x)
        tangents = {**dense.variables["params"], **change}
        return nn.jvp(call, dense, (x,), (x,), {"params": tangents})

    with pytest.raises(ValueError, match=words):
        Calls(along).init(KEY, X)


@pytest.mark.parametrize("freeze", [dict, nn.freeze])
def test_tangents_in_a_frozen_dict(freeze):
    def along(module, x):
        dense = nn.Dense(3)
        y = dense(x)
        zero = jnp.zeros_like(x)
        out = nn.jvp(call, dense, (x,), (zero,), freeze(dense.variables))[1]
        return out - y

    assert jnp.abs(Calls(along).init_with_output(KEY, X)[0]).max() < 1e-6


def test_a_wrong_number_of_tangents():
    along = lambda module, x: nn.jvp(call, nn.Dense(3), (x, x), (x,), {})
    with pytest.raises(TypeError, match="one tangent per primal; found 1 for 2"):
        Calls(along).init(KEY, X)


def test_an_auxiliary_result_that_is_not_there():
    pull = lambda module, x: nn.vjp(call, nn.Dense(3), x, has_aux=True)
    with pytest.raises(TypeError, match=r"a pair \(out, aux\); found"):
        Calls(pull).init(KEY, X)


def test_a_forward_rule_that_returns_no_pair():
    def rule(module, x):
        backward = lambda _, g: ({}, g)
        return nn.custom_vjp(call, call, backward)(nn.Dense(2), x).sum()

    model = Calls(rule)
    variables = model.init(KEY, X)
    with pytest.raises(TypeError, match=r"forward function .* a pair \(out, residuals"):
        jax.grad(lambda v: model.apply(v, X))(variables)


def test_a_backward_rule_that_returns_no_tuple():
    def rule(module, x):
        forward = lambda module, x: nn.vjp(call, module, x)
        backward = lambda pull_back, g: g
        return nn.custom_vjp(call, forward, backward)(nn.Dense(2), x).sum()

    model = Calls(rule)
    variables = model.init(KEY, X)
    with pytest.raises(TypeError, match="must return a tuple"):
        jax.grad(lambda v: model.apply(v, X))(variables)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_backward_rule_with_a_wrong_number_of_cotangents(count):
    def rule(module, x):
        forward = lambda module, x: nn.vjp(call, module, x)
        backward = lambda pull_back, g: (*pull_back(g), None)[:count]
        return nn.custom_vjp(call, forward, backward)(nn.Dense(2), x).sum()

    model = Calls(rule)
    variables = model.init(KEY, X)
    words = f"must return 2 values, .*; found {count}"
    with pytest.raises(ValueError, match=words):
        jax.grad(lambda v: model.apply(v, X))(variables)


@pytest.mark.parametrize("multi_scope", [False, True])
def test_several_cotangents_in_the_place_of_one(multi_scope):
    def run(module, x):
        _, pull_back = nn.vjp(call, nn.Dense(2), x, multi_scope=multi_scope)
        return pull_back(jnp.ones((3, 2)), jnp.ones((3, 2)))

    with pytest.raises(TypeError, match=r"f_vjp\(\(2\.0, 2\.0\)\)"):  # JAX's words
        Calls(run).init(KEY, X)


# --- static arguments ---------------------------------------------------------------


@pytest.mark.parametrize("by_name", [False, True])
@pytest.mark.parametrize(
    "option", [{"static_argnums": 2}, {"static_argnames": "sizes"}]
)
def test_a_static_argument_without_a_hash(option, by_name):
    class Sized(nn.Module):
        @nn.compact
        def __call__(self, x, sizes):
            return nn.Dense(sizes[0])(x)

    model = nn.jit(Sized, **option)()

    def run(sizes):
        if by_name:
            return model.init(KEY, X, sizes=sizes)
        return model.init(KEY, X, sizes)

    with pytest.raises(
        ValueError, match=r'"sizes" of .*Sized.__call__ is a list'
    ) as info:
        run([3])
    assert len(str(info.value)) < 400
    assert run((3,))["params"]["Dense_0"]["bias"].shape == (3,)


# --- modules ------------------------------------------------------------------------


def test_an_own_init_without_the_fields_of_all_modules():
    class Own(nn.Module):
        def __init__(self, width):
            self.width = width
            super().__init__()

        @nn.compact
        def __call__(self, x):
            return nn.Dense(self.width)(x)

    with pytest.raises(
        errors.IncorrectPostInitOverrideError,
        match=r"Own has an __init__.*parent and name",
    ):
        Own(3).init(KEY, X)


def test_an_own_init_that_fails_says_why():
    class Own(nn.Module):
        def __init__(self, width=3, **fields):
            super().__init__(**fields)
            if self.scope is not None:
                raise TypeError("of its own")

    with pytest.raises(TypeError, match="of its own"):
        Own(3).bind({})


def test_variables_in_a_method_with_a_name_scope():
    class Scoped(nn.Module):
        @nn.compact_name_scope
        def run(self, x):
            return x * self.param("scale", ONES, (4,))

        def __call__(self, x):
            return self.run(x)

        @nn.compact
        def compact(self, x):
            return self.run(x)

    with pytest.raises(errors.DeclareVariableError, match="makes submodules only"):
        Scoped().init(KEY, X)
    variables = Scoped().init(KEY, X, method="compact")
    assert list(variables["params"]) == ["scale"]


def test_variables_in_a_plain_method():
    class Plain(nn.Module):
        def __call__(self, x):
            return x * self.param("scale", ONES, (4,))

    with pytest.raises(errors.DeclareVariableError, match=r"marked @compact\.$"):
        Plain().init(KEY, X)


# --- arguments of apply and init ----------------------------------------------------


@pytest.mark.parametrize(
    ("params", "words"), [({}, "with nothing in it"), ({"a": 1, "b": 2}, "with: a, b")]
)
def test_a_collection_that_is_wrapped_twice(params, words):
    error = errors.ApplyScopeInvalidVariablesStructureError
    with pytest.raises(error, match=rf"path /params, {words}\)"):
        nn.Dense(3).apply({"params": {"params": params}}, X)


def test_no_key_at_all():
    words = r'"params" at path "/" \(streams there: none\)'
    with pytest.raises(errors.InvalidRngError, match=words) as info:
        nn.Dense(3).init({}, X)
    assert "fall back" not in str(info.value)
    with pytest.raises(errors.InvalidRngError, match='no stream "params" to fall back'):
        nn.Dropout(0.5, deterministic=False).apply({}, X)
