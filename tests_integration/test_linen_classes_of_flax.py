"""Transformed classes of modules do what they do with Flax Linen."""

import functools
from typing import Any

import flax.core
import jax
import jax.numpy as jnp
import pytest
from linen_comparison import (
    ALL,
    KEYS,
    SPLIT,
    XS,
    X,
    block,
    both,
    changed,
    dense,
    pattern,
    raised,
    ramp,
    run,
    step,
)

import linen_lift

SAME = {
    "jit": lambda nn, c: nn.jit(c),
    "remat": lambda nn, c: nn.remat(c),
    "remat_of_jit": lambda nn, c: nn.remat(nn.jit(c)),
    "jit_of_remat": lambda nn, c: nn.jit(nn.remat(c)),
    "fold_rngs": lambda nn, c: nn.fold_rngs(c),
    "partial": lambda nn, c: nn.remat(functools.partial(c, scale=2.0)),
    "methods": lambda nn, c: nn.jit(c, methods=["__call__", "half"]),
    "policy": lambda nn, c: nn.remat(
        c, policy=jax.checkpoint_policies.dots_saveable, prevent_cse=False
    ),
}


@pytest.mark.parametrize("name", SAME)
@both
def test_a_class_that_is_used_as_before(nn, name):
    Lifted = SAME[name](nn, block(nn))

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            return Lifted()(Lifted(name="named")(Lifted()(x)))

    return run(Net(), X), run(Lifted(), X, method="half")


@both
def test_names_of_transformed_classes(nn):
    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            x = nn.jit(nn.Dense)(3)(nn.remat(nn.Dense)(3)(x))
            x = nn.vmap(nn.Dense, {"params": None}, {"params": False})(3)(x)
            x = nn.map_variables(nn.Dense, "params", init=True)(3)(x)
            x = nn.fold_rngs(nn.Dense)(3)(nn.jit(nn.remat(nn.Dense))(3)(x))
            return nn.checkpoint(functools.partial(nn.Dense, 3))()(x)

    return sorted(Net().init(KEYS, X)["params"]), nn.jit(nn.Dense).__name__


@both
def test_what_a_transform_leaves_out(nn):
    class Net(nn.Module):
        lift: Any

        @nn.compact
        def __call__(self, x):
            return self.lift(block(nn))()(x)

    without = lambda c: nn.remat(c, variables="params")
    no_keys = lambda c: nn.jit(c, rngs=False)
    return (
        raised(Net(without).init, KEYS, X),
        raised(Net(no_keys).init, KEYS, X),
        run(Net(lambda c: nn.remat(c, variables=["params", "stats"])), X),
    )


@both
def test_static_arguments(nn):
    class Net(nn.Module):
        @nn.compact
        def __call__(self, x, double, *, shift=0.0):
            return dense(nn)(2 * x if double else x) + shift

    Jit = nn.jit(Net, static_argnums=2)
    Remat = nn.remat(Net, static_argnums=(2,))
    return (
        run(Jit(), X, True),
        run(Remat(), X, False),
        raised(nn.jit(Net)().init, KEYS, X, True),
    )


@both
def test_vmap_of_a_class(nn):
    Lifted = nn.vmap(block(nn), ALL, SPLIT)
    return run(Lifted(), XS), raised(Lifted().init, KEYS, X[0, 0])


@both
def test_vmap_with_shared_parameters(nn):
    Lifted = nn.vmap(block(nn), {**ALL, "params": None}, {"params": False})
    return run(Lifted(), XS)


@both
def test_vmap_with_other_axes(nn):
    axes = {**ALL, "params": 1}
    Lifted = nn.vmap(block(nn), axes, SPLIT, in_axes=1, out_axes=2)
    return run(Lifted(), jnp.moveaxis(XS, 0, 1))


@both
def test_vmap_over_an_axis_that_variables_have_not(nn):
    lifted = nn.vmap(block(nn), {**ALL, "params": 0}, SPLIT)
    variables = lifted().init(KEYS, XS)
    further = nn.vmap(block(nn), {**ALL, "params": 4}, SPLIT)
    return raised(further().apply, variables, XS), raised(further().init, KEYS, XS)


@both
def test_vmap_over_nothing_but_the_size(nn):
    Lifted = nn.vmap(block(nn), ALL, SPLIT, in_axes=None, axis_size=3)
    return run(Lifted(), X), raised(
        nn.vmap(block(nn), ALL, SPLIT, in_axes=None)().init, KEYS, X
    )


@both
def test_vmap_without_a_collection(nn):
    Lifted = nn.vmap(block(nn), {"params": 0}, SPLIT)
    return raised(Lifted().init, KEYS, XS)


