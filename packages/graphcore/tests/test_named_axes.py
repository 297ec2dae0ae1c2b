"""`psum_cotangents` equals the gradient of the explicitly summed loss."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jax import lax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from graphcore.named_axes import psum_cotangents


def loss(w, x):
    return jnp.sum(jnp.sin(w * x) * w**2)


def reduced(*names, f=loss):
    return jax.grad(lambda w, x: f(psum_cotangents(w, names), x))


def by_hand(name, f=loss):
    """What `reduced` means for an unmapped input, where JAX can say it."""
    return lambda w, x: lax.psum(jax.grad(f)(w, x), name)


def batch(f, in_axes=(None, 0), **options):
    return jax.vmap(f, in_axes=in_axes, axis_name="batch", **options)


def same(got, want, rtol=2e-5):
    jax.tree.map(
        lambda g, w: np.testing.assert_allclose(g, w, rtol=rtol, atol=1e-5), got, want
    )


W = jnp.float32(0.7)
XS = jnp.linspace(0.1, 1.6, 5)


# --- Random programs ----------------------------------------------------------------
#
# A program is a nest of maps, one of them without a name, with something that stages
# its function out between any two. Each input is mapped over a random subset.

SIZES = {"i": 2, "j": 3, None: 2}


def _scanned(f):
    """Run `f` in a scan over constants, so that inputs keep their mapping."""

    def run(*args):
        return jax.tree.map(
            lambda a: a[0], lax.scan(lambda c, _: (c, f(*args)), 0, None, length=1)[1]
        )

    return run


def _conditional(f):
    return lambda *args: lax.cond(True, f, f, *args)


STAGES = {
    "eager": lambda f: f,
    "jit": jax.jit,
    "remat": jax.checkpoint,
    "scan": _scanned,
    "cond": _conditional,
}


def _plain(t, x):
    return jnp.sum(jnp.sin(t["a"] * x) * t["b"]) + jnp.sum(t["a"] * t["b"] ** 2)


def _looped(t, x):
    def step(c, s):
        return jnp.tanh(c * t["a"] + s * t["b"]), None

    return jnp.sum(lax.scan(step, x, jnp.arange(3.0))[0])


def _branching(t, x):
    big = lambda: jnp.sum(t["a"] * x)
    small = lambda: jnp.sum(jnp.cos(t["b"] * x) * t["a"])
    return lax.cond(jnp.sum(x) > 0, big, small)


def _rematerialized(t, x):
    return jax.checkpoint(_plain)(t, x)


def _ignoring_the_mapped_input(t, x):
    return jnp.sum(t["a"] ** 3)


LOSSES = [_plain, _looped, _branching, _rematerialized, _ignoring_the_mapped_input]

subsets = st.frozensets(st.sampled_from(list(SIZES)))


@st.composite
def programs(draw):
    order = draw(st.permutations(list(SIZES)))
    return {
        "f": draw(st.sampled_from(LOSSES)),
        "order": order,
        "mapped": {k: draw(subsets) for k in ("a", "b", "x")},
        "listed": draw(st.permutations(["i", "j"]))[: draw(st.integers(0, 2))],
        "stages": draw(st.lists(st.sampled_from(list(STAGES)), min_size=4, max_size=4)),
        "seed": draw(st.integers(0, 99)),
    }


def draw_inputs(program):
    random = np.random.default_rng(program["seed"])

    def one(name):
        shape = [SIZES[a] for a in program["order"] if a in program["mapped"][name]]
        return jnp.asarray(random.normal(size=(*shape, 2)), jnp.float32)

    return {"a": one("a"), "b": one("b")}, one("x")


def mapped_gradient(program):
    """The program, on inputs whose leading axes are the maps they are mapped over."""
    stages = [STAGES[s] for s in program["stages"]]
    gradient = reduced(*program["listed"], f=program["f"])
    gradient = stages[0](gradient)
    levels = reversed(program["order"])
    for axis, stage in zip(levels, stages[1:], strict=True):
        at = {k: 0 if axis in m else None for k, m in program["mapped"].items()}
        in_axes = ({"a": at["a"], "b": at["b"]}, at["x"])
        gradient = stage(
            jax.vmap(gradient, in_axes, axis_name=axis, axis_size=SIZES[axis])
        )
    return gradient


def summed_gradient(program):
    """The same from the loss summed over all indices, without maps or names.

    An input has one copy per index of the axes its gradient is not summed over.
    """
    order, f = program["order"], program["f"]
    full = tuple(SIZES[a] for a in order)

    def spread(value, axes):
        """Give every axis of `order` a dimension, of size 1 if not in `axes`."""
        dims = [SIZES[a] if a in axes else 1 for a in order]
        return jnp.reshape(value, (*dims, 2))

    def each(value):
        """One value per index."""
        return jnp.broadcast_to(value, (*full, 2)).reshape(-1, 2)

    def gradient(tree, x):
        copies = {}
        for key, value in tree.items():
            mapped = program["mapped"][key]
            summed = set(program["listed"]) - mapped
            dims = [1 if a in summed else SIZES[a] for a in order]
            copies[key] = jnp.broadcast_to(spread(value, mapped), (*dims, 2))

        def total(copies):
            at = {k: each(v) for k, v in copies.items()}
            xs = each(spread(x, program["mapped"]["x"]))
            # A loop that is compiled once, not as often as there are indices.
            return jnp.sum(lax.map(lambda inputs: f(*inputs), (at, xs)))

        grads = jax.grad(total)(copies)
        return {k: jnp.broadcast_to(g, (*full, 2)) for k, g in grads.items()}

    return jax.jit(gradient)


random_programs = settings(
    max_examples=20,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@random_programs
@given(programs())
def test_random_programs_equal_the_gradient_of_the_summed_loss(program):
    inputs = draw_inputs(program)
    same(mapped_gradient(program)(*inputs), summed_gradient(program)(*inputs))


@random_programs
@given(programs())
def test_random_programs_can_be_differentiated_again_outside(program):
    inputs = draw_inputs(program)

    def second(gradient):
        def scalar(tree, x):
            return sum(jnp.sum(jnp.cos(g)) for g in jax.tree.leaves(gradient(tree, x)))

        return jax.grad(scalar, argnums=(0, 1))(*inputs)

    same(second(mapped_gradient(program)), second(summed_gradient(program)), 1e-3)


# --- Under vmap ---------------------------------------------------------------------


def test_an_unmapped_input_is_summed_and_a_mapped_one_is_not():
    each = jax.vmap(jax.grad(loss), (None, 0))(W, XS)
    same(batch(reduced("batch"))(W, XS), jnp.full(5, each.sum()))
    ws = jnp.full(5, W)
    same(batch(reduced("batch"), (0, 0))(ws, XS), each)
    same(batch(reduced("batch"), (0, None))(ws, W), jax.vmap(jax.grad(loss))(ws, ws))


def test_each_leaf_is_judged_by_itself():
    tree, axes = {"shared": W, "own": XS}, {"shared": None, "own": 0}

    def f(t, x):
        return loss(t["shared"], x) * t["own"]

    got = batch(reduced("batch", f=f), (axes, 0))(tree, XS)
    one = jax.vmap(jax.grad(f), (axes, 0))(tree, XS)
    same(got, {"shared": jnp.full(5, one["shared"].sum()), "own": one["own"]})


def test_a_cotangent_equal_at_all_indices_still_counts_once_per_index():
    f = lambda w, x: 3.0 * w
    for stage in STAGES.values():
        same(batch(stage(reduced("batch", f=f)))(W, XS), jnp.full(5, 15.0))


def test_an_axis_that_is_not_listed_keeps_its_indices():
    f = jax.vmap(
        jax.vmap(reduced("i"), (None, 0), axis_name="j"), (None, 0), axis_name="i"
    )
    xs = jnp.linspace(0.1, 1.0, 6).reshape(2, 3)
    each = jax.vmap(jax.vmap(jax.grad(loss), (None, 0)), (None, 0))(W, xs)
    same(f(W, xs), jnp.broadcast_to(each.sum(0), (2, 3)))


def test_a_name_listed_twice_is_summed_once():
    same(batch(reduced("batch", "batch"))(W, XS), batch(reduced("batch"))(W, XS))


@pytest.mark.parametrize("names", ["batch", ("batch",), ["batch"], (("batch",),)])
def test_one_name_or_several(names):
    g = jax.grad(lambda w, x: loss(psum_cotangents(w, names), x))
    same(batch(g)(W, XS), batch(by_hand("batch"))(W, XS))


def test_any_hashable_is_a_name():
    name = frozenset("ab")
    want = batch(by_hand("batch"))(W, XS)
    for stage in (STAGES["eager"], jax.jit):
        g = jax.vmap(stage(reduced(name)), (None, 0), axis_name=name)
        same(g(W, XS), want)


def test_maps_within_the_differentiated_function():
    f = lambda w, x: jnp.sum(
        jax.vmap(lambda y: loss(psum_cotangents(w, "batch"), x * y))(jnp.arange(3.0))
    )
    g = lambda w, x: jnp.sum(jax.vmap(lambda y: loss(w, x * y))(jnp.arange(3.0)))
    for stage in (STAGES["eager"], jax.jit):
        same(batch(stage(jax.grad(f)))(W, XS), batch(by_hand("batch", g))(W, XS))


@pytest.mark.parametrize("stage", STAGES.values(), ids=STAGES)
def test_staged_within_the_differentiated_function(stage):
    f = stage(lambda w, x: loss(psum_cotangents(w, "batch"), x))
    want = batch(by_hand("batch"))(W, XS)
    same(batch(jax.grad(f))(W, XS), want)
    same(jax.jit(batch(jax.jit(jax.grad(f))))(W, XS), want)


def test_spmd_axis_name():
    mesh = jax.make_mesh((1,), ("d",), axis_types=(AxisType.Auto,))
    want = batch(by_hand("batch"))(W, XS)
    with jax.set_mesh(mesh):
        for g in (reduced("batch"), jax.jit(reduced("batch"))):
            same(jax.jit(batch(g, spmd_axis_name="d"))(W, XS), want)


@pytest.mark.parametrize("stage", STAGES.values(), ids=STAGES)
def test_training_steps_keep_shared_parameters_shared(stage):
    """A summed gradient is the same everywhere, and so is what is updated with it.

    Were the update mapped, the second step would not sum any more.
    """

    def train(gradient):
        def run(w, x):
            step = stage(lambda w, x: w - 0.1 * gradient(w, x))
            w = step(step(step(w, x), x), x)
            return lax.scan(lambda w, _: (step(w, x), None), w, None, length=3)[0]

        return run

    want = batch(train(by_hand("batch")), out_axes=None)(W, XS)
    got = batch(train(reduced("batch")), out_axes=None)(W, XS)
    same(got, want)


def test_complex_parameters():
    def f(w, x):
        return jnp.abs(w * x + w**2) ** 2

    w = jnp.asarray(0.3 + 0.4j, jnp.complex64)
    for stage in (STAGES["eager"], jax.jit):
        got = batch(stage(reduced("batch", f=f)))(w, XS)
        same(got, jax.grad(lambda w: f(w, XS).sum())(w) * jnp.ones(5))


def test_low_precision_keeps_its_dtype():
    w, xs = W.astype(jnp.bfloat16), XS.astype(jnp.bfloat16)
    for stage in (STAGES["eager"], jax.jit):
        got = batch(stage(reduced("batch")))(w, xs)
        assert got.dtype == jnp.bfloat16
        same(got.astype(jnp.float32), batch(by_hand("batch"))(W, XS), 0.05)


def test_nothing_leaks():
    with jax.checking_leaks():
        for stage in STAGES.values():
            jax.jit(batch(stage(reduced("batch"))))(W, XS)
            jax.grad(lambda w: batch(stage(reduced("batch")))(w, XS).sum())(W)


# --- Other derivatives --------------------------------------------------------------

DERIVATIVES = {
    "grad of it": lambda g: jax.grad(g),
    "jacfwd of it": lambda g: jax.jacfwd(g),
    "jacrev of it": lambda g: jax.jacrev(g),
    "hessian of it": lambda g: jax.hessian(g),
    "jvp of it": lambda g: lambda w, x: jax.jvp(g, (w, x), (x, w)),
    "linearize of it": lambda g: lambda w, x: jax.linearize(g, w, x)[1](x, w),
}


@pytest.mark.parametrize("stage", [STAGES["eager"], jax.jit], ids=["eager", "jit"])
@pytest.mark.parametrize("derivative", DERIVATIVES.values(), ids=DERIVATIVES)
def test_derivatives_of_the_gradient(derivative, stage):
    got, want = reduced("batch"), by_hand("batch")
    # Inside the map, ...
    same(
        batch(stage(derivative(stage(got))))(W, XS),
        batch(derivative(want))(W, XS),
        1e-4,
    )
    # ... around it, ...
    outside = lambda g: derivative(lambda w, x: batch(g)(w, x * XS).sum())
    same(stage(outside(stage(got)))(W, W), outside(want)(W, W), 1e-4)
    # ... and between two maps.
    between = lambda g: batch(derivative(lambda w, y: batch(g)(w, y * XS).sum()))
    same(stage(between(stage(got)))(W, XS), between(want)(W, XS), 1e-4)


def test_a_step_through_a_step():
    """Both the gradient and the gradient through it are summed over the map."""

    def outer(inner, total):
        return total(lambda w, x: loss(w - 0.1 * inner(w, x), x))

    got = outer(reduced("batch"), lambda f: reduced("batch", f=f))
    want = outer(by_hand("batch"), lambda f: by_hand("batch", f))
    for stage in (STAGES["eager"], jax.jit):
        same(batch(stage(got))(W, XS), batch(want)(W, XS), 1e-4)


def test_vjp_jacrev_and_linear_transpose():
    f = lambda w, x: loss(psum_cotangents(w, "batch"), x)
    want = batch(by_hand("batch"))(W, XS)

    def by_vjp(w, x):
        return jax.vjp(lambda w: f(w, x), w)[1](jnp.float32(1))[0]

    def by_transpose(w, x):
        linear = jax.linearize(lambda w: f(w, x), w)[1]
        return jax.linear_transpose(linear, w)(jnp.float32(1))[0]

    for g in (by_vjp, by_transpose, jax.jacrev(f)):
        same(batch(g)(W, XS), want)
        same(batch(jax.jit(g))(W, XS), want)


def test_a_pullback_keeps_what_it_sums():
    def pullback(w, x):
        return jax.vjp(lambda w: loss(psum_cotangents(w, "batch"), x), w)[1]

    back = batch(pullback)(W, XS)
    got = jax.vmap(lambda b, c: b(c)[0], axis_name="batch")(back, jnp.ones(5))
    same(got, batch(by_hand("batch"))(W, XS))
    with pytest.raises(NameError, match="batch"):
        jax.vmap(lambda b, c: b(c)[0])(back, jnp.ones(5))


@pytest.mark.parametrize("stage", STAGES.values(), ids=STAGES)
@pytest.mark.parametrize("outer", [STAGES["eager"], jax.jit], ids=["eager", "jit"])
def test_a_gradient_around_the_map_is_refused(outer, stage):
    f = stage(lambda w, x: loss(psum_cotangents(w, "batch"), x))
    with pytest.raises(NameError, match=r"batch.*inside the map"):
        outer(jax.grad(lambda w: batch(f)(w, XS).sum()))(W)


# --- What is left alone -------------------------------------------------------------


def test_the_way_forward_is_the_identity():
    tree = {
        "w": jnp.arange(3.0),
        "n": jnp.arange(3),
        "flag": jnp.array(True),
        "key": jax.random.key(0),
        "none": None,
        "float": 1.5,
        "numpy": np.ones(2),
        "object": "text",
    }
    seen = {}

    def f(x):
        seen.update(psum_cotangents(tree, "batch"))
        return seen["w"] + x

    assert batch(f, 0)(jnp.zeros(2)).tolist() == [[0.0, 1.0, 2.0]] * 2
    assert all(seen[key] is tree[key] for key in tree if key != "w")


def test_integers_and_keys_have_no_gradient():
    def f(tree, x):
        noise = jax.random.normal(tree["key"])
        return loss(tree["w"], x) * tree["n"] + 0 * noise

    tree = {"w": W, "n": jnp.array(2), "key": jax.random.key(0)}
    g = jax.grad(
        lambda t, x: f(psum_cotangents(t, "batch"), x), allow_int=True, argnums=0
    )
    for stage in (STAGES["eager"], jax.jit):
        got = batch(stage(lambda t, x: g(t, x)["w"]))(tree, XS)
        same(got, 2 * batch(by_hand("batch"))(W, XS))
    assert batch(g)(tree, XS)["n"].dtype == jax.dtypes.float0


def test_no_axes_no_change():
    tree = {"w": W}
    assert psum_cotangents(tree, ()) is tree
    assert jax.make_jaxpr(lambda w: psum_cotangents(w, ()))(W).eqns == []


def count(jaxpr, name):
    text = str(jaxpr)
    return text.count(f" {name}[")


def test_a_known_answer_costs_one_sum_or_nothing():
    gradient = reduced("batch", f=lambda w, x: jnp.sin(w * x))
    shared = jax.make_jaxpr(batch(gradient))(W, XS)
    own = jax.make_jaxpr(batch(gradient, (0, 0)))(XS, XS)
    assert count(shared, "psum") + count(shared, "reduce_sum") == 1
    assert count(own, "psum") + count(own, "reduce_sum") == 0
    for jaxpr in (shared, own):
        assert "custom_v" not in str(jaxpr)
        assert "select_n" not in str(jaxpr)


def test_the_compiled_program_is_the_one_written_by_hand():
    def cost(g):
        return jax.jit(batch(g)).lower(W, XS).compile().cost_analysis()["flops"]

    assert cost(jax.jit(reduced("batch"))) == cost(by_hand("batch"))


def test_the_input_is_not_kept_for_the_way_back():
    """Only the answer is: an identity must not prolong the life of its input."""

    def pullback(w):
        return jax.vjp(jax.jit(lambda w: psum_cotangents(w, "batch")), w)[1]

    kept = jax.tree.leaves(batch(pullback, 0)(jnp.ones((5, 1000))))
    assert sum(a.size for a in kept if hasattr(a, "size")) <= 100


# --- Errors -------------------------------------------------------------------------


@pytest.mark.parametrize("tree", [W, jnp.arange(3), {}], ids=["float", "int", "empty"])
def test_an_unbound_name(tree):
    with pytest.raises(NameError, match="nowhere"):
        psum_cotangents(tree, "nowhere")
    with pytest.raises(NameError, match="nowhere"):
        batch(lambda x: psum_cotangents(tree, ("batch", "nowhere")), 0)(XS)
    with pytest.raises(NameError, match="nowhere"):
        jax.jit(lambda t: psum_cotangents(t, "nowhere"))(tree)


def test_an_integer_is_a_position_to_jax():
    with pytest.raises(ValueError, match=r"named 0.*position"):
        jax.vmap(reduced(0), (None, 0), axis_name=0)(W, XS)


def test_forward_mode_over_the_function_is_the_error_of_custom_vjp():
    f = lambda w, x: jax.jvp(lambda w: psum_cotangents(w, "batch"), (w,), (w,))[1] * x
    with pytest.raises(TypeError, match="custom_vjp"):
        batch(f)(W, XS)


# --- Under shard_map ----------------------------------------------------------------

needs_devices = pytest.mark.devices(4)
TABLE = jnp.linspace(0.1, 1.2, 12).reshape(4, 3)


SHARED, OWN = P(), P("d")


def sharded(f, in_specs=(SHARED, OWN), out_specs=SHARED, **options):
    mesh = jax.make_mesh((4,), ("d",), axis_types=(AxisType.Auto,))
    return jax.shard_map(
        f, mesh=mesh, in_specs=in_specs, out_specs=out_specs, **options
    )


def total(w):
    return sum(loss(w, x) for x in TABLE.ravel())


@needs_devices
@pytest.mark.parametrize("names", [(), ("d",)], ids=["unlisted", "listed"])
@pytest.mark.parametrize("stage", [STAGES["eager"], jax.jit], ids=["eager", "jit"])
def test_shard_map_sums_by_itself(names, stage):
    same(sharded(stage(reduced(*names)))(W, TABLE), jax.grad(total)(W))
    same(jax.jit(sharded(stage(reduced(*names))))(W, TABLE), jax.grad(total)(W))
    ws = jnp.full((4, 1), W)
    got = sharded(stage(reduced(*names)), (P("d"), P("d")), P("d"))(ws, TABLE)
    same(got, jax.vmap(jax.grad(loss))(ws, TABLE))


@needs_devices
@pytest.mark.parametrize("names", [("batch", "d"), ("d", "batch"), ("batch",)])
@pytest.mark.parametrize("stage", [STAGES["eager"], jax.jit], ids=["eager", "jit"])
@pytest.mark.parametrize("inside", ["vmap", "shard_map"])
def test_one_axis_of_each_kind(inside, names, stage):
    g = stage(reduced(*names))
    if inside == "vmap":
        f = sharded(batch(g, (None, 1), out_axes=None))
    else:
        f = batch(sharded(g), (None, 1), out_axes=None)
    same(f(W, TABLE), jax.grad(total)(W))
    same(jax.jit(f)(W, TABLE), jax.grad(total)(W))
    second = jax.grad(jax.grad(total))(W)
    same(jax.grad(f)(W, TABLE), second, 1e-4)
    same(jax.jit(jax.grad(f))(W, TABLE), second, 1e-4)


@needs_devices
@pytest.mark.parametrize("stage", [STAGES["eager"], jax.jit], ids=["eager", "jit"])
def test_a_map_inside_shard_map_leaves_mapped_inputs_and_steps_alone(stage):
    g = stage(reduced("batch", "d"))
    ws = jnp.full(3, W)
    got = sharded(batch(g, (0, 1)))(ws, TABLE)
    same(got, jax.vmap(lambda w, x: jax.grad(loss)(w, x), (0, 1))(ws, TABLE))

    def train(w, x):
        for _ in range(2):
            w = w - 0.01 * g(w, x)
        return jax.jvp(lambda w: g(w, x), (w,), (w,))[1]

    want = W
    for _ in range(2):
        want = want - 0.01 * jax.grad(total)(want)
    want = jax.grad(jax.grad(total))(want) * want
    same(sharded(batch(train, (None, 1), out_axes=None))(W, TABLE), want, 1e-4)


@needs_devices
def test_a_second_transposition_inside_both_maps_is_an_error_and_not_a_number():
    f = sharded(batch(jax.grad(reduced("batch")), (None, 1)))
    with pytest.raises(NotImplementedError):
        f(W, TABLE)


@needs_devices
@pytest.mark.parametrize("stage", [STAGES["eager"], jax.jit], ids=["eager", "jit"])
def test_types_with_explicit_sharding(stage):
    mesh = jax.make_mesh((4,), ("d",), axis_types=(AxisType.Explicit,))
    want = jax.grad(total)(W)
    with jax.set_mesh(mesh):
        xs = jax.device_put(TABLE.ravel(), P("d"))
        f = batch(stage(reduced("batch")), out_axes=None)
        same(f(W, xs), want)
        same(jax.jit(f)(W, xs), want)
        own = batch(stage(reduced("batch")), (0, 0))(xs, xs)
        same(jax.grad(f)(W, xs), jax.grad(jax.grad(total))(W), 1e-4)
    same(own, jax.vmap(jax.grad(loss))(TABLE.ravel(), TABLE.ravel()))


@needs_devices
def test_only_some_axes_of_the_mesh_are_manual():
    mesh = jax.make_mesh((2, 2), ("d", "auto"), axis_types=(AxisType.Auto,) * 2)
    f = jax.shard_map(
        reduced("d"),
        mesh=mesh,
        in_specs=(P(), P("d")),
        out_specs=P(),
        axis_names={"d"},
    )
    same(jax.jit(f)(W, TABLE), jax.grad(total)(W))
    g = jax.shard_map(
        reduced("auto"),
        mesh=mesh,
        in_specs=(P(), P("d")),
        out_specs=P(),
        axis_names={"d"},
    )
    with pytest.raises(NameError, match="auto"):
        jax.jit(g)(W, TABLE)


@needs_devices
@pytest.mark.parametrize("stage", [STAGES["eager"], jax.jit], ids=["eager", "jit"])
def test_without_tracking_mapped_and_unmapped_look_alike(stage):
    f = stage(sharded(stage(reduced("d")), check_vma=False))
    with pytest.raises(ValueError, match=r"'d'.*check_vma=True.*psum"):
        f(W, TABLE)
    # A map inside is not concerned.
    f = stage(sharded(batch(stage(reduced("batch")), (None, 1)), check_vma=False))
    h = stage(sharded(batch(by_hand("batch"), (None, 1)), check_vma=False))
    same(f(W, TABLE), h(W, TABLE))


@needs_devices
def test_pmap_is_refused():
    with pytest.raises(ValueError, match=r"'d'.*pmap"):
        jax.pmap(reduced("d"), axis_name="d", in_axes=(None, 0))(W, TABLE)
