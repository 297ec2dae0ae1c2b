"""`vmap`: against `jax.vmap`, against a rewrite by hand, and its own promises."""

import functools
import gc as garbage
import weakref

import jax
import jax.numpy as jnp
import mapped_programs as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.experimental import sparse

import graphcore as gc
from graphcore.authors import enter
from nnx_transforms import (
    PARTITION_NAME,
    BatchStat,
    Carry,
    Dict,
    Linear,
    List,
    Module,
    Param,
    Rngs,
    StateAxes,
    Variable,
    split_rngs,
)
from nnx_transforms.transforms.jit import jit
from nnx_transforms.transforms.vmap import vmap


class Cell(Module):
    def __init__(self, w):
        self.w = Param(w)
        self.steps = BatchStat(jnp.array(0))


AXES = StateAxes({Param: 0, ...: None})


def stack(n=3):
    return vmap(Cell, out_axes=AXES)(jnp.arange(1.0, n + 1))


def equations(f, *args):
    def of(jaxpr):
        found = []
        for eqn in jaxpr.eqns:
            found.append(eqn.primitive.name)
            for inner in jax.tree.leaves(
                list(eqn.params.values()), is_leaf=lambda p: hasattr(p, "eqns")
            ):
                inner = getattr(inner, "jaxpr", inner)
                if hasattr(inner, "eqns"):
                    found.append(of(inner))
        return found

    return of(jax.make_jaxpr(f)(*args).jaxpr)


# A superset of JAX


@st.composite
def plain_calls(draw):
    count = draw(st.integers(1, 3))
    size = draw(st.integers(1, 3))
    args, axes = [], []
    for _ in range(count):
        axis = draw(st.sampled_from([0, 1, -1, None, 2]))
        shape = [2, 4]
        if axis is not None:
            wrong = draw(st.integers(0, 12)) == 0
            shape.insert(axis % 3, size + wrong)
        x = jnp.arange(float(np.prod(shape))).reshape(shape)
        if draw(st.booleans()):
            x = {"a": x, "b": (x + 1,)}
            axis = draw(st.sampled_from([axis, {"a": axis, "b": axis}]))
        args.append(x)
        axes.append(axis)
    in_axes = draw(st.sampled_from([tuple(axes), axes, axes[0], (*axes, 0)]))
    out_axes = draw(
        st.sampled_from([0, 1, -1, None, (0, 1), (1, None), (0, 0, 0), {"a": 0}, 7])
    )
    kind = draw(st.sampled_from(["sums", "const", "name", "raise", "tree"]))
    size = draw(st.sampled_from([None, None, size, size + 1]))
    return args, {"in_axes": in_axes, "out_axes": out_axes, "axis_size": size}, kind


def plain_function(kind, *args):
    total = sum(x.sum() for x in jax.tree.leaves(args))
    first = jax.tree.leaves(args)[0]
    if kind == "sums":
        return total * first, total
    if kind == "const":
        return first * 2, 3.0
    if kind == "name":
        return jax.lax.psum(first, "i"), total
    if kind == "raise":
        raise ZeroDivisionError("mine")
    return {"a": first}


def outcome(f, *args, **kwargs):
    try:
        return "returned", f(*args, **kwargs)
    except Exception as error:
        return "raised", type(error), str(error)


@given(plain_calls())
@settings(max_examples=150)
def test_plain_pytrees_like_jax(call):
    args, options, kind = call

    def f(*args):
        return plain_function(kind, *args)

    def mapped(transform):
        return transform(f, axis_name="i", **options)(*args)

    ours, theirs = outcome(mapped, vmap), outcome(mapped, jax.vmap)
    assert ours[0] == theirs[0]
    if ours[0] == "raised":
        assert ours[1:] == theirs[1:]
    else:
        assert jax.tree.structure(ours[1]) == jax.tree.structure(theirs[1])
        jax.tree.map(np.testing.assert_array_equal, ours[1], theirs[1])


@pytest.mark.parametrize("name", ["in_axes", "out_axes"])
def test_axes_of_the_wrong_type_like_jax(name):
    for axes in ("x", 1.5, (0, "x")):
        with pytest.raises(TypeError) as theirs:
            jax.vmap(lambda x: x, **{name: axes})(jnp.ones(2))
        with pytest.raises(TypeError) as ours:
            vmap(lambda x: x, **{name: axes})(jnp.ones(2))
        assert str(ours.value) == str(theirs.value)
    with pytest.raises(TypeError):
        vmap(3)


