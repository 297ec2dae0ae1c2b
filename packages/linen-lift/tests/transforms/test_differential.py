"""Each lifted transform of random modules against JAX's, of their functional form."""

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax
from random_modules import SIZE, build, kind, specs

import linen_lift as nn

KEYS = {
    name: jax.random.key(i) for i, name in enumerate(["params", "noise", "dropout"])
}
X = jnp.arange(SIZE) * 0.3 + 0.1
COLLECTIONS = ["stats", "cache"]
mutables = st.sampled_from([[], ["stats"], ["cache"], COLLECTIONS])
MANY = settings(max_examples=8)
FEW = settings(max_examples=4)  # of what compiles several large programs for each


def close(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)

    def check(x, y):
        # What cancels to a small number has the error of the numbers that did.
        largest = np.max(np.abs(y), initial=1.0)
        np.testing.assert_allclose(x, y, rtol=2e-5, atol=5e-6 * largest)

    jax.tree.map(check, a, b)


def full(out, mutable):
    """Output and variables, also where nothing is mutable."""
    return (out, {}) if mutable is False else out


def functional(model, mutable):
    """`(variables, rngs, *args) -> (out, updated)`; compiled, which is faster here."""

    @jax.jit
    def fn(variables, rngs, *args):
        out = model.apply(variables, *args, rngs=rngs, mutable=mutable)
        return full(out, mutable)

    return fn


def alike(first, second, variables):
    """Outputs, updates and gradients of two functions of the variables agree."""

    def graded(fn):
        def loss(variables):
            out, updated = fn(variables)
            return jax.tree.leaves(out)[0].sum(), (out, updated)

        return jax.grad(loss, has_aux=True)

    # In one program, which takes less time to compile than several.
    close(*jax.jit(lambda v: (graded(first)(v), graded(second)(v)))(variables))


def randomized(variables):
    """Values for all variables that are not their initial ones."""
    leaves, treedef = jax.tree.flatten(variables)
    keys = jax.random.split(jax.random.key(9), max(len(leaves), 1))
    return treedef.unflatten(
        jax.random.normal(k, x.shape, x.dtype) * 0.5
        for k, x in zip(keys, leaves, strict=False)
    )


class Named(nn.Module):
    """A module of a class under an explicit name."""

    make: object
    spec: object

    @nn.compact
    def __call__(self, x):
        return self.make(self.spec, name="inner")(x)


SAME = {
    "remat": nn.remat,
    "jit": nn.jit,
    "named_call": nn.named_call,
    "fold_rngs": nn.fold_rngs,
    "add_metadata_axis": nn.add_metadata_axis,
    "map_variables": lambda c: nn.map_variables(
        c, COLLECTIONS, mutable=True, init=True
    ),
    "vmap_shared": lambda c: nn.vmap(
        c,
        {"params": None, "stats": None, "cache": None},
        {"params": False, "noise": False, "dropout": False},
        in_axes=None,
        out_axes=None,
        axis_size=2,
    ),
}


@MANY
@given(specs, mutables)
def test_transforms_that_change_nothing(spec, mutable):
    @jax.jit
    def everything(keys, x):
        """Of each model: initial variables, output, updates, gradients."""
        found = {}
        for name, lift in {"": lambda c: c, **SAME}.items():
            model = Named(lift(kind(spec)), spec)
            variables = model.init(keys, x)

            def loss(v, model=model):
                out, updated = full(
                    model.apply(v, x, rngs=keys, mutable=mutable), mutable
                )
                return out.sum(), (out, updated)

            run = jax.grad(loss, has_aux=True)
            found[name] = variables, run(randomized(variables))
        return found

    found = everything(KEYS, X)
    expected = found.pop("")
    for name in SAME:
        close(found[name], expected)


