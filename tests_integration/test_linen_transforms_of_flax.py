"""Lifted transforms of modules for Flax Linen do the same with linen-lift."""

import functools
from typing import Any

import flax.core
import flax.linen
import jax
import jax.numpy as jnp
import pytest
from linen_comparison import (
    KEYS,
    X,
    around,
    changed,
    compare,
    dense,
    pattern,
    raised,
    ramp,
    run,
)

import linen_lift

CASES = []
ALL = {"params": 0, "stats": 0, "cache": 0, "intermediates": 0}
SPLIT = {"params": True, "noise": True}
XS = jnp.stack([X, 2 * X])


def case(fn):
    CASES.append(fn)
    return fn


def block(nn):
    """A class with a parameter, a counter, a sown value and a submodule."""

    class Block(nn.Module):
        scale: float = 1.0

        @nn.compact
        def __call__(self, x):
            n = self.variable("stats", "n", lambda: jnp.zeros(()))
            if self.is_mutable_collection("stats"):
                n.value += x.mean()
            self.sow("intermediates", "x", x)
            return self.scale * dense(nn)(x) * self.param("w", ramp()) + n.value

        def half(self, x):
            return 0.5 * self(x)

    return Block


def step(nn):
    """A class for `scan`, of which `block` is a part."""

    class Step(nn.Module):
        @nn.compact
        def __call__(self, carry, x):
            carry = jnp.tanh(block(nn)(name="block")(carry) + x)
            return carry, carry.sum()

    return Step


# --- classes ---------------------------------------------------------------------------

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


def of_class(name):
    def transformed(nn):
        Lifted = SAME[name](nn, block(nn))

        class Net(nn.Module):
            @nn.compact
            def __call__(self, x):
                return Lifted()(Lifted(name="named")(Lifted()(x)))

        return run(Net(), X), run(Lifted(), X), run(Lifted(), X, method="half")

    transformed.__name__ = f"{name}_of_a_class"
    return transformed


CASES += [of_class(name) for name in SAME]


@case
def names_of_transformed_classes(nn):
    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            x = nn.jit(nn.Dense)(3)(nn.remat(nn.Dense)(3)(x))
            x = nn.vmap(nn.Dense, {"params": None}, {"params": False})(3)(x)
            x = nn.map_variables(nn.Dense, "params", init=True)(3)(x)
            x = nn.fold_rngs(nn.Dense)(3)(nn.jit(nn.remat(nn.Dense))(3)(x))
            return nn.checkpoint(functools.partial(nn.Dense, 3))()(x)

    return sorted(Net().init(KEYS, X)["params"]), nn.jit(nn.Dense).__name__


@case
def what_a_transform_leaves_out(nn):
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


@case
def static_arguments(nn):
    class Net(nn.Module):
        @nn.compact
        def __call__(self, x, double, *, shift=0.0):
            return dense(nn)(2 * x if double else x) + shift

    Jit = nn.jit(Net, static_argnums=2)
    Remat = nn.remat(Net, static_argnums=(2,))
    return run(Jit(), X, True), run(Remat(), X, False), raised(nn.jit(Net)().init, KEYS, X, True)


@case
def vmap_of_a_class(nn):
    Lifted = nn.vmap(block(nn), ALL, SPLIT)
    return run(Lifted(), XS), raised(Lifted().init, KEYS, X[0, 0])


@case
def vmap_with_shared_parameters(nn):
    Lifted = nn.vmap(block(nn), {**ALL, "params": None}, {"params": False})
    return run(Lifted(), XS)


@case
def vmap_with_other_axes(nn):
    axes = {**ALL, "params": 1}
    Lifted = nn.vmap(block(nn), axes, SPLIT, in_axes=1, out_axes=2)
    return run(Lifted(), jnp.moveaxis(XS, 0, 1))


