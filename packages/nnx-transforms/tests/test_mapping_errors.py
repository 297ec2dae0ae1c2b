"""Misuse of mapping transforms: errors name what users wrote, where it went wrong."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import nnx_transforms as nnx
from nnx_transforms import Carry, StateAxes


class Model(nnx.Module):
    def __init__(self, n=4):
        self.w = nnx.Param(jnp.ones((n, 2)))
        self.b = nnx.BatchStat(jnp.zeros(n))


needs_devices = pytest.mark.devices(4)
by_axis = pytest.mark.parametrize(
    "transform", [nnx.vmap, pytest.param(nnx.pmap, marks=needs_devices)]
)
xs = jnp.ones(4)


def first(model, x):
    return x


def pair(model, x):
    return x, {"a": x}


def check(place, kind, call):
    """Checks that a call is refused with a text that users understand."""
    with pytest.raises(kind) as caught:
        call()
    text = str(caught.value)
    assert place in text
    for internal in ("tree_map", "prefix_tree", "variables[", "Change", "flat_args"):
        assert internal not in text
    for internal in ("out_axes[1]", "in_specs[2]", "args[2]", "Tracer"):
        assert internal not in text


@pytest.mark.parametrize("axes", [{nnx.Param: 0, ...: None}, {nnx.Param: 0}, {...: 0}])
def test_axes_by_filter_are_no_dict(axes):
    check("`StateAxes({", ValueError, lambda: nnx.vmap(first, in_axes=(axes, 0)))
    check("`StateAxes({", ValueError, lambda: nnx.scan(first, in_axes=0, out_axes=axes))
    plain = nnx.vmap(lambda d: d[int] + 1, in_axes=({int: 0},))
    assert plain({int: jnp.ones(2)}).tolist() == [2.0, 2.0]
    check("`StateSharding`", ValueError, lambda: nnx.jit(first, in_shardings=(axes, 0)))


@by_axis
@pytest.mark.parametrize(
    ("in_axes", "x", "kind", "place"),
    [
        ((0, (0, 0)), xs, ValueError, "in_axes at '1' is a tuple of 2, but the arg"),
        ((0, {"b": 0}), {"a": xs}, ValueError, "in_axes at '1' is a dict with the"),
        ((0, {"a": {}}), {"a": xs}, ValueError, "in_axes at '1/a' is a dict"),
        (({"w": 0}, 0), xs, ValueError, "in_axes at '0' is a dict with the keys ['w']"),
        ((0, 2), xs, ValueError, "the argument at '1' over axis 2"),
        ((0, {"a": 2}), {"a": xs}, ValueError, "the argument at '1/a' over axis 2"),
        (
            0,
            1.0,
            ValueError,
            "argument at '1' over axis 0, but its value has the shape",
        ),
        (
            0,
            {"a": ["text"]},
            TypeError,
            "argument at '1/a/0' holds a value of type str",
        ),
    ],
)
def test_axes_of_arguments(transform, in_axes, x, kind, place):
    check(place, kind, lambda: transform(first, in_axes=in_axes)(Model(), x))


def test_a_dict_of_axes_for_a_model():
    call = nnx.vmap(first, in_axes=({"w": 0}, 0))
    check("in nnx_transforms a `StateAxes`", ValueError, lambda: call(Model(), xs))


@by_axis
@pytest.mark.parametrize(
    ("out_axes", "place"),
    [
        ((0, 0, 0), "out_axes is a tuple of 3, but what the function returned is a tu"),
        ([0, 0], "out_axes is a list of 2, but what the function returned is a tuple"),
        ((0, {"b": 0}), "out_axes at '1' is a dict with the keys ['b'], but what the"),
        (
            ((0, 0), 0),
            "out_axes at '0' is a tuple of 2, but what the function returned ",
        ),
        ((0, {"a": 4}), "output at 'output/1/a' is stacked along axis 4, but the fun"),
        (-3, "output at 'output/0' is stacked along axis -3, but the function left"),
    ],
)
def test_axes_of_outputs(transform, out_axes, place):
    call = transform(pair, out_axes=out_axes)
    check(place, ValueError, lambda: call(Model(), xs))


def test_an_output_that_differs_from_index_to_index():
    for out_axes, place in ((None, "'output/0'"), ((0, None), "'output/1/a'")):
        call = nnx.vmap(pair, out_axes=out_axes)
        check(
            f"The output at {place} has axis None",
            ValueError,
            lambda c=call: c(Model(), xs),
        )
    made = nnx.vmap(lambda x: (nnx.Param(x), x), out_axes=(0, None))
    check("The output at 'output/1' has axis None", ValueError, lambda: made(xs))


@pytest.mark.parametrize(
    "call",
    [
        lambda f: nnx.vmap(f)(Model(), xs),
        lambda f: nnx.remat(f)(Model(), xs),
        lambda f: nnx.jit(f)(Model(), xs),
        lambda f: nnx.eval_shape(f, Model(), xs),
        lambda f: nnx.checkify(f)(Model(), xs),
        lambda f: nnx.cond(True, f, f, Model(), xs),
        lambda f: nnx.switch(0, [f, f], Model(), xs),
        lambda f: nnx.scan(f, in_axes=0, out_axes=0)(Model(), xs),
        lambda f: nnx.map(lambda pair: f(*pair), (Model(), xs)),
    ],
)
def test_what_is_no_array_is_named_where_it_leaves(call):
    check(
        "returned a value of type str at 'output/1/a', which JAX does not",
        TypeError,
        lambda: call(lambda model, x: (x, {"a": "text"})),
    )

    def write(model, x):
        model.w.value = "text"
        return x, model

    check(
        "w' was given a value of type str inside",
        TypeError,
        lambda: call(write),
    )


@pytest.mark.parametrize(
    ("axes", "x", "kind", "place"),
    [
        ({"in_axes": (Carry, {"b": 0})}, {"a": xs}, ValueError, "in_axes at '1' is a "),
        ({"in_axes": (Carry, 3)}, xs, ValueError, "the argument at '1' over axis 3"),
        ({}, {"a": 1.0}, ValueError, "the argument at '1/a' over axis 0"),
        ({}, {"a": "text"}, TypeError, "argument at '1/a' holds a value of type str"),
        (
            {"out_axes": (Carry, (0, 0))},
            xs,
            ValueError,
            "out_axes at '1' is a tuple of",
        ),
        (
            {"out_axes": (Carry, {"b": 0})},
            {"a": xs},
            ValueError,
            "out_axes at '1' is a",
        ),
        (
            {"out_axes": (Carry, 2)},
            {"a": xs},
            ValueError,
            "output at 'output/1/a' is st",
        ),
    ],
)
def test_scan(axes, x, kind, place):
    check(place, kind, lambda: nnx.scan(lambda m, x: (m, x), **axes)(Model(), x))


@pytest.mark.parametrize("loop", ["while_loop", "fori_loop"])
def test_loops_tell_which_object_did_not_come_back(loop):
    def run(body):
        carry = {"m": Model(), "n": 0}
        if loop == "fori_loop":
            return nnx.fori_loop(0, 3, lambda i, c: body(c), carry)
        return nnx.while_loop(lambda c: c["n"] < 3, body, carry)

    missing = "at 'carry/m' the function got a Model and returned no object"
    check(missing, ValueError, lambda: run(lambda c: {"m": None, "n": c["n"]}))
    other = "at 'carry/m' the function got a Model and returned another Model"
    check(other, ValueError, lambda: run(lambda c: {"m": Model(), "n": c["n"]}))


@needs_devices
@pytest.mark.parametrize(
    ("in_specs", "out_specs", "x", "kind", "place"),
    [
        ((P(), "x"), P(), xs, TypeError, "but got 'x'"),
        ((P(), P()), 0, xs, TypeError, "but got 0"),
        ((P(), P("y")), P(), xs, ValueError, "the axes of the mesh are ['x']"),
        ((P("y"), P()), P(), xs, ValueError, "the axes of the mesh are ['x']"),
        ((P(), P()), P("y"), xs, ValueError, "the axes of the mesh are ['x']"),
        (
            (P(), P(None, "x")),
            P(),
            {"a": xs},
            ValueError,
            "The argument at '1/a' cannot",
        ),
        (
            (P(), P("x")),
            P("x"),
            xs[:3],
            ValueError,
            "The argument at '1' cannot be shar",
        ),
        ((P(), P("x")), P("x"), {"a": "text"}, TypeError, "argument at '1/a' holds a"),
        ((P(), {"b": P()}), P(), {"a": xs}, ValueError, "in_specs at '1' is a dict"),
        ((P(), P("x")), (P(), P()), xs, ValueError, "out_specs is a tuple of 2, but w"),
        (
            (P(), P("x")),
            P(),
            {"a": xs},
            ValueError,
            "output at 'output/a' has the spec",
        ),
        (
            (P(), P("x")),
            P(None, "x"),
            xs,
            ValueError,
            "The output at 'output' is to be",
        ),
    ],
)
def test_shard_map(in_specs, out_specs, x, kind, place):
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:2]), ("x",))
    call = nnx.shard_map(first, mesh=mesh, in_specs=in_specs, out_specs=out_specs)
    check(place, kind, lambda: call(Model(), x))


def test_a_mesh_that_is_none_is_left_to_jax():
    for mesh in (None, "x"):
        with pytest.raises((TypeError, ValueError), match=r"mesh|Mesh"):
            nnx.shard_map(first, mesh=mesh, in_specs=P("x"), out_specs=P())(Model(), xs)


def test_shardings_of_another_structure():
    device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    arguments = nnx.jit(first, in_shardings=(device, {"b": device}))
    place = "in_shardings at '1' is a dict with the keys ['b'], but the argument there"
    check(place, ValueError, lambda: arguments(Model(), {"a": xs}))
    output = nnx.jit(lambda m: (m, m.w.value), out_shardings=(device, device, device))
    place = (
        "out_shardings is a tuple of 3, but what the function returned is a tuple of 2"
    )
    check(place, ValueError, lambda: output(Model()))


@pytest.mark.parametrize(
    "transform", [nnx.vmap, nnx.pmap, nnx.scan, nnx.remat, nnx.checkify, nnx.jit]
)
def test_what_is_no_function_is_refused_at_once(transform):
    with pytest.raises(TypeError, match=r"xpected a callable value, got"):
        transform(3)


@pytest.mark.parametrize("given", [3, None, "w"])
def test_other_settings_by_filter(given):
    with pytest.raises(TypeError, match="takes a mapping from filters to settings"):
        StateAxes(given)


@pytest.mark.parametrize("filters", [{nnx.Param: 0, ...: None}, {...: 0}])
def test_a_dict_of_filters_says_what_it_should_be(filters):
    expected = "is a dict of filters: write `StateAxes"
    for name in ("in_axes", "out_axes"):
        with pytest.raises(ValueError, match=expected):
            nnx.vmap(first, **{name: filters})(Model(), xs)
    with pytest.raises(ValueError, match=expected):
        nnx.jit(first, in_shardings=(filters, None))(Model(), xs)


@pytest.mark.parametrize("transform", [nnx.vmap, nnx.scan])
def test_other_metadata(transform):
    with pytest.raises(TypeError, match="transform_metadata is a dict"):
        transform(first, transform_metadata=None)(Model(), xs)


def test_the_caller_has_what_it_had():
    model = Model()
    before = model.w.value

    def write(model, x):
        model.w.value = model.w.value + 1
        return x

    for out_axes in ((0, 0), 3):
        with pytest.raises(ValueError, match="out"):
            nnx.vmap(write, out_axes=out_axes)(model, xs)
    assert model.w.value is before


def test_arguments_of_the_function_go_to_what_is_made_of_it():
    for transform, takes in ((nnx.scan, "f"), (nnx.jit, "fun"), (nnx.remat, "f")):
        name = transform.__name__
        match = rf"takes at most 1: {takes}\..*`{name}\(f\)\(\.\.\.\)`"
        with pytest.raises(TypeError, match=match):
            transform(first, Model(), xs)


@pytest.mark.parametrize(
    "call",
    [
        lambda f, x: nnx.cond(True, f, f, Model(), x),
        lambda f, x: nnx.eval_shape(f, Model(), x),
    ],
)
def test_the_function_is_called_by_its_name(call):
    with pytest.raises(TypeError, match="function first at"):
        call(first, {"a": "text"})