@MANY
@given(specs, mutables, st.sampled_from([0, 1, -1]), st.booleans(), st.booleans())
def test_vmap(spec, mutable, axis, split_noise, share_params):
    n = 4
    axes = {"params": None if share_params else axis, "stats": 0, "cache": 0}
    splits = {"params": not share_params, "noise": split_noise, "dropout": True}
    Lifted = nn.vmap(kind(spec), axes, splits)
    xs = jnp.stack([X * i for i in range(n)])
    model, plain = Lifted(spec), build(spec)
    shapes = jax.eval_shape(model.init, KEYS, xs)

    keys = {k: jax.random.split(v, n) if splits[k] else v for k, v in KEYS.items()}
    key_axes = {k: 0 if splits[k] else None for k in KEYS}
    var_axes = {c: axes[c] for c in shapes}
    init = jax.vmap(plain.init, (key_axes, 0), var_axes)
    close(*jax.jit(lambda: (model.init(KEYS, xs), init(keys, xs)))())

    fn = functional(plain, mutable)
    out_axes = {c: 0 for c in mutable if c in shapes}
    reference = jax.vmap(fn, (var_axes, key_axes, 0), (0, out_axes))
    alike(
        lambda v: functional(model, mutable)(v, KEYS, xs),
        lambda v: reference(v, keys, xs),
        randomized(shapes),
    )


def loop_body(spec):
    class Body(nn.Module):
        def setup(self):
            self.inner = build(spec)

        def __call__(self, carry, x):
            out = self.inner(carry + x)
            return out, out * 2

    return Body


@FEW
@given(
    specs,
    mutables,
    st.sampled_from(["stack", "carry"]),
    st.sampled_from([0, 1, -1]),
    st.booleans(),
    st.booleans(),
    st.sampled_from([0, 1, -1]),
)
def test_scan(spec, mutable, cache_mode, axis, share_params, reverse, x_axis):
    n = 3
    Body = loop_body(spec)
    axes = {"stats": 0}
    if not share_params:
        axes["params"] = axis
    if cache_mode == "stack":
        axes["cache"] = 0
    splits = {"params": not share_params, "noise": True, "dropout": False}
    Lifted = nn.scan(
        Body,
        variable_axes=axes,
        variable_broadcast="params" if share_params else False,
        variable_carry="cache" if cache_mode == "carry" else False,
        split_rngs=splits,
        in_axes=x_axis,
        out_axes=x_axis,
        reverse=reverse,
    )
    model, plain = Lifted(), Body()
    xs = jnp.stack([X * i for i in range(n)], axis=x_axis)
    variables = jax.eval_shape(model.init, KEYS, X, xs)
    one = jax.eval_shape(plain.init, KEYS, X, X)
    for col, tree in one.items():
        stacked = col in axes
        jax.tree.map(
            lambda a, b: np.testing.assert_equal(
                a.size, b.size * (n if stacked else 1)
            ),
            variables[col],
            tree,
        )
    variables = randomized(variables)
    fn = functional(plain, mutable)

    def move(tree, source, target):
        return jax.tree.map(lambda a: jnp.moveaxis(a, source, target), tree)

    def reference(variables, rngs, carry, xs):
        stacked = {c: move(t, axes[c], 0) for c, t in variables.items() if c in axes}
        shared = {c: t for c, t in variables.items() if c == "params" and share_params}
        carried = {c: t for c, t in variables.items() if c not in {**stacked, **shared}}
        keys = {k: jax.random.split(v, n) for k, v in rngs.items() if splits[k]}
        still = {k: v for k, v in rngs.items() if not splits[k]}

        def body(state, slices):
            carried, carry = state
            own, keys, x = slices
            (carry, y), updated = fn(
                {**shared, **carried, **own}, {**still, **keys}, carry, x
            )
            carried = {c: updated.get(c, t) for c, t in carried.items()}
            return (carried, carry), (
                y,
                {c: t for c, t in updated.items() if c in axes},
            )

        (carried, carry), (ys, out) = lax.scan(
            body,
            (carried, carry),
            (stacked, keys, move(xs, x_axis, 0)),
            reverse=reverse,
        )
        out = {c: move(t, 0, axes[c]) for c, t in out.items()}
        out.update({c: t for c, t in carried.items() if c in mutable})
        return (carry, move(ys, 0, x_axis)), out

    alike(
        lambda v: functional(model, mutable)(v, KEYS, X, xs),
        lambda v: reference(v, KEYS, X, xs),
        variables,
    )


def calls(spec, body):
    """A module that does something with a random submodule."""

    class Calls(nn.Module):
        def setup(self):
            self.inner = build(spec)

        def __call__(self, x, *args):
            if self.is_initializing():
                return self.inner(x)
            return body(self.inner, x, *args)

    return Calls()


def inside(variables):
    """The variables of the submodule of `calls`."""
    return {c: t["inner"] for c, t in variables.items()}


def outside(updated):
    return {c: {"inner": t} for c, t in updated.items()}