def test_as_many_axes_as_arguments_like_jax():
    with pytest.raises(ValueError) as theirs:
        jax.vmap(lambda x, y: x, in_axes=(0,))(jnp.ones(2), jnp.ones(2))
    with pytest.raises(ValueError) as ours:
        vmap(lambda x, y: x, in_axes=(0,))(jnp.ones(2), jnp.ones(2))
    assert str(ours.value) == str(theirs.value)


def test_keyword_arguments_like_jax():
    def f(x, y=0, *, z=0):
        return x + y + z

    x, one = jnp.ones((3, 3)), jnp.arange(9.0).reshape(3, 3)
    for axes in (0, 1, None, (0,), (1,)):
        ours, theirs = (
            outcome(t(f, in_axes=axes), x, y=one, z=one) for t in (vmap, jax.vmap)
        )
        np.testing.assert_array_equal(ours[1], theirs[1])
    # Where JAX refuses, the position decides.
    np.testing.assert_array_equal(
        vmap(f, in_axes=(0, None))(jnp.ones(3), y=2.0), 3 * jnp.ones(3)
    )


def test_positional_options_like_jax():
    f = lambda x: jax.lax.axis_index("i") + x
    x = jnp.ones((2, 3))
    np.testing.assert_array_equal(
        vmap(f, 1, 1, "i", 3)(x), jax.vmap(f, 1, 1, "i", 3)(x)
    )


def test_gradients_like_jax():
    w, x = jnp.arange(3.0), jnp.arange(6.0).reshape(2, 3)

    def gradient(transform):
        each = transform(lambda w, x: (w * x).sum(), in_axes=(None, 0))
        return jax.grad(lambda w: each(w, x).sum())(w)

    np.testing.assert_array_equal(gradient(vmap), gradient(jax.vmap))


# Oracle


@given(mp.graphs, mp.programs, st.sampled_from([0, 1, 2, -1, -2]), st.booleans())
@settings(max_examples=120)
def test_programs_against_a_rewrite_by_hand(graph, program, axis, compiled):
    xs = jnp.arange(1.0, 4.0)
    root = mp.build(graph, 3, axis)
    total, expected = mp.vmap_by_hand(program, root, xs, axis)
    before = mp.by_uid(root)
    axes = StateAxes({Param: axis, ...: None})

    def call(root):
        f = functools.partial(mp.run, program)
        return vmap(f, in_axes=(axes, 0), out_axes=(0, axes))(root, xs)

    ours, node = (jit(call) if compiled else call)(root)
    np.testing.assert_allclose(ours, total, rtol=1e-5)
    mp.assert_same_graph(Dict(root=root, out=node), expected)
    mp.assert_identity(before, root)


@given(mp.graphs, mp.programs)
@settings(max_examples=30)
def test_errors_leave_objects_untouched(graph, program):
    root = mp.build(graph, 3, 0)
    before = mp.snapshot(root)

    def f(root, x):
        mp.run(program, root, x)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        vmap(f, in_axes=(AXES, 0))(root, jnp.arange(3.0))
    mp.assert_untouched(root, before)


# Objects


def test_constructors():
    cells = stack()
    assert isinstance(cells, Cell)
    assert cells.w.value.tolist() == [1.0, 2.0, 3.0]
    assert cells.steps.value.shape == ()
    make = vmap(lambda key: Linear(2, 3, rngs=Rngs(key)))
    layer = make(jax.random.split(jax.random.key(0), 5))
    assert layer.kernel.value.shape == (5, 2, 3)
    assert not jnp.array_equal(layer.kernel.value[0], layer.kernel.value[1])

    @vmap(axis_size=4, in_axes=None, out_axes=1)
    def without_inputs():
        return Cell(jnp.ones(2) * jax.random.uniform(jax.random.key(0)))

    with pytest.raises(ValueError, match="'output/steps' is stacked along axis 1"):
        without_inputs()


