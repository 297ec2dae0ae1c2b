"""`scan`: against `jax.lax.scan`, against a rewrite by hand, and its own promises."""

import functools
import gc as garbage
import pickle
import weakref

import jax
import jax.numpy as jnp
import mapped_programs as mp
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import graphcore as gc
from nnx_transforms import (
    PARTITION_NAME,
    BatchStat,
    Carry,
    Dict,
    Dropout,
    Intermediate,
    Linear,
    List,
    Module,
    Param,
    RngCount,
    Rngs,
    StateAxes,
    Variable,
)
from nnx_transforms.transforms.jit import jit
from nnx_transforms.transforms.scan import scan
from nnx_transforms.transforms.vmap import vmap


class Cell(Module):
    def __init__(self, w):
        self.w = Param(w)
        self.steps = BatchStat(jnp.array(0))


LAYERS = StateAxes({Param: 0, ...: Carry})
SAME = "Carry references must be the same between iterations"
SHARED = StateAxes({Param: 0, ...: None})


def stack(n=3):
    return vmap(Cell, out_axes=SHARED)(jnp.arange(1.0, n + 1))


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


# Plain pytrees


@st.composite
def plain_scans(draw):
    length = draw(st.integers(0, 4))
    axes, args = [], []
    for _ in range(draw(st.integers(0, 3))):
        axis = draw(st.sampled_from([0, 1, 2, -1, -2, None]))
        shape = [2, 3]
        if axis is not None:
            shape.insert(axis % 3, length)
        x = jnp.arange(float(np.prod(shape))).reshape(shape)
        if draw(st.booleans()):
            x, axis = {"a": x, "b": 2.0}, {"a": axis, "b": None}
        axes.append(axis)
        args.append(x)
    position = draw(st.integers(0, len(args)))
    out_axes = draw(st.tuples(*[st.sampled_from([0, 1, 2, -1, -3])] * 2))
    carry_out = draw(st.integers(0, 2))
    options = {
        "reverse": draw(st.booleans()),
        "unroll": draw(st.sampled_from([1, 2, True])),
        "length": length,
    }
    return position, axes, args, carry_out, out_axes, options


@given(plain_scans())
@settings(max_examples=60)
def test_any_axes_against_lax_scan(case):
    position, axes, args, carry_out, out_axes, options = case
    init = {"x": jnp.ones((2, 3)), "n": jnp.array(1)}

    def step(carry, *others):
        total = sum(jax.tree.leaves(others), carry["x"])
        new = {"x": carry["x"] * 0.5 + total, "n": carry["n"] + 1}
        return new, total * 2, {"y": total + carry["n"]}

    def ours_step(*args):
        others = [*args[:position], *args[position + 1 :]]
        carry, y1, y2 = step(args[position], *others)
        out = [y1, y2]
        out.insert(carry_out, carry)
        return tuple(out)

    in_axes = (*axes[:position], Carry, *axes[position:])
    all_out = list(out_axes)
    all_out.insert(carry_out, Carry)
    ours = scan(ours_step, in_axes=in_axes, out_axes=tuple(all_out), **options)(
        *args[:position], init, *args[position:]
    )

    flat, structure = jax.tree.flatten(args)
    flat_axes = jax.tree.leaves(axes, is_leaf=lambda a: a is None)

    def by_hand(carry, xs):
        xs = dict(xs)
        now = [xs.get(i, x) for i, x in enumerate(flat)]
        carry, *ys = step(carry, *structure.unflatten(now))
        return carry, tuple(ys)

    xs = {
        i: jnp.moveaxis(x, a, 0)
        for i, (x, a) in enumerate(zip(flat, flat_axes, strict=True))
        if a is not None
    }
    carry, (y1, y2) = jax.lax.scan(by_hand, init, xs, **options)
    expected = [jnp.moveaxis(y1, 0, out_axes[0])]
    expected.append({"y": jnp.moveaxis(y2["y"], 0, out_axes[1])})
    expected.insert(carry_out, carry)
    assert jax.tree.structure(ours) == jax.tree.structure(tuple(expected))
    jax.tree.map(np.testing.assert_array_equal, ours, tuple(expected))


def test_the_defaults_are_those_of_lax_scan():
    f = lambda c, x: (c + x, c * x)
    xs = jnp.arange(4.0)
    ours, theirs = scan(f)(1.0, xs), jax.lax.scan(f, 1.0, xs)
    jax.tree.map(np.testing.assert_array_equal, ours, theirs)
    carry, ys = scan(lambda c, x: (c * 2, None), length=3)(1, None)
    assert int(carry) == 8 and ys is None
    assert (
        float(scan(lambda c: c + 1, in_axes=Carry, out_axes=Carry, length=5)(0.0)) == 5
    )
    doubled = scan(lambda x: x * 2, in_axes=0, out_axes=0)(xs)
    np.testing.assert_array_equal(doubled, xs * 2)