@case
def vmap_over_nothing_but_the_size(nn):
    Lifted = nn.vmap(block(nn), ALL, SPLIT, in_axes=None, axis_size=3)
    return run(Lifted(), X), raised(
        nn.vmap(block(nn), ALL, SPLIT, in_axes=None)().init, KEYS, X
    )


@case
def vmap_without_a_collection(nn):
    Lifted = nn.vmap(block(nn), {"params": 0}, SPLIT)
    return raised(Lifted().init, KEYS, XS)


@case
def vmap_without_a_stream(nn):
    Lifted = nn.vmap(block(nn), ALL)
    return raised(Lifted().init, KEYS, XS)


@case
def vmap_with_an_axis_name(nn):
    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            return jax.lax.pmean(dense(nn)(x), "batch")

    Lifted = nn.vmap(Net, {"params": None}, {"params": False}, axis_name="batch")
    return run(Lifted(), XS)


@case
def vmap_of_several_arguments(nn):
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


@case
def vmap_of_methods(nn):
    class Net(nn.Module):
        def setup(self):
            self.inner = dense(nn)

        def __call__(self, x):
            return self.inner(x)

        def twice(self, x):
            return self(self(x))

    options = dict(variable_axes={"params": 0}, split_rngs={"params": True})
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


@case
def vmap_in_one_direction(nn):
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
    params = {"params": {"Dense_0": {"kernel": jnp.ones((2, 3, 3)), "bias": jnp.ones((2, 3))}}}
    return model.apply({**given, **params}, XS, mutable=["intermediates", "given"])


@case
def keys_in_a_vmap(nn):
    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            key = [self.make_rng("noise"), self.make_rng("params"), self.make_rng("noise")]
            return jnp.stack([jax.random.key_data(k) for k in key])

    found = []
    for noise in (True, False):
        model = nn.vmap(Net, {}, {"params": False, "noise": noise})()
        found.append(pattern(jax.random.wrap_key_data(model.apply({}, XS, rngs=KEYS))))
    return found


@case
def scan_of_a_class(nn):
    Lifted = nn.scan(step(nn), variable_axes=ALL, split_rngs=SPLIT)
    return run(Lifted(), X, XS)


@case
def scan_with_options(nn):
    found = []
    for options in (
        {"reverse": True},
        {"unroll": 2},
        {"in_axes": 1},
        {"out_axes": -1},
        {"in_axes": nn.broadcast, "length": 3},
    ):
        Lifted = nn.scan(step(nn), variable_axes=ALL, split_rngs=SPLIT, **options)
        xs = X if options.get("length") else jnp.stack([X, X, X])
        if options.get("in_axes") == 1:
            xs = jnp.moveaxis(xs, 0, 1)
        if options.get("out_axes") == -1:
            options = {}
        found.append(run(Lifted(), X, xs))
    return found


@case
def scan_with_shared_parameters(nn):
    axes = {k: v for k, v in ALL.items() if k != "params"}
    Lifted = nn.scan(step(nn), axes, "params", split_rngs={"params": False})
    return run(Lifted(), X, XS)


@case
def scan_with_a_carried_collection(nn):
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


@case
def scan_of_wrong_lengths(nn):
    Lifted = nn.scan(step(nn), variable_axes=ALL, split_rngs=SPLIT, length=3)
    none = nn.scan(step(nn), variable_axes=ALL, split_rngs=SPLIT)
    return raised(Lifted().init, KEYS, X, XS), raised(none().init, KEYS, X, None)


@case
def scan_of_several_arguments(nn):
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


@case
def scan_of_a_method(nn):
    class Net(nn.Module):
        @functools.partial(nn.scan, variable_axes={"params": 0}, split_rngs=SPLIT)
        @nn.compact
        def __call__(self, carry, x):
            return dense(nn)(carry) + x, None

    return run(Net(), X, XS)


