"""The jaxpr of a lifted apply has the equations of the same thing written by hand."""

import re
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import graphcore as gc
import linen_lift as nn

KEY = jax.random.key(0)
X = jnp.ones((2, 4))


class Block(nn.Module):
    """A residual block that also updates a running mean, where that is mutable."""

    @nn.compact
    def __call__(self, x):
        h = nn.Dense(8)(x)
        h = nn.tanh(h)
        mean = self.variable("stats", "mean", jnp.zeros, (8,))
        if not self.is_initializing() and mean.is_mutable():
            mean.value = 0.9 * mean.value + h.mean(0)
        return x + nn.Dense(4)(h)


def dense(p, x):
    return x @ p["kernel"] + p["bias"]


def block(v, x):
    p = v["params"]
    h = jnp.tanh(dense(p["Dense_0"], x))
    return x + dense(p["Dense_1"], h)


def block_with_stats(v, x):
    p = v["params"]
    h = jnp.tanh(dense(p["Dense_0"], x))
    mean = 0.9 * v["stats"]["mean"] + h.mean(0)
    return x + dense(p["Dense_1"], h), mean


def of(variables, name):
    return {c: t[name] for c, t in variables.items()}


def net(make):
    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            for i in range(2):
                x = make()(name=f"b{i}")(x)
            return x

    return Net()


def equations(jaxpr):
    """Primitives, shapes and inner jaxprs; how variables are called is irrelevant."""
    found = []
    for eqn in jaxpr.eqns:
        inner = [
            equations(getattr(v, "jaxpr", v))
            for p in eqn.params.values()
            for v in (p if isinstance(p, (tuple, list)) else (p,))
            if hasattr(getattr(v, "jaxpr", v), "eqns")
        ]
        ins = [str(v.aval) for v in eqn.invars]
        outs = [str(v.aval) for v in eqn.outvars]
        found.append((eqn.primitive.name, sorted(ins), sorted(outs), inner))
    return found


def same(ours, by_hand, *args):
    with jax.checking_leaks():
        found = jax.make_jaxpr(ours)(*args)
        expected = jax.make_jaxpr(by_hand)(*args)
    assert equations(found.jaxpr) == equations(expected.jaxpr)


def twice(step):
    def run(v, x):
        for i in range(2):
            x = step(of(v, f"b{i}"), x)
        return x

    return run


@pytest.mark.parametrize(
    ("make", "by_hand"),
    [
        (lambda: Block, twice(block)),
        (lambda: nn.named_call(Block), twice(block)),
        (lambda: nn.fold_rngs(Block), twice(block)),
        (lambda: nn.add_metadata_axis(Block), twice(block)),
        (lambda: nn.remat(Block), twice(lambda v, x: jax.checkpoint(block)(v, x))),
        (lambda: nn.jit(Block), twice(lambda v, x: jax.jit(block)(v, x))),
        (
            lambda: nn.vmap(Block, {True: None}, in_axes=0),
            twice(lambda v, x: jax.vmap(block, (None, 0))(v, x)),
        ),
    ],
    ids=["plain", "named_call", "fold_rngs", "metadata", "remat", "jit", "vmap"],
)
def test_wrapped_blocks(make, by_hand):
    model = net(make)
    variables = jax.eval_shape(net(lambda: Block).init, KEY, X)
    same(model.apply, by_hand, variables, X)
    same(
        jax.grad(lambda v, x: model.apply(v, x).sum()),
        jax.grad(lambda v, x: by_hand(v, x).sum()),
        variables,
        X,
    )


@pytest.mark.parametrize(
    ("make", "wrap"),
    [
        (lambda: Block, lambda f: f),
        (lambda: nn.remat(Block), jax.checkpoint),
        (lambda: nn.jit(Block), jax.jit),
    ],
    ids=["plain", "remat", "jit"],
)
def test_only_what_changed_comes_out(make, wrap):
    def by_hand(v, x):
        stats = {}
        for i in range(2):
            x, mean = wrap(block_with_stats)(of(v, f"b{i}"), x)
            stats[f"b{i}"] = {"mean": mean}
        return x, {"stats": stats}

    model = net(make)
    variables = jax.eval_shape(net(lambda: Block).init, KEY, X)
    same(lambda v, x: model.apply(v, x, mutable=True), by_hand, variables, X)


def test_vmap_over_variables():
    axes = {"params": 0, "stats": 0}
    model = nn.vmap(Block, axes, {"params": True})()
    xs = jnp.ones((3, 2, 4))
    variables = jax.eval_shape(model.init, KEY, xs)
    same(model.apply, jax.vmap(block), variables, xs)


@pytest.mark.parametrize("reverse", [False, True])
def test_scan(reverse):
    class Body(nn.Module):
        @nn.compact
        def __call__(self, x, shift):
            return Block(name="b")(x) + shift, None

    Loop = nn.scan(
        Body, {"params": 0, "stats": 0}, split_rngs={"params": True}, reverse=reverse
    )
    shifts = jnp.ones(3)
    variables = jax.eval_shape(Loop().init, KEY, X, shifts)

    def by_hand(v, x, shifts):
        def body(x, slices):
            v, shift = slices
            return block(of(v, "b"), x) + shift, None

        return lax.scan(body, x, (v, shifts), reverse=reverse)

    same(Loop().apply, by_hand, variables, X, shifts)