def test_broadcast_arguments_may_be_anything():
    def f(c, flag, x):
        return c + x if flag == "add" else c * x

    run = scan(f, in_axes=(Carry, None, 0), out_axes=Carry)
    assert float(run(1.0, "add", jnp.arange(1.0, 4.0))) == 7
    assert float(run(1.0, "mul", jnp.arange(1.0, 4.0))) == 6
    assert float(run(1.0, x=jnp.arange(1.0, 4.0), flag="mul")) == 6


def test_gradients_like_lax_scan():
    f = lambda c, x: (jnp.sin(c) * x, c)
    xs = jnp.arange(1.0, 4.0)
    ours = jax.grad(lambda c: scan(f)(c, xs)[0])(0.3)
    np.testing.assert_array_equal(
        ours, jax.grad(lambda c: jax.lax.scan(f, c, xs)[0])(0.3)
    )


def test_argument_checks_like_lax_scan():
    f = lambda c, x: (c, x)
    xs = jnp.arange(3)
    cases = [
        (f, (1, None), {}),  # no length
        (f, (1, jnp.array(3.0)), {}),  # no leading axis
        (lambda c, x: (c + 0.5, x), (np.int32(1), xs), {}),  # another dtype
        (lambda c, x: ((c, c), x), (1, xs), {}),  # another structure
        (f, (1, "text"), {}),
        (f, (1, xs), {"unroll": -1}),
        (lambda c, x: 1 / 0, (1, xs), {}),
    ]
    for function, args, options in cases:
        with pytest.raises(Exception) as theirs:
            jax.lax.scan(function, *args, **options)
        with pytest.raises(type(theirs.value)):
            scan(function, **options)(*args)
    with pytest.raises(ValueError):
        scan(f, length=2)(1, xs)
    with pytest.raises(jax.errors.ConcretizationTypeError, match="`length`"):
        jax.jit(lambda n: scan(f, length=n)(1, None))(2)
    with pytest.raises(ValueError, match=r"argument \[1\] is a"):
        scan(f, in_axes=(Carry, SHARED))(1, xs)


def test_without_compilation():
    cells = stack()

    def f(c, x):
        c.steps.value = c.steps.value + 1
        c.seen = Param(x)
        return c.w.value * x

    with jax.disable_jit():
        assert scan(f, in_axes=(LAYERS, 0), out_axes=0)(cells, jnp.arange(3)).shape
        assert scan(lambda c, x: (c, x))(1, jnp.arange(3))[1].tolist() == [0, 1, 2]
    assert cells.seen.value.tolist() == [0, 1, 2] and int(cells.steps.value) == 3


@pytest.mark.parametrize("start", [2.0, np.float32(2), np.ones(2, np.float32)])
def test_a_number_that_is_carried_may_be_kept_without_compilation(start):
    def f(m, x):
        m.last.value = x
        m.sow(Intermediate, "seen", x)
        return m.factor.value * x

    def run():
        last = Variable(jnp.zeros(np.shape(start)))
        m = Dict(last=last, factor=Variable(jnp.array(3.0)))
        axes = StateAxes({Intermediate: 0, ...: Carry})
        total = scan(f, in_axes=(axes, Carry), out_axes=Carry, length=3)(m, start)
        return total, m.last.value, *m.seen.value

    with jax.disable_jit():
        found = run()
    jax.tree.map(np.testing.assert_array_equal, found, run())


# Oracle


@given(mp.graphs, mp.programs, st.sampled_from([0, 1, 2, -1, -2]), st.booleans())
@settings(max_examples=60)
def test_programs_against_a_rewrite_by_hand(graph, program, axis, compiled):
    xs = jnp.arange(1.0, 4.0)
    root = mp.build(graph, 3, axis)
    assume(any(isinstance(v, Param) for v in mp.reached(root)[1]))
    before, untouched = mp.by_uid(root), mp.snapshot(root)
    axes = StateAxes({Param: axis, ...: Carry})

    # What is returned would have to be carried as a whole.
    def f(root, x):
        return mp.run(program, root, x)[0]

    def call(root):
        return scan(f, in_axes=(axes, 0), out_axes=0)(root, xs)

    try:
        ours = (jit(call) if compiled else call)(root)
    except ValueError as error:
        # Carried variables must stay where they are.
        if SAME not in str(error):
            raise
        mp.assert_untouched(root, untouched)
        assert {step[0] for step in program[0]} & {"delete", "point", "share", "new"}
        return
    total, expected, _ = mp.scan_by_hand(program, mp.build(graph, 3, axis), xs, axis)
    np.testing.assert_allclose(ours, total, rtol=1e-5)
    mp.assert_same_graph(root, expected.root)
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
        scan(f, in_axes=(LAYERS, 0), out_axes=0)(root, jnp.arange(3.0))
    mp.assert_untouched(root, before)


