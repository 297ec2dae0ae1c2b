"""Transformed functions of modules do what they do with Flax Linen."""

import jax
import jax.numpy as jnp
from linen_comparison import (
    KEYS,
    X,
    block,
    both,
    dense,
    pattern,
    raised,
    ramp,
    run,
)


def calling(nn, body, *args, mutable=("stats", "intermediates"), compact=True):
    """Runs a module that makes a `block`, and calls a function of it."""

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            return body(block(nn)(), x)

    return run(Net(), X, mutable=mutable)


@both
def test_jit_and_remat_of_functions(nn):
    call = lambda m, x: m(m(x))
    return calling(nn, nn.jit(call)), calling(nn, nn.remat(call))


@both
def test_cond_of_a_module(nn):
    twice = lambda m, x: 2 * m(x)
    call = lambda m, x: m(x)
    return (
        calling(nn, lambda m, x: nn.cond(x.sum() > 0, twice, call, m, x)),
        calling(nn, lambda m, x: nn.cond(x.sum() < 0, twice, call, m, x)),
    )


@both
def test_cond_with_bound_methods(nn):
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


@both
def test_cond_of_several_modules(nn):
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


@both
def test_switch_of_a_module(nn):
    branches = [lambda m, x, k=k: k * m(x) for k in range(3)]
    body = lambda m, x: nn.switch(jnp.int32(x.sum()), branches, m, x)
    return calling(nn, body)


@both
def test_switch_whose_branches_declare(nn):
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


@both
def test_while_loop_of_a_module(nn):
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


@both
def test_keys_in_a_while_loop(nn):
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
                lambda m, c: c[0] < 3,
                body,
                self,
                start,
                split_rngs={"noise": self.split},
            )[1]

    return [
        pattern(jax.random.wrap_key_data(Net(s).apply({}, X, rngs=KEYS)))
        for s in (True, False)
    ]


@both
def test_vjp_of_a_module(nn):
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


@both
def test_vjp_that_nothing_may_change(nn):
    def body(m, x):
        out, back = nn.vjp(lambda m, x: m(x), m, x, variables="params")
        return back(out)[1]

    return raised(calling, nn, body)


@both
def test_gradients_in_the_arguments(nn):
    scalar = lambda m, x: m(x).sum()
    with_aux = lambda m, x, y: (m(x * y).sum(), x)
    return (
        calling(nn, lambda m, x: nn.grad(scalar, m, x)),
        calling(nn, lambda m, x: nn.value_and_grad(scalar, m, x)),
        calling(nn, lambda m, x: nn.grad(with_aux, m, x, x, has_aux=True)),
        calling(nn, lambda m, x: nn.value_and_grad(with_aux, m, x, x, has_aux=True)),
        raised(calling, nn, lambda m, x: nn.grad(lambda m, x: m(x), m, x)),
    )


@both
def test_jvp_of_a_module(nn):
    def body(m, x):
        tangents = jax.tree.map(jnp.ones_like, m.variables.get("params", {}))
        directions = {} if m.is_initializing() else {"params": tangents}
        return nn.jvp(lambda m, x: m(x), m, (x,), (2 * x,), directions)

    return calling(nn, body)


@both
def test_custom_vjp_of_a_module(nn):
    def f(m, x):
        return m(x)

    def backward(back, g):
        params, x_grad = back(g)
        return jax.tree.map(jnp.sign, params), 2 * x_grad

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            return nn.custom_vjp(f, lambda m, x: nn.vjp(f, m, x), backward)(
                dense(nn), x
            )

    variables = Net().init(KEYS, X)
    loss = lambda v, x: jnp.sin(Net().apply(v, x)).sum()
    return variables, jax.grad(loss, (0, 1))(variables, X)


@both
def test_custom_vjp_with_static_arguments(nn):
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


@both
def test_a_vmap_of_a_function(nn):
    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            inner = dense(nn)
            call = nn.vmap(lambda m, x: m(x), {"params": None}, {"params": False})
            return call(inner, jnp.stack([x, x]))

    return run(Net(), X)


@both
def test_a_scan_of_a_function(nn):
    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            inner = dense(nn)
            call = nn.scan(
                lambda m, c, x: (m(c) + x, c.sum()),
                {},
                "params",
                split_rngs={"params": False},
            )
            return call(inner, x, jnp.stack([x, x]))

    return run(Net(), X)


@both
def test_a_map_variables_of_a_function(nn):
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


@both
def test_plain_transforms_of_arrays(nn):
    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            inner = dense(nn)
            y = inner(x)
            kernel = inner.variables["params"]["kernel"]
            return jax.vmap(lambda row: row @ kernel)(x) + y

    return run(Net(), X)


@both
def test_plain_transforms_of_bound_modules(nn):
    class Net(nn.Module):
        def setup(self):
            self.inner = dense(nn)

        def __call__(self, x):
            if self.is_initializing():
                self.inner(x)
            return jax.vmap(self.inner)(x), jax.grad(lambda x: self.inner(x).sum())(x)

    return run(Net(), X)


@both
def test_named_calls(nn):
    with nn.override_named_call(False):
        first = run(block(nn)(), X)
    with nn.override_named_call(True):
        return first, run(block(nn)(), X)
