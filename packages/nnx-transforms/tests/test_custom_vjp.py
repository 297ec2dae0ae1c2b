"""Rules for reverse mode."""

import gc as garbage
import threading
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.custom_derivatives import CustomVJPPrimal, SymbolicZero
from rule_programs import (
    close,
    inexact,
    models,
    primitives,
    programs,
    run,
    same_graph,
    values,
    written,
)

import graphcore as gc
from nnx_transforms import (
    BatchStat,
    Cache,
    Dict,
    DiffState,
    List,
    Module,
    Param,
    PathContains,
    State,
    TraceContextError,
    VariableState,
    jit,
)
from nnx_transforms.transforms.custom_vjp import custom_vjp
from nnx_transforms.transforms.grad import grad, value_and_grad


class Pair(Module):
    def __init__(self, x=1.0, y=2.0):
        self.x = Param(jnp.array(x))
        self.y = Param(jnp.array(y))
        self.calls = BatchStat(jnp.array(0))

    def apply(self, x):
        return self.x.value * x


def make_product(**options):
    """`sin(x) y`, whose derivative by y is ten times too large; counts its calls."""

    @custom_vjp(**options)
    def product(m):
        m.calls.value = m.calls.value + 1
        return jnp.sin(m.x.value) * m.y.value

    def fwd(m):
        return product(m), (jnp.cos(m.x.value), jnp.sin(m.x.value), m)

    def bwd(residuals, g):
        (m_g,), out_g = g
        cos_x, sin_x, m = residuals
        t = jax.tree.map(lambda leaf: leaf, m_g)
        t["x"].value = cos_x * out_g * m.y.value
        t["y"].value = 10 * sin_x * out_g
        return (t,)

    product.defvjp(fwd, bwd)
    return product


def expected_gradient(x=1.0, y=2.0):
    return {"x": np.cos(x) * y, "y": 10 * np.sin(x)}


# What is published and what the gradient is


def test_gradient_and_updates_are_the_rule_s():
    product = make_product()
    m = Pair()
    close(grad(product)(m).to_pure_dict(), expected_gradient())
    assert int(m.calls.value) == 1
    close(product(m), np.sin(1.0) * 2)
    assert int(m.calls.value) == 2


@pytest.mark.parametrize("order", ["jit_grad", "grad_jit", "remat", "grad_vmap_grad"])
def test_compositions(order):
    product = make_product()
    m = Pair()
    if order == "jit_grad":
        g = jit(grad(product))(m)
    elif order == "grad_jit":
        g = grad(jit(product))(m)
    elif order == "remat":
        graphdef, state = gc.split(m)

        @jax.checkpoint
        def f(state):
            inner = gc.merge(graphdef, state)
            return product(inner), inner.calls.value

        g, calls = jax.grad(f, has_aux=True, allow_int=True)(state)
        del g["calls"]
        m.calls.value = calls
    else:
        xs = jnp.arange(3.0)
        for f in (
            lambda xs: jax.vmap(jax.grad(lambda x: product(Pair(x))))(xs),
            jax.grad(lambda xs: jax.vmap(lambda x: product(Pair(x)))(xs).sum()),
            jax.jit(jax.vmap(jax.jit(jax.grad(lambda x: product(Pair(x)))))),
        ):
            close(f(xs), np.cos(xs) * 2)
        return
    close(g.to_pure_dict(), expected_gradient())
    assert int(m.calls.value) == 1


def test_in_a_scan_and_in_branches():
    product = make_product()

    def f(x):
        def body(c, _):
            m = Pair(c)
            out = product(m)
            return out, m.calls.value

        return jax.lax.scan(body, x, None, length=3)

    def expected(x):
        for _ in range(3):
            x = jnp.sin(x) * 2
        return x

    (out, calls), g = (
        jax.value_and_grad(f, has_aux=True)(0.3)[0],
        jax.grad(lambda x: f(x)[0])(0.3),
    )
    close((out, g), (expected(0.3), jax.grad(expected)(0.3)))
    assert calls.tolist() == [1, 1, 1]

    def branch(x):
        return jax.lax.cond(x > 0, lambda x: product(Pair(x)), lambda x: x, x)

    close(jax.grad(branch)(0.5), np.cos(0.5) * 2)


def test_updates_carry_cotangents():
    @custom_vjp
    def f(m):
        m.y.value = m.x.value * 3
        m.last = Cache(m.x.value * 5)
        return m.x.value

    def fwd(m):
        return f(m), None

    seen = {}

    def bwd(_, g):
        (m_g,), out_g = g
        seen.update(m_g.to_pure_dict())
        total = out_g + m_g["y"].value * 3 + m_g["last"].value * 5
        return (State({"x": m_g["x"].replace(total), "y": m_g["x"].replace(0.0)}),)

    f.defvjp(fwd, bwd)

    def loss(m):
        return f(m) + 7 * m.y.value + 11 * m.last.value + 13 * m.x.value

    m = Pair()
    g = grad(loss)(m)
    close(g.to_pure_dict(), {"x": 1 + 7 * 3 + 11 * 5 + 13, "y": 0.0})
    # x was not written, so what uses it afterwards is not the rule's business.
    close([seen[k] for k in ("x", "y", "last")], [0.0, 7.0, 11.0])
    assert seen["calls"].dtype == jax.dtypes.float0
    close((m.y.value, m.last.value), (3.0, 5.0))