# Objects


def test_layers_with_carried_counters():
    cells = stack()

    @scan(in_axes=(LAYERS, Carry), out_axes=Carry)
    def run(cell, x):
        cell.steps.value = cell.steps.value + 1
        return x * cell.w.value

    w = cells.w.value
    assert float(run(cells, jnp.array(1.0))) == 6.0
    assert int(cells.steps.value) == 3
    assert cells.w.value is w
    assert float(run(x=jnp.array(2.0), cell=cells)) == 12.0


def test_carried_objects():
    counter = Dict(n=Variable(jnp.array(0)), items=List([Param(jnp.array(1.0))]))
    inner = counter["items"][0]

    def step(carry, x):
        counter, total = carry
        counter.n.value = counter.n.value + 1
        counter["items"][0].value = counter["items"][0].value * x
        return (counter, total + x), counter.n.value

    (same, total), ys = scan(step)((counter, 0.0), jnp.arange(1.0, 4.0))
    assert same is counter and counter["items"][0] is inner
    assert int(counter.n.value) == 3 and float(inner.value) == 6.0
    assert float(total) == 6.0 and ys.tolist() == [1, 2, 3]
    # Without iterations, and backwards.
    scan(step)((counter, 0.0), jnp.zeros(0))
    assert int(counter.n.value) == 3
    _, ys = scan(step, reverse=True)((counter, 0.0), jnp.arange(2.0))
    assert ys.tolist() == [5, 4]


def test_carry_in_annotations():
    def step(carry: Carry | None, x: jax.Array) -> tuple[Carry, jax.Array]:
        return carry + x, carry

    total, before = scan(step, in_axes=(Carry, 0), out_axes=(Carry, 0))(1, jnp.ones(2))
    assert int(total) == 3 and before.tolist() == [1, 2]
    assert repr(Carry) == "Carry" and pickle.loads(pickle.dumps(Carry)) is Carry


def test_carry_alone():
    counter = Variable(jnp.array(0))

    @scan(in_axes=Carry, out_axes=Carry, length=4)
    def run(v):
        v.value = v.value + 1
        return v

    assert run(counter) is counter and int(counter.value) == 4


def test_only_written_carries_are_replaced():
    m = Dict(a=Variable(jnp.array(1.0)), b=Variable(jnp.array(2.0)))
    a = m.a.value

    def step(m, x):
        m.b.value = m.b.value + m.a.value
        return m, x

    scan(step)(m, jnp.arange(3))
    assert m.a.value is a and float(m.b.value) == 5.0


def test_broadcast_objects_are_read():
    scale = Param(jnp.array(3.0))
    value = scale.value
    out = scan(lambda s, c, x: (c + s.value * x, c), in_axes=(None, Carry, 0))(
        scale, 0.0, jnp.ones(2)
    )
    assert float(out[0]) == 6.0 and scale.value is value


def test_axes_of_variables():
    m = Dict(
        rows=Param(jnp.arange(6.0).reshape(2, 3)),
        columns=BatchStat(jnp.arange(6.0).reshape(3, 2)),
        count=Variable(jnp.array(0)),
        fixed=Variable(jnp.array(2.0)),
    )
    axes = StateAxes(
        {Param: -1, BatchStat: 0, gc.PathContains("count"): Carry, ...: None}
    )

    @scan(in_axes=(axes, Carry), out_axes=(Carry, -1))
    def run(m, total):
        m.rows.value = m.rows.value + m.columns.value
        m.count.value = m.count.value + 1
        return total + m.fixed.value, m.columns.value

    total, columns = run(m, 0.0)
    assert float(total) == 6.0 and int(m.count.value) == 3
    np.testing.assert_array_equal(columns, m.columns.value.T)
    np.testing.assert_array_equal(
        m.rows.value, jnp.arange(6.0).reshape(2, 3) + m.columns.value.T
    )


def test_new_variables_are_stacked():
    class Deep(Cell):
        def __call__(self, x):
            self.sow(Variable, "seen", x)
            self.made = Linear(1, 2, rngs=Rngs(0))
            return x * self.w.value, Cell(x)

    m = vmap(Deep, out_axes=SHARED)(jnp.arange(1.0, 4.0))
    axes = StateAxes({BatchStat: Carry, ...: 0})
    x, cells = scan(lambda m, x: m(x), in_axes=(axes, Carry), out_axes=(Carry, 0))(
        m, 1.0
    )
    assert float(x) == 6.0
    assert jax.tree.leaves(m.seen.value)[0].tolist() == [1.0, 1.0, 2.0]
    assert m.made.kernel.value.shape == (3, 1, 2)
    assert isinstance(cells, Cell) and cells.w.value.tolist() == [1.0, 1.0, 2.0]
    assert cells.steps.value.shape == (3,)