def only_inner(spec, mutable):
    """The functional form of the submodule of `calls`."""
    plain = calls(spec, lambda inner, x: inner(x))

    def fn(variables, rngs, x):
        return functional(plain, mutable)(outside(variables), rngs, x)

    return fn


@MANY
@given(specs, mutables, st.booleans())
def test_cond(spec, mutable, pred):
    body = lambda inner, x, p: nn.cond(
        p, lambda m, x: m(x), lambda m, x: m(2 * x), inner, x
    )
    model = calls(spec, body)
    variables = randomized(jax.eval_shape(model.init, KEYS, X))
    fn = functional(calls(spec, lambda inner, x: inner(x)), mutable)
    alike(
        lambda v: functional(model, mutable)(v, KEYS, X, jnp.bool(pred)),
        lambda v: fn(v, KEYS, X if pred else 2 * X),
        variables,
    )


@MANY
@given(specs, mutables, st.integers(0, 2))
def test_switch(spec, mutable, index):
    branches = [lambda m, x, k=k: m(k * x) for k in range(3)]
    model = calls(spec, lambda inner, x, i: nn.switch(i, branches, inner, x))
    variables = randomized(jax.eval_shape(model.init, KEYS, X))
    fn = functional(calls(spec, lambda inner, x: inner(x)), mutable)
    alike(
        lambda v: functional(model, mutable)(v, KEYS, X, jnp.int32(index)),
        lambda v: fn(v, KEYS, index * X),
        variables,
    )


@MANY
@given(specs, mutables, st.integers(0, 3), st.booleans())
def test_while_loop(spec, mutable, count, split):
    def body(inner, x):
        step = lambda m, c: (c[0] + 1, m(c[1]))
        return nn.while_loop(
            lambda m, c: c[0] < count,
            step,
            inner,
            (0, x),
            carry_variables=COLLECTIONS,
            split_rngs={"noise": split, "dropout": False},
        )[1]

    model = calls(spec, body)
    variables = randomized(jax.eval_shape(model.init, KEYS, X))
    found = functional(model, mutable)(variables, KEYS, X)
    fn = functional(calls(spec, lambda inner, x: inner(x)), mutable)
    x, current, updated = (
        X,
        variables,
        {c: variables[c] for c in mutable if c in variables},
    )
    for i in range(count):
        keys = {
            **KEYS,
            "noise": jax.random.fold_in(KEYS["noise"], i) if split else KEYS["noise"],
        }
        x, updated = fn(current, keys, x)
        current = {**current, **updated}
    close(found, (x, updated))


@FEW
@given(specs, mutables)
def test_vjp_and_gradients(spec, mutable):
    ct = jnp.linspace(-1, 1, SIZE)

    def body(inner, x):
        out, pull_back = nn.vjp(lambda m, x: m(x), inner, x)
        return out, pull_back(ct)

    model = calls(spec, body)
    variables = randomized(jax.eval_shape(model.init, KEYS, X))
    (out, (params_ct, x_ct)), updated = functional(model, mutable)(variables, KEYS, X)
    fn = functional(calls(spec, lambda inner, x: inner(x)), mutable)

    def pure(params, x):
        return fn({**variables, "params": params}, KEYS, x)

    expected, pull_back, left = jax.vjp(pure, variables["params"], X, has_aux=True)
    close((out, updated), (expected, left))
    params_expected, x_expected = pull_back(ct)
    close(params_ct, {"params": params_expected["inner"]})
    close(x_ct, x_expected)

    scalar = lambda m, x: (m(x).sum(), m(x))
    model = calls(
        spec, lambda inner, x: nn.value_and_grad(scalar, inner, x, has_aux=True)
    )
    ((value, aux), grads), _ = functional(model, mutable)(variables, KEYS, X)
    only_grads = calls(spec, lambda inner, x: nn.grad(scalar, inner, x, has_aux=True))
    (again, aux_again), _ = functional(only_grads, mutable)(variables, KEYS, X)
    close((grads, aux), (again, aux_again))
    twice = functional(calls(spec, lambda inner, x: (inner(x), inner(x))), mutable)
    (first, second), _ = twice(variables, KEYS, X)
    close(value, first.sum())
    close(aux, second)
    gradient = jax.grad(lambda x: twice(variables, KEYS, x)[0][0].sum())(X)
    close(grads, (gradient,))