def test_the_template_can_be_returned_with_new_variables_in_it():
    @custom_vjp
    def f(m):
        m.last = Cache(m.x.value)
        return m.x.value * 2

    f.defvjp(lambda m: (f(m), None), lambda _, g: (g[0][0],))
    close(grad(f)(Pair()).to_pure_dict(), {"x": 0.0, "y": 0.0})


def test_the_template_can_be_returned_with_bare_arrays_in_it():
    @custom_vjp
    def f(m):
        m.inner[0] = m.inner[0] * 2
        return m.w.value * m.inner[0] + m.bias

    def backward(m, g):
        (m_g,), out_g = g
        tangent = jax.tree.map(jnp.zeros_like, m_g)
        tangent["w"].value = out_g * 5
        tangent["bias"] = out_g * 7
        return (tangent,)

    f.defvjp(lambda m: (f(m), m), backward)
    m = Dict(w=Param(jnp.array(2.0)), bias=jnp.array(3.0), inner=[jnp.array(1.0)])
    everything = DiffState(0, ...)
    g = grad(f, argnums=everything)(m)
    assert (float(g.w.value), float(g.bias), float(g["inner"][0])) == (5.0, 7.0, 0.0)
    assert float(m.inner[0]) == 2.0


def test_updates_of_the_forward_rule_are_seen_where_it_runs():
    @custom_vjp
    def f(m):
        m.calls.value = m.calls.value + 1
        m.ran = "function"
        return m.x.value

    def fwd(m):
        m.calls.value = m.calls.value + 10
        m.ran = "rule"
        return m.x.value, None

    def fails(_, g):
        raise KeyError("user")

    f.defvjp(fwd, fails)
    m = Pair()
    f(m)
    assert (int(m.calls.value), m.ran) == (1, "function")
    with pytest.raises(KeyError, match="user"):
        grad(f)(m)
    assert (int(m.calls.value), m.ran) == (1, "function")
    f.defvjp(fwd, lambda _, g: (g[0][0],))
    grad(f)(m)
    assert (int(m.calls.value), m.ran) == (11, "rule")


def test_a_rule_that_writes_more_than_a_traced_function_is_refused():
    @custom_vjp
    def f(m):
        return m.x.value

    def fwd(m):
        m.calls.value = m.calls.value + 1
        return m.x.value, None

    f.defvjp(fwd, lambda _, g: (g[0][0],))
    m = Pair()
    grad(f)(m)
    assert int(m.calls.value) == 1
    with pytest.raises(ValueError, match=r"'calls' of argument 0 \('m'\)"):
        grad(jit(f))(m)
    assert int(m.calls.value) == 1

    def other(m):
        m.extra = Cache(m.x.value)
        return m.x.value, None

    f.defvjp(other, lambda _, g: (g[0][0],))
    with pytest.raises(ValueError, match="another structure"):
        grad(jit(f))(m)
    assert not hasattr(m, "extra")


def test_a_rule_whose_output_has_another_structure_is_refused():
    f = custom_vjp(lambda x: x)
    f.defvjp(lambda x: ((x, x), None), lambda _, g: (g[1],))
    with pytest.raises(ValueError, match=r"PyTreeDef\(\(\*, \*\)\), but the f"):
        grad(jit(f))(1.0)


def test_nested_in_itself_and_in_others():
    inner = make_product()

    @custom_vjp
    def outer(m, n):
        return inner(m) * (outer(m, n - 1) if n else 1.0)

    outer.defvjp(
        lambda m, n: (outer(m, n), None),
        lambda _, g: (g[0][0], None),
    )
    m = Pair()
    outer_g = grad(lambda m: outer(m, 2))
    # The number of nested calls is static here.
    with pytest.raises(jax.errors.TracerBoolConversionError):
        jit(outer)(m, 2)
    close(outer_g(m).to_pure_dict(), {"x": 0.0, "y": 0.0})
    assert int(m.calls.value) == 3


# Residuals


def test_residuals_hold_objects_that_alias_arguments_and_new_ones():
    @custom_vjp
    def f(m, x):
        return m.x.value * x

    def fwd(m, x):
        new = Dict(own=Cache(x * 2), shared=m.x)
        new.me = new
        return f(m, x), {"m": m, "again": [m, new], "x": x}

    def bwd(residuals, g):
        m, (again, new) = residuals["m"], residuals["again"]
        assert again is m
        assert new.me is new
        assert new.shared is m.x
        (m_g, _), out_g = g
        m_g["x"].value = new.own.value * out_g
        m_g["y"].value = m.x.value
        return m_g, None

    f.defvjp(fwd, bwd)
    for transform in (lambda f: f, jit):
        g = transform(grad(f, argnums=0))(Pair(), 3.0)
        close(g.to_pure_dict(), {"x": 6.0, "y": 1.0})


