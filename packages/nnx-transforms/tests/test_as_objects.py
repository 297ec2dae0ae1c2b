"""Derivatives in the form of objects, and Flax's modes, which ask for them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nnx_transforms as nnx


class Line(nnx.Module):
    def __init__(self, slope, shift, name="line"):
        self.slope = nnx.Param(jnp.asarray(slope))
        self.shift = nnx.BatchStat(jnp.asarray(shift))
        self.name = name
        self.calls = 0

    def __call__(self, x):
        return jnp.sin(self.slope) * x + self.shift**2


def values(tree):
    state = tree if isinstance(tree, nnx.State) else nnx.state(tree)
    return {path: float(leaf.value) for path, leaf in nnx.to_flat_state(state)}


def loss(line, x):
    line.calls += 1
    return line(x)


def test_the_gradient_of_a_module_is_one():
    line = Line(0.5, 3.0)
    grads = nnx.grad(loss, as_objects=True)(line, 2.0)
    assert type(grads) is Line and grads is not line and grads.name == "line"
    as_state = nnx.grad(loss, wrt=...)(line, 2.0)
    assert values(grads) == values(as_state)
    assert line.calls == 2 and grads.calls == 0 and float(line.slope) == 0.5
    value, again = nnx.value_and_grad(loss, as_objects=True)(line, 2.0)
    assert values(again) == values(grads) and float(value) == float(line(2.0))


def test_of_a_variable_it_is_a_variable():
    x = nnx.Param(jnp.array(3.0), unit="m")
    grad = nnx.grad(lambda tree: tree["x"] ** 2, as_objects=True)({"x": x})["x"]
    assert type(grad) is nnx.Param and float(grad) == 6.0 and grad.unit == "m"


def test_forward_and_reverse_mode_agree():
    line, tangent = Line(0.5, 3.0), Line(1.0, -2.0)
    out, dot = nnx.jvp(loss, (line, 2.0), (tangent, 4.0), as_objects=True)
    _, push = nnx.linearize(loss, line, 2.0, as_objects=True)
    _, pull = nnx.vjp(loss, line, 2.0, as_objects=True)
    line_bar, x_bar = pull(jnp.ones_like(out))
    assert type(line_bar) is Line
    bars, dots = values(line_bar), values(tangent)
    product = sum(bars[path] * dots[path] for path in bars) + 4.0 * float(x_bar)
    np.testing.assert_allclose(dot, product, rtol=1e-6)
    np.testing.assert_allclose(push(tangent, 4.0), product, rtol=1e-6)


def test_an_object_may_be_a_tangent_where_a_state_is_due():
    line, tangent = Line(0.5, 3.0), Line(1.0, -2.0)
    as_state = nnx.state(tangent)
    dots = [
        nnx.jvp(loss, (line, 2.0), (t, 4.0), wrt=...)[1] for t in (tangent, as_state)
    ]
    assert float(dots[0]) == float(dots[1])
    with pytest.raises(ValueError, match=r"'0/shift'.*no tangent is due"):
        nnx.jvp(loss, (line, 2.0), (tangent, 4.0))


def test_arguments_may_be_named():
    line, tangent = Line(0.5, 3.0), Line(1.0, -2.0)
    how = {"primals": (line, 2.0), "tangents": (tangent, 4.0), "wrt": ...}
    assert float(nnx.jvp(f=loss, **how)[1]) == float(nnx.jvp(loss, **how)[1])


def test_what_is_returned_has_objects_as_well():
    def moved(line, by):
        return Line(line.slope * by, line.shift + by)

    line, tangent = Line(0.5, 3.0), Line(1.0, -2.0)
    out, dot = nnx.jvp(moved, (line, 2.0), (tangent, 1.0), as_objects=True)
    assert values(out) == {("slope",): 1.0, ("shift",): 5.0}
    assert type(dot) is Line and values(dot) == {("slope",): 2.5, ("shift",): -1.0}
    _, pull = nnx.vjp(moved, line, 2.0, as_objects=True)
    line_bar, by_bar = pull(Line(1.0, 10.0))
    assert values(line_bar) == {("slope",): 2.0, ("shift",): 10.0}
    assert float(by_bar) == 10.5


def test_what_has_no_derivative_of_its_own_is_refused():
    line = Line(0.5, 3.0)
    with pytest.raises(ValueError, match=r"derivative of a Line.*can't be one itself"):
        nnx.grad(loss, wrt=nnx.Param, as_objects=True)(line, 2.0)
    assert line.calls == 0


def test_what_is_shared_is_shared_in_the_derivative():
    def product(tree):
        return tree["a"] * tree["b"].w ** 2 * tree["c"][0].w

    w = nnx.Param(jnp.array(3.0))
    held = nnx.Dict(w=w)
    tree = {"a": w, "b": held, "c": [held, nnx.Dict(inner=held)]}
    grads = nnx.grad(product, as_objects=True)(tree)
    assert float(grads["a"]) == 4 * 3.0**3 and type(grads["c"][1]) is nnx.Dict
    assert grads["b"].w is grads["a"] and grads["b"] is not held
    assert grads["c"][0] is grads["c"][1].inner is grads["b"]


@pytest.mark.parametrize("argnums", [(0, 1, 2), (2, 1, 0)])
def test_arguments_share_their_derivatives_in_any_order(argnums):
    line = Line(0.5, 3.0)
    grads = nnx.grad(
        lambda a, b, c: loss(a, 1.0) + loss(b.inner, 1.0) + loss(c, 1.0),
        argnums=argnums,
        as_objects=True,
    )(line, nnx.Dict(inner=line), line)
    first, middle, last = grads
    assert first is middle.inner is last
    assert float(first.shift) == 3 * 2 * 3.0


def test_shared_derivatives_are_tangents_where_the_same_is_shared():
    def f(pair):
        return [pair[0] * pair[1], moved := nnx.Param(pair[1] * 2.0), moved]

    w = nnx.Param(jnp.array(3.0))
    _, pull = nnx.vjp(f, [w, w], as_objects=True)
    c = nnx.Param(jnp.array(10.0))
    ((bar, again),) = pull([jnp.array(1.0), c, c])
    assert bar is again and float(bar) == 2 * 3.0 + 2 * 10.0
    _, push = nnx.linearize(f, [w, w], as_objects=True)
    dots = push([bar, bar])
    assert dots[1] is dots[2] and [*map(float, dots)] == [156.0, 52.0, 52.0]
    with pytest.raises(ValueError, match=r"'0/1'.*no tangent is due"):
        push([bar, nnx.Param(jnp.array(1.0))])
    # One object may be the tangent of two.
    other = nnx.Param(jnp.array(3.0))
    assert float(nnx.jvp(f, ([w, other],), ([c, c],), as_objects=True)[1][0]) == 60.0


def sharing():
    w = nnx.Param(jnp.array(3.0))
    return nnx.Dict(w=w, b=nnx.Param(jnp.array(1.0))), nnx.Dict(w=w, c=nnx.Param(5.0))


def product_of_three(a, b):
    return a.w[...] * b.w[...] * b.c[...]


def test_a_backward_rule_may_return_what_is_shared():
    function = nnx.custom_vjp(product_of_three, as_objects=True)

    def bwd(arguments, g):
        return nnx.grad(
            lambda a, b: 10 * g * product_of_three(a, b),
            argnums=(0, 1),
            as_objects=True,
        )(*arguments)

    function.defvjp(lambda a, b: (function(a, b), (a, b)), bwd)
    of_a, of_b = nnx.grad(function, argnums=(0, 1), as_objects=True)(*sharing())
    assert of_a.w is of_b.w
    assert [float(x.value) for x in (of_a.w, of_a.b, of_b.c)] == [300.0, 0.0, 90.0]


def test_tangents_that_are_states_and_shared_objects_go_together():
    x, (a, b) = nnx.Dict(x=nnx.Param(2.0)), sharing()
    _, dot = nnx.jvp(
        lambda x, a, b: x.x[...] * product_of_three(a, b),
        (x, a, b),
        (nnx.state(x), *(tangents := sharing())),
        as_objects=True,
    )
    assert tangents[0].w is tangents[1].w
    assert float(dot) == 2 * 45.0 + 2 * (2 * 45.0 + 45.0)
    with pytest.raises(ValueError, match=r"'2/w'.*what is shared are shared"):
        nnx.jvp(lambda *_: 0.0, (x, a, b), (x, a, sharing()[1]), as_objects=True)


def test_rules_are_shown_what_is_shared():
    @nnx.custom_vjp(as_objects=True)
    def twice(x):
        out = nnx.Param(x * 2)
        return [out, nnx.Dict(out=out)]

    def bwd(residuals, g):
        assert g[1].out is g[0]
        return (g[0].value * 100,)

    twice.defvjp(lambda x: (twice(x), None), bwd)
    assert float(jax.grad(lambda x: twice(x)[1].out[...])(1.0)) == 100.0


def test_integers_are_refused_by_grad_and_have_none_in_vjp():
    line = nnx.Dict(w=nnx.Param(jnp.array(2.0)), n=nnx.Variable(jnp.array(3)))
    with pytest.raises(TypeError, match=r"'0/n'.*int32"):
        nnx.grad(lambda line: line.w * line.n, as_objects=True)(line)
    _, pull = nnx.vjp(lambda line: line.w * line.n, line, as_objects=True)
    (bar,) = pull(jnp.array(1.0))
    assert float(bar.w) == 3.0 and bar.n.value.dtype == jax.dtypes.float0


def test_compiled_derivatives_keep_what_is_static_apart():
    derive = nnx.jit(lambda line, x: nnx.grad(loss, as_objects=True)(line, x))
    names = [derive(Line(0.5, 3.0, name), 2.0).name for name in ("a", "b", "a")]
    assert names == ["a", "b", "a"]
    pull = jax.jit(lambda pull, g: pull(g))
    for name in ("a", "b"):
        _, found = nnx.vjp(loss, Line(0.5, 3.0, name), 2.0, as_objects=True)
        assert pull(found, jnp.array(1.0))[0].name == name


# Rules


def doubling(**how):
    @nnx.custom_vjp(**how)
    def f(line, x):
        return line(x)

    def bwd(residuals, g):
        assert g.shape == ()  # of the output alone
        line, _ = residuals
        bar = nnx.clone(line)
        bar.slope.value, bar.shift.value = 2 * g, 3 * g
        return bar, 4 * g

    f.defvjp(lambda line, x: (f(line, x), (line, x)), bwd)
    return f


@pytest.mark.parametrize("how", [{"as_objects": True}, {"input_updates": False}])
def test_a_rule_may_return_an_object(how):
    line = Line(0.5, 3.0)
    grads = nnx.grad(doubling(**how), as_objects=True)(line, 2.0)
    assert values(grads) == {("slope",): 2.0, ("shift",): 3.0}


def test_a_rule_is_shown_objects_for_those_that_are_returned():
    @nnx.custom_vjp(as_objects=True)
    def moved(line, by):
        return Line(line.slope * by, line.shift)

    def bwd(by, g):
        assert type(g) is Line
        g.slope.value = g.slope.value * 100
        return g, None

    moved.defvjp(lambda line, by: (moved(line, by), by), bwd)
    grads = nnx.grad(lambda line, by: moved(line, by)(1.0), as_objects=True)(
        Line(0.0, 3.0), 1.0
    )
    assert values(grads) == {("slope",): 100.0, ("shift",): 6.0}


def test_an_integer_may_name_an_object_that_the_rule_is_given():
    @nnx.custom_vjp(nondiff_argnums=(0, 2, 3), as_objects=True)
    def f(k, x, line, name):
        line.shift.value += 1
        return k * line(x)

    def bwd(k, line, name, residuals, g):
        assert (k, name, float(residuals)) == (2, "f", 5.0)
        return (g * k * line.shift.value,)

    f.defvjp(lambda k, x, line, name: (f(k, x, line, name), x), bwd)
    line = Line(0.0, 3.0)
    grad = nnx.grad(lambda x, line: f(2, x, line, "f"))(5.0, line)
    assert float(grad) == 6.0 and float(line.shift) == 4.0


def test_an_integer_names_no_object_unless_asked_to():
    f = nnx.custom_vjp(loss, nondiff_argnums=(0,))
    f.defvjp(lambda line, x: (1.0, None), lambda line, res, g: (None,))
    with pytest.raises(TypeError, match="graph nodes"):
        f(Line(0.5, 3.0), 1.0)


# Flax's modes


MODES = [
    {"graph": False},
    {"graph_updates": False},
    {"graph": True, "graph_updates": None},
]


def grow(line, x):
    line.slope.value += x
    line.seen = nnx.Variable(x)
    return line(x)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "call",
    [
        lambda line, **mode: nnx.jit(grow, **mode)(line, 1.0),
        lambda line, **mode: nnx.jit(**mode)(grow)(line, 1.0),
        lambda line, **mode: nnx.remat(grow, **mode)(line, 1.0),
        lambda line, **mode: nnx.cond(True, grow, grow, line, 1.0, **mode),
        lambda line, **mode: nnx.switch(0, [grow, grow], line, 1.0, **mode),
    ],
)
def test_every_mode_publishes_what_changes(call, mode):
    line = Line(0.5, 3.0)
    out = call(line, **mode)
    due = Line(0.5, 3.0)
    assert float(out) == float(grow(due, 1.0))
    assert values(line) == values(due)


@pytest.mark.parametrize("mode", MODES[:2])
def test_modes_of_trees_ask_for_objects(mode):
    line = Line(0.5, 3.0)
    assert type(nnx.grad(loss, **mode)(line, 2.0)) is Line
    assert type(nnx.value_and_grad(**mode)(loss)(line, 2.0)[1]) is Line
    out, pull = nnx.vjp(**mode)(loss)(line, 2.0)
    assert type(pull(jnp.ones_like(out))[0]) is Line
    _, dot = nnx.jvp(**mode)(loss)((line, 2.0), (line, 1.0))
    assert float(dot) == float(nnx.jvp(loss, (line, 2.0), (line, 1.0), wrt=...)[1])
    assert type(nnx.grad(doubling(**mode), **mode)(line, 2.0)) is Line


def test_the_mode_of_graphs_asks_for_states():
    line = Line(0.5, 3.0)
    grads = nnx.grad(loss, graph=True, graph_updates=True)(line, 2.0)
    assert isinstance(grads, nnx.State) and list(grads) == ["slope"]