@case
def scan_in_a_scan(nn):
    class Outer(nn.Module):
        @nn.compact
        def __call__(self, carry, x):
            Inner = nn.scan(step(nn), variable_axes=ALL, split_rngs=SPLIT, length=2)
            return Inner()(carry, jnp.stack([x, x]))

    Lifted = nn.scan(nn.remat(Outer), variable_axes=ALL, split_rngs=SPLIT)
    return run(Lifted(), X, XS)


@case
def keys_in_a_scan(nn):
    class Net(nn.Module):
        @nn.compact
        def __call__(self, carry, x):
            keys = [self.make_rng("noise"), self.make_rng("params")]
            return carry, jnp.stack([jax.random.key_data(k) for k in keys])

    model = nn.scan(Net, split_rngs={"noise": True, "params": False}, length=3)()
    ys = model.apply({}, X, None, rngs=KEYS)[1]
    return pattern(jax.random.wrap_key_data(ys))


@case
def remat_scan_of_a_class(nn):
    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            return jnp.tanh(dense(nn)(x))

    return run(nn.remat_scan(Net, lengths=(2, 3))(), X)


@case
def map_variables_of_a_layer(nn):
    def transposed(collections):
        return jax.tree.map(jnp.transpose, collections)

    Lifted = nn.map_variables(nn.Dense, "params", transposed, transposed, init=True)
    fields = {"kernel_init": ramp(), "bias_init": ramp()}
    variables = Lifted(2, **fields).init(KEYS, X)
    return variables, Lifted(2, **fields).apply(changed(variables), X)


@case
def tied_weights_by_map_variables(nn):
    class Net(nn.Module):
        def setup(self):
            self.encoder = dense(nn, 2, use_bias=False)

        def decode(self, x):
            transposed = lambda v: jax.tree.map(lambda w: w.T, v)
            call = nn.map_variables(lambda m, x: x @ m.variables["params"]["kernel"], "params", transposed)
            return call(self.encoder, x)

        def __call__(self, x):
            return self.decode(self.encoder(x))

    return run(Net(), X)


@case
def metadata_of_axes(nn):
    make = nn.with_partitioning(ramp(), ("in", "out"))
    options = {"metadata_params": {flax.core.meta.PARTITION_NAME: "layers"}}

    class Step(nn.Module):
        @nn.compact
        def __call__(self, carry, _):
            w = self.param("w", make, (3, 3))
            return carry @ w, None

    found = []
    for Lifted, args in (
        (nn.scan(Step, {"params": 1}, split_rngs=SPLIT, length=2, **options), (X, None)),
        (nn.vmap(Step, {"params": 0}, SPLIT, **options), (XS, None)),
        (Step, (X, None)),
    ):
        variables = Lifted().init(KEYS, *args)
        box = variables["params"]["w"]
        spec = nn.get_partition_spec(variables)["params"]["w"]
        out = Lifted().apply(variables, *args)
        found.append((type(box).__name__, box.names, box.value, str(spec), out))
        found.append(Lifted().apply(nn.unbox(variables) if hasattr(nn, "unbox") else nn.meta.unbox(variables), *args))
    return found


# --- methods ---------------------------------------------------------------------------


@case
def decorated_methods(nn):
    class Net(nn.Module):
        def setup(self):
            self.inner = dense(nn)

        @nn.jit
        def first(self, x):
            return self.inner(x)

        @nn.remat
        def second(self, x, *, scale):
            return self.inner(x) * scale

        def __call__(self, x):
            return self.first(self.second(self.first(x), scale=2.0))

    return run(Net(), X)


@case
def decorated_compact_methods(nn):
    class Net(nn.Module):
        @nn.remat
        @nn.compact
        def __call__(self, x):
            return dense(nn)(x) * self.param("w", ramp())

    return run(Net(), X)


@case
def decorated_helpers_of_compact_methods(nn):
    class Net(nn.Module):
        @nn.remat
        def helper(self, x):
            return dense(nn)(x)

        @nn.compact
        def __call__(self, x):
            return self.helper(dense(nn)(self.helper(x)))

    return run(Net(), X)