def test_the_first_variables_with_an_axis_may_be_new():
    m = Cell(2.0)
    axes = StateAxes({Intermediate: 0, ...: Carry})

    def run(m, kind):
        def f(m, x):
            m.sow(kind, "seen", x)
            return x * m.w.value

        each = {"in_axes": (axes, Carry), "out_axes": Carry}
        return scan(f, length=3, **each)(m, 1.0)

    assert float(run(m, Intermediate)) == 8.0
    assert m.seen.value[0].tolist() == [1.0, 2.0, 4.0]
    with pytest.raises(ValueError, match="has Carry instead of an axis"):
        run(Cell(2.0), BatchStat)


def test_scanned_objects_may_be_returned():
    cells = stack()
    all_scanned = List([Param(jnp.arange(3.0))])

    def f(layers, c):
        layers[0].value = layers[0].value + c
        return layers, c + 1

    same, _ = scan(f, in_axes=(0, Carry), out_axes=(0, Carry))(all_scanned, 0)
    assert same is all_scanned and same[0].value.tolist() == [0.0, 2.0, 4.0]
    # As for JAX, a list of two will do.
    sums, xs = scan(lambda n, x: [n + x, n])(0, jnp.arange(4))
    assert (int(sums), xs.tolist()) == (6, [0, 0, 1, 3])
    with pytest.raises(ValueError, match="Inconsistent aliasing"):
        scan(lambda c, x: c, in_axes=(LAYERS, 0), out_axes=0)(cells, jnp.arange(3))


def test_random_streams():
    def f(rngs, x):
        return jax.random.uniform(rngs.default())

    rngs, by_hand = Rngs(0), Rngs(0)
    axes = StateAxes({RngCount: Carry, ...: None})
    values = scan(f, in_axes=(axes, 0), out_axes=0)(rngs, jnp.arange(3))
    expected = [float(jax.random.uniform(by_hand.default())) for _ in range(3)]
    np.testing.assert_allclose(values, expected, rtol=1e-6)
    assert int(rngs.default.count.value) == 3


def test_methods():
    class Net(Module):
        def __init__(self):
            self.cells = stack()
            self.bias = Param(jnp.array(1.0))

        @scan(
            in_axes=(StateAxes({gc.PathContains("cells"): 0, ...: None}), Carry),
            out_axes=Carry,
        )
        def __call__(self, x):
            return x * self.cells.w.value + self.bias.value

    net = Net()
    net.cells.steps.value = jnp.zeros(3)
    assert float(net(0.0)) == 1 * 6 + 3 + 1
    # What a function is bound to is shared by all iterations.
    bias = Param(jnp.array(2.0))
    add = scan(Dict(b=bias).__getitem__, in_axes=0, out_axes=0)
    assert add.__name__ == "__getitem__"


def test_nested_scans():
    grid = vmap(vmap(Cell))(jnp.arange(6.0).reshape(2, 3))

    def row(cells, total):
        return scan(lambda c, t: t + c.w.value, in_axes=(0, Carry), out_axes=Carry)(
            cells, total
        )

    assert float(scan(row, in_axes=(0, Carry), out_axes=Carry)(grid, 0.0)) == 15.0


def test_inside_transformations_of_jax():
    def loss(w):
        cells = stack()
        cells.w.value = w
        run = scan(lambda c, x: x * c.w.value, in_axes=(LAYERS, Carry), out_axes=Carry)
        return run(cells, 1.0)

    w = jnp.arange(1.0, 4.0)
    assert jax.jit(jax.grad(loss))(w).tolist() == [6.0, 3.0, 2.0]
    assert jax.vmap(loss)(jnp.stack([w, w + 1])).tolist() == [6.0, 24.0]


# Metadata


def test_partition_names_come_and_go():
    name = {PARTITION_NAME: "layers"}
    kernel = Param(jnp.ones((2, 4, 3)), sharding=("in", "layers", "out"))
    m = Dict(kernel=kernel, count=Variable(jnp.array(0), sharding=()))
    axes = StateAxes({Param: 1, ...: Carry})
    seen = []

    def f(m, x):
        seen.append(m.kernel.sharding)
        m.kernel.value = m.kernel.value * 2
        m.new = Param(jnp.ones((2, 3)), sharding=("in", "out"))
        return Dict(y=Param(jnp.ones(3), sharding=("out",)))

    out = scan(f, in_axes=(axes, 0), out_axes=1, transform_metadata=name)(
        m, jnp.arange(4)
    )
    assert set(seen) == {("in", "out")}
    assert kernel.sharding == m.new.sharding == ("in", "layers", "out")
    assert m.count.sharding == ()
    assert out.y.sharding == ("out", "layers") and out.y.value.shape == (3, 4)


# Errors


