"""Derivatives of functions of live objects."""

import functools
import gc as garbage
import inspect
import re
import threading
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from derivative_programs import (
    Scale,
    assert_close,
    assert_same_equations,
    pairs_of_models,
    programs,
    run,
    snapshot,
)
from hypothesis import given, settings
from hypothesis import strategies as st

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
    Variable,
    VariableState,
    jit,
)
from nnx_transforms.transforms.checkpoint import remat
from nnx_transforms.transforms.grad import grad, value_and_grad
from nnx_transforms.transforms.jacobian import hessian, jacfwd, jacrev
from nnx_transforms.transforms.jvp import jvp, linearize
from nnx_transforms.transforms.vjp import vjp

X = jnp.array(3.0)
GRADIENTS = [grad, value_and_grad, jacfwd, jacrev, hessian]


def ones(node):
    return jax.tree.map(jnp.ones_like, gc.state(node, Param))


class Line(Module):
    def __init__(self):
        self.a = Param(jnp.array(2.0))
        self.b = Param(jnp.array(5.0))
        self.calls = BatchStat(jnp.array(0))

    def __call__(self, x):
        self.calls.value = self.calls.value + 1
        return self.a.value * x + self.b.value

    def curve(self, x):
        return self.a.value**2 * x + self.b.value * self.a.value


# What is differentiated


def test_the_gradient_of_an_object_is_a_state_of_its_params():
    m = Line()
    g = grad(lambda m, x: m(x) ** 2)(m, X)
    assert isinstance(g, State)
    assert jax.tree.map(float, g.to_pure_dict()) == {"a": 66.0, "b": 22.0}
    assert int(m.calls.value) == 1


def test_leaves_of_gradients_keep_type_and_metadata():
    class Special(Param):
        pass

    m = Dict(w=Special(jnp.ones(2), unit="m"))
    g = grad(lambda m: m.w.value.sum())(m)
    assert g.w.type is Special
    assert g.w.unit == "m"
    assert jax.tree.structure(g) == jax.tree.structure(gc.state(m, Param))


def test_diff_states_and_wrt_select():
    m = Line()
    only_a = DiffState(0, PathContains("a"))
    value, (ga, gx) = value_and_grad(lambda m, x: m(x), argnums=(only_a, 1))(m, X)
    assert float(value) == 11.0
    assert jax.tree.map(float, ga.to_pure_dict()) == {"a": 3.0}
    assert float(gx) == 2.0
    assert list(grad(lambda m: m(X), argnums=only_a)(m)) == ["a"]
    assert list(grad(lambda m: m(X), wrt=PathContains("b"))(m)) == ["b"]
    # A `DiffState` counts for its argument, `wrt` for the others.
    one, two = grad(
        lambda m, n: m(X) * n(X), argnums=(only_a, 1), wrt=PathContains("b")
    )(m, Line())
    assert (list(one), list(two)) == (["a"], ["b"])


def test_a_sequence_of_argnums_gives_a_tuple():
    m = Line()
    (g,) = grad(lambda m: m(X), argnums=[0])(m)
    assert list(g) == ["a", "b"]
    g = grad(lambda m, x: m(x), argnums=-2)(m, X)
    assert list(g) == ["a", "b"]
    gx, gm = grad(lambda m, x: m(x), argnums=(1, 0))(m, X)
    assert float(gx) == 2.0
    assert list(gm) == ["a", "b"]


def test_pytrees_with_objects_have_pytrees_of_gradients():
    m = Line()
    tree = {"model": m, "scale": jnp.array(2.0), "more": [Line(), None]}

    def f(tree, x):
        return tree["model"](x) * tree["scale"] + tree["more"][0].b.value

    g = grad(f)(tree, X)
    assert jax.tree.map(float, g["model"].to_pure_dict()) == {"a": 6.0, "b": 2.0}
    assert float(g["scale"]) == 11.0
    assert float(g["more"][0].b.value) == 1.0
    assert g["more"][1] is None


def test_a_variable_that_is_an_argument_has_a_variable_state():
    v = BatchStat(jnp.array(3.0), unit="m")
    g = grad(lambda v: v.value**2)(v)
    assert isinstance(g, VariableState)
    assert (g.type, g.unit, float(g.value)) == (BatchStat, "m", 6.0)
    # A filter that is asked for counts here, too.
    assert grad(lambda v: v.value**2, wrt=Param)(v) == State({})


