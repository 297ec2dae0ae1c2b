"""Functions of scopes, also lifted ones, do what they do with Flax Linen."""

import flax.core
import jax
import jax.numpy as jnp
from linen_comparison import (
    KEYS,
    XS,
    X,
    block,
    both,
    changed,
    raised,
    ramp,
)

import linen_lift


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
    return (
        out,
        variables,
        core.apply(fn)(other, *args, rngs=KEYS),
        core.apply(fn, mutable=["stats"])(other, *args, rngs=KEYS),
    )


@both
def test_scopes_and_children(nn):
    def fn(scope, x):
        x = scope.child(linear, "a")(x)
        x = scope.child(linear)(scope.child(linear)(x))
        shared = scope.child(linear, prefix="s_")
        return shared(shared(x)) + scope.push("b").param("v", ramp())

    return run_scope(nn, fn, X)


@both
def test_names_in_scopes(nn):
    core = scopes(nn)

    def twice(scope):
        scope.push("a")
        scope.push("a")

    def reused(scope):
        return (
            scope.push("a").path,
            scope.push("a", reuse=True).path,
            scope.push(prefix="p").name,
        )

    def rewound(scope):
        scope.push("a")
        return scope.rewound().push("a").path

    return (
        raised(core.init(twice), KEYS),
        core.init(reused)(KEYS)[0],
        core.init(rewound)(KEYS)[0],
    )


@both
def test_lifted_functions_of_scopes(nn):
    lift = lifts(nn)
    axes = {"params": 0, "stats": 0}
    found = [
        run_scope(nn, lift.remat(linear), X),
        run_scope(nn, lift.vmap(linear, axes, {"params": True}), XS),
        run_scope(
            nn,
            lift.remat_scan(
                lambda s, x: jnp.tanh(linear(s, x)),
                (2, 2),
                variable_axes=axes,
                split_rngs={"params": True},
            ),
            X,
        ),
    ]
    body = lambda scope, c, x: (linear(scope, c) + x, c)
    found.append(
        run_scope(nn, lift.scan(body, axes, split_rngs={"params": True}), X, XS)
    )
    return found


@both
def test_several_scopes_at_once(nn):
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


@both
def test_derivatives_of_scopes(nn):
    lift = lifts(nn)

    def fn(scope, x):
        out, back = lift.vjp(linear, scope.push("a"), x)
        y, tangent = lift.jvp(linear, scope.push("b"), (x,), (x,), {})
        return out, back(out)[1], y, tangent

    return run_scope(nn, fn, X)


@both
def test_packed_functions(nn):
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


@both
def test_lazy_initialization(nn):
    core = scopes(nn)
    shape = jax.ShapeDtypeStruct((1, 3), jnp.float32)
    return (
        core.lazy_init(linear)(KEYS, shape),
        nn.remat(nn.Dense)(3, kernel_init=ramp()).lazy_init(KEYS, shape),
        jax.tree.map(jnp.shape, jax.eval_shape(block(nn)().init, KEYS, X)),
    )


def experts(nn, count):
    def by_expert(fn, axis=0):
        each = lifts(nn).vmap(
            fn, {"params": axis, "stats": 0}, {"params": True}, in_axes=axis
        )

        def run(scopes, x):
            return each(scopes, jnp.stack([x * n for n in range(count)], axis)).sum(0)

        return run

    return by_expert


@both
def test_lifted_transforms_of_ones_own_over_modules(nn):
    own, Block = nn.transforms.lift_transform, block(nn)
    by_expert = experts(nn, 4)
    lifted = own(by_expert, Block)

    class Two(nn.Module):
        def setup(self):
            self.inner = nn.Dense(2, kernel_init=ramp())

        def double(self, x):
            return 2 * self.inner(x)

        def __call__(self, x):
            return own(by_expert, Two.double)(self, x)

    class Model(nn.Module):
        @nn.compact
        def __call__(self, x):
            first = own(by_expert, nn.Dense)(3, kernel_init=ramp())(x)
            named = lifted(name="named")(x)
            moved = own(by_expert, nn.Dense, 1)(3, kernel_init=ramp())(x)
            other = own(by_expert, Block, methods=["__call__"], axis=0)()(x)
            return first, named, moved, other, Two()(x)

    out, variables = Model().init_with_output(KEYS, X)
    again = Model().apply(variables, X, mutable=["stats"])
    return out, variables, again, type(lifted()).__name__


@both
def test_methods_of_mixins(nn):
    class Parts:
        @nn.module.wrap_method_once
        def parts(self):
            return sorted(name for name in vars(self) if name in ("a", "b"))

        parts_again = nn.module.wrap_method_once(parts)

    class Model(nn.Module, Parts):
        def setup(self):
            self.a, self.b = nn.Dense(3), nn.Dense(2)

    model = Model()
    names = [model.apply({}, method=m) for m in (Model.parts, Model.parts_again)]
    return names, model.bind({}).parts(), model.parts()