def test_axes_that_contradict_each_other():
    f = lambda *args: args
    for i, o in [((Carry, 0), 0), (0, (Carry, 0)), (Carry, 0), ((0, 0), Carry)]:
        with pytest.raises(
            ValueError,
            match="If one of in_axes or out_axes has Carry, the other must also have",
        ):
            scan(f, in_axes=i, out_axes=o)
    for i, o in [((Carry, Carry), (Carry, 0)), (Carry, (Carry, 0, Carry))]:
        with pytest.raises(ValueError, match="Found multiple Carry definitions"):
            scan(in_axes=i, out_axes=o)(f)
    for i, o in [(({"a": Carry}, 0), (Carry, 0)), ({"a": Carry}, {"a": Carry})]:
        with pytest.raises(ValueError, match="must stand for a whole argument"):
            scan(f, in_axes=i, out_axes=o)
    for axes in [(Carry, None), (Carry, StateAxes({Param: 0, ...: None}))]:
        with pytest.raises(ValueError, match="Cannot broadcast output state"):
            scan(f, out_axes=axes)
    with pytest.raises(ValueError, match="Cannot broadcast output state"):
        scan(f, in_axes=0, out_axes={"a": None})
    with pytest.raises(ValueError, match="Cannot carry output state"):
        scan(f, out_axes=(Carry, LAYERS))
    with pytest.raises(TypeError, match="'x'"):
        scan(f, in_axes=(Carry, "x"))
    with pytest.raises(TypeError, match=r"1\.5"):
        scan(f, in_axes=(Carry, StateAxes({...: 1.5})))
    with pytest.raises(TypeError, match="got True in StateAxes"):
        scan(f, in_axes=(Carry, StateAxes({...: True})))
    with pytest.raises(
        ValueError, match="When in_axes=Carry, the function must take exactly one arg"
    ):
        scan(f, in_axes=Carry, out_axes=Carry)(1, 2)
    with pytest.raises(ValueError, match="in_axes has 2 entries"):
        scan(f)(1, 2, 3)
    with pytest.raises(ValueError, match=r"returns a tuple of 2, but it returned"):
        scan(lambda c, x: c)(1, jnp.arange(3))
    with pytest.raises(ValueError, match=r"at 'output/1' is stacked along axis 1"):
        scan(lambda c, x: (c, x), out_axes=(Carry, 1))(1, jnp.arange(3))


@pytest.mark.parametrize(
    ("change", "path"),
    [
        (lambda m: Dict(a=Variable(m.a.value)), "'carry' the function got a Dict"),
        (lambda m: None, "returned no object"),
        (lambda m: m.a, "a Variable"),
        (lambda m: setattr(m, "z", Variable(jnp.array(0))) or m, "'0/z' is carried"),
        (lambda m: delattr(m, "a") or m, "'0/a' is carried"),
        (lambda m: setattr(m, "tag", 1) or m, "'0/tag' is carried"),
        (lambda m: setattr(m, "a", Variable(m.a.value)) or m, "'0/a' is carried"),
        (lambda m: m.__dict__.update(a=m.b, b=m.a) or m, "'0/a' is carried"),
        (lambda m: setattr(m, "b", m.a) or m, "'0/b' is carried"),
    ],
)
def test_carried_objects_must_keep_their_structure(change, path):
    m = Dict(a=Variable(jnp.array(1.0)), b=Variable(jnp.array(2.0)))
    before = mp.snapshot(m)
    with pytest.raises(ValueError, match=f"{SAME}.*{path}"):
        scan(lambda m, x: (change(m), x))(m, jnp.arange(3))
    mp.assert_untouched(m, before)


def test_carried_variables_must_stay_in_scanned_objects():
    def error_of(change, match):
        cells = stack()
        before = mp.snapshot(cells)
        with pytest.raises(ValueError, match=match):
            scan(lambda c: change(c), in_axes=(LAYERS,), out_axes=0)(cells)
        mp.assert_untouched(cells, before)

    error_of(lambda c: delattr(c, "steps"), f"{SAME}: '0/steps'.*BatchStat is gone")
    error_of(
        lambda c: setattr(c, "a", c.steps),
        f"{SAME}: '0/steps'.*BatchStat is at '0/a'",
    )
    error_of(
        lambda c: setattr(c, "z", BatchStat(jnp.array(1))),
        "made the variable at '0/z', which has Carry instead",
    )