def test_variables_of_pytrees():
    v = Param({"x": jnp.array(2.0), "y": [jnp.array(3.0)]})
    g = grad(lambda m: m.v.value["x"] * m.v.value["y"][0])(Dict(v=v))
    assert jax.tree.map(float, g.v.value) == {"x": 3.0, "y": [2.0]}


def test_shared_variables_stand_at_their_first_path():
    m = Dict(a=Param(jnp.array(2.0)))
    m.b = m.a
    m.loop = m
    g = grad(lambda m: m.a.value * m.loop.b.value)(m)
    assert jax.tree.map(float, g.to_pure_dict()) == {"a": 4.0}
    assert list(grad(lambda m: m.a.value, wrt=PathContains("b"))(m)) == []


def test_a_node_in_two_arguments_has_its_gradient_in_the_first():
    m = Line()
    f = lambda m, n: m(X) * n.b.value
    g = grad(f, argnums=(0, 1))(m, m)
    assert jax.tree.map(float, g[0].to_pure_dict()) == {"a": 15.0, "b": 16.0}
    assert g[1] == State({})
    g = grad(f, argnums=(1, 0))(m, m)
    assert g[0] == State({})
    assert list(g[1]) == ["a", "b"]
    shared = Param(jnp.array(2.0))
    g = grad(lambda p, q: p.s.value * q.s.value * q.t.value, argnums=(0, 1))(
        Dict(s=shared), Dict(s=shared, t=Param(jnp.array(3.0)))
    )
    assert [s.to_pure_dict() for s in g] == [{"s": 12.0}, {"t": 4.0}]
    g = grad(lambda ms: ms[0].s.value * ms[1].s.value)([Dict(s=shared), Dict(s=shared)])
    assert [s.to_pure_dict() for s in g] == [{"s": 4.0}, {}]


def test_keyword_arguments():
    m = Line()
    f = lambda m, x, *, power=1, other=None: (
        (m(x) + (other.a.value if other else 0)) ** power
    )
    assert float(grad(f)(m, x=X).b.value) == 1.0
    assert float(grad(f)(m=m, x=X, power=2).b.value) == 22.0
    assert float(grad(f, argnums=1)(x=X, m=m)) == 2.0
    assert float(grad(f)(m, X, other=Line(), power=2).b.value) == 26.0


def test_methods_and_callable_objects():
    m = Line()
    assert float(grad(m)(X)) == 2.0
    assert int(m.calls.value) == 1
    assert float(grad(m.__call__)(X)) == 2.0
    assert int(m.calls.value) == 2
    with pytest.raises(ValueError, match="Inconsistent aliasing"):
        grad(m.curve)(m)


def test_allow_int():
    m = Line()
    g = grad(lambda m: m(X), wrt=..., allow_int=True)(m)
    assert g.calls.value.dtype == jax.dtypes.float0
    assert float(g.a.value) == 3.0


def test_holomorphic():
    m = Dict(w=Param(jnp.array(1.0 + 2.0j)))
    g = grad(lambda m: m.w.value**2, holomorphic=True)(m)
    assert complex(g.w.value) == 2.0 + 4.0j
    with pytest.raises(TypeError, match=r"0/w.*complex"):
        grad(lambda m: m.w.value, holomorphic=True)(Dict(w=Param(jnp.array(1.0))))


def test_numbers_can_be_values():
    m = Dict(w=Param(3.0))
    assert float(grad(lambda m: m.w.value**2)(m).w.value) == 6.0
    assert m.w.value == 3.0
    assert type(m.w.value) is float


# What is published


def test_structural_changes_and_outputs():
    m = Line()
    a = m.a

    def f(m, x):
        m.new = Param(x)
        m.alias, m.calls = m.a, m.calls
        del m.b
        return m.a.value * x, (m, Param(x * 2), {"x": x})

    g, (same, new, plain) = grad(f, has_aux=True)(m, X)
    assert list(g) == ["a", "b"]
    assert same is m
    assert m.alias is a
    assert float(m.new.value) == 3.0
    assert not hasattr(m, "b")
    assert float(new.value) == 6.0
    assert plain["x"] is X
    (value, aux), _ = value_and_grad(lambda m: (m.a.value, "text"), has_aux=True)(m)
    assert (float(value), aux) == (2.0, "text")