@both
def test_vmap_without_a_stream(nn):
    Lifted = nn.vmap(block(nn), ALL)
    return raised(Lifted().init, KEYS, XS)


@both
def test_vmap_with_an_axis_name(nn):
    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            return jax.lax.pmean(dense(nn)(x), "batch")

    Lifted = nn.vmap(Net, {"params": None}, {"params": False}, axis_name="batch")
    return run(Lifted(), XS)


@both
def test_vmap_of_several_arguments(nn):
    class Net(nn.Module):
        @nn.compact
        def __call__(self, x, pair, scale):
            return dense(nn)(x) * scale, pair["a"] + pair["b"]

    Lifted = nn.vmap(
        Net,
        {"params": 0},
        {"params": True},
        in_axes=(0, {"a": 0, "b": None}, None),
        out_axes=(1, 0),
    )
    return run(Lifted(), XS, {"a": XS, "b": X}, 2.0)


@both
def test_vmap_of_methods(nn):
    class Net(nn.Module):
        def setup(self):
            self.inner = dense(nn)

        def __call__(self, x):
            return self.inner(x)

        def twice(self, x):
            return self(self(x))

    options = {"variable_axes": {"params": 0}, "split_rngs": {"params": True}}
    Lifted = nn.vmap(Net, methods=["__call__", "twice"], **options)
    own = nn.vmap(
        Net,
        methods={
            "__call__": options,
            "twice": {**options, "in_axes": 1, "out_axes": 1},
        },
    )
    moved = jnp.moveaxis(XS, 0, 1)
    return run(Lifted(), XS, method="twice"), run(own(), moved, method="twice")


@both
def test_vmap_in_one_direction(nn):
    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            bias = self.get_variable("given", "b")
            self.sow("intermediates", "x", x)
            return dense(nn)(x) + bias

    library = linen_lift if nn is linen_lift else flax.core.lift
    axes = {"params": 0, "given": library.In(0), "intermediates": library.Out(1)}
    model = nn.vmap(Net, axes, {"params": True})()
    given = {"given": {"b": jnp.ones((2, 3))}}
    params = {
        "params": {"Dense_0": {"kernel": jnp.ones((2, 3, 3)), "bias": jnp.ones((2, 3))}}
    }
    return model.apply({**given, **params}, XS, mutable=["intermediates", "given"])


@both
def test_keys_in_a_vmap(nn):
    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            key = [
                self.make_rng("noise"),
                self.make_rng("params"),
                self.make_rng("noise"),
            ]
            return jnp.stack([jax.random.key_data(k) for k in key])

    found = []
    for noise in (True, False):
        model = nn.vmap(Net, {}, {"params": False, "noise": noise})()
        found.append(pattern(jax.random.wrap_key_data(model.apply({}, XS, rngs=KEYS))))
    return found


@both
def test_scan_of_a_class(nn):
    Lifted = nn.scan(step(nn), variable_axes=ALL, split_rngs=SPLIT)
    return run(Lifted(), X, XS)


@pytest.mark.parametrize(
    ("options", "axis"),
    [
        ({"reverse": True}, 0),
        ({"unroll": 2}, 0),
        ({"in_axes": 1, "out_axes": -1}, 1),
        ({"in_axes": "broadcast", "length": 3}, None),
    ],
)
@both
def test_scan_with_options(nn, options, axis):
    class Step(nn.Module):
        @nn.compact
        def __call__(self, carry, x):
            carry = carry * self.param("w", ramp()) + x
            return carry, 2 * carry

    if axis is None:
        options = {**options, "in_axes": nn.broadcast}
    Lifted = nn.scan(Step, {"params": 0}, split_rngs=SPLIT, **options)
    xs = X if axis is None else jnp.moveaxis(XS, 0, axis)
    return run(Lifted(), X, xs)


@both
def test_scan_with_shared_parameters(nn):
    axes = {k: v for k, v in ALL.items() if k != "params"}
    Lifted = nn.scan(step(nn), axes, "params", split_rngs={"params": False})
    return run(Lifted(), X, XS)


@both
def test_scan_with_a_carried_collection(nn):
    class Net(nn.Module):
        @nn.compact
        def __call__(self, carry, x):
            n = self.variable("cache", "n", lambda: jnp.zeros(()))
            n.value += x.sum()
            return carry + n.value, dense(nn)(carry)

    Lifted = nn.scan(Net, {"params": 0}, variable_carry="cache", split_rngs=SPLIT)
    one = Net().init(KEYS, X, X)
    variables = {
        "params": jax.tree.map(lambda a: jnp.stack([a, a]), one["params"]),
        "cache": one["cache"],
    }
    return Lifted().apply(variables, X, XS, mutable=["cache"])