def test_updates_new_attributes_and_identity():
    cells, w = stack(), None

    @vmap(in_axes=(AXES, 0), out_axes=(0, AXES))
    def f(cell, x):
        cell.steps.value = cell.steps.value + 1
        cell.last = Param(x)
        cell.w.value = cell.w.value + x
        return cell.w.value, cell

    w = cells.w
    out, same = f(cells, jnp.arange(3.0))
    assert same is cells and cells.w is w
    assert out.tolist() == cells.w.value.tolist() == [1.0, 3.0, 5.0]
    assert cells.last.value.tolist() == [0.0, 1.0, 2.0]
    assert int(cells.steps.value) == 1


def test_variables_that_are_not_written_keep_their_arrays():
    cells = stack()
    w, steps = cells.w.value, cells.steps.value
    vmap(lambda c, x: c.w.value * x + c.steps.value, in_axes=(AXES, 0))(
        cells, jnp.arange(3.0)
    )
    assert cells.w.value is w and cells.steps.value is steps


def test_objects_under_integers_none_and_negative_axes():
    m = Dict(a=Param(jnp.arange(6.0).reshape(2, 3)))

    def double(m, x):
        m.a.value = m.a.value * x
        return m.a.value

    out = vmap(double, in_axes=(-1, 0))(m, jnp.array([1.0, 2.0, 3.0]))
    assert out.shape == (3, 2)
    np.testing.assert_array_equal(m.a.value, [[0, 2, 6], [3, 8, 15]])
    shared = Dict(a=Param(jnp.arange(2.0)))
    out = vmap(lambda m, x: m.a.value * x, in_axes=(None, 0))(shared, jnp.arange(3.0))
    assert out.shape == (3, 2)


def test_methods_and_callable_objects_share_what_they_are_bound_to():
    layer = Linear(2, 3, rngs=Rngs(0))
    x = jnp.ones((4, 2))
    np.testing.assert_allclose(vmap(layer)(x), layer(x), rtol=1e-6)

    class Scaled(Module):
        def __init__(self):
            self.s = Param(jnp.array(2.0))
            self.calls = BatchStat(jnp.array(0))

        @vmap(in_axes=(None, 0))
        def __call__(self, x):
            self.calls.value = self.calls.value + 1
            return x * self.s.value

    m = Scaled()
    assert m(jnp.arange(3.0)).tolist() == [0.0, 2.0, 4.0]
    assert int(m.calls.value) == 1


def test_a_mapped_method_is_traced_once():
    traces = []

    class Scale(Module):
        def __init__(self):
            self.w = Param(jnp.array(2.0))

        def times(self, x):
            traces.append(x)
            return self.w.value * x

    scale = Scale()
    mapped = vmap(scale.times)
    jitted = jit(mapped)
    for _ in range(3):
        assert jitted(jnp.arange(2.0)).tolist() == [0, 2]
    assert len(traces) == 1
    one, two = (enter(mapped, (jnp.ones(2),)).body for _ in range(2))
    assert one is two


def test_keyword_arguments_take_the_axes_of_their_positions():
    cells = stack()

    def f(cell, x, scale=1.0):
        return cell.w.value * x * scale

    mapped = vmap(f, in_axes=(AXES, None, 0))
    assert mapped(cells, scale=jnp.arange(3.0), x=2.0).tolist() == [0.0, 4.0, 12.0]
    assert vmap(f, in_axes=(AXES, 0))(cells, jnp.ones(3)).tolist() == [1.0, 2.0, 3.0]


def test_random_streams_are_split():
    @split_rngs(splits=3)
    @vmap(in_axes=(0, 0))
    def noise(rngs, x):
        return jax.random.normal(rngs.default()) * 0 + jax.random.uniform(rngs()), x

    rngs = Rngs(0)
    values, _ = noise(rngs, jnp.arange(3.0))
    assert len(set(values.tolist())) == 3


def test_axis_names_and_spmd_axis_names():
    cells = stack()

    def mean(cell):
        cell.steps.value = cell.steps.value + jax.lax.psum(1, "batch")
        return jax.lax.pmean(cell.w.value, "batch")

    out = vmap(mean, in_axes=AXES, axis_name="batch", spmd_axis_name="data")(cells)
    assert out.tolist() == [2.0, 2.0, 2.0] and int(cells.steps.value) == 3


def test_decorators_and_metadata():
    for mapped in (
        vmap(Cell.__init__),
        vmap()(Cell.__init__),
        vmap(in_axes=0)(Cell.__init__),
    ):
        assert mapped.__wrapped__ is Cell.__init__ and mapped.__name__ == "__init__"