def test_unwritten_variables_keep_their_arrays():
    m = Line()
    a, b = m.a.value, m.b.value
    grad(lambda m, x: m(x))(m, X)
    vjp(lambda m, x: m(x), m, X)
    jvp(lambda m, x: m(x), (m, X), (ones(m), X))
    assert m.a.value is a
    assert m.b.value is b
    assert int(m.calls.value) == 3


def test_what_is_written_is_not_the_tangent():
    m = Dict(w=Param(jnp.array(2.0)))

    def f(m):
        m.w.value = m.w.value * 3.0
        return m.w.value**2

    g = grad(f)(m)
    assert float(g.w.value) == 36.0
    assert float(m.w.value) == 6.0
    assert not isinstance(m.w.value, jax.core.Tracer)


class Stop(Exception):
    pass


def fail(m, *args):
    m.a.value = m.a.value * 2
    m.new = Param(jnp.array(1.0))
    del m.b
    raise Stop


@pytest.mark.parametrize(
    "call",
    [
        *(lambda m, t=t: t(fail)(m) for t in GRADIENTS),
        lambda m: vjp(fail, m),
        lambda m: jvp(fail, (m,), (ones(m),)),
        lambda m: linearize(fail, m),
        lambda m: jit(grad(fail))(m),
        # What JAX refuses after the function has run.
        lambda m: grad(lambda m: (fail_quietly(m), jnp.ones(3))[1])(m),
    ],
)
def test_errors_leave_objects_alone(call):
    m = Line()
    before = snapshot(m)
    with pytest.raises((Stop, TypeError)):
        call(m)
    assert snapshot(m) == before


def fail_quietly(m):
    m.a.value = m.a.value * 2
    m.new = 1


def test_closures_can_be_read_and_not_written():
    m = Line()
    assert float(grad(lambda x: m.a.value * x)(X)) == 2.0
    with pytest.raises(TraceContextError, match="BatchStat"):
        grad(lambda x: m(x))(X)
    assert int(m.calls.value) == 0


# Errors


@pytest.mark.parametrize("transform", [grad, value_and_grad, jacrev, jacfwd])
@pytest.mark.parametrize("given", [Param, "params", ..., None, (0, Param)])
def test_a_filter_in_the_place_of_argnums(transform, given):
    with pytest.raises(TypeError, match=r"wrt=.*DiffState") as caught:
        transform(lambda m: 0.0, argnums=given)
    assert repr(given) in str(caught.value)


def test_repeated_argnums():
    for argnums in [(0, 0), (0, DiffState(0)), (DiffState(0), DiffState(0, ...))]:
        with pytest.raises(ValueError, match="argument 0 is named more than once"):
            grad(lambda m: 0.0, argnums=argnums)
    with pytest.raises(ValueError, match="more than once"):
        grad(lambda m, x: m(x), argnums=(0, -2))(Line(), X)


@pytest.mark.parametrize("transform", [grad, value_and_grad, jacrev])
def test_integers_are_refused_with_their_path(transform):
    model = Dict(layers=List([Line(), Line()]))
    with pytest.raises(
        TypeError,
        match=r"layers/0/calls.*requires real- or complex-valued inputs.*int32",
    ):
        transform(lambda m: m.layers[0](X), wrt=...)(model)
    with pytest.raises(TypeError, match="1/0/calls"):
        transform(lambda x, ms: x, argnums=(0, DiffState(1, ...)))(X, [Line()])


def test_integers_are_refused_in_forward_mode():
    with pytest.raises(TypeError, match=r"0/calls.*real-valued inputs"):
        jacfwd(lambda m: m(X), wrt=...)(Line())


def test_filters_must_agree_about_shared_variables():
    m = Line()
    f = lambda m, n: m.a.value * n.b.value
    with pytest.raises(ValueError, match="Inconsistent aliasing detected") as info:
        grad(f)(m, m)
    assert "0/a: DiffState(0, " in str(info.value)
    assert "1/a: not differentiated" in str(info.value)
    filters = DiffState(0, PathContains("a")), DiffState(1, PathContains("b"))
    with pytest.raises(ValueError, match="Inconsistent aliasing detected"):
        grad(f, argnums=filters)(m, m)
    shared = Param(jnp.array(1.0))
    deep = Dict(layers=List([Dict(w=shared)]))
    with pytest.raises(ValueError, match=r"(?s)0/layers/0/w.*other/deep"):
        grad(lambda m, *, other: 0.0)(deep, other=Dict(deep=shared))
    # What is not differentiated in either may be shared.
    n = Dict(calls=m.calls)
    grad(lambda m, n: m(X))(m, n)
    assert int(n.calls.value) == 1


