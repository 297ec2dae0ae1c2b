"""What functions of lifted transforms return, and what these return themselves."""

import jax
import jax.numpy as jnp
import pytest

import linen_lift as nn
from linen_lift import errors

KEY, X = jax.random.key(0), jnp.ones((2, 3))


class Block(nn.Module):
    fn: object

    @nn.compact
    def __call__(self, x):
        return self.fn(self, x)


def run(fn):
    return Block(fn).init_with_output(KEY, X)[0]


def test_the_cotangents_of_one_scope_are_a_list_if_asked():
    def pulled(**options):
        def fn(_, x):
            dense = nn.Dense(1, name="dense")
            out, pull_back = nn.vjp(lambda d, x: d(x), dense, x, **options)
            return pull_back(jnp.ones_like(out))

        return run(fn)

    variables, x = pulled(multi_scope=True)
    assert isinstance(variables, list) and len(variables) == 1
    alone, _ = pulled()
    assert variables[0]["params"]["kernel"].tolist() == [[2], [2], [2]]
    assert jax.tree.all(jax.tree.map(jnp.array_equal, variables[0], alone))
    assert x.shape == X.shape


def test_a_list_of_one_goes_into_custom_vjp():
    def call(dense, x):
        return dense(x)

    def forward(dense, x):
        return nn.vjp(call, dense, x, multi_scope=True)

    def backward(pull_back, cotangent):
        variables, x = pull_back(cotangent)
        return jax.tree.map(lambda g: 2 * g, variables), x

    def fn(_, x):
        return nn.custom_vjp(call, forward, backward)(nn.Dense(1), x).sum()

    variables = Block(fn).init(KEY, X)
    grads = jax.grad(lambda v: Block(fn).apply(v, X))(variables)
    assert grads["params"]["Dense_0"]["bias"].tolist() == [4]


def both(a, b, x):
    return (a(x) + b["b"](x)).sum()


def test_a_module_among_the_primals_has_none():
    def with_one(a, b, x):
        return both(a, {"b": b}, x)

    def one(_, x):
        a, b = nn.Dense(1), nn.Dense(1)
        return nn.value_and_grad(with_one, a, b, x)[1], nn.grad(with_one, a, b, x)

    def several(_, x):
        a, b = nn.Dense(1), nn.Dense(1)
        out, pull_back = nn.vjp(both, a, {"b": b}, x, multi_scope=True)
        variables, *found = pull_back(jnp.ones_like(out))
        assert len(variables) == 2
        return found, nn.grad(both, a, {"b": b}, x)

    for nested, x in run(several):
        assert nested == {"b": None} and x.shape == X.shape
    for none, x in run(one):
        assert none is None and x.shape == X.shape


def test_what_pull_back_gives_for_a_module_goes_into_custom_vjp():
    def call(a, b, x):
        return a(x) + b(x)

    def forward(a, b, x):
        return nn.vjp(call, a, b, x, multi_scope=True)

    def backward(pull_back, cotangent):
        return pull_back(cotangent)

    def fn(_, x):
        a, b = nn.Dense(1), nn.Dense(1)
        return nn.custom_vjp(call, forward, backward)(a, b, x).sum()

    variables = Block(fn).init(KEY, X)
    grads = jax.grad(lambda v: Block(fn).apply(v, X))(variables)["params"]
    assert grads["Dense_0"]["bias"].tolist() == [2]
    assert grads["Dense_1"]["bias"].tolist() == [2]


def test_the_body_of_a_scan_may_return_a_list():
    shared = {"variable_broadcast": "params", "split_rngs": {"params": False}}

    def body(dense, carry, x):
        return [dense(carry), x]

    def fn(_, x):
        return nn.scan(body, **shared)(nn.Dense(3), x[0], x)

    carry, ys = run(fn)
    assert carry.shape == (3,) and ys.tolist() == X.tolist()

    def three(dense, carry, x):
        return [dense(carry), x, x]

    def wrong(_, x):
        return nn.scan(three, **shared)(nn.Dense(3), x[0], x)

    with pytest.raises(TypeError, match="must return a pair"):
        run(wrong)


def test_auxiliary_results_and_residuals_may_come_in_a_list():
    def fn(_, x):
        pair = lambda dense, x: [dense(x).sum(), x]
        (_, aux), _ = nn.value_and_grad(pair, nn.Dense(2), x, has_aux=True)
        return aux

    assert run(fn).tolist() == X.tolist()

    def rule(_, x):
        call = lambda dense, x: dense(x)
        forward = lambda dense, x: [*nn.vjp(call, dense, x)]
        backward = lambda pull_back, g: pull_back(g)
        return nn.custom_vjp(call, forward, backward)(nn.Dense(2), x).sum()

    variables = Block(rule).init(KEY, X)
    grads = jax.grad(lambda v: Block(rule).apply(v, X))(variables)["params"]
    assert grads["Dense_0"]["bias"].tolist() == [2, 2]


def sown_in_one(module, x):
    def sow(module, x):
        module.sow("seen", "h", x)
        return x

    return nn.cond(x.sum() > 0, sow, lambda module, x: x, module, x)


class Outer(nn.Module):
    fn: object

    @nn.compact
    def __call__(self, x):
        return Block(self.fn, name="block")(x)


def test_what_to_do_about_a_value_that_one_branch_sows():
    with pytest.raises(errors.BranchVariablesError) as info:
        Outer(sown_in_one).apply({}, X, mutable="seen")
    message = str(info.value)
    assert '"h" in collection "seen" at path "/block" (/block/h)' in message
    assert "sow or capture it in all of them" in message
    assert "out of mutable of apply" in message and "initializing" not in message
    # As it says.
    assert Outer(sown_in_one).apply({}, X).tolist() == X.tolist()


def test_what_to_do_about_a_variable_that_one_branch_creates():
    def fn(module, x):
        dense = nn.Dense(3, name="dense")
        return nn.cond(True, lambda m, x: m(x), lambda m, x: x, dense, x)

    with pytest.raises(errors.BranchVariablesError) as info:
        Outer(fn).init(KEY, X)
    assert "run all branches once before" in str(info.value)


def test_what_capture_intermediates_notes_in_one_branch():
    def fn(module, x):
        dense = nn.Dense(3, name="dense")
        dense(x)
        return nn.cond(True, lambda m, x: m(x), lambda m, x: x, dense, x)

    model = Outer(fn)
    variables = model.init(KEY, X)
    with pytest.raises(errors.BranchVariablesError, match="capture it in all"):
        model.apply(variables, X, capture_intermediates=True)


def test_the_place_of_a_variable_of_the_outermost_scope():
    with pytest.raises(errors.BranchVariablesError, match=r'at path "/" \(/h\)'):
        Block(sown_in_one).apply({}, X, mutable="seen")