def test_nested_maps():
    cells = vmap(vmap(Cell, out_axes=0, axis_size=2), out_axes=0)(jnp.ones((3, 2)))
    assert cells.w.value.shape == (3, 2) and cells.steps.value.shape == (3, 2)

    def add(cell, x):
        cell.w.value = cell.w.value + x
        return cell

    assert vmap(vmap(add))(cells, jnp.arange(6.0).reshape(3, 2)) is cells
    np.testing.assert_array_equal(cells.w.value, 1 + jnp.arange(6.0).reshape(3, 2))


def test_inside_and_around_jax_transformations():
    cells = stack()

    def loss(w):
        inner = Cell(w)
        vmap(lambda c, x: setattr(c, "seen", Param(x)), in_axes=(AXES, 0))(
            inner, jnp.arange(3.0)
        )
        return (inner.seen.value * inner.w.value).sum()

    assert jax.jit(jax.grad(loss))(cells.w.value).tolist() == [0.0, 1.0, 2.0]


def test_what_is_new_in_a_detached_object_has_the_axis_of_where_that_came_from():
    one, two = Dict(x=Param(jnp.ones((2, 3)))), Dict(y=Param(jnp.ones((3, 2))))
    two.child = child = Dict(z=Param(jnp.ones((3, 2))))

    def f(one, two):
        child = two.child
        del two.child
        child.new = Param(two.y.value + one.x.value)

    vmap(f, in_axes=(0, 1))(one, two)
    assert child.new.value.shape == (3, 2)
    assert not hasattr(two, "child")


# Metadata


def test_partition_names_come_and_go():
    name = {PARTITION_NAME: "layers"}
    seen = []

    def make(key):
        return Dict(
            kernel=Param(jnp.ones((2, 3)), sharding=("in", "out")),
            bias=Variable(jnp.ones(3), sharding=("out",)),
        )

    axes = StateAxes({Param: 1, ...: None})
    m = vmap(make, out_axes=axes, transform_metadata=name)(jnp.arange(4))
    assert m.kernel.value.shape == (2, 4, 3)
    assert m.kernel.sharding == ("in", "layers", "out")
    assert m.bias.sharding == ("out",)

    def apply(m, x):
        seen.append(m.kernel.sharding)
        m.scale = Param(jnp.ones(3) * x, sharding=("out",))
        return m

    before = gc.split(m)[0]
    mapped = vmap(apply, in_axes=(axes, 0), out_axes=axes, transform_metadata=name)
    assert mapped(m, jnp.arange(4.0)) is m
    assert seen == [("in", "out")]
    assert m.scale.sharding == ("out", "layers")
    del m.scale
    assert gc.split(m)[0] == before


def test_an_axis_without_its_name_is_refused_with_the_path():
    m = Dict(inner=Dict(kernel=Param(jnp.ones((2, 3)), sharding=("in", "out"))))
    mapped = vmap(lambda m: None, transform_metadata={PARTITION_NAME: "layers"})
    with pytest.raises(ValueError, match="'inner/kernel' has 'in' at axis 0"):
        mapped(m)
    assert m.inner.kernel.sharding == ("in", "out")


def test_hooks_are_called_with_the_axis():
    calls = []
    v = Param(
        jnp.ones((3, 2)),
        on_add_axis=lambda v, index, name: calls.append(("add", index, name)),
        on_remove_axis=lambda v, index, name: calls.append(("remove", index, name)),
    )
    vmap(lambda v: None, transform_metadata={PARTITION_NAME: "n"})(v)
    assert calls == [("remove", 0, "n"), ("add", 0, "n")]
    calls.clear()
    vmap(
        lambda v: None,
        in_axes=None,
        axis_size=2,
        transform_metadata={PARTITION_NAME: "n"},
    )(v)
    vmap(lambda v: None)(v)
    assert calls == []


# Errors