def test_forward_rule_outside_its_call():
    product = make_product()
    m = Pair()
    graphdef, state = gc.split(m)

    def f(state):
        inner = gc.merge(graphdef, state)
        return product(inner), inner.calls.value

    compiled = jax.jit(f)
    out, pullback, calls = jax.vjp(compiled, state, has_aux=True)
    del m
    (g,) = pullback(jnp.ones(()))
    close((g["x"].value, g["y"].value), tuple(expected_gradient().values()))
    assert int(calls) == 1
    close(out, np.sin(1.0) * 2)
    # Twice, from one trace.
    close(pullback(jnp.ones(()) * 2)[0]["x"].value, 2 * expected_gradient()["x"])


# Which part is differentiable


@pytest.mark.parametrize(
    "by", [PathContains("x"), lambda path, variable: path == ("x",)]
)
def test_diff_state_selects_and_the_rest_may_be_left_out(by):
    only_x = DiffState(0, by)

    @custom_vjp(nondiff_argnums=(only_x,))
    def f(m):
        return jnp.sin(m.x.value) * m.y.value

    def bwd_without_y(residuals, g):
        (m_g,), out_g = g
        assert [path for path, _ in m_g.flat_state()] == [("calls",), ("x",), ("y",)]
        cos_x, m = residuals
        m_g["x"].value = cos_x * out_g * m.y.value
        del m_g["y"]
        return (m_g,)

    def bwd_with_y(residuals, g):
        (m_g,), out_g = g
        m_g["x"].value = residuals[0] * out_g * 2
        m_g["y"].value = jnp.ones((5, 5))  # ignored, whatever it is
        return (m_g,)

    for bwd in (bwd_without_y, bwd_with_y):
        f.defvjp(lambda m: (f(m), (jnp.cos(m.x.value), m)), bwd)
        close(grad(f)(Pair()).to_pure_dict(), {"x": np.cos(1.0) * 2, "y": 0.0})


def test_nondiff_arguments_come_first():
    @custom_vjp(nondiff_argnums=(0, 2))
    def f(g, m, n, x):
        return g(m.x.value) * n * x

    def bwd(g, n, residuals, cotangents):
        assert (g, n) == (jnp.sin, 3)
        (m_g, x_g), out_g = cotangents
        assert x_g is None
        m_g["x"].value = out_g * n
        return m_g, residuals * out_g

    f.defvjp(lambda g, m, n, x: (f(g, m, n, x), x), bwd)
    m_g, x_g = grad(lambda m, x: f(jnp.sin, m, 3, x), argnums=(0, 1))(Pair(), 5.0)
    close((m_g.to_pure_dict(), x_g), ({"x": 3.0, "y": 0.0}, 5.0))


def test_a_variable_and_objects_in_pytrees_are_arguments():
    @custom_vjp
    def f(v, tree):
        return v.value * tree["m"].x.value * tree["a"]

    def bwd(residuals, g):
        (v_g, tree_g), out_g = g
        assert isinstance(v_g, VariableState)
        assert tree_g["a"] is None
        assert [path for path, _ in tree_g["twin"].flat_state()] == []
        tree_g["m"]["x"].value = out_g * 3
        tree_g["a"] = out_g * 4
        return v_g.replace(out_g * 2), tree_g

    f.defvjp(lambda v, tree: (f(v, tree), None), bwd)

    def loss(v, m, a):
        return f(v, {"m": m, "a": a, "twin": m})

    v_g, m_g, a_g = grad(loss, argnums=(0, 1, 2))(Param(jnp.array(2.0)), Pair(), 1.0)
    close((v_g.value, m_g.to_pure_dict(), a_g), (2.0, {"x": 3.0, "y": 0.0}, 4.0))


def test_a_node_in_two_arguments_has_its_tangent_in_the_first():
    @custom_vjp
    def f(a, b):
        return a.x.value * b.y.value

    def bwd(_, g):
        (a_g, b_g), out_g = g
        assert len(b_g) == 0
        a_g["x"].value, a_g["y"].value = out_g * 2, out_g * 3
        return a_g, b_g

    f.defvjp(lambda a, b: (f(a, b), None), bwd)
    close(grad(lambda m: f(m, m))(Pair()).to_pure_dict(), {"x": 2.0, "y": 3.0})


# Outputs with objects