def test_objects_as_the_value():
    with pytest.raises(TypeError, match=r"scalar-output.*'<lambda>' returned a Param"):
        grad(lambda m: m.a)(Line())
    with pytest.raises(TypeError, match="returned a Line"):
        grad(lambda m: (m, 1), has_aux=True)(Line())


def test_errors_of_jax_pass():
    m = Line()
    with pytest.raises(TypeError, match="Gradient only defined for scalar-output"):
        grad(lambda m: jnp.ones(3) * m.a.value)(m)
    with pytest.raises(TypeError, match="requires at least 3 positional arguments"):
        grad(lambda m: m.a.value, argnums=2)(m)


@pytest.mark.parametrize("out", [jnp.ones(2), (1.0, 2.0, 3.0), 1.0])
@pytest.mark.parametrize(
    "call",
    [
        lambda f: grad(f, has_aux=True)(Line()),
        lambda f: jacfwd(f, has_aux=True)(Line()),
        lambda f: jacrev(f, has_aux=True)(Line()),
        lambda f: vjp(f, Line(), has_aux=True),
        lambda f: linearize(f, Line(), has_aux=True),
        lambda f: jvp(f, (Line(),), (gc.state(Line(), Param),), has_aux=True),
    ],
)
def test_what_has_further_output_returns_a_pair(call, out):
    def loss(_):
        return out

    with pytest.raises(TypeError, match=r"has_aux=True, 'loss' must return a pair"):
        call(loss)


def test_objects_of_other_traces_are_refused():
    m = Line()

    @jax.jit
    def f(x):
        return grad(lambda m, x: m.a.value * x)(m, x)

    with pytest.raises(TraceContextError, match="different trace level"):
        f(X)


# Tangents


def test_vjp():
    m = Line()
    out, pull = vjp(lambda m, x: m(x), m, X)
    assert float(out) == 11.0
    for _ in range(2):
        gm, gx = pull(jnp.array(2.0))
        assert jax.tree.map(float, gm.to_pure_dict()) == {"a": 6.0, "b": 2.0}
        assert float(gx) == 4.0
    assert int(m.calls.value) == 1
    out, pull, aux = vjp(
        lambda m: (m.a.value, m), m, has_aux=True, wrt=PathContains("a")
    )
    assert aux is m
    assert list(pull(jnp.array(1.0))[0]) == ["a"]


def test_cotangents_of_returned_objects():
    m = Line()

    def f(m, x):
        m.a.value = m.a.value * x
        return {"m": m, "new": Param(x * 2), "y": m(x), "again": m}

    out, pull = vjp(f, m, X)
    assert out["m"] is m is out["again"]
    g = State({"a": jnp.array(1.0), "b": jnp.array(10.0)})
    cotangent = {
        "again": g,
        "m": State({}),
        "new": Param.state(jnp.array(100.0)),
        "y": jnp.array(0.0),
    }
    gm, gx = pull(cotangent)
    assert jax.tree.map(float, gm.to_pure_dict()) == {"a": 3.0, "b": 10.0}
    assert float(gx) == 2.0 + 200.0


@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        (lambda t: State({"a": t.a}), ValueError, "without '0/m/b'"),
        (lambda t: State({**t, "c": t.a}), ValueError, "with '0/m/c'"),
        (lambda t: t.to_pure_dict(), TypeError, "a dict, .*State is due .*'0/m'"),
        (lambda t: None, (TypeError, ValueError), "0/m|structure"),
        (lambda t: State({"a": t.a, "b": jnp.ones(3)}), ValueError, "0/m/b.*shape"),
        (lambda t: State({"a": t.a, "b": jnp.array(1)}), TypeError, "0/m/b.*dtype"),
        (lambda t: State({"a": t.a, "b": [1.0]}), (TypeError, ValueError), "0/m/b"),
    ],
)
def test_tangents_are_checked(change, error, match):
    m = Line()
    before = snapshot(m)
    f = lambda d, x: d["m"](x)
    with pytest.raises(error, match=match):
        jvp(f, ({"m": m}, X), ({"m": change(ones(m))}, X))
    assert snapshot(m) == before
    _, push = linearize(f, {"m": m}, X)
    with pytest.raises(error, match=match):
        push({"m": change(ones(m))}, X)
    _, pull = vjp(lambda m: (({"m": m}),), m)
    with pytest.raises(error, match=match):
        pull(({"m": change(ones(m))},))