def test_broadcast_variables_that_differ():
    cells = List([stack()])
    before = mp.snapshot(cells)

    def f(cells, x):
        cells[0].steps.value = cells[0].steps.value + x

    with pytest.raises(ValueError, match=r"'0/0/steps' has axis None"):
        vmap(f, in_axes=(AXES, 0))(cells, jnp.arange(3))
    with pytest.raises(ValueError, match=r"'1/0/steps' has axis None"):
        vmap(lambda x, c: f(c, x), in_axes=(0, AXES), axis_name="i")(
            jnp.arange(3), cells
        )
    mp.assert_untouched(cells, before)
    with pytest.raises(ValueError, match=r"'output/made/w' has axis None"):
        vmap(lambda x: {"made": Cell(x)}, out_axes=None)(jnp.arange(3))
    with pytest.raises(ValueError, match=r"'0/new' has axis None"):
        vmap(lambda d, x: d.__setattr__("new", Param(x)), in_axes=(None, 0))(
            Dict(), jnp.arange(3)
        )

    # The same, where an outer map makes everything vary.
    def outer(y):
        vmap(f, in_axes=(AXES, None), axis_size=3)(List([Cell(jnp.ones(3) * y)]), y)
        vmap(f, in_axes=(AXES, 0))(List([Cell(jnp.ones(3))]), jnp.arange(3) * y)

    with pytest.raises(ValueError, match=r"'0/0/steps' has axis None"):
        vmap(outer)(jnp.arange(2))


def test_the_output_is_blamed_in_its_own_terms():
    def f(c, x):
        c.steps.value = c.steps.value + 1
        return x

    with pytest.raises(ValueError, match="'output' has axis None"):
        vmap(f, in_axes=(AXES, 0), out_axes=None)(stack(), jnp.arange(3))


def test_inconsistent_sizes_and_ranks():
    cells = stack()
    with pytest.raises(ValueError, match=r"0/w: axis 0 of shape \(3,\) has size 3"):
        vmap(lambda c, x: x, in_axes=(AXES, 0))(cells, jnp.arange(4))
    with pytest.raises(ValueError, match=r"axis_size: 5\n  0/w"):
        vmap(lambda c: 0, in_axes=(AXES,), axis_size=5)(cells)
    many = Dict({f"w{i:02}": Param(jnp.ones(2 + i % 2)) for i in range(50)})
    with pytest.raises(
        ValueError, match=r"(?s)must be equal.*0/w00.*\.\.\. \d+ more$"
    ) as error:
        vmap(lambda d: 0)(many)
    assert "w49" not in str(error.value)
    with pytest.raises(ValueError, match=r"'0/steps' over axis 0, but its value has"):
        vmap(lambda c: 0)(cells)
    for axis in (-3, 5):
        with pytest.raises(ValueError, match=rf"'0/w' over axis {axis}, but its"):
            vmap(lambda d: 0, in_axes=axis)(Dict(w=Param(jnp.ones((2, 3)))))
    with pytest.raises(ValueError, match=r"'0/new' is stacked along axis 1"):
        vmap(lambda d, x: setattr(d, "new", Param(x)), in_axes=(1, 0))(
            Dict(), jnp.arange(3)
        )


def test_inconsistent_aliasing():
    shared = Param(jnp.arange(3.0))
    a, b = Dict(v=shared), Dict(v=shared)
    with pytest.raises(
        ValueError, match=r"Inconsistent aliasing(.|\n)*0/v: 0\n  1/v: None\n  2: 0\n"
    ):
        vmap(lambda *args: 0, in_axes=(0, None, 0))(a, b, shared)
    with pytest.raises(ValueError, match=r"Inconsistent aliasing(.|\n)*output"):
        vmap(lambda a: a, in_axes=0, out_axes=1)(a)
    cells = stack()
    with pytest.raises(ValueError, match="Inconsistent aliasing"):
        vmap(lambda c: c, in_axes=(AXES,), out_axes=0)(cells)


def test_settings_that_are_no_axes():
    with pytest.raises(TypeError, match=r"vmap's in_axes.*Carry"):
        vmap(lambda x: x, in_axes=(StateAxes({...: Carry}),))
    with pytest.raises(TypeError, match=r"vmap's out_axes.*'x'"):
        vmap(lambda x: x, out_axes=StateAxes({...: "x"}))
    with pytest.raises(ValueError, match=r"argument \[0\]\['a'\] is a"):
        vmap(lambda x: x, in_axes=(AXES, 0))({"a": jnp.ones(3)}, Param(jnp.ones(3)))
    with pytest.raises(ValueError, match=r"argument \[0\] is a"):
        vmap(lambda x: x, in_axes=(AXES, 0))(jnp.ones(3), jnp.ones(3))
    with pytest.raises(ValueError, match=r"output\[1\] is a"):
        vmap(lambda x: (Cell(x), x), out_axes=AXES)(jnp.ones(3))
    with pytest.raises(ValueError, match="in_axes has 3 entries"):
        vmap(lambda c, x: x, in_axes=(0, 0, 0))(Param(jnp.ones(3)), jnp.ones(3))