@pytest.mark.parametrize("input_updates", [True, False])
def test_cotangents_of_returned_objects(input_updates):
    @custom_vjp(input_updates=input_updates)
    def f(m):
        m.y.value = m.x.value * 2
        return {"new": Dict(v=Cache(m.x.value), y=m.y), "m": m, "x": m.x.value}

    def bwd(_, g):
        if input_updates:
            (m_g,), out_g = g
            assert out_g["new"].flat_state().paths == (("v",),)
            assert len(out_g["m"]) == 0
        else:
            out_g = g
            # Each variable where it stands first.
            assert out_g["new"].flat_state().paths == (("v",),)
            assert out_g["m"].flat_state().paths == (("calls",), ("x",), ("y",))
            m_g = out_g["m"]
        y_g = m_g["y"].value
        m_g["x"].value = out_g["new"]["v"].value + 2 * y_g + out_g["x"]
        m_g["y"].value = 0.0 * y_g
        return (m_g,)

    f.defvjp(lambda m: (f(m), None), bwd)

    def loss(m):
        out = f(m)
        assert out["m"] is m
        assert out["new"].y is m.y
        return 3 * out["new"].v.value + 5 * out["new"].y.value + 7 * out["x"]

    close(grad(loss)(Pair()).to_pure_dict(), {"x": 3 + 10 + 7, "y": 0.0})


def test_an_output_variable():
    @custom_vjp
    def f(x):
        return Param(x * 2)

    f.defvjp(lambda x: (f(x), None), lambda _, g: (g[1].value * 9,))
    assert isinstance(f(2.0), Param)
    close(jax.grad(lambda x: f(x).value)(1.0), 9.0)


# Symbolic zeros


def test_symbolic_zeros():
    seen = {}

    @custom_vjp
    def f(m, x, y):
        m.calls.value = m.calls.value + 1
        return m.x.value * x, y

    def fwd(m, x, y):
        seen["fwd"] = (m.x.raw_value, m.y.raw_value, x, y)
        assert not isinstance(m.calls.raw_value, CustomVJPPrimal)
        m.calls.value = m.calls.value + 1
        # The model may be kept as it is.
        return (m.x.raw_value.value * x.value, y.value), (m, x.value)

    def bwd(residuals, g):
        m, x = residuals
        seen["bwd"] = g
        (m_g, _, _), (out_g, _) = g
        assert not isinstance(m.x.raw_value, CustomVJPPrimal)
        m_g["x"].value = out_g * x
        return m_g, out_g * m.x.value, None

    f.defvjp(fwd, bwd, symbolic_zeros=True)
    m = Pair()
    m_g = grad(lambda m: f(m, 3.0, 1.0)[0])(m)
    close(m_g.to_pure_dict(), {"x": 3.0, "y": 0.0})
    assert int(m.calls.value) == 1
    assert [type(p) for p in seen["fwd"]] == [CustomVJPPrimal] * 4
    assert [p.perturbed for p in seen["fwd"]] == [True, True, False, False]
    (m_g, _, _), (_, unused) = seen["bwd"]
    assert type(unused) is SymbolicZero
    assert type(m_g["y"].value) is SymbolicZero


# Calls


def test_keyword_arguments_and_defaults():
    @custom_vjp
    def f(m, x, scale=2.0):
        return m.x.value * x * scale

    f.defvjp(
        lambda m, x, scale: (f(m, x, scale), None),
        lambda _, g: (g[0][0], g[1] * 3, g[1] * 4),
    )
    close(jax.grad(lambda x: f(Pair(), x=x))(1.0), 3.0)
    close(jax.grad(lambda s: f(scale=s, m=Pair(), x=1.0))(1.0), 4.0)
    close(f(Pair(), x=3.0), 6.0)


def test_a_method_decorated_in_its_class():
    class Model(Module):
        def __init__(self):
            self.w = Param(jnp.array(2.0))

        @custom_vjp
        def scaled(self, x):
            self.seen = Cache(x)
            return self.w.value * x

        def scaled_fwd(self, x):
            return self.scaled(x), (self, x)

        @staticmethod
        def scaled_bwd(residuals, g):
            (self_g, _), out_g = g
            model, x = residuals
            self_g["w"].value = 10 * x * out_g
            return self_g, model.w.value * out_g

        scaled.defvjp(scaled_fwd, scaled_bwd)

    m = Model()
    m_g, x_g = grad(Model.scaled, argnums=(0, 1))(m, 3.0)
    close((m_g.to_pure_dict(), x_g), ({"w": 30.0}, 2.0))
    close(grad(lambda m, x: m.scaled(x))(m, 3.0).to_pure_dict(), {"w": 30.0})
    close((m.scaled(4.0), m.seen.value), (8.0, 4.0))


def test_a_bound_method_writes_to_its_object():
    class Model(Module):
        def __init__(self):
            self.calls = BatchStat(jnp.array(0))

        def f(self, x):
            self.calls.value = self.calls.value + 1
            return x

        def fwd(self, x):
            self.calls.value = self.calls.value + 1
            return x, None

    m = Model()
    f = custom_vjp(m.f)
    f.defvjp(m.fwd, lambda _, g: (g[1] * 5,))
    close(f(1.0), 1.0)
    assert int(m.calls.value) == 1

    def loss(m, x):
        g = custom_vjp(m.f)
        g.defvjp(m.fwd, lambda _, g: (g[1] * 5,))
        return g(x)

    close(grad(loss, argnums=1)(m, 1.0), 5.0)
    assert int(m.calls.value) == 2