def test_scan_with_broadcast_parameters_and_carried_statistics():
    class Body(nn.Module):
        @nn.compact
        def __call__(self, x, _):
            return Block(name="b")(x), None

    Loop = nn.scan(
        Body,
        variable_broadcast="params",
        variable_carry="stats",
        length=3,
        split_rngs={"params": False},
    )
    variables = jax.eval_shape(Loop().init, KEY, X, None)

    def by_hand(v, x):
        def body(state, _):
            mean, x = state
            x, mean = block_with_stats(
                {"params": v["params"]["b"], "stats": {"mean": mean}}, x
            )
            return (mean, x), None

        (mean, x), _ = lax.scan(body, (v["stats"]["b"]["mean"], x), length=3)
        return x, mean

    same(lambda v, x: Loop().apply(v, x, None, mutable="stats"), by_hand, variables, X)


class Uses(nn.Module):
    body: object

    @nn.compact
    def __call__(self, x):
        inner = Block(name="b")
        return inner(x) if self.is_initializing() else self.body(inner, x)


CALLS = {
    "cond": (
        lambda b, x: nn.cond(x.sum() > 0, lambda b, x: b(x), lambda b, x: x, b, x),
        lambda v, x: lax.cond(x.sum() > 0, block, lambda v, x: x, v, x),
    ),
    "switch": (
        lambda b, x: nn.switch(1, [lambda b, x: b(x), lambda b, x: x], b, x),
        lambda v, x: lax.switch(1, [block, lambda v, x: x], v, x),
    ),
    "while_loop": (
        lambda b, x: nn.while_loop(lambda _, x: x.sum() < 9, lambda b, x: b(x), b, x),
        lambda v, x: lax.while_loop(lambda x: x.sum() < 9, lambda x: block(v, x), x),
    ),
    "vjp": (
        lambda b, x: nn.vjp(lambda b, x: b(x), b, x)[1](x),
        lambda v, x: jax.vjp(lambda p, x: block({"params": p}, x), v["params"], x)[1](
            x
        ),
    ),
    "grad": (
        lambda b, x: nn.grad(lambda b, x: b(x).sum(), b, x),
        lambda v, x: jax.vjp(lambda x: block(v, x).sum(), x)[1](jnp.ones(())),
    ),
    "jvp": (
        lambda b, x: nn.jvp(lambda b, x: b(x), b, (x,), (x,), {}),
        lambda v, x: jax.jvp(lambda x: block(v, x), (x,), (x,)),
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_calls(name):
    ours, by_hand = CALLS[name]
    model = Uses(ours)
    variables = jax.eval_shape(model.init, KEY, X)
    hand = lambda v, x: by_hand(of(v, "b"), x)
    if name == "grad":
        # `ones_like` of the result is the only thing beside it.
        found = equations(jax.make_jaxpr(model.apply)(variables, X).jaxpr)
        expected = equations(jax.make_jaxpr(hand)(variables, X).jaxpr)
        assert [e[0] for e in found] == [e[0] for e in expected]
        return
    same(model.apply, hand, variables, X)


def test_keys_cost_one_fold_each():
    class Noisy(nn.Module):
        @nn.compact
        def __call__(self, x):
            for _ in range(3):
                x = x + self.make_rng("noise").size
            return nn.Dense(4)(x)

    variables = jax.eval_shape(nn.Dense(4).init, KEY, X)
    variables = {"params": {"Dense_0": variables["params"]}}
    jaxpr = jax.make_jaxpr(lambda v, k: Noisy().apply(v, X, rngs={"noise": k}))
    names = [e.primitive.name for e in jaxpr(variables, KEY).jaxpr.eqns]
    assert names.count("random_fold_in") == 3
    quiet = jax.make_jaxpr(
        lambda v, k: net(lambda: nn.remat(Block)).apply(v, X, rngs={"noise": k})
    )
    variables = jax.eval_shape(net(lambda: Block).init, KEY, X)
    assert "fold_in" not in str(quiet(variables, KEY))


@pytest.mark.parametrize(
    "lift",
    [
        lambda f: f,
        nn.remat,
        nn.jit,
        lambda f: nn.vmap(
            f, {"params": None}, split_rngs={"params": False, "noise": True}, in_axes=0
        ),
    ],
)
def test_operations_come_from_lines_of_the_user(lift):
    class Noisy(nn.Module):
        @nn.compact
        def __call__(self, x):
            bias = self.param("bias", nn.initializers.normal(), (4,))
            return x + jax.random.normal(self.make_rng("noise")) * bias

    keys = {"params": KEY, "noise": KEY}
    lowered = jax.jit(lift(Noisy)().init_with_output).lower(keys, X)
    files = re.findall(r'loc\("([^"]+\.py)"', lowered.as_text(debug_info=True))
    ours = tuple(str(Path(package.__file__).parent) for package in (gc, nn))
    # Lines of layers may be shown, and JAX keeps traces of its functions with those
    # that called them first.
    shown = str(Path(nn.__file__).parent / "layers")
    assert __file__ in files
    assert not [x for x in files if x.startswith(ours) and not x.startswith(shown)]