def test_values_that_cannot_be_mapped():
    with pytest.raises(TypeError, match=r"'0/name' holds a value of type str"):
        vmap(lambda d: 0)(Dict(name=Variable("x"), w=Param(jnp.ones(3))))
    # Without an axis they pass.
    d = Dict(name=Variable("x"), w=Param(jnp.ones(3)))
    vmap(lambda d: d.w.value, in_axes=(StateAxes({Param: 0, ...: None}),))(d)


def test_captured_objects_are_constants():
    m = Cell(jnp.array(2.0))
    assert vmap(lambda x: m.w.value * x)(jnp.arange(3.0)).tolist() == [0.0, 2.0, 4.0]
    with pytest.raises(gc.TraceContextError):
        vmap(lambda x: m.w.__setattr__("value", x))(jnp.arange(3.0))


# What is left behind


def test_the_same_equations_as_by_hand():
    def ours(w, steps, xs):
        cells = Cell(w)
        cells.steps.value = steps

        def f(c, x):
            c.steps.value = c.steps.value + 1
            c.w.value = c.w.value * x
            return jnp.sin(c.w.value)

        out = vmap(f, in_axes=(AXES, 0))(cells, xs)
        return out, cells.w.value, cells.steps.value

    def by_hand(w, steps, xs):
        def f(w, steps, x):
            steps = steps + 1
            w = w * x
            return jnp.sin(w), w, steps

        return jax.vmap(f, in_axes=(0, None, 0), out_axes=(0, 0, None))(w, steps, xs)

    args = jnp.ones(3), jnp.array(0), jnp.ones(3)
    assert equations(ours, *args) == equations(by_hand, *args)


def test_nothing_leaks():
    def f(c, x):
        c.w.value = c.w.value + x
        c.new = Param(x)
        return c

    cells = stack()
    with jax.checking_leaks():
        vmap(f, in_axes=(AXES, 0), out_axes=AXES)(cells, jnp.arange(3.0))
        with pytest.raises(ValueError, match="has axis None"):
            vmap(f, in_axes=(None, 0), out_axes=None)(cells, jnp.arange(3.0))
    refs = [weakref.ref(x) for x in (cells, cells.w, cells.new, cells.w.value)]
    del cells
    garbage.collect()
    assert [r() for r in refs] == [None] * 4


def test_a_sparse_matrix_as_a_value():
    def matrices():
        eye = sparse.BCOO.fromdense(jnp.eye(3))
        return sparse.bcoo_broadcast_in_dim(
            eye, shape=(2, 3, 3), broadcast_dimensions=(1, 2)
        )

    def double(v, x):
        v.value = v.value * 2
        return v.value @ x

    v, x = Param(matrices()), jnp.arange(6.0).reshape(2, 3)
    expected = jax.vmap(lambda a, x: ((a * 2), (a * 2) @ x))(matrices(), x)
    assert vmap(double)(v, x).tolist() == expected[1].tolist()
    assert v.value.shape == expected[0].shape
    assert v.value.n_batch == expected[0].n_batch
    assert v.value.todense().tolist() == expected[0].todense().tolist()
    assert vmap(double)(v, x).tolist() == (2 * expected[1]).tolist()


def test_a_bare_array_reached_under_two_settings_is_refused():
    node = gc.Dict(a=jnp.arange(3.0), b=[jnp.ones(3)])
    mapped, same = StateAxes({...: 0}), StateAxes({...: None})
    for axes in [(mapped, same), (mapped, None)]:
        each = vmap(lambda x, y: x.a + y.a, in_axes=axes)
        with pytest.raises(ValueError, match=r"jax.Array is reached[^/]*0/a: 0\n +1/a"):
            each(node, node)
    each = vmap(lambda x, y: x.a + y.a, in_axes=(mapped, 0))
    assert each(node, node).tolist() == [0.0, 2.0, 4.0]