def test_a_method_bound_to_an_object_of_an_outer_trace():
    m = Pair()
    f = custom_vjp(m.apply, input_updates=False)
    f.defvjp(lambda x: (m.apply(x), None), lambda _, g: (g * 5,))
    close(jax.grad(f)(3.0), 5.0)
    close(jax.jit(f)(3.0), 3.0)


def test_no_derivative_by_an_object_that_the_function_is_bound_to():
    class Model(Pair):
        def f(self, x):
            return self.x.value * x

    def loss(m, x):
        f = custom_vjp(m.f)
        f.defvjp(lambda x: (m.f(x), None), lambda _, g: (g[1],))
        return f(x)

    close(grad(loss, argnums=1)(Model(), 3.0), 1.0)
    for transform in (lambda f: f, jit):
        with pytest.raises(TypeError, match="'f' is bound to an object"):
            grad(transform(loss))(Model(), 3.0)


def test_metadata_and_forms_of_decoration():
    def f(x):
        "Says something."
        return x

    for wrapped in (custom_vjp(f), custom_vjp()(f), custom_vjp(input_updates=False)(f)):
        assert (wrapped.__name__, wrapped.__doc__) == ("f", "Says something.")
        assert wrapped.__wrapped__ is f


# Errors


def test_without_rules():
    @custom_vjp
    def nameless(m):
        return m

    with pytest.raises(AttributeError, match="nameless"):
        nameless(Pair())


def test_errors_of_nondiff_argnums():
    f = lambda a, b: a
    for repeated in [(0, 0), (0, DiffState(0)), (DiffState(1), DiffState(1, ...))]:
        with pytest.raises(ValueError, match="twice"):
            custom_vjp(f, nondiff_argnums=repeated)
    with pytest.raises(TypeError, match="str"):
        custom_vjp(f, nondiff_argnums=("a",))
    with pytest.raises(ValueError, match="-1"):
        custom_vjp(f, nondiff_argnums=(-1,))
    with pytest.raises(ValueError, match="has 'other', but its arguments are"):
        custom_vjp(f, nondiff_argnames="other")(1.0)

    @custom_vjp(nondiff_argnums=(1,))
    def g(x, m):
        return x

    g.defvjp(lambda x, m: (x, None), lambda m, _, g: (g[1],))
    with pytest.raises(TypeError, match=r"argument 1 \('m'\) of 'g' holds a Pair"):
        g(1.0, [Pair()])
    with pytest.raises(IndexError, match="argument 1"):
        custom_vjp_with(lambda *a: a[0], nondiff_argnums=(1,))(1.0)
    with pytest.raises(IndexError, match="DiffState"):
        custom_vjp_with(lambda *a: a[0], nondiff_argnums=(DiffState(1),))(1.0)


def custom_vjp_with(f, bwd=lambda _, g: (g[1],), **options):
    wrapped = custom_vjp(f, **options)
    wrapped.defvjp(lambda *args: (f(*args), None), bwd)
    return wrapped


M = r"argument 0 \('m'\)"


@pytest.mark.parametrize(
    ("tangent", "kind", "message"),
    [
        (
            lambda t: jnp.ones(2),
            TypeError,
            rf"{M} an array of type float32\[2\], but .* must be a State",
        ),
        (lambda t: None, TypeError, rf"{M} a NoneType.* must be a State"),
        (lambda t: {"x": 1.0}, TypeError, rf"{M} a dict.* must be a State"),
        (lambda t: State({"x": t["x"]}), ValueError, rf"{M} a State without 'y'"),
        (lambda t: State({**t, "z": t["x"]}), ValueError, rf"{M} a State with 'z'"),
        (lambda t: State({**t, "x": jnp.ones(3)}), ValueError, rf"{M} at 'x'.*\[3\]"),
        (
            lambda t: State({**t, "x": t["x"].replace(jnp.ones(3))}),
            ValueError,
            rf"{M} at 'x'.*float32\[3\].*float32\[\]",
        ),
        (
            lambda t: State({**t, "x": t["x"].replace((1.0, 2.0))}),
            TypeError,
            rf"{M} at 'x' a tangent of structure",
        ),
        (lambda t: State({**t, "x": t["x"].replace("no")}), TypeError, rf"{M} at 'x'"),
    ],
)
def test_tangents_of_the_wrong_kind_or_structure(tangent, kind, message):
    f = custom_vjp_with(
        lambda m, x: m.x.value * x, lambda _, g: (tangent(g[0][0]), None)
    )
    f.__name__ = "f"
    m = Pair()
    before = m.x.value
    with pytest.raises(kind, match=message):
        grad(lambda m: f(m, 1.0))(m)
    assert m.x.value is before
    with pytest.raises(kind, match=message):
        grad(jit(lambda m: f(m, 1.0)))(m)


