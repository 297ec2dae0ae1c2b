"""Features of modules inside of lifted transforms, and transforms inside of others."""

import threading
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import linen_lift as nn

KEYS = {"params": jax.random.key(0), "noise": jax.random.key(1)}
X = jnp.ones((2, 4))
TRANSFORMS = [nn.remat, nn.jit, nn.fold_rngs]


def close(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    same = jax.tree.map(lambda x, y: bool(jnp.allclose(x, y, atol=1e-5)), a, b)
    return jax.tree.all(same)


class Lora(nn.Module):
    def setup(self):
        self.base = nn.Dense(4)
        nn.share_scope(self, self.base)

    @nn.compact
    def __call__(self, x):
        return self.base(x) * self.param("scale", nn.initializers.ones, ())


class NameScopes(nn.Module):
    @nn.compact_name_scope
    def up(self, x):
        return nn.Dense(4)(x)

    @nn.compact
    def __call__(self, x):
        return nn.Dense(4)(self.up(x))


class Noisy(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.Dense(4)(x) + jax.random.normal(self.make_rng("noise"), x.shape)
        return x + jax.random.normal(self.make_rng("noise"), x.shape)


class Nested(nn.Module):
    """The given transform inside of itself, at a path of its own."""

    lift: Any = staticmethod(lambda c: c)

    @nn.compact
    def __call__(self, x):
        return self.lift(Noisy)(name="a")(x) + self.lift(Noisy)(name="b")(x)


class Outer(nn.Module):
    make: Any

    @nn.compact
    def __call__(self, x):
        inner = self.make(name="inner")
        return inner(inner(x))


@pytest.mark.parametrize("lift", TRANSFORMS)
@pytest.mark.parametrize("cls", [Lora, NameScopes, Noisy])
def test_features_inside(lift, cls):
    expected, variables = Outer(cls).init_with_output(KEYS, X)
    out, made = Outer(lift(cls)).init_with_output(KEYS, X)
    assert close((out, made), (expected, variables))
    found = Outer(lift(cls)).apply(variables, X, rngs=KEYS)
    assert close(found, Outer(cls).apply(variables, X, rngs=KEYS))


@pytest.mark.parametrize("lift", TRANSFORMS)
@pytest.mark.parametrize("inner", TRANSFORMS)
def test_keys_are_those_of_the_path_at_any_depth(lift, inner):
    plain = Outer(Nested)
    lifted = Outer(lambda name: lift(Nested)(inner, name=name))
    expected, variables = plain.init_with_output(KEYS, X)
    assert close(lifted.init_with_output(KEYS, X), (expected, variables))
    assert close(
        lifted.apply(variables, X, rngs=KEYS), plain.apply(variables, X, rngs=KEYS)
    )


def test_a_jitted_module_in_mapped_and_looped_ones():
    def body(module, carry, _):
        mapped = nn.vmap(
            lambda m, x: nn.jit(Noisy)(name="n")(x[None])[0],
            {"params": None},
            {"params": False, "noise": True},
        )
        return mapped(module, carry), None

    def by_hand(module, carry, _):
        mapped = nn.vmap(
            lambda m, x: Noisy(name="n")(x[None])[0],
            {"params": None},
            {"params": False, "noise": True},
        )
        return mapped(module, carry), None

    class Loop(nn.Module):
        body: Any

        @nn.compact
        def __call__(self, x):
            split = {"params": False, "noise": True}
            loop = nn.scan(
                self.body, variable_broadcast="params", split_rngs=split, length=3
            )
            return loop(self, x, None)[0]

    expected, variables = Loop(by_hand).init_with_output(KEYS, X)
    assert close(Loop(body).init_with_output(KEYS, X), (expected, variables))


def test_custom_vjp_in_a_jitted_module_draws_the_same_keys():
    f = lambda m, x: m(x)
    bwd = lambda pull_back, g: pull_back(g)

    class Custom(nn.Module):
        @nn.compact
        def __call__(self, x):
            return nn.custom_vjp(f, lambda m, x: nn.vjp(f, m, x), bwd)(
                Noisy(name="n"), x
            )

    class Plain(nn.Module):
        @nn.compact
        def __call__(self, x):
            return Noisy(name="n")(x)

    variables = Outer(Plain).init(KEYS, X)

    def grads(cls):
        loss = lambda v: (Outer(cls).apply(v, X, rngs=KEYS) ** 2).sum()
        return jax.grad(loss)

    expected = jax.jit(grads(Plain))(variables)
    for cls in (Custom, nn.jit(Custom), nn.remat(Custom)):
        assert close(jax.jit(grads(cls))(variables), expected)
    assert close(grads(nn.jit(Custom))(variables), expected)


def test_batch_norm_carried_through_a_loop():
    class Body(nn.Module):
        @nn.compact
        def __call__(self, x, _):
            return nn.BatchNorm(False, momentum=0.5, name="norm")(x) + 1, None

    Loop = nn.scan(
        Body,
        variable_broadcast="params",
        variable_carry="batch_stats",
        split_rngs={"params": False},
        length=3,
    )
    variables = Loop().init(KEYS, X, None)
    (out, _), updated = Loop().apply(variables, X, None, mutable="batch_stats")
    x, current = X, variables
    for _ in range(3):
        (x, _), new = Body().apply(current, x, None, mutable="batch_stats")
        current = {**current, **new}
    assert close((out, updated), (x, new))


def test_intermediates_come_out_of_lifted_modules():
    class Sows(nn.Module):
        @nn.compact
        def __call__(self, x, _):
            x = nn.Dense(4, name="d")(x)
            self.sow("intermediates", "h", x)
            return x, None

    axes = {"params": 0, "intermediates": 0}
    Loop = nn.scan(Sows, axes, split_rngs={"params": True}, length=3)
    variables = Loop().init(KEYS, X, None)
    (out, _), updated = Loop().apply(variables, X, None, mutable="intermediates")
    assert updated["intermediates"]["h"][0].shape == (3, 2, 4)
    assert (updated["intermediates"]["h"][0][-1] == out).all()
    model = nn.remat(nn.Dense)(4)
    variables = model.init(KEYS, X)
    out, updated = model.apply(variables, X, capture_intermediates=True)
    assert (updated["intermediates"]["__call__"][0] == out).all()


def test_bound_modules_call_lifted_ones():
    class Net(nn.Module):
        def setup(self):
            self.inner = nn.jit(nn.Dense)(4)

        @nn.remat
        def encode(self, x):
            return self.inner(x)

        def __call__(self, x):
            return self.encode(x)

    variables = Net().init(KEYS, X)
    bound = Net().bind(variables)
    assert close(bound.encode(X), Net().apply(variables, X))
    assert close(bound.inner(X), bound(X))


def test_an_error_in_a_jitted_module_leaves_everything_usable():
    class Fails(nn.Module):
        flag: bool = True

        @nn.compact
        def __call__(self, x):
            n = self.variable("state", "n", lambda: 0)
            n.value += 1
            if self.flag:
                raise RuntimeError("mine")
            return nn.Dense(4)(x)

    class Tries(nn.Module):
        lift: Any

        @nn.compact
        def __call__(self, x):
            with pytest.raises(RuntimeError, match="mine"):
                self.lift(Fails)(name="a")(x)
            assert not self.scope.push("a", reuse=True).has_variable("state", "n")
            return self.lift(Fails)(False, name="b")(x)

    for lift in (*TRANSFORMS, lambda c: nn.vmap(c, {True: 0}, {True: True})):
        variables = Tries(lift).init(KEYS, X)
        assert sorted(variables["state"]) == ["b"]


def test_threads_share_compiled_functions():
    model = nn.jit(Noisy)()
    variables = model.init(KEYS, X)
    expected = model.apply(variables, X, rngs=KEYS)
    results = []

    def work():
        results.extend(model.apply(variables, X, rngs=KEYS) for _ in range(5))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(results) == 20 and all(close(r, expected) for r in results)


def test_weight_tying_by_mapped_variables():
    class Auto(nn.Module):
        @nn.compact
        def __call__(self, x):
            dense = nn.Dense(3, use_bias=False, name="encode")
            h = dense(x)
            transposed = lambda cols: jax.tree.map(jnp.transpose, cols)
            Decode = nn.map_variables(
                nn.Dense, "params", transposed, transposed, init=True
            )
            decode = Decode(4, use_bias=False, name="decode")
            return decode(h), h

    (out, h), variables = Auto().init_with_output(KEYS, X)
    assert variables["params"]["decode"]["kernel"].shape == (4, 3)
    assert close(out, h @ variables["params"]["decode"]["kernel"].T)
    assert close(Auto().apply(variables, X)[0], out)
    assert close(Auto().apply(variables, X, mutable=True)[0][0], out)


def test_a_compilation_serves_every_depth_with_the_keys_of_each():
    log = []

    class Deep(nn.Module):
        depth: int
        lift: Any

        @nn.compact
        def __call__(self, x):
            if self.depth:
                x = Deep(self.depth - 1, self.lift, name="deeper")(x)
            return self.lift(Logged)(name="noisy")(x)

    class Logged(Noisy):
        @nn.compact
        def __call__(self, x):
            log.append(1)
            x = nn.Dense(4)(x)
            return x + jax.random.normal(self.make_rng("noise"), x.shape)

    expected = Deep(3, lambda c: c).init_with_output(KEYS, X)
    log.clear()
    assert close(Deep(3, nn.jit).init_with_output(KEYS, X), expected)
    assert len(log) == 1