def test_tangents_have_the_structure_of_what_they_belong_to():
    m = Line()
    due = "is due, with a State in the place of each object"
    with pytest.raises(TypeError, match=f"tangents hold a tuple, .*{due}"):
        jvp(lambda d: d["m"](X), ({"m": m},), (ones(m),))
    _, pull = vjp(lambda m: (m, m(X)), m)
    with pytest.raises(TypeError, match=f"cotangent holds a list, .*{due}"):
        pull([ones(m)])


def test_tangents_of_variables():
    v = Variable(jnp.array(3.0))
    f = lambda v: v.value**2
    assert float(jvp(f, (v,), (Variable.state(jnp.array(1.0)),))[1]) == 6.0
    with pytest.raises(TypeError, match=r"array .*VariableState is due .*'0'"):
        jvp(f, (v,), (jnp.array(1.0),))


def test_jvp():
    m = Line()
    out, dot = jvp(lambda m, x: m(x), (m, X), (ones(m), jnp.array(0.5)))
    assert (float(out), float(dot)) == (11.0, 5.0)
    out, dot, aux = jvp(
        lambda m, x: ((m, m(x)), "aux"), (m, X), (ones(m), X), has_aux=True
    )
    assert out[0] is m
    assert aux == "aux"
    assert jax.tree.map(float, dot[0].to_pure_dict()) == {"a": 1.0, "b": 1.0}
    (_, dot) = jvp(
        lambda m: m(X),
        (m,),
        (State({"b": jnp.array(1.0)}),),
        wrt=PathContains("b"),
    )
    assert float(dot) == 1.0


def test_jvp_wants_tuples_or_lists_as_jax_does():
    w = gc.Dict(w=gc.Param(jnp.array(2.0)))
    for primals, tangents in ((2.0, 3.0), ((2.0,), {"x": 3.0}), (w, w)):
        with pytest.raises(TypeError, match="must be tuples or lists; found "):
            jvp(lambda x: x, primals, tangents)


def test_linearize():
    m = Line()
    out, push = linearize(lambda m, x: m(x) ** 2, m, X)
    assert int(m.calls.value) == 1
    for factor in (1.0, 2.0):
        tangent = jax.tree.map(lambda t: t * factor, ones(m))
        assert float(push(tangent, X * 0)) == factor * 2 * 11.0 * 4.0
    out, push, aux = linearize(lambda m: (m, m), m, has_aux=True)
    assert out is m is aux
    assert push(ones(m)).to_pure_dict() == {"a": 1.0, "b": 1.0}


def test_pulling_back_inside_jit():
    m = Line()
    _, pull = vjp(lambda m, x: m(x), m, X)
    _, push = linearize(lambda m, x: m(x), m, X)
    gm, gx = jax.jit(lambda pull, ct: pull(ct))(pull, jnp.array(1.0))
    assert (float(gm.a.value), float(gx)) == (3.0, 2.0)
    dot = jax.jit(lambda push, t: push(t, X))(push, ones(m))
    assert float(dot) == 3.0 + 1.0 + 6.0


# Jacobians


@pytest.mark.parametrize("jacobian", [jacfwd, jacrev])
def test_a_jacobian_by_no_variables_is_empty(jacobian):
    m = Dict(w=Param(jnp.array([1.0, 2.0])), n=BatchStat(jnp.array(0)))

    def f(m, x):
        m.n.value = m.n.value + 1
        return {"y": m.w.value * x}

    assert jacobian(f, wrt=Cache)(m, X) == {"y": State({})}
    assert int(m.n.value) == 1
    (of_m,), aux = jacobian(
        lambda m: (m.w.value, 7), argnums=(0,), wrt=Cache, has_aux=True
    )(m)
    assert (of_m, aux) == (State({}), 7)
    of_m, of_x = jacobian(f, argnums=(0, 1), wrt=Cache)(m, X)["y"]
    assert (of_m, of_x.tolist()) == (State({}), [1.0, 2.0])
    with pytest.raises((ValueError, IndexError)) as of_jax:
        getattr(jax, jacobian.__name__)(jnp.sin, 3)(1.0)
    with pytest.raises(of_jax.type, match=re.escape(str(of_jax.value))):
        jacobian(lambda m: m.w.value, 3)(m)
    # Of pytrees without objects, it is what JAX says.
    with pytest.raises(ValueError):
        jacobian(lambda d, x: x)({}, X)