def test_arrays_in_a_state_are_tangents_of_the_variables_there():
    f = custom_vjp_with(
        lambda m, x: m.x.value * m.y.value * x,
        lambda _, g: (State({"x": 5.0 * g[1], "y": jnp.array(7.0)}), None),
    )
    grads = grad(lambda m: f(m, 2.0))(Pair())
    assert (float(grads.x.value), float(grads.y.value)) == (5.0, 7.0)
    assert grads.x.type is Param


def test_wrong_tangents_of_other_arguments():
    def check(result, kind, message):
        f = custom_vjp_with(lambda m, x: m.x.value * x["a"], lambda _, g: result(g))
        with pytest.raises(kind, match=message):
            grad(lambda x, m: f(m, x))({"a": 1.0}, Pair())

    check(lambda g: g[0][0], TypeError, "must return a tuple .*State")
    check(lambda g: (g[0][0],), TypeError, r"argument 1 \('x'\).* returned 1 of them")
    check(
        lambda g: (g[0][0], {"b": 1.0}), TypeError, r"argument 1 \('x'\) a tangent of"
    )
    check(
        lambda g: (g[0][0], {"a": jnp.ones(2)}),
        ValueError,
        r"argument 1 \('x'\).*float32\[2\]",
    )


def test_forward_rules_must_return_pairs():
    f = custom_vjp(lambda m: m.x.value)
    f.defvjp(lambda m: m.x.value, lambda _, g: (g[0][0],))
    m = Pair()
    with pytest.raises(TypeError, match="pair"):
        grad(f)(m)


def test_a_variable_that_jax_can_t_take():
    f = custom_vjp_with(lambda m: 1.0)
    m = Dict(a=List([Param("text")]))
    with pytest.raises(TypeError, match="'a/0' of argument 0"):
        f(m)


def test_errors_leave_objects_alone():
    def fails(m):
        m.x.value = m.x.value * 2
        m.new = 1
        raise KeyError("user")

    f = custom_vjp(fails)
    f.defvjp(fails, lambda _, g: (g[0][0],))
    m = Pair()
    before = gc.split(m)
    for call in (f, grad(f), jit(f), grad(jit(f))):
        with pytest.raises(KeyError, match="user"):
            call(m)
    assert gc.split(m) == before


def test_an_object_of_another_trace_is_refused():
    product = make_product()
    m = Pair()
    with pytest.raises(TraceContextError):
        jax.jit(lambda: product(m))()


# Leaks and threads


def test_nothing_leaks():
    product = make_product()

    def check(call):
        m = Pair()
        with jax.checking_leaks():
            call(m)
        refs = [weakref.ref(m), weakref.ref(m.x)]
        del m
        garbage.collect()
        assert [r() for r in refs] == [None, None]

    jitted, both, outer = jit(product), jit(grad(product)), grad(jit(product))
    for call in (product, grad(product), jitted, both, outer):
        check(call)


def test_threads():
    product = make_product()
    models = [Pair(float(i)) for i in range(4)]
    gradients = [None] * 4

    def work(i):
        for _ in range(5):
            gradients[i] = grad(product)(models[i]).to_pure_dict()

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    close(gradients, [expected_gradient(float(i)) for i in range(4)])
    assert [int(m.calls.value) for m in models] == [5] * 4


# The same equations as by hand


def test_the_jaxpr_is_that_of_the_functional_version():
    product = make_product()
    m = Pair()
    graphdef, state = gc.split(m)
    calls, x, y = state["calls"].value, state["x"].value, state["y"].value

    def ours(calls, x, y):
        inner = gc.merge(
            graphdef,
            State(
                {
                    "calls": BatchStat.state(calls),
                    "x": Param.state(x),
                    "y": Param.state(y),
                }
            ),
        )
        return product(inner), inner.calls.value

    @jax.custom_vjp
    def by_hand(calls, x, y):
        return calls + 1, jnp.sin(x) * y

    def fwd(calls, x, y):
        return by_hand(calls, x, y), (jnp.cos(x), jnp.sin(x), y)

    def bwd(residuals, g):
        cos_x, sin_x, y = residuals
        return None, cos_x * g[1] * y, 10 * sin_x * g[1]

    by_hand.defvjp(fwd, bwd)

    def theirs(calls, x, y):
        calls, out = by_hand(calls, x, y)
        return out, calls

    args = (calls, x, y)
    a, b = jax.make_jaxpr(ours)(*args), jax.make_jaxpr(theirs)(*args)
    assert primitives(a.jaxpr) == primitives(b.jaxpr)
    (a_call,), (b_call,) = a.jaxpr.eqns, b.jaxpr.eqns
    assert len(a_call.outvars) == len(b_call.outvars) == 2  # no unwritten variables
    a, b = (
        jax.jit(jax.grad(lambda c, x, y, f=f: f(c, x, y)[0], argnums=(1, 2)))
        .lower(*args)
        .compile()
        .as_text()
        .count("fusion")
        for f in (ours, theirs)
    )
    assert a == b