@case
def modules_as_arguments_of_methods(nn):
    class Net(nn.Module):
        @nn.jit
        def call(self, inner, x, others=()):
            for other in others:
                x = other(x)
            return inner(x)

        @nn.compact
        def __call__(self, x):
            a, b = dense(nn), dense(nn, name="b")
            return self.call(a, x, others=[b, a])

    return run(Net(), X)


@case
def modules_in_fields_under_a_transform(nn):
    Around = around(nn)

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            inner = dense(nn)
            return nn.remat(Around)(nn.jit(Around)(inner))(x) + inner(x)

    return run(Net(), X), run(nn.jit(Around)(dense(nn)), X)


@case
def a_variable_as_an_argument(nn):
    class Net(nn.Module):
        @nn.jit
        def add(self, variable, x):
            variable.value += x.sum()
            return variable.value

        @nn.compact
        def __call__(self, x):
            n = self.variable("stats", "n", lambda: jnp.zeros(()))
            return self.add(n, x) + n.value

    return Net().init_with_output(KEYS, X), Net().apply({"stats": {"n": jnp.ones(())}}, X, mutable=["stats"])


@case
def what_a_transformed_method_must_not_return(nn):
    class Net(nn.Module):
        @nn.jit
        def module(self, x):
            return dense(nn)

        @nn.jit
        def variable(self, x):
            return self.variable("stats", "n", lambda: 0)

        @nn.compact
        def __call__(self, x, method):
            getattr(self, method)(x)

    return [raised(Net().init, KEYS, X, m) for m in ("module", "variable")]


@case
def wrong_targets(nn):
    return raised(nn.jit, nn.Dense(3)), raised(nn.vmap, 3)


@case
def a_name_that_is_passed_and_declared(nn):
    class Net(nn.Module):
        @nn.jit
        def call(self, x, other):
            return dense(nn, name="a")(other(x))

        @nn.compact
        def __call__(self, x):
            return self.call(x, dense(nn, name="a"))

    return raised(Net().init, KEYS, X)


@case
def a_name_that_is_free_again(nn):
    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            call = nn.remat(lambda self, x: dense(nn, name="a")(x))
            return call(self, call(self, x))

    return run(Net(), X)


@case
def capturing_inside_of_transforms(nn):
    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            x = nn.jit(block(nn))()(nn.remat(nn.Dense)(3, kernel_init=ramp())(x))
            return nn.vmap(block(nn), ALL, SPLIT)()(jnp.stack([x, x])).sum(0)

    variables = changed(Net().init(KEYS, X))
    return Net().apply(variables, X, capture_intermediates=True)


@case
def intercepting_inside_of_transforms(nn):
    def twice(next_fun, args, kwargs, context):
        out = next_fun(*args, **kwargs)
        return 2 * out if isinstance(context.module, nn.Dense) else out

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            return nn.remat(around(nn))(dense(nn))(x)

    variables = Net().init(KEYS, X)
    with nn.intercept_methods(twice):
        return Net().apply(variables, X)


# --- functions of modules --------------------------------------------------------------


def calling(nn, body, *args, mutable=("stats", "intermediates"), compact=True):
    """Runs a module that makes a `block`, and calls a function of it."""

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            return body(block(nn)(), x)

    return run(Net(), X, mutable=mutable)


@case
def jit_and_remat_of_functions(nn):
    call = lambda m, x: m(m(x))
    return calling(nn, nn.jit(call)), calling(nn, nn.remat(call))


@case
def cond_of_a_module(nn):
    twice = lambda m, x: 2 * m(x)
    call = lambda m, x: m(x)
    return (
        calling(nn, lambda m, x: nn.cond(x.sum() > 0, twice, call, m, x)),
        calling(nn, lambda m, x: nn.cond(x.sum() < 0, twice, call, m, x)),
    )