@MANY
@given(specs, mutables, st.booleans())
def test_jvp(spec, mutable, along_stats):
    tangents = {}

    def body(inner, x, x_tangent):
        return nn.jvp(lambda m, x: m(x), inner, (x,), (x_tangent,), tangents)

    model = calls(spec, body)
    variables = randomized(jax.eval_shape(model.init, KEYS, X))
    moving = [c for c in variables if c == "params" or along_stats]
    directions = {c: jax.tree.map(jnp.cos, variables[c]) for c in moving}
    tangents.update(inside(directions))
    found = functional(model, mutable)(variables, KEYS, X, 2 * X)
    fn = functional(calls(spec, lambda inner, x: inner(x)), mutable)

    def pure(moved, x):
        return fn({**variables, **moved}, KEYS, x)

    out, tangent, left = jax.jvp(
        pure, ({c: variables[c] for c in moving}, X), (directions, 2 * X), has_aux=True
    )
    close(found, ((out, tangent), left))


@MANY
@given(specs, mutables)
def test_custom_vjp(spec, mutable):
    f = lambda m, x: m(x)

    def bwd(pull_back, g):
        params, x = pull_back(g)
        return jax.tree.map(lambda a: 3 * a, params), 5 * x

    def body(inner, x):
        return nn.custom_vjp(f, lambda m, x: nn.vjp(f, m, x), bwd)(inner, x)

    model = calls(spec, body)
    variables = randomized(jax.eval_shape(model.init, KEYS, X))
    fn = functional(calls(spec, lambda inner, x: inner(x)), mutable)
    close(functional(model, mutable)(variables, KEYS, X), fn(variables, KEYS, X))

    def grads(f):
        def loss(params, x):
            return f({**variables, "params": params}, KEYS, x)[0].sum()

        return jax.jit(jax.grad(loss, (0, 1)))(variables["params"], X)

    found = grads(functional(model, mutable))
    params, x = grads(fn)
    close(found, (jax.tree.map(lambda a: 3 * a, params), 5 * x))


@MANY
@given(specs, st.sampled_from(["stats", "cache"]))
def test_map_variables(spec, col):
    double = lambda cols: jax.tree.map(lambda a: 2 * a, cols)
    halve = lambda cols: jax.tree.map(lambda a: a / 2, cols)
    Lifted = nn.map_variables(kind(spec), col, double, halve, mutable=True, init=True)
    variables = randomized(jax.eval_shape(Lifted(spec).init, KEYS, X))
    found, updated = functional(Lifted(spec), COLLECTIONS)(variables, KEYS, X)
    view = {c: double(t) if c == col else t for c, t in variables.items()}
    out, left = functional(build(spec), COLLECTIONS)(view, KEYS, X)
    close(
        (found, updated),
        (out, {c: halve(t) if c == col else t for c, t in left.items()}),
    )


@MANY
@given(specs)
def test_remat_scan(spec):
    class Body(nn.Module):
        def setup(self):
            self.inner = build(spec)

        def __call__(self, x):
            return self.inner(x)

    model = nn.remat_scan(Body, lengths=(2, 2))()
    variables = randomized(jax.eval_shape(model.init, KEYS, X))
    keys = {
        k: jax.vmap(lambda key: jax.random.split(key, 2))(jax.random.split(v, 2))
        for k, v in KEYS.items()
    }

    def reference(variables):
        out = X
        for i, j in np.ndindex(2, 2):
            own = jax.tree.map(lambda a: a[i, j], variables)
            out = Body().apply(own, out, rngs={k: v[i, j] for k, v in keys.items()})
        return out, {}

    alike(lambda v: (model.apply(v, X, rngs=KEYS), {}), reference, variables)


def test_a_custom_rule_sees_no_module_outside():
    """What it wrote there would be a tracer of the rule."""

    class Child(nn.Module):
        @nn.compact
        def __call__(self, x):
            def f(module, x):
                if module.parent is not None:
                    module.parent.sow("intermediates", "z", x)
                return 2 * x

            forward = lambda module, x: (f(module, x), None)
            backward = lambda _, g: ({"params": {}}, 10 * g)
            return nn.custom_vjp(f, forward, backward)(self, x)

    class Parent(nn.Module):
        @nn.compact
        def __call__(self, x):
            return Child()(x)

    def run(x):
        return Parent().apply({}, x, mutable=["intermediates"])

    y, grads = jax.jit(jax.value_and_grad(run, has_aux=True))(1.0)
    assert (float(y[0]), y[1], float(grads)) == (2.0, {}, 10.0)