@pytest.mark.parametrize("compiled", [False, True])
def test_what_one_iteration_writes_to_a_shared_variable_the_next_one_sees(compiled):
    def normalize(norm, c, layer, x):
        norm.steps.value = norm.steps.value + 1
        norm.w.value = 0.5 * norm.w.value + 0.5 * x
        return c + norm.w.value * layer.w.value, norm.w.value

    def run(norm, layers, xs):
        return scan(normalize, in_axes=(None, Carry, 0, 0), out_axes=(Carry, 0))(
            norm, jnp.array(0.0), layers, xs
        )

    run = jit(run) if compiled else run
    norm, layers = Cell(jnp.array(8.0)), Dict(w=Param(jnp.array([1.0, 2.0, 3.0])))
    for _ in range(2):
        w, total, means = float(norm.w.value), 0.0, []
        for k, x in zip([1.0, 2.0, 3.0], [2.0, 4.0, 6.0], strict=True):
            w = 0.5 * w + 0.5 * x
            total, means = total + w * k, [*means, w]
        out, found = run(norm, layers, jnp.array([2.0, 4.0, 6.0]))
        np.testing.assert_allclose(out, total, rtol=1e-6)
        np.testing.assert_allclose(found, means, rtol=1e-6)
        np.testing.assert_allclose(norm.w.value, w, rtol=1e-6)
    assert int(norm.steps.value) == 6
    run(norm, Dict(w=Param(jnp.ones(0))), jnp.ones(0))
    assert int(norm.steps.value) == 6


def test_gradients_pass_through_what_iterations_share():
    def add(m, c, x):
        m.w.value = m.w.value * x
        return c + m.w.value

    def by_hand(w, xs):
        total = 0.0
        for x in xs:
            w = w * x
            total += w
        return total

    run = scan(add, in_axes=(None, Carry, 0), out_axes=Carry)
    xs = jnp.array([2.0, 3.0, 4.0])
    args = jnp.array(1.5), xs
    found = jax.grad(lambda w, xs: run(Cell(w), 0.0, xs), (0, 1))(*args)
    expected = jax.grad(by_hand, (0, 1))(*args)
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-6)
    np.testing.assert_allclose(found[1], expected[1], rtol=1e-6)


def test_a_carried_object_may_be_set_to_the_same_in_each_iteration():
    model = Dropout(0.5, deterministic=True, rngs=Rngs(0))
    other = Dropout(0.5, rngs=Rngs(0))

    def step(model, x):
        model.train()
        return model, model(x)

    same, ys = scan(step)(model, jnp.ones((3, 4)))
    assert same is model and model.deterministic is False
    assert ys.tolist() == [other(jnp.ones(4)).tolist() for _ in range(3)]

    def counting(model, x):
        model.rate += 0.1
        return model, x

    with pytest.raises(ValueError, match=r"'0/rate' is one for all.*in the second"):
        scan(counting)(model, jnp.ones((3, 4)))
    assert model.rate == 0.5


def test_scanned_objects_may_grow_beside_one_that_is_set_to_the_same():
    layers = Dict(items=List([Param(jnp.ones((3, 2)))]))
    model = Dict(w=Param(jnp.array(2.0)), is_ready=False)

    def step(model, layer, x):
        model.is_ready = True
        layer.items.append(Param(model.w.value * x))
        return x

    scan(step, in_axes=(None, 0, 0), out_axes=0)(model, layers, jnp.arange(3.0))
    assert model.is_ready
    assert [x.value.shape for x in layers.items] == [(3, 2), (3,)]
    assert layers.items[1].value.tolist() == [0.0, 2.0, 4.0]


def test_carried_objects_without_variables_stay_where_they_are():
    def swap(model, x):
        model.a, model.b = model.b, model.a
        return model, x

    def renew(model, x):
        model.a = Dict(kind=1)
        return model, x

    for step, message in [(swap, "the Dict is at '0/b'"), (renew, "the Dict is gone")]:
        model = Dict(a=Dict(kind=1), b=Dict(kind=1), w=Param(jnp.array(1.0)))
        a, b = model.a, model.b
        with pytest.raises(ValueError, match=f"'0/a' is carried.*{message}"):
            scan(step)(model, jnp.ones(3))
        assert model.a is a and model.b is b


@pytest.mark.parametrize("axis", [Carry, None])
def test_what_is_set_may_not_decide_before_it_is(axis):
    model = Dict(w=Param(jnp.array(2.0)), is_ready=False)

    def step(total, model, x):
        y = model.w.value * x if model.is_ready else x
        model.is_ready = True
        return total + y, model

    def whole(carry, x):
        total, model = step(*carry, x)
        return (total, model), x

    def shared(total, model, x):
        return step(total, model, x)[0]

    run, args = scan(whole), ((0.0, model), jnp.ones(3))
    if axis is None:
        run = scan(shared, in_axes=(Carry, None, 0), out_axes=Carry)
        args = 0.0, model, jnp.ones(3)
    with pytest.raises(ValueError, match=r"is_ready' is one .*False -> True.*`cond`"):
        run(*args)
    assert not model.is_ready