@case
def cond_with_bound_methods(nn):
    class Net(nn.Module):
        def setup(self):
            self.a = dense(nn)
            self.b = dense(nn)

        def left(self, x):
            return self.a(x)

        def right(self, x):
            return self.b(x)

        def __call__(self, x):
            if self.is_initializing():
                self.left(x), self.right(x)
            return nn.cond(x.sum() > 0, Net.left, Net.right, self, x)

    return run(Net(), X)


@case
def cond_of_several_modules(nn):
    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            modules = [dense(nn), dense(nn)]
            if self.is_initializing():
                [m(x) for m in modules]
            first = lambda self, ms, x: ms[0](x)
            second = lambda self, ms, x: ms[1](x)
            return nn.cond(x.sum() > 0, first, second, self, modules, x)

    return run(Net(), X)


@case
def switch_of_a_module(nn):
    branches = [lambda m, x, k=k: k * m(x) for k in range(3)]
    body = lambda m, x: nn.switch(jnp.int32(x.sum()), branches, m, x)
    return calling(nn, body)


@case
def switch_whose_branches_declare(nn):
    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            branches = [
                lambda m, x, i=i: dense(nn, name=f"branch{i}")(x) for i in range(2)
            ]
            if self.is_initializing():
                for branch in branches:
                    out = branch(self, x)
                return out
            return nn.switch(1, branches, self, x)

    return run(Net(), X)


@case
def while_loop_of_a_module(nn):
    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            self.param("w", ramp())
            n = self.variable("stats", "n", lambda: jnp.zeros(()))

            def body(m, x):
                m.put_variable("stats", "n", m.get_variable("stats", "n") + 1)
                return x * m.get_variable("params", "w") + 1

            go_on = lambda m, x: m.get_variable("stats", "n") < 3
            x = nn.while_loop(go_on, body, self, x, carry_variables="stats")
            return x, n.value

    variables = Net().init(KEYS, X)
    other = {"params": variables["params"], "stats": {"n": jnp.ones(())}}
    return variables, Net().apply(other, X, mutable=["stats"])


@case
def keys_in_a_while_loop(nn):
    class Net(nn.Module):
        split: bool

        @nn.compact
        def __call__(self, x):
            def body(m, carry):
                i, keys = carry
                key = jax.random.key_data(m.make_rng("noise"))
                return i + 1, keys.at[i].set(key)

            start = (0, jnp.zeros((3, 2), jnp.uint32))
            return nn.while_loop(
                lambda m, c: c[0] < 3, body, self, start, split_rngs={"noise": self.split}
            )[1]

    return [
        pattern(jax.random.wrap_key_data(Net(s).apply({}, X, rngs=KEYS)))
        for s in (True, False)
    ]


@case
def vjp_of_a_module(nn):
    def body(m, x):
        out, back = nn.vjp(lambda m, x: m(x), m, x)
        grads, x_grad = back(jnp.ones_like(out))
        return out, x_grad, {} if m.is_initializing() else grads

    def with_aux(m, x):
        out, back, aux = nn.vjp(lambda m, x: (m(x), x), m, x, has_aux=True)
        return out, back(out)[1], aux

    def of_stats(m, x):
        out, back = nn.vjp(lambda m, x: m(x), m, x, vjp_variables=["params", "stats"])
        return out, {} if m.is_initializing() else back(out)

    return [calling(nn, each) for each in (body, with_aux, of_stats)]


@case
def vjp_that_nothing_may_change(nn):
    def body(m, x):
        out, back = nn.vjp(lambda m, x: m(x), m, x, variables="params")
        return back(out)[1]

    return raised(calling, nn, body)


@case
def gradients_in_the_arguments(nn):
    scalar = lambda m, x: m(x).sum()
    with_aux = lambda m, x, y: (m(x * y).sum(), x)
    return (
        calling(nn, lambda m, x: nn.grad(scalar, m, x)),
        calling(nn, lambda m, x: nn.value_and_grad(scalar, m, x)),
        calling(nn, lambda m, x: nn.grad(with_aux, m, x, x, has_aux=True)),
        calling(nn, lambda m, x: nn.value_and_grad(with_aux, m, x, x, has_aux=True)),
        raised(calling, nn, lambda m, x: nn.grad(lambda m, x: m(x), m, x)),
    )