@both
def test_scan_of_wrong_lengths(nn):
    Lifted = nn.scan(step(nn), variable_axes=ALL, split_rngs=SPLIT, length=3)
    none = nn.scan(step(nn), variable_axes=ALL, split_rngs=SPLIT)
    return raised(Lifted().init, KEYS, X, XS), raised(none().init, KEYS, X, None)


@both
def test_scan_of_several_arguments(nn):
    class Net(nn.Module):
        @nn.compact
        def __call__(self, carry, x, pair, fixed):
            a, b = carry
            return (a + x, dense(nn)(b)), (fixed * pair["u"], pair["v"])

    Lifted = nn.scan(
        Net,
        {"params": 0},
        split_rngs=SPLIT,
        in_axes=(0, {"u": 0, "v": 1}, nn.broadcast),
        out_axes=(1, 0),
    )
    pair = {"u": XS, "v": jnp.moveaxis(XS, 0, 1)}
    return run(Lifted(), (X, X), XS, pair, 2.0)


@both
def test_scan_of_a_method(nn):
    class Net(nn.Module):
        @functools.partial(nn.scan, variable_axes={"params": 0}, split_rngs=SPLIT)
        @nn.compact
        def __call__(self, carry, x):
            return dense(nn)(carry) + x, None

    return run(Net(), X, XS)


@both
def test_scan_in_a_scan(nn):
    class Outer(nn.Module):
        @nn.compact
        def __call__(self, carry, x):
            Inner = nn.scan(step(nn), variable_axes=ALL, split_rngs=SPLIT, length=2)
            return Inner()(carry, jnp.stack([x, x]))

    Lifted = nn.scan(nn.remat(Outer), variable_axes=ALL, split_rngs=SPLIT)
    return run(Lifted(), X, XS)


@both
def test_keys_in_a_scan(nn):
    class Net(nn.Module):
        @nn.compact
        def __call__(self, carry, x):
            keys = [self.make_rng("noise"), self.make_rng("params")]
            return carry, jnp.stack([jax.random.key_data(k) for k in keys])

    model = nn.scan(Net, split_rngs={"noise": True, "params": False}, length=3)()
    ys = model.apply({}, X, None, rngs=KEYS)[1]
    return pattern(jax.random.wrap_key_data(ys))


@both
def test_remat_scan_of_a_class(nn):
    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            return jnp.tanh(dense(nn)(x))

    return run(nn.remat_scan(Net, lengths=(2, 3))(), X)


@both
def test_map_variables_of_a_layer(nn):
    def transposed(collections):
        return jax.tree.map(jnp.transpose, collections)

    Lifted = nn.map_variables(nn.Dense, "params", transposed, transposed, init=True)
    fields = {"kernel_init": ramp(), "bias_init": ramp()}
    variables = Lifted(2, **fields).init(KEYS, X)
    return variables, Lifted(2, **fields).apply(changed(variables), X)


@both
def test_tied_weights_by_map_variables(nn):
    class Net(nn.Module):
        def setup(self):
            self.encoder = dense(nn, 2, use_bias=False)

        def decode(self, x):
            transposed = lambda v: jax.tree.map(lambda w: w.T, v)
            call = nn.map_variables(
                lambda m, x: x @ m.variables["params"]["kernel"], "params", transposed
            )
            return call(self.encoder, x)

        def __call__(self, x):
            return self.decode(self.encoder(x))

    return run(Net(), X)


@both
def test_metadata_of_axes(nn):
    make = nn.with_partitioning(ramp(), ("in", "out"))
    options = {"metadata_params": {flax.core.meta.PARTITION_NAME: "layers"}}

    class Step(nn.Module):
        @nn.compact
        def __call__(self, carry, _):
            w = self.param("w", make, (3, 3))
            return carry @ w, None

    found = []
    for Lifted, args in (
        (
            nn.scan(Step, {"params": 1}, split_rngs=SPLIT, length=2, **options),
            (X, None),
        ),
        (nn.vmap(Step, {"params": 0}, SPLIT, **options), (XS, None)),
        (Step, (X, None)),
    ):
        variables = Lifted().init(KEYS, *args)
        box = variables["params"]["w"]
        spec = nn.get_partition_spec(variables)["params"]["w"]
        out = Lifted().apply(variables, *args)
        found.append((type(box).__name__, box.names, box.value, str(spec), out))
        found.append(
            Lifted().apply(
                nn.unbox(variables)
                if hasattr(nn, "unbox")
                else nn.meta.unbox(variables),
                *args,
            )
        )
    return found