def test_shared_variables_keep_their_type_and_are_not_made():
    m = Dict(layer=Cell(jnp.array(1.0)))
    before = mp.snapshot(m)

    def grow(m, x):
        m.layer.w.value = jnp.stack([x, x])

    def make(m, x):
        m.layer.new = Param(x)

    with pytest.raises(TypeError, match=r"0/layer/w: float32\[\] -> float32\[2\]"):
        scan(grow, in_axes=(None, 0), out_axes=0)(m, jnp.arange(3.0))
    with pytest.raises(ValueError, match="made the variable at '0/layer/new'"):
        scan(make, in_axes=(None, 0), out_axes=0)(m, jnp.arange(3.0))
    mp.assert_untouched(m, before)


def test_a_shared_object_changes_as_it_would_in_a_loop_or_not_at_all():
    class Noted(Module):
        def __init__(self):
            self.total, self.count = BatchStat(jnp.array(0.0)), 0
            self.parts, self.training, self.shape = List(), True, None

        def note(self, x):
            self.total.value += x
            self.training, self.shape, self.same = False, x.shape, self.total

    def count(m, x):
        m.note(x)
        m.count += 1

    def collect(m, x):
        m.parts.append(m.total)

    def swap(m, x):
        m.training = not m.training

    m = Noted()
    before = mp.snapshot(m)
    refused = [(count, "'0/count' is one .*static 1 -> 2"), (swap, "'0/training'")]
    for f, what in [*refused, (collect, "'0/parts/1'")]:
        for each in (f, lambda m, x, f=f: jit(f)(m, x)):
            with pytest.raises(ValueError, match=what):
                scan(each, in_axes=(None, 0), out_axes=0)(m, jnp.arange(3.0))
    mp.assert_untouched(m, before)
    # The same in each iteration is as good as once.
    scan(Noted.note, in_axes=(None, 0), out_axes=0)(m, jnp.arange(3.0))
    assert (float(m.total.value), m.training, m.shape) == (3.0, False, ())
    assert m.same is m.total
    scan(Noted().note, in_axes=0, out_axes=0)(jnp.arange(3.0))
    with pytest.raises(ValueError, match="'self/count'"):
        scan(Counter().step, in_axes=0, out_axes=0)(jnp.arange(3.0))


class Counter(Module):
    def __init__(self):
        self.count = 0

    def step(self, x):
        self.count += 1


def test_a_shared_random_stream_gives_each_iteration_its_own_key():
    def noise(rngs, x):
        return x * jax.random.uniform(rngs.default())

    rngs, by_hand = Rngs(0), Rngs(0)
    out = scan(noise, in_axes=(None, 0), out_axes=0)(rngs, jnp.ones(3))
    expected = [jax.random.uniform(by_hand.default()) for _ in range(3)]
    np.testing.assert_allclose(out, jnp.stack(expected), rtol=1e-6)
    assert int(rngs.default.count.value) == 3


def test_carries_that_change_shape_or_dtype():
    def grow(v, x):
        v.a.value = jnp.stack([v.a.value, v.a.value])
        return v, x

    def to_float(v, x):
        v.a.value = v.a.value + 0.5
        return v, x

    v = Dict(a=Variable(jnp.int32(1)))
    with pytest.raises(TypeError, match=r"0/a: .*int32\[\].* -> .*int32\[2\]"):
        scan(grow)(v, jnp.arange(3))
    with pytest.raises(TypeError, match=r"0/a: .*int32\[\].* -> .*float32\[\]"):
        scan(to_float)(v, jnp.arange(3))


def test_a_plain_carry_that_changes_its_type_is_told_by_its_path():
    v = Dict(a=Variable(jnp.zeros(3)))
    axes = {"in_axes": (None, Carry, 0)}

    def halved(v, c, x):
        return {"at": c["at"], "size": c["size"] / 2}, x

    carry = {"at": jnp.ones(2), "size": jnp.int32(4)}
    with pytest.raises(TypeError, match=r"\n  carry/size: int32\[\] -> float32\[\]$"):
        scan(halved, **axes)(v, carry, jnp.arange(3))
    with pytest.raises(TypeError, match=r"\n  carry: float32\[2\] -> float32\[1\]$"):
        scan(lambda c, x: (c[:1], x))(jnp.ones(2), jnp.arange(3))
    with pytest.raises(TypeError, match=r"carry/0: \(none\) -> float32\[\]"):
        scan(lambda c, x: ((c, c), x))(jnp.float32(0), jnp.arange(3))
    # A weak type may become a stronger one, as in JAX.
    last, _ = scan(lambda c, x: (c + x, x))(0, jnp.ones(3))
    assert (float(last), last.dtype) == (3.0, jnp.float32)