@case
def jvp_of_a_module(nn):
    def body(m, x):
        tangents = jax.tree.map(jnp.ones_like, m.variables.get("params", {}))
        directions = {} if m.is_initializing() else {"params": tangents}
        return nn.jvp(lambda m, x: m(x), m, (x,), (2 * x,), directions)

    return calling(nn, body)


@case
def custom_vjp_of_a_module(nn):
    def f(m, x):
        return m(x)

    def backward(back, g):
        params, x_grad = back(g)
        return jax.tree.map(jnp.sign, params), 2 * x_grad

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            return nn.custom_vjp(f, lambda m, x: nn.vjp(f, m, x), backward)(dense(nn), x)

    variables = Net().init(KEYS, X)
    loss = lambda v, x: jnp.sin(Net().apply(v, x)).sum()
    return variables, jax.grad(loss, (0, 1))(variables, X)


@case
def custom_vjp_with_static_arguments(nn):
    def f(m, x, k):
        return k * m(x)

    def forward(m, x, k):
        return nn.vjp(lambda m, x: f(m, x, k), m, x)

    def backward(k, back, g):
        return back(g * k)

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            return nn.custom_vjp(f, forward, backward, nondiff_argnums=(2,))(
                dense(nn), x, 3.0
            )

    variables = Net().init(KEYS, X)
    return jax.grad(lambda v: Net().apply(v, X).sum())(variables)


@case
def a_vmap_of_a_function(nn):
    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            inner = dense(nn)
            call = nn.vmap(lambda m, x: m(x), {"params": None}, {"params": False})
            return call(inner, jnp.stack([x, x]))

    return run(Net(), X)


@case
def a_scan_of_a_function(nn):
    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            inner = dense(nn)
            call = nn.scan(
                lambda m, c, x: (m(c) + x, c.sum()), {}, "params", split_rngs={"params": False}
            )
            return call(inner, x, jnp.stack([x, x]))

    return run(Net(), X)


@case
def a_map_variables_of_a_function(nn):
    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            double = lambda v: jax.tree.map(lambda a: 2 * a, v)
            halve = lambda v: jax.tree.map(lambda a: a / 2, v)
            call = nn.map_variables(
                lambda m, x: m(x), "params", double, halve, self.is_initializing()
            )
            return call(dense(nn), x)

    return run(Net(), X)


@case
def plain_transforms_of_arrays(nn):
    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            inner = dense(nn)
            y = inner(x)
            kernel = inner.variables["params"]["kernel"]
            return jax.vmap(lambda row: row @ kernel)(x) + y

    return run(Net(), X)


@case
def plain_transforms_of_bound_modules(nn):
    class Net(nn.Module):
        def setup(self):
            self.inner = dense(nn)

        def __call__(self, x):
            if self.is_initializing():
                self.inner(x)
            return jax.vmap(self.inner)(x), jax.grad(lambda x: self.inner(x).sum())(x)

    return run(Net(), X)


@case
def named_calls(nn):
    with nn.override_named_call(False):
        first = run(block(nn)(), X)
    with nn.override_named_call(True):
        return first, run(block(nn)(), X)


# --- functions of scopes ---------------------------------------------------------------


def scopes(nn):
    return linen_lift.scope if nn is linen_lift else flax.core


def lifts(nn):
    return linen_lift.lift if nn is linen_lift else flax.core.lift


def linear(scope, x, features=3):
    w = scope.param("w", ramp(), (x.shape[-1], features))
    n = scope.variable("stats", "n", lambda: jnp.zeros(()))
    if scope.is_mutable_collection("stats"):
        n.value += 1
    return x @ w + n.value