def test_a_hessian_by_no_variables_is_empty():
    m = Dict(w=Param(jnp.array([1.0, 2.0])))
    assert hessian(lambda m: m.w.value.sum(), wrt=Cache)(m) == State({})


@pytest.mark.parametrize("jacobian", [jacfwd, jacrev])
def test_jacobians(jacobian):
    m = Dict(w=Param(jnp.array([1.0, 2.0])), n=BatchStat(jnp.array(0)))

    def f(m, x):
        m.n.value = m.n.value + 1
        return {"y": m.w.value**2 * x}, m.w.value.sum()

    got, total = jacobian(f, has_aux=True)(m, X)
    assert got["y"].w.value.tolist() == [[6.0, 0.0], [0.0, 12.0]]
    assert got["y"].w.type is Param
    assert float(total) == 3.0
    assert int(m.n.value) == 1
    gm, gx = jacobian(lambda m, x: m.w.value * x, argnums=(0, 1))(m, X)
    assert gm.w.value.shape == (2, 2)
    assert gx.tolist() == [1.0, 2.0]
    # The Jacobian of an object with respect to an object.
    g = jacobian(lambda m, x: m)(m, X)
    assert g.w.value.w.value.tolist() == [[1.0, 0.0], [0.0, 1.0]]


def test_hessian_is_that_of_the_functional_version():
    m = Line()
    h, out = hessian(lambda m, x: (m.curve(x), m(x)), has_aux=True)(m, X)
    assert float(out) == 11.0
    assert int(m.calls.value) == 1
    graphdef, params, rest = gc.split(m, Param, ...)
    want = jax.hessian(lambda p: gc.merge(graphdef, p, rest).curve(X))(params)
    assert_close(h, want)
    assert float(h.a.value.a.value) == 6.0
    assert float(h.a.value.b.value) == 1.0
    h = hessian(lambda m, x: m.curve(x), argnums=(0, 1))(m, X)
    assert float(h[0].a.value[1]) == 4.0
    assert float(h[1][0].a.value) == 4.0


# Oracle: the same by hand


def by_hand(m, n):
    """Values, gradients and graphs of a program, without anything of ours."""
    graphdef, params, rest = gc.split(List([m, n]), Param, ...)

    def pure(program, params, x):
        models = gc.merge(graphdef, params, rest)
        value = run(program, models[0], models[1], x)
        return value, gc.split(models)

    return params, pure


@settings(max_examples=30, deadline=None)
@given(pairs_of_models(), programs, st.booleans())
def test_random_programs_equal_the_rewrite_by_hand(models, program, compiled):
    m, n = models
    x = jnp.array([0.5, -1.5])
    params, pure = by_hand(m, n)
    (value, after), (want, want_x) = jax.value_and_grad(
        functools.partial(pure, program), (0, 1), has_aux=True
    )(params, x)
    ours = value_and_grad(functools.partial(run, program), argnums=(0, 1, 2))
    got_value, (gm, gn, gx) = (jit(ours) if compiled else ours)(m, n, x)
    assert_close(got_value, value)
    assert_close(gx, want_x)
    assert_close(gm, want.get(0, State({})))
    assert_close(gn, want.get(1, State({})))
    graphdef, state = gc.split(List([m, n]))
    assert graphdef == after[0]
    assert_close(state, after[1])