def test_inconsistent_sizes_and_ranks():
    cells = stack()
    f = lambda c, x: x
    run = scan(f, in_axes=(LAYERS, 0), out_axes=0)
    with pytest.raises(
        ValueError, match=r"0/w: axis 0 of shape \(3,\) has size 3\n  1:"
    ):
        run(cells, jnp.arange(4))
    with pytest.raises(ValueError, match=r"length: 7\n  0/w"):
        scan(f, in_axes=(LAYERS, None), out_axes=0, length=7)(cells, 0.0)
    with pytest.raises(ValueError, match="'0/steps' over axis 0, but its value has"):
        scan(f, in_axes=(0, 0), out_axes=0)(cells, jnp.arange(3))
    axes = StateAxes({Param: 1, ...: None})
    run = scan(lambda c, x: setattr(c.w, "value", x), in_axes=(axes, 0), out_axes=0)
    with pytest.raises(ValueError, match="'0/w' over axis 1, but its value has"):
        run(cells, jnp.arange(3.0))
    with pytest.raises(ValueError, match="'0/w' is stacked along axis 1"):
        run(Cell(jnp.ones((2, 3))), jnp.arange(3.0))
    with pytest.raises(TypeError, match="'0/name' holds a value of type str"):
        scan(lambda d: 0, in_axes=0, out_axes=0)(Dict(name=Variable("x")))


def test_inconsistent_aliasing():
    shared = Param(jnp.arange(3.0))
    with pytest.raises(ValueError, match="Inconsistent aliasing"):
        scan(lambda a, b: 0, in_axes=(0, None), out_axes=0)(Dict(v=shared), shared)


def test_keyword_only_arguments_are_refused():
    with pytest.raises(TypeError, match="'flag'"):
        scan(lambda c, x, *, flag: (c, x))(1, jnp.arange(3), flag=True)


# What is left behind


def test_the_same_equations_as_by_hand():
    def ours(w, steps, x):
        cells = Cell(w)
        cells.steps.value = steps

        def f(c, x):
            c.steps.value = c.steps.value + 1
            c.w.value = c.w.value * 2
            return jnp.sin(x) * c.w.value

        out = scan(f, in_axes=(LAYERS, Carry), out_axes=Carry)(cells, x)
        return out, cells.w.value, cells.steps.value

    def by_hand(w, steps, x):
        def f(carry, w):
            steps, x = carry
            steps = steps + 1
            w = w * 2
            return (steps, jnp.sin(x) * w), w

        (steps, x), w = jax.lax.scan(f, (steps, x), w)
        return x, w, steps

    args = jnp.ones(3), jnp.array(0), jnp.array(1.0)
    assert equations(ours, *args) == equations(by_hand, *args)


@jax.tree_util.register_pytree_node_class
class Named:
    """An array whose axes have names; further ones in front have none."""

    def __init__(self, array, names):
        self.array, self.names = array, names

    def tree_flatten(self):
        return (self.array,), self.names

    @classmethod
    def tree_unflatten(cls, names, children):
        (array,) = children
        rank = getattr(array, "ndim", 0)
        return cls(array, (None, *names)[-rank:] if rank else ())


def test_pytrees_that_tell_of_their_axes():
    def f(carry, cell, scanned, shared):
        assert scanned.names == shared["s"].names == ("i",)
        cell.w.value += scanned.array
        return carry + scanned.array, Named(scanned.array * shared["s"].array, ("i",))

    scanned = Named(jnp.arange(6.0).reshape(3, 2), ("t", "i"))
    shared, cell = {"s": Named(jnp.array([2.0, 3.0]), ("i",))}, Cell(jnp.zeros(2))
    axes = {"in_axes": (Carry, None, 0, None), "out_axes": (Carry, 0)}
    total, out = scan(f, **axes)(jnp.zeros(2), cell, scanned, shared)
    assert total.tolist() == cell.w.value.tolist() == [6.0, 9.0]
    assert out.array.tolist() == [[0, 3], [4, 9], [8, 15]]
    assert out.names == (None, "i")  # as `jax.lax.scan` gives it


def test_nothing_leaks():
    def f(c, x):
        c.w.value = c.w.value + x
        c.new = Param(x)
        return x

    cells = stack()
    with jax.checking_leaks():
        scan(f, in_axes=(LAYERS, 0), out_axes=0)(cells, jnp.arange(3.0))
        with pytest.raises(ValueError, match="made the variable"):
            scan(f, in_axes=(None, 0), out_axes=0)(stack(), jnp.arange(3.0))
    refs = [weakref.ref(x) for x in (cells, cells.w, cells.new, cells.w.value)]
    del cells
    garbage.collect()
    assert [r() for r in refs] == [None] * 4


def test_decorators():
    def f(c, x):
        return c, x

    for wrapped in (scan(f), scan()(f), scan(length=3)(f)):
        assert wrapped.__wrapped__ is f and wrapped.__name__ == "f"
    partial = scan(functools.partial(f, 1), in_axes=0, out_axes=(0, 0))
    assert partial(jnp.arange(2))[1].tolist() == [0, 1]