def run_scope(nn, fn, *args):
    core = scopes(nn)
    out, variables = core.init(fn)(KEYS, *args)
    other = changed(variables)
    return out, variables, core.apply(fn)(other, *args, rngs=KEYS), core.apply(
        fn, mutable=["stats"]
    )(other, *args, rngs=KEYS)


@case
def scopes_and_children(nn):
    def fn(scope, x):
        x = scope.child(linear, "a")(x)
        x = scope.child(linear)(scope.child(linear)(x))
        shared = scope.child(linear, prefix="s_")
        return shared(shared(x)) + scope.push("b").param("v", ramp())

    return run_scope(nn, fn, X)


@case
def names_in_scopes(nn):
    core = scopes(nn)

    def twice(scope):
        scope.push("a")
        scope.push("a")

    def reused(scope):
        return scope.push("a").path, scope.push("a", reuse=True).path, scope.push(prefix="p").name

    def rewound(scope):
        scope.push("a")
        return scope.rewound().push("a").path

    return (
        raised(core.init(twice), KEYS),
        core.init(reused)(KEYS)[0],
        core.init(rewound)(KEYS)[0],
    )


@case
def lifted_functions_of_scopes(nn):
    lift = lifts(nn)
    axes = {"params": 0, "stats": 0}
    found = [
        run_scope(nn, lift.remat(linear), X),
        run_scope(nn, lift.vmap(linear, axes, {"params": True}), XS),
        run_scope(nn, lift.remat_scan(lambda s, x: jnp.tanh(linear(s, x)), (2, 2), variable_axes=axes, split_rngs={"params": True}), X),
    ]
    body = lambda scope, c, x: (linear(scope, c) + x, c)
    found.append(run_scope(nn, lift.scan(body, axes, split_rngs={"params": True}), X, XS))
    return found


@case
def several_scopes_at_once(nn):
    lift = lifts(nn)

    def fn(scope, x):
        a, b = scope.push("a"), scope.push("b")

        def inner(pair, x):
            first, second = pair
            return linear(first, x) + linear(second, x)

        return lift.remat(inner)((a, b), x) + lift.vmap(
            lambda s, x: s.get_variable("params", "w")[0] * x, {"params": None}, {}
        )(a, x)

    return run_scope(nn, fn, X)


@case
def derivatives_of_scopes(nn):
    lift = lifts(nn)

    def fn(scope, x):
        out, back = lift.vjp(linear, scope.push("a"), x)
        y, tangent = lift.jvp(linear, scope.push("b"), (x,), (x,), {})
        return out, back(out)[1], y, tangent

    return run_scope(nn, fn, X)


@case
def packed_functions(nn):
    lift = lifts(nn)

    def double(fn):
        def inner(scope_fn, repack, groups, rngs, x):
            (params, others) = groups
            params = jax.tree.map(lambda a: 2 * a, params)
            scope = scope_fn((params, others), rngs)
            out = fn(scope, x)
            return out, repack(scope)

        return lift.pack(inner, ("params", True), ("stats",), (True,))

    core = scopes(nn)
    variables = changed(core.init(linear)(KEYS, X)[1])
    return core.apply(double(linear), mutable=["stats"])(variables, X)


@case
def lazy_initialization(nn):
    core = scopes(nn)
    shape = jax.ShapeDtypeStruct((1, 3), jnp.float32)
    wrong = lambda scope, x: scope.param("w", lambda key: x + 1)
    return (
        core.lazy_init(linear)(KEYS, shape),
        raised(core.lazy_init(wrong), KEYS, shape),
        nn.remat(nn.Dense)(3, kernel_init=ramp()).lazy_init(KEYS, shape),
        jax.tree.map(jnp.shape, jax.eval_shape(block(nn)().init, KEYS, X)),
    )


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("fn", CASES, ids=lambda fn: fn.__name__)
def test_case(fn):
    compare(fn)