@settings(max_examples=30, deadline=None)
@given(pairs_of_models(), programs)
def test_random_tangents_equal_the_rewrite_by_hand(models, program):
    m, n = models
    x = jnp.array([0.5, -1.5])
    params, pure = by_hand(m, n)
    dots = jax.tree.map(jnp.cos, params)
    f = functools.partial(run, program)
    tangents = (dots.get(0, State({})), dots.get(1, State({})), x)
    want = jax.jvp(lambda p, x: pure(program, p, x)[0], (params, x), (dots, x))
    twins = gc.clone(List([m, n]))
    assert_close(jvp(f, (*twins, x), tangents), want)
    twins = gc.clone(List([m, n]))
    out, push = linearize(f, *twins, x)
    assert_close((out, push(*tangents)), want)
    twins = gc.clone(List([m, n]))
    out, pull = vjp(f, *twins, x)
    want_out, want_pull, after = jax.vjp(
        functools.partial(pure, program), params, x, has_aux=True
    )
    want, want_x = want_pull(jnp.array(2.0))
    gm, gn, gx = pull(jnp.array(2.0))
    assert_close((out, gx), (want_out, want_x))
    assert_close(gm, want.get(0, State({})))
    assert_close(gn, want.get(1, State({})))
    graphdef, state = gc.split(twins)
    assert graphdef == after[0]
    assert_close(state, after[1])


# The work that is done


def test_the_same_equations_as_by_hand():
    graphdef, params, rest = gc.split(Scale(), Param, ...)
    x = jnp.ones(3)

    def ours(params, rest, x):
        m = gc.merge(graphdef, params, rest)
        g = grad(lambda m, x: m(x).sum())(m, x)
        return g, gc.split(m)[1]

    def hand(params, rest, x):
        def loss(params):
            m = gc.merge(graphdef, params, rest)
            return m(x).sum(), gc.split(m)[1]

        return jax.grad(loss, has_aux=True)(params)

    assert_same_equations(ours, hand, params, rest, x)

    def ours_jvp(params, rest, x):
        m = gc.merge(graphdef, params, rest)
        return jvp(lambda m, x: m(x).sum(), (m, x), (params, x))

    def hand_jvp(params, rest, x):
        f = lambda params, x: gc.merge(graphdef, params, rest)(x).sum()
        return jax.jvp(f, (params, x), (params, x))

    assert_same_equations(ours_jvp, hand_jvp, params, rest, x)


# Composition


def test_second_order():
    m = Line()
    inner = lambda m, x: grad(lambda m, x: m.curve(x))(m, x).a.value
    g = grad(inner)(m, X)
    assert jax.tree.map(float, g.to_pure_dict()) == {"a": 6.0, "b": 1.0}
    f = lambda m, x: jvp(lambda x: m.a.value * x**3, (x,), (1.0,))[1]
    assert float(grad(f)(m, X).a.value) == 27.0


def test_inside_jit_and_outside():
    m, n = Scale(), Scale()
    f = lambda m, x: m(x).sum()
    x = jnp.ones(3)
    g = jit(grad(f))(m, x)
    assert_close(g, grad(f)(n, x))
    assert_close(g, grad(jit(f))(Scale(), x))
    assert int(m.calls.value) == int(n.calls.value) == 1
    assert int(m.rngs.noise.count.value) == 1


def test_under_vmap():
    m = Line()
    graphdef, state = gc.split(m)
    xs = jnp.arange(3.0)

    def each(x):
        twin = gc.merge(graphdef, state)
        return grad(lambda m, x: m(x) ** 2)(twin, x), twin.calls.value

    g, calls = jax.vmap(each)(xs)
    assert g.a.value.tolist() == (2 * (2 * xs + 5) * xs).tolist()
    assert calls.tolist() == [1, 1, 1]


def test_threads():
    results = {}

    def work(i):
        m = Line()
        m.a.value = jnp.array(float(i))
        for _ in range(20):
            results[i] = grad(lambda m, x: m.curve(x))(m, X)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert [float(results[i].a.value) for i in range(4)] == [
        6.0 * i + 5 for i in range(4)
    ]


# As decorators


@pytest.mark.parametrize("transform", GRADIENTS)
def test_decorators_keep_metadata(transform):
    @transform
    def f(m, x):
        """Doc."""
        return m.curve(x)

    @transform(argnums=1)
    def h(m, x):
        return m.curve(x)

    assert (f.__name__, f.__doc__) == ("f", "Doc.")
    assert list(inspect.signature(f).parameters) == ["m", "x"]
    assert h.__wrapped__(Line(), X).shape == ()
    f(Line(), X)
    out = h(Line(), X)
    assert isinstance(out[1] if transform is value_and_grad else out, jax.Array)
    assert transform(Line()).__wrapped__
    assert not hasattr(transform(Line()), "a")