# Oracle: random objects and programs against pure JAX


@settings(max_examples=40, deadline=None)
@given(models(), programs(), st.sampled_from(["eager", "jit_grad", "grad_jit"]))
def test_random_programs(m, program, order):
    x = jnp.array([0.5, -0.25])
    targets = written(program)

    @custom_vjp
    def f(m, x):
        return run(program, m, x)

    def fwd(m, x):
        return run(program, m, x), (m, x)

    def bwd(residuals, g):
        m, x = residuals
        (m_g, _), out_g = g
        by_number = {
            s.number: s.value
            for _, s in m_g.flat_state()
            if "number" in s.get_metadata()
        }
        kept = [v.value for v in inexact(m)]
        tangents = m_g.map(
            lambda path, s: (
                s
                if s.get_metadata().get("number", -1) < 0
                else s.replace(rule(s.number, by_number, kept, out_g, x))
            )
        )
        return tangents, out_g * 2

    def rule(i, of_values, kept, out_g, x):
        return of_values[i] * 3 + kept[i] * out_g * (i + 1) + x

    f.defvjp(fwd, bwd)

    def loss(m, x):
        out = f(m, x)
        return jnp.sum(out) + sum(
            jnp.sum(jnp.sin(v.value)) * (i + 1) for i, v in enumerate(inexact(m))
        )

    # The same with values only: what the program writes is returned.
    graphdef, state = gc.split(m)

    def pure_run(vs, x):
        inner = gc.merge(graphdef, state)
        for v, value in zip(inexact(inner), vs, strict=True):
            v.value = value
        out = run(program, inner, x)
        return [inexact(inner)[i].value for i in targets], out, values(inner)

    @jax.custom_vjp
    def pure(vs, x):
        return pure_run(vs, x)[:2]

    def pure_fwd(vs, x):
        new, out, kept = pure_run(vs, x)
        return (new, out), (kept, x)

    def pure_bwd(residuals, g):
        kept, x = residuals
        g = (dict(zip(targets, g[0], strict=True)), g[1])
        of_values = {i: g[0].get(i, jnp.zeros(2)) for i in range(len(kept))}
        return [rule(i, of_values, kept, g[1], x) for i in range(len(kept))], g[1] * 2

    pure.defvjp(pure_fwd, pure_bwd)

    def pure_loss(vs, x):
        new, out = pure(vs, x)
        after = dict(enumerate(vs)) | dict(zip(targets, new, strict=True))
        return jnp.sum(out) + sum(
            jnp.sum(jnp.sin(after[i])) * (i + 1) for i in range(len(vs))
        )

    expected, (vs_g, x_g) = jax.value_and_grad(pure_loss, argnums=(0, 1))(values(m), x)
    changed = gc.merge(graphdef, state)
    run(program, changed, x)

    everything = lambda path, v: v.get_metadata().get("number", -1) >= 0
    options = {"argnums": (DiffState(0, everything), 1)}
    transformed = {
        "eager": lambda: value_and_grad(loss, **options),
        "jit_grad": lambda: jit(value_and_grad(loss, **options)),
        "grad_jit": lambda: value_and_grad(jit(loss), **options),
    }[order]()
    unwritten = {i: v.value for i, v in enumerate(inexact(m)) if i not in targets}
    found, (m_g, found_x_g) = transformed(m, x)
    close(found, expected)
    by_number = {s.number: s.value for _, s in m_g.flat_state()}
    close([by_number[i] for i in range(len(vs_g))], vs_g)
    close(found_x_g, x_g)
    same_graph(m, changed)
    for i, value in unwritten.items():
        assert inexact(m)[i].value is value  # its very array


# Without objects, JAX's own


def tree_strategy():
    leaf = st.sampled_from(["x", "xx"])
    return st.recursive(
        leaf,
        lambda inner: st.one_of(
            st.lists(inner, min_size=1, max_size=2),
            st.dictionaries(st.sampled_from("ab"), inner, min_size=1, max_size=2),
            st.tuples(inner, inner),
        ),
        max_leaves=3,
    )


def fill(layout, seed):
    leaves, structure = jax.tree.flatten(layout)
    rng = np.random.default_rng(seed)
    made = [
        jnp.asarray(rng.normal(size=(len(leaf),) if len(leaf) > 1 else ()), jnp.float32)
        for leaf in leaves
    ]
    return jax.tree.unflatten(structure, made)


def total(tree):
    return sum(jnp.sum(jnp.sin(x)) for x in jax.tree.leaves(tree))


