"""`jit`: which buffers are donated, and where arrays are placed."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.layout import Format, Layout
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from jitted_models import Model

import graphcore as gc
import nnx_transforms as nnx

# Donation


def test_donate_state_donates_what_is_overwritten():
    model = Model()
    w, n = model.blocks[0].w.value, model.blocks[0].n.value

    @nnx.jit(donate_state=True)
    def f(m):
        m.blocks[0].n.value += 1
        return m.blocks[0].w.value.sum()

    f(model)
    assert n.is_deleted()
    assert not w.is_deleted()
    f(model)
    assert int(model.blocks[0].n.value) == 2


def test_chosen_arguments_are_donated_beside_what_is_overwritten():
    one, other = nnx.Param(jnp.ones(3)), nnx.Param(jnp.ones(3))
    of_one, of_other = one.value, other.value

    @nnx.jit(donate_argnums=1, donate_state=True)
    def f(one, other):
        one.value = one.value + 1
        return other.value * 2

    f(one, other)
    assert of_one.is_deleted() and of_other.is_deleted()


def test_a_buffer_that_is_held_twice_is_not_donated():
    array = jnp.arange(3.0)
    node = nnx.Dict(a=nnx.Param(array), b=nnx.Param(array), c=nnx.Param(array + 1))
    f = nnx.jit(
        lambda n, x: [setattr(v, "value", v.value + x) for v in (n.a, n.c)] and None,
        donate_state=True,
    )
    c = node.c.value
    f(node, jnp.ones(3))
    assert not array.is_deleted()
    assert c.is_deleted()
    np.testing.assert_array_equal(node.b.value, array)
    a = node.a.value
    f(node, a)  # passed as an argument as well
    assert not a.is_deleted()
    np.testing.assert_array_equal(node.a.value, a * 2)


def step_from_old_values(model, x):
    out = (jnp.sin(model.a.value) * model.b.value * x).sum()
    model.a.value, model.b.value = model.b.value, 2 * model.b.value
    return out


@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize("by", [0, 1])
def test_derivatives_of_a_function_that_donates_keep_what_they_need(by, mapped):
    step = nnx.jit(step_from_old_values, donate_state=True)
    gradient = nnx.grad(step, argnums=by)
    if mapped:
        gradient = nnx.vmap(gradient, in_axes=(0, None))
    shape = (2, 3) if mapped else (3,)
    model = nnx.Dict(
        a=nnx.Param(jnp.full(shape, 0.5)), b=nnx.BatchStat(jnp.full(shape, 4.0))
    )
    found = gradient(model, jnp.ones(3))
    found = found["a"].value if by == 0 else found
    due = 4 * jnp.cos(0.5) if by == 0 else 4 * jnp.sin(0.5)
    np.testing.assert_allclose(found, jnp.full(shape, due), rtol=1e-6)
    np.testing.assert_allclose(model.a.value, jnp.full(shape, 4.0))
    np.testing.assert_allclose(model.b.value, jnp.full(shape, 8.0))


@pytest.mark.parametrize("value", [np.int64(2**40), np.array([2**40, 3])])
def test_what_jax_would_cut_to_32_bits_is_not_donated(value):
    model = nnx.Dict(big=nnx.Variable(value), w=nnx.Param(jnp.ones(2)))
    before = model.w.value
    step = nnx.jit(lambda model: model.w.value.sum(), donate_argnums=0)
    assert float(step(model)) == 2
    assert model.big.value is value
    assert before.is_deleted()


def test_what_is_donated_may_depend_on_shapes():
    traced = []

    @nnx.jit(donate_state=True)
    def f(n, x):
        traced.append(x.shape)
        target = n.a if x.ndim else n.b
        target.value = target.value + 1

    node = nnx.Dict(a=nnx.Param(jnp.zeros(2)), b=nnx.Param(jnp.zeros(2)))
    for x, donated, kept in [
        (jnp.ones(1), "a", "b"),
        (jnp.ones(()), "b", "a"),
        (jnp.ones(1), "a", "b"),
        (jnp.ones(()), "b", "a"),
    ]:
        before = {k: node[k].value for k in "ab"}
        f(node, x)
        assert before[donated].is_deleted()
        assert not before[kept].is_deleted()
        traced.append("called")
    assert traced[-3:] == ["called"] * 3  # with shapes that were seen
    assert node.a.value.tolist() == node.b.value.tolist() == [2, 2]


@pytest.mark.parametrize("kind", ["custom_vjp", "custom_jvp", "custom_gradient"])
@pytest.mark.parametrize("derive", [False, True])
def test_an_error_in_a_rule_keeps_what_a_function_in_it_would_donate(kind, derive):
    count = nnx.jit(lambda n: setattr(n, "value", n.value + 1), donate_state=True)

    def f(n, x):
        count(n)
        raise KeyError

    with_rule = getattr(nnx, kind)(f)
    if kind == "custom_vjp":
        with_rule.defvjp(f, f)
    elif kind == "custom_jvp":
        with_rule.defjvp(lambda primals, tangents: f(*primals))
    n = nnx.Variable(jnp.array(0))
    with pytest.raises(KeyError):
        (nnx.grad(with_rule, argnums=1) if derive else with_rule)(n, 1.0)
    # JAX 0.11.2 donates no array that was read: a copy of it is.
    assert int(n.value + 0) == 0
    before = n.value
    count(n)
    assert before.is_deleted() and int(n.value) == 1


def test_what_is_donated_may_depend_on_shapes_ahead_of_time():
    @nnx.jit(donate_state=True)
    def f(n, x):
        target = n.a if x.ndim else n.b
        target.value = target.value + 1

    node = nnx.Dict(a=nnx.Param(jnp.zeros(2)), b=nnx.Param(jnp.zeros(2)))
    f(node, jnp.ones(1))
    compiled = f.lower(node, jnp.ones(())).compile()
    before = node.a.value, node.b.value
    compiled(node, jnp.ones(()))
    assert [x.is_deleted() for x in before] == [False, True]
    assert node.b.value.tolist() == [1, 1]


@pytest.mark.parametrize("how", [{"donate_argnums": 0}, {"donate_argnames": "m"}])
def test_donated_arguments_stay_usable(how):
    model = Model()
    old = [v.value for _, v in gc.variables(model).flat_state()]
    f = nnx.jit(lambda m, x: m(x), **how)
    if "donate_argnums" in how:
        f(model, jnp.ones(3))
    else:
        f(m=model, x=jnp.ones(3))
    assert all(x.is_deleted() for x in old)
    assert not any(v.value.is_deleted() for _, v in gc.variables(model).flat_state())


def test_donated_pytrees_stay_whole_and_others_come_back_in_part():
    def step(n):
        n.v.value = {**n.v.value, "a": n.v.value["a"] + 1}

    def step_and_more(n):
        step(n)
        n.count = 3

    for f in step, step_and_more:
        for donate, count in (None, 1), (0, 2):
            value = {"a": jnp.ones(2), "b": jnp.zeros(3), "act": abs}
            node = nnx.Dict(v=nnx.Variable(value))
            jitted = nnx.jit(f, donate_argnums=donate)
            assert len(jitted.trace(node).jaxpr.out_avals) == count
            jitted(node)
            assert value["b"].is_deleted() is (donate == 0)
            assert node.v.value["a"].tolist() == [2, 2]
            assert node.v.value["b"].tolist() == [0, 0, 0]


# Shardings


def mesh(kind=AxisType.Auto):
    return jax.make_mesh((8,), ("data",), axis_types=(kind,))


@pytest.mark.devices(8)
def test_state_sharding_by_filter():
    split = NamedSharding(mesh(), PartitionSpec("data"))
    whole = NamedSharding(mesh(), PartitionSpec())
    by_filter = nnx.StateSharding({nnx.Param: split, ...: whole})
    made = []

    class Wide(nnx.Module):
        def __init__(self, x):
            self.w = nnx.Param(x)
            self.n = nnx.BatchStat(x)
            made.append(1)

    make = nnx.jit(Wide, in_shardings=None, out_shardings=by_filter)
    wide = make(jnp.arange(8.0))
    assert made == [1]
    assert wide.w.value.sharding.is_equivalent_to(split, 1)
    assert wide.n.value.sharding.is_equivalent_to(whole, 1)

    @nnx.jit(in_shardings=(by_filter, None), out_shardings=whole)
    def f(m, x):
        m.n.value = m.w.value * x
        m.extra = nnx.Param(m.w.value)
        return m.w.value + x

    out = f(wide, 2.0)
    assert out.sharding.is_equivalent_to(whole, 1)
    assert wide.n.value.sharding.is_equivalent_to(whole, 1)
    assert wide.extra.value.sharding.is_equivalent_to(split, 1)
    with pytest.raises(ValueError, match="Inconsistent aliasing detected"):
        nnx.jit(lambda a, b: None, in_shardings=(split, whole))(wide, wide)


@pytest.mark.devices(8)
def test_arguments_are_placed_as_told():
    split = NamedSharding(mesh(), PartitionSpec("data"))
    whole = NamedSharding(mesh(), PartitionSpec())
    for donated in ({}, {"donate_state": True}):
        node = nnx.Dict(w=nnx.Param(jnp.arange(8.0)), n=nnx.BatchStat(jnp.arange(8.0)))
        by_filter = nnx.StateSharding({nnx.Param: split, ...: whole})

        @nnx.jit(in_shardings=[by_filter, split], **donated)
        def step(node, x):
            node.n.value = node.n.value * 2
            return node.w.value + 1, x * 2

        one, two = step(node, jnp.arange(8.0))
        assert one.sharding.is_equivalent_to(split, 1)
        assert two.sharding.is_equivalent_to(split, 1)
        assert node.n.value.sharding.is_equivalent_to(whole, 1)


@pytest.mark.devices(8)
def test_constrain_state():
    m = mesh()
    node = nnx.Dict(
        a=nnx.Param(jnp.arange(8.0), sharding=("data",), mesh=m),
        b=nnx.Param(jnp.arange(8.0)),
    )
    f = nnx.jit(
        lambda n: setattr(n.a, "value", n.a.value + n.b.value), constrain_state=True
    )
    f(node)
    expected = NamedSharding(m, PartitionSpec("data"))
    assert node.a.value.sharding.is_equivalent_to(expected, 1)
    np.testing.assert_array_equal(node.a.value, jnp.arange(8.0) * 2)

    seen = []

    def by_hand(state):
        seen.append(state.flat_state().paths)
        return state.map(lambda path, leaf: leaf)

    nnx.jit(lambda n: setattr(n.a, "value", n.a.value), constrain_state=by_hand)(node)
    # What enters, and what leaves.
    assert seen == [((0, "a"), (0, "b")), ()]


@pytest.mark.devices(8)
def test_shardings_are_constrained_only_where_that_is_asked_for():
    node = nnx.Dict(a=nnx.Param(jnp.arange(8.0), sharding=("data",), mesh=mesh()))
    for asked in (None, False, True):
        chosen = {} if asked is None else {"constrain_state": asked}
        step = nnx.jit(lambda n: n.a.value + 1, **chosen)
        primitives = [str(e.primitive) for e in step.trace(node).jaxpr.eqns]
        assert ("sharding_constraint" in primitives) is bool(asked)


@pytest.mark.devices(4)
def test_constraints_follow_the_rules_in_force():
    f = nnx.jit(lambda n: setattr(n.a, "value", n.a.value + 1), constrain_state=True)
    m = jax.make_mesh((2, 2), ("x", "y"), axis_types=(AxisType.Auto,) * 2)
    counts = []
    for axis in ("x", "y", "x"):
        with nnx.logical_axis_rules([("long", axis)]):
            node = nnx.Dict(a=nnx.Param(jnp.arange(8.0), sharding=("long",), mesh=m))
            f(node)
        expected = NamedSharding(m, PartitionSpec(axis))
        assert node.a.value.sharding.is_equivalent_to(expected, 1)
        counts.append(f._cache_size())
    assert counts == [1, 2, 2]


@pytest.mark.parametrize("spec", [("model",), ("data", "data")])
def test_constrain_state_names_what_can_not_be_laid_out(spec):
    spec = PartitionSpec(*spec)
    node = nnx.Dict(a=nnx.Dict(w=nnx.Param(jnp.ones((8, 8)), sharding=spec)))
    with jax.set_mesh(jax.make_mesh((1,), ("data",), (AxisType.Auto,))):
        with pytest.raises(Exception) as caught:
            nnx.jit(lambda node: None, constrain_state=True)(node)
    notes = "".join(caught.value.__notes__)
    assert f"'args/0/a/w' was to be laid out by {spec!r}" in notes


@pytest.mark.devices(8)
def test_constrain_state_on_the_mesh_in_force():
    node = nnx.Dict(a=nnx.Param(jnp.arange(8.0), sharding=("data",)))
    f = nnx.jit(lambda n: setattr(n.a, "value", n.a.value + 1), constrain_state=True)
    f(node)  # no mesh, nothing to do
    m = mesh(AxisType.Explicit)
    with jax.set_mesh(m):
        f(node)
    expected = NamedSharding(m, PartitionSpec("data"))
    assert node.a.value.sharding.is_equivalent_to(expected, 1)
    np.testing.assert_array_equal(node.a.value, jnp.arange(8.0) + 2)


@pytest.mark.devices(8)
@pytest.mark.parametrize("ahead", [False, True])
def test_what_is_made_of_arrays_alone_is_placed(ahead):
    auto = mesh()
    split = NamedSharding(auto, PartitionSpec("data"))
    spec = PartitionSpec("data")
    layout = Format(Layout((1, 0)), split)

    def make(x):
        return nnx.Dict(w=nnx.Param(x * 2)), x + 1

    for of_output in ((split, None), split, (spec, None), (layout, None), layout):
        jitted = nnx.jit(make, out_shardings=of_output)
        x = jnp.ones((8, 2))
        with jax.set_mesh(auto):
            node, _ = jitted.lower(x).compile()(x) if ahead else jitted(x)
        assert node.w.value.sharding.is_equivalent_to(split, 2)
        is_by_columns = node.w.value.format.layout.major_to_minor == (1, 0)
        assert is_by_columns == (of_output in (layout, (layout, None)))
    assert ahead or str(nnx.explain_recompile(jitted)).endswith("first call")
    assert jitted._cache_size() == 1


@pytest.mark.devices(8)
@pytest.mark.parametrize("is_whole", [False, True])
def test_placing_what_is_made_of_arrays_alone_costs_one_more_trace_at_most(is_whole):
    split, traces = NamedSharding(mesh(), PartitionSpec("data")), []

    def make(x):
        traces.append(x)
        if x.shape == (4,) and len(traces) > 1:
            raise ZeroDivisionError
        return [nnx.Dict(w=nnx.Param(x * 2))]

    jitted = nnx.jit(make, out_shardings=split if is_whole else [split])
    (node,) = jitted(jnp.ones(8))
    assert node.w.value.sharding.is_equivalent_to(split, 1)
    assert len(traces) == (1 if is_whole else 2) and jitted._cache_size() == 1
    traces[1:] = []
    for call in (jitted, jitted.trace):
        with pytest.raises(ZeroDivisionError) as caught:
            call(jnp.ones(4))
        assert caught.value.__context__ is None


@pytest.mark.devices(8)
def test_returned_arguments_are_placed():
    mesh = jax.make_mesh((8,), ("x",), axis_types=(AxisType.Auto,))
    whole, split = (NamedSharding(mesh, PartitionSpec(*p)) for p in ((), ("x",)))
    placed = nnx.StateSharding({nnx.Param: split, ...: whole})

    def make():
        return nnx.Dict(w=nnx.Param(jnp.arange(8.0)), n=nnx.BatchStat(jnp.array(0)))

    # None, or nothing, for what is an argument and returned leaves the choice.
    one = make()
    assert nnx.jit(lambda m: m, in_shardings=(placed,))(one) is one
    two = nnx.jit(lambda m, x: (m, x), in_shardings=placed, out_shardings=(None, split))
    assert two(make(), jnp.ones(8))[1].sharding == split
    # An output's sharding holds for an argument that is returned, also if it was only
    # read; donated or not.
    for donate_state in (False, True):
        model = make()

        def f(m, x):
            m.n.value += 1
            return m, x, make()

        jitted = nnx.jit(
            f, out_shardings=(placed, None, placed), donate_state=donate_state
        )
        for _ in range(2):
            same, _, other = jitted(model, 1.0)
        assert same is model and int(model.n.value) == 2
        assert model.w.value.sharding == other.w.value.sharding == split
        assert model.n.value.sharding == whole
    with pytest.raises(ValueError, match="Inconsistent aliasing detected"):
        nnx.jit(lambda m: m, in_shardings=(whole,), out_shardings=split)(make())

    # Also for what the function makes in such an argument.
    def grow(m):
        m.inner = make()
        return m

    for part in (lambda m: m, lambda m: m.inner, lambda m: [m.inner.w, m.inner.n]):
        model = make()
        of_out = placed if not isinstance(part(grow(make())), list) else [split, whole]
        nnx.jit(lambda m, part=part: part(grow(m)), out_shardings=of_out)(model)
        assert model.inner.w.value.sharding == split
        assert model.inner.n.value.sharding == whole

    # And for arrays without a variable.
    node = nnx.Dict(old=jnp.ones(8), read=jnp.ones(8))

    def write(node):
        node.old, node.new = node.old + 1, jnp.ones(8)
        return node

    nnx.jit(write, out_shardings=split)(node)
    assert {x.sharding for x in (node.old, node.new, node.read)} == {split}


@pytest.mark.devices(8)
def test_keyword_arguments_have_the_shardings_of_their_positions():
    mesh = jax.make_mesh((8,), ("x",), axis_types=(AxisType.Auto,))
    split = NamedSharding(mesh, PartitionSpec("x"))
    placed = nnx.StateSharding({...: split})

    def f(x, m, k=2):
        m.value = m.value + x
        return x * k

    jitted = nnx.jit(f, in_shardings=(split, placed), static_argnames="k")
    for args, kwargs in (
        ((), {"x": jnp.ones(8)}),
        ((jnp.ones(8),), {}),
        ((jnp.ones(8),), {"k": 3}),
    ):
        variable = nnx.Variable(jnp.ones(8))
        for _ in range(3):
            out = jitted(*args, m=variable, **kwargs)
            assert variable.value.sharding == out.sharding == split
            assert out[0] == kwargs.get("k", 2)
    # Without objects, as in JAX.
    with pytest.raises(ValueError, match="kwargs"):
        nnx.jit(lambda x: x, in_shardings=split)(x=jnp.ones(8))


@pytest.mark.devices(8)
def test_shardings_that_do_not_fit_are_refused():
    mesh = jax.make_mesh((8,), ("x",), axis_types=(AxisType.Auto,))
    split = NamedSharding(mesh, PartitionSpec("x"))
    node = nnx.Dict(w=nnx.Param(jnp.ones(8)))
    f = nnx.jit(lambda n, x, k: x, in_shardings=(split,), static_argnums=2)
    with pytest.raises(ValueError, match="1 entries, but the call has 2 positional"):
        f(node, jnp.ones(8), 3)
    of_state = jax.tree.map(lambda _: split, nnx.state(node))
    with pytest.raises(
        ValueError, match=r"is a State, but .* is a Dict.*StateSharding"
    ):
        nnx.jit(lambda n: n, in_shardings=(of_state,))(node)
    with pytest.raises(ValueError, match=r"out_shardings is a State.*StateSharding"):
        nnx.jit(lambda: nnx.clone(node), out_shardings=of_state)()
    for name in ("in_shardings", "out_shardings"):
        for given in (node, nnx.Dict()):
            expected = "Graph nodes are not allowed as prefixes"
            with pytest.raises(ValueError, match=expected):
                nnx.jit(lambda n: n, **{name: (given,)})


DONATED = {
    "an array behind the model": (lambda m, x: (m, x), {"donate_argnums": 1}),
    "an array in front of it": (lambda m, x: (x, m), {"donate_argnums": 0}),
    "an array by name": (lambda m, x: (m, x), {"donate_argnames": "x"}),
    "the last argument": (lambda m, x: (m, x), {"donate_argnums": -1}),
    "both": (lambda m, x: (m, x), {"donate_argnums": (0, 1)}),
}


@pytest.mark.parametrize("by_keyword", [False, True])
@pytest.mark.parametrize("which", DONATED)
def test_arrays_beside_objects_are_donated(which, by_keyword):
    order, options = DONATED[which]
    names = order("m", "x")

    def step(m, x):
        m.w.value = m.w.value + 1
        return x * 2

    flipped = (
        (lambda x, m: step(m, x)) if names[0] == "x" else (lambda m, x: step(m, x))
    )
    jitted = nnx.jit(flipped, **options)
    for _ in range(2):
        m, x = nnx.Dict(w=nnx.Param(jnp.ones(4))), jnp.arange(4.0)
        held = m.w.value
        args = order(m, x)
        if by_keyword:
            out = jitted(args[0], **{names[1]: args[1]})
        else:
            out = jitted(*args)
        np.testing.assert_array_equal(out, [0.0, 2.0, 4.0, 6.0])
        np.testing.assert_array_equal(m.w.value, jnp.full(4, 2.0))
        assert x.is_deleted()
        assert held.is_deleted() == (which == "both")


def test_donated_positions_from_the_end_are_those_of_parameters():
    def step(x, m, y):
        m.w.value = m.w.value + x
        return x * 2, y * 2

    m, x, y = nnx.Dict(w=nnx.Param(jnp.ones(4))), jnp.ones(4), jnp.ones(4)
    held = m.w.value
    nnx.jit(step, donate_argnums=-1)(x, m, y=y)
    assert (x.is_deleted(), held.is_deleted(), y.is_deleted()) == (False, False, True)
    y, held = jnp.ones(4), m.w.value
    nnx.jit(step, donate_argnums=-2)(x, m, y)
    assert (x.is_deleted(), held.is_deleted(), y.is_deleted()) == (False, True, False)


@pytest.mark.parametrize(
    "options", [{"donate_argnums": (0, 2)}, {"donate_state": True}]
)
@pytest.mark.devices(8)
def test_shardings_of_what_dicts_hold_beside_donation(options):
    m = mesh()
    split, whole = (NamedSharding(m, PartitionSpec(*p)) for p in (("data",), ()))

    @nnx.jit(in_shardings=(whole, {"x": split}, [whole, split], None), **options)
    def step(model, batch, rest, k):
        model.w.value = model.w.value + k
        return batch["x"] * model.w.value, rest

    x = np.arange(8.0)
    for _ in range(2):
        model = nnx.Dict(w=nnx.Param(jnp.ones(8)))
        rest = [jnp.zeros(8), jnp.ones(8)]
        y, (a, b) = step(model, {"x": x}, rest, 1.0)
        np.testing.assert_array_equal(y, 2 * x)
        np.testing.assert_array_equal(
            jnp.stack([a, b]), np.eye(2)[1][:, None].repeat(8, 1)
        )
        assert (y.sharding, a.sharding, b.sharding) == (split, whole, split)