# Leaks


def test_no_tracer_leaks():
    m = Line()
    with jax.checking_leaks():
        grad(lambda m, x: m(x))(m, X)
        vjp(lambda m, x: (m, m(x)), m, X)
        jvp(lambda m, x: m(x), (m, X), (ones(m), X))
        linearize(lambda m, x: m(x), m, X)
        jacfwd(lambda m, x: m(x))(m, X)
        jacrev(lambda m, x: m(x))(m, X)
        hessian(lambda m, x: m.curve(x))(m, X)


def test_objects_are_collected():
    m = Line()
    _, pull = vjp(lambda m, x: m(x), m, X)
    _, push = linearize(lambda m, x: m(x), m, X)
    tangent = ones(m)
    for transform in GRADIENTS:
        transform(lambda m, x: m(x))(m, X)
    alive = weakref.ref(m)
    del m
    garbage.collect()
    assert alive() is None
    assert float(pull(jnp.array(1.0))[0].a.value) == 3.0
    assert float(push(tangent, X)) == 10.0


def test_arrays_are_collected():
    m = Dict(w=Param(jnp.ones(3)))
    step = grad(lambda m: (m.w.value**2).sum())
    step(m)
    garbage.collect()
    before = len(jax.live_arrays())
    for _ in range(10):
        step(m)
    garbage.collect()
    assert len(jax.live_arrays()) == before


def test_numpy_values():
    m = Dict(w=Param(np.ones(2, np.float32)))
    assert grad(lambda m: m.w.value.sum())(m).w.value.tolist() == [1.0, 1.0]


def test_objects_behind_transformed_methods():
    m = Line()
    transformed = (
        jit(grad(m)),
        grad(grad(m)),
        grad(remat(m)),
        remat(grad(m.__call__)),
        hessian(m),
        jit(jacrev(remat(m))),
    )
    for calls, g in enumerate(transformed):
        assert float(g(X)) in (2.0, 0.0)
        assert int(m.calls.value) == calls + 1
    # Another's wrapper, which copies the attributes of ours, is not taken for it.
    other = functools.wraps(grad(m))(lambda x: x * 3)
    assert float(jit(other)(X)) == 9.0
    assert float(grad(other)(X)) == 3.0


def test_a_partial_of_an_object():
    def call(m, x, *, scale):
        return m(x) * scale

    m, scale = Line(), jnp.array(3.0)
    bare = jax.tree_util.Partial(Line.__call__, m)
    held = jax.tree_util.Partial(call, m, scale=scale)
    for partial, factor in ((bare, 1.0), (held, 3.0)):
        g = grad(lambda partial, x: partial(x))(partial, X)
        due = grad(lambda m, x: m(x) * factor)(m, X)
        assert g.args[0] == due
    assert g.keywords == {"scale": m(X)}
    named = jax.tree_util.Partial(call, scale=scale, m=m)
    g = grad(lambda partial: partial(x=X))(named)
    assert g.args == () and g.keywords == {"m": due, "scale": m(X)}
    behind = jax.tree_util.Partial(lambda scale, m: m(X) * scale, scale, m=m)
    g = grad(lambda partial: partial())(behind)
    assert g.args == (m(X),) and g.keywords == {"m": due}


def test_numbers_in_the_output_are_those_that_jax_gives_back():
    def theirs(w):
        return {"number": 3.0, "array": w * 2, "same": w}

    def ours(m):
        return theirs(m.w.value)

    w = jnp.array(2.0)
    model = Dict(w=Param(w))
    tangent = jax.tree.map(jnp.ones_like, gc.state(model))
    pairs = [
        (vjp(ours, model)[0], jax.vjp(theirs, w)[0]),
        (linearize(ours, model)[0], jax.linearize(theirs, w)[0]),
        (jvp(ours, (model,), (tangent,))[0], jax.jvp(theirs, (w,), (w,))[0]),
        (
            value_and_grad(lambda m: 3.0)(model)[0],
            jax.value_and_grad(lambda w: 3.0)(w)[0],
        ),
    ]
    for out, due in pairs:
        assert out == due
        assert jax.tree.map(type, out) == jax.tree.map(type, due)