@settings(max_examples=40, deadline=None)
@given(
    st.lists(tree_strategy(), min_size=1, max_size=3),
    st.integers(0, 100),
    st.sampled_from(["plain", "jit", "vmap"]),
    st.sampled_from(["none", "whole", "list", "leaf", "long", "shape", "structure"]),
    st.booleans(),
)
def test_as_jax(layouts, seed, around, returned, nondiff):
    args = [fill(layout, seed + i) for i, layout in enumerate(layouts)]
    nondiff_argnums = (0,) if nondiff else ()
    if nondiff:
        args = [2.0, *args]

    def f(*args):
        return {"sum": total(args), "first": jax.tree.map(jnp.cos, args[-1])}

    def fwd(*args):
        return f(*args), args[len(nondiff_argnums) :]

    def bwd(*inputs):
        *_, residuals, g = inputs
        tangents = jax.tree.map(lambda x: x * g["sum"], residuals)
        first = tangents[0]
        return {
            "none": (None, *tangents[1:]),
            "whole": tangents,
            "list": list(tangents),
            "leaf": first,
            "long": (*tangents, None),
            "shape": (jax.tree.map(lambda x: jnp.ones((7,)), first), *tangents[1:]),
            "structure": ((first, first), *tangents[1:]),
        }[returned]

    def attempt(decorate):
        wrapped = decorate(f)
        wrapped.defvjp(fwd, bwd)

        def loss(*diff):
            out = wrapped(*args[: len(nondiff_argnums)], *diff)
            return out["sum"] * 3 + total(out)

        diff = tuple(args[len(nondiff_argnums) :])
        g = jax.grad(loss, argnums=tuple(range(len(diff))))
        if around == "jit":
            g = jax.jit(g)
        if around == "vmap":
            stacked = jax.tree.map(lambda x: jnp.stack([x, x + 1]), diff)
            return jax.vmap(g)(*stacked)
        return g(*diff)

    def outcome(decorate):
        try:
            return attempt(decorate)
        except Exception as error:
            return type(error)

    expected = outcome(lambda f: jax.custom_vjp(f, nondiff_argnums=nondiff_argnums))
    found = outcome(
        lambda f: custom_vjp(f, nondiff_argnums=nondiff_argnums, input_updates=False)
    )
    if isinstance(expected, type):
        assert found is expected
        return
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    close(found, expected)


def test_default_form_without_objects():
    f = custom_vjp_with(
        lambda x, y: x * y["a"],
        lambda _, g: (check_updates(g[0]), {"a": g[1] * 5}),
    )

    def check_updates(updates):
        assert updates == (None, None)
        return jnp.array(3.0)

    close(jax.grad(f, argnums=(0, 1))(1.0, {"a": 2.0}), (3.0, {"a": 5.0}))


def test_positional_nondiff_argnums_and_tracers_there():
    f = custom_vjp(lambda n, x: x * n, (0,), input_updates=False)
    f.defvjp(lambda n, x: (x * n, None), lambda n, _, g: (g * n,))
    close(jax.grad(f, argnums=1)(3.0, 1.0), 3.0)
    with pytest.raises(jax.errors.UnexpectedTracerError):
        jax.jit(f)(3.0, 1.0)


def test_forward_mode_is_refused_as_in_jax():
    product = make_product()
    with pytest.raises(TypeError, match="forward-mode"):
        jax.jvp(lambda x: product(Pair(x)), (1.0,), (1.0,))


def test_a_container_in_the_place_of_a_variable_is_shown_as_it_is_then():
    def f(node, x):
        node.w = {"k": gc.Param(2 * x)}
        return jnp.sum(x)

    seen = []

    def backward(w, cotangents):
        (of_node, _), cotangent = cotangents
        seen.append([path for path, _ in of_node.flat_state()])
        due = gc.State({"w": gc.VariableState(gc.Param, cotangent * w)})
        return due, cotangent * jnp.ones(2)

    rule = custom_vjp(f)
    rule.defvjp(lambda node, x: (f(node, x), jnp.array([3.0, 4.0])), backward)
    node = gc.Dict(w=gc.Param(jnp.ones(2)))
    grads = grad(rule)(node, jnp.ones(2))
    assert seen == [[("w", "k")]]
    assert grads.w.value.tolist() == [3.0, 4.0]
    assert node.w["k"].value.tolist() == [2.0, 2.0]


def test_zeros_that_a_rule_hands_on_are_not_added():
    @custom_vjp
    def f(m, x):
        return m.x.value * x

    def backward(x, g):
        (m_g, _), out_g = g
        m_g["x"].value = out_g * x
        return m_g, None  # with the zero of `y`, as it came

    f.defvjp(lambda m, x: (f(m, x), x), backward)

    def loss(x, y):
        m = Pair(x, y)
        return f(m, 3.0) + jnp.sin(m.y.value)

    traced = jax.make_jaxpr(jax.grad(loss, (0, 1)))(1.0, 2.0)
    assert "add_any" not in [e.primitive.name for e in traced.eqns]
