import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import graphcore as gc
from graphcore.comparison import Difference, Differences


class Linear(gc.Object):
    def __init__(self, n=2):
        self.kernel = gc.Param(jnp.ones((n, n)), unit="m")
        self.features = n


class Other(gc.Object):
    def __init__(self, n=2):
        self.kernel = gc.Param(jnp.ones((n, n)), unit="m")
        self.features = n


def model():
    return gc.Dict(layers=[Linear(), Linear()], rate=0.1)


def check(a, b, *expected):
    """Both directions, and the definitions alone."""
    found = gc.diff(a, b)
    assert [(d.path, d.kind, d.old, d.new) for d in found] == list(expected)
    assert isinstance(found, list)
    assert len(gc.diff(b, a)) == len(found)
    only_values = {"shape", "dtype", "structure", "value", "weak type"}
    static = [d for d in found if d.kind not in only_values]
    a_def, b_def = gc.graphdef(a), gc.graphdef(b)
    for pair in ((a_def, b_def), (a, b_def), (a_def, b)):
        assert gc.diff(*pair) == static
    assert (a_def == b_def) == (not static)


def test_equal():
    m = model()
    check(m, m)
    check(m, model())
    assert gc.diff(m, gc.clone(m)) == []


def test_values_do_not_count():
    a, b = model(), model()
    b["layers"][0].kernel.value = jnp.zeros((2, 2))
    check(a, b)


def test_static_value():
    a, b = model(), model()
    b.rate, b["layers"][1].features = 0.2, 2.0
    check(
        a,
        b,
        (("layers", 1, "features"), "static", 2, 2.0),
        (("rate",), "static", 0.1, 0.2),
    )


def test_node_type():
    a, b = model(), model()
    b["layers"][1] = Other()
    b.rate = gc.Param(1)
    check(
        a,
        b,
        (("layers", 1), "type", Linear, Other),
        (("rate",), "type", float, gc.Param),
    )
    b["layers"][1] = gc.Variable(1)
    b.rate = 0.1
    check(a, b, (("layers", 1), "type", Linear, gc.Variable))


def test_root_type():
    check(Linear(), Other(), ((), "type", Linear, Other))
    check([1], (1,), ((), "type", list, tuple))


def test_variable_type_and_metadata():
    a, b = model(), model()
    b["layers"][0].kernel = gc.BatchStat(jnp.ones((2, 2)), unit="m")
    b["layers"][1].kernel.unit = "s"
    b["layers"][1].kernel.name = "k"
    check(
        a,
        b,
        (("layers", 0, "kernel"), "variable type", gc.Param, gc.BatchStat),
        (
            ("layers", 1, "kernel"),
            "metadata",
            {"unit": "m"},
            {"unit": "s", "name": "k"},
        ),
    )


def test_shape_dtype_and_structure():
    a, b = (gc.Dict({k: gc.Param(jnp.ones(2)) for k in "abcd"}) for _ in range(2))
    b.a.value = jnp.ones(3)
    b.b.value = jnp.ones(2, jnp.int32)
    b.c.value = {"x": jnp.ones(2)}
    structures = jax.tree.structure(1), jax.tree.structure({"x": 1})
    check(
        a,
        b,
        (("a",), "shape", (2,), (3,)),
        (("b",), "dtype", jnp.float32, jnp.int32),
        (("c",), "structure", *structures),
    )


def test_leaves_of_a_value_have_paths():
    a = gc.Dict(a=gc.Param({"x": [jnp.ones(2), "text", 1]}))
    b = gc.Dict(a=gc.Param({"x": [jnp.ones(3), "other", "one"]}))
    check(
        a,
        b,
        (("a", "x", 0), "shape", (2,), (3,)),
        (("a", "x", 1), "value", "text", "other"),
        (("a", "x", 2), "value", 1, "one"),
    )


def test_abstract_values_equal_concrete_ones():
    a, b = Linear(), Linear()
    b.kernel.value = jax.ShapeDtypeStruct((2, 2), jnp.float32)
    check(a, b)
    b.kernel.value = np.ones((2, 2), np.float32)
    check(a, b)
    keys = jax.random.key(0), jax.random.key(0, impl="rbg")
    kinds = keys[0].dtype, keys[1].dtype
    check(*(gc.Dict(k=gc.Variable(k)) for k in keys), (("k",), "dtype", *kinds))


def test_variables_alone():
    assert gc.diff(gc.Variable(1), gc.Variable(2)) == []
    (found,) = gc.diff(gc.Variable(1), gc.Variable(1.0))
    assert found == Difference((), "dtype", jnp.dtype("int32"), jnp.dtype("float32"))


def test_missing_and_extra():
    a, b = model(), model()
    del b["rate"]
    b["layers"].append(gc.Param(1))
    del b["layers"][0].kernel
    b.size = 3
    check(
        a,
        b,
        (("layers", 0, "kernel"), "missing", gc.Param, None),
        (("layers", 2), "extra", None, gc.Param),
        (("rate",), "missing", 0.1, None),
        (("size",), "extra", None, 3),
    )


def test_sharing():
    a, b, c = (gc.Dict({k: gc.Param(1) for k in "xyz"}) for _ in range(3))
    b.y = b.x
    c.y = c.z
    check(a, b, (("y",), "sharing", None, ("x",)))
    check(
        b,
        c,
        (("y",), "sharing", ("x",), None),
        (("z",), "sharing", None, ("y",)),
    )


def test_what_is_shared_elsewhere_is_compared_too():
    a = gc.Dict(x=gc.Param(jnp.ones(2), unit="m"))
    a.y, b = a.x, gc.clone(a)
    b.y = gc.Param(jnp.ones(3), unit="s")
    check(
        a,
        b,
        (("y",), "sharing", ("x",), None),
        (("y",), "metadata", {"unit": "m"}, {"unit": "s"}),
        (("y",), "shape", (2,), (3,)),
    )


def test_shared_nodes_and_cycles():
    a, b = model(), model()
    a["layers"][1] = a["layers"][0]
    check(a, b, (("layers", 1), "sharing", ("layers", 0), None))
    x, y = gc.Dict(inner=gc.Dict()), gc.Dict(inner=gc.Dict())
    x.inner.up, y.inner.up = x, y.inner
    check(x, y, (("inner", "up"), "sharing", (), ("inner",)))


def test_what_follows_a_change_is_not_reported():
    a = gc.Dict(a=gc.Param(1), z=gc.Param(2))
    a.zz = a.z
    b = gc.Dict(a=gc.Param(1), b=[gc.Param(3)], z=gc.Param(2))
    b.zz = b.z
    check(a, b, (("b",), "extra", None, list))


class Unsorted:
    """A foreign node whose keys keep their order, and with metadata."""

    def __init__(self, pairs=(), note=None):
        self.pairs, self.note = dict(pairs), note


gc.register_graph_node_type(
    Unsorted,
    flatten=lambda node: (list(node.pairs.items()), node.note),
    set_key=lambda node, key, child: node.pairs.__setitem__(key, child),
    pop_key=lambda node, key: node.pairs.pop(key),
    create_empty=lambda note: Unsorted(note=note),
    clear=lambda node: node.pairs.clear(),
    init=lambda node, pairs: node.pairs.update(pairs),
)


def test_order_of_keys():
    p, q = gc.Param(1), gc.Param(2)
    a, b = Unsorted({"x": p, "y": q, "z": p}), Unsorted({"y": q, "x": p, "z": p})
    check(a, b, ((), "order", ("x", "y", "z"), ("y", "x", "z")))


def test_node_metadata():
    check(Unsorted(note=1), Unsorted(note=True), ((), "metadata", 1, True))


def test_index_space():
    refs = gc.RefMap()
    shared = gc.Param(1)
    first, _ = gc.flatten(gc.Dict(s=shared), ref_index=refs)
    second, _ = gc.flatten(gc.Dict(s=gc.Param(1)), ref_index=refs)
    third, _ = gc.flatten(gc.Dict(s=shared), ref_index=refs)
    found = gc.diff(first, second)
    assert [(d.path, d.kind) for d in found] == [((), "index"), (("s",), "index")]
    assert gc.diff(third, third) == []
    (outside,) = gc.diff(third, second)
    assert (outside.path, outside.kind) == (("s",), "sharing")
    assert str(outside) == "s: sharing shared with index 1 -> not shared"
    mapped = first.with_index_mapping(gc.HashableMapping({0: 0}))
    assert [d.kind for d in gc.diff(first, mapped)] == ["index mapping"]


def test_deep_graphs():
    def chain(last):
        root = node = gc.Dict()
        for _ in range(3000):
            node.next = gc.Dict()
            node = node.next
        node.last = last
        return root

    assert gc.diff(chain(1), chain(1)) == []
    (found,) = gc.diff(chain(1), chain(2))
    assert found.path == (*["next"] * 3000, "last")


def test_not_a_node():
    with pytest.raises(ValueError, match="int"):
        gc.diff(gc.Dict(), 3)


def test_values_are_compared_unless_one_side_has_none():
    a, b = gc.Dict(a=gc.Param(1), b=gc.Param(jnp.ones(()))), gc.Dict(a=gc.Param(1))
    b.b = gc.Param(jnp.ones(3))
    assert gc.diff(a, b) == [Difference(("b",), "shape", (), (3,))]
    assert gc.diff(gc.graphdef(a), b) == gc.diff(a, gc.graphdef(b)) == []


def test_values_go_by_index():
    def node(*sizes):
        a, c, d = (gc.Param(np.zeros(n)) for n in sizes)
        return gc.Dict(a=a, b=gc.Dict(c=c), d=d)

    assert gc.diff(node(1, 2, 3), node(1, 4, 3)) == [
        Difference(("b", "c"), "shape", (2,), (4,))
    ]


# Printing


def test_listing_is_aligned():
    a, b = model(), model()
    b["layers"][0].kernel.value = jnp.ones((2, 3), jnp.int32)
    b["layers"][1] = b["layers"][0]
    b.rate = gc.Param(1)
    b.x = "new"
    assert (
        str(gc.diff(a, b))
        == repr(gc.diff(a, b))
        == "\n".join(
            [
                "layers/0/kernel  shape    (2, 2) -> (2, 3)",
                "layers/0/kernel  dtype    float32 -> int32",
                "layers/1         sharing  not shared -> shared with layers/0",
                "rate             type     float -> Param",
                "x                extra    (none) -> 'new'",
            ]
        )
    )
    assert str(gc.diff(a, b)[0]) == "layers/0/kernel: shape (2, 2) -> (2, 3)"
    assert repr(gc.diff(a, a)) == "[]"


def test_sides_that_look_the_same():
    kinds = [
        type("Same", (gc.Object,), {"__module__": name}) for name in ("m.a", "m.b")
    ]
    assert (
        str(gc.diff(kinds[0](), kinds[1]())[0]) == "<root>: type m.a.Same -> m.b.Same"
    )
    a, b = (gc.Dict(f=lambda: None) for _ in range(2))
    assert str(gc.diff(a, b)[0]) == (
        "f: static <function <lambda>> -> <function <lambda>> (another one)"
    )


def test_long_listings_are_cut():
    listing = Differences(Difference((i,), "static", 1, 2) for i in range(5000))
    assert len(repr(listing).splitlines()) < 1100
    assert repr(listing).endswith("... 4000 more")


# Any graphs


def _children(draw, nodes, variables):
    return draw(
        st.one_of(
            st.tuples(st.just("node"), st.integers(0, nodes - 1)),
            st.tuples(st.just("variable"), st.integers(0, variables - 1)),
            st.tuples(st.just("static"), st.sampled_from([0, False, 0.0, "s", None])),
            st.tuples(st.just("list"), st.integers(0, variables - 1)),
            st.tuples(st.just("tuple"), st.integers(0, nodes - 1)),
        )
    )


@st.composite
def recipes(draw):
    """A description of a graph, from which equal graphs can be made."""
    nodes, variables = 3, 3
    return {
        "variables": [
            draw(
                st.tuples(
                    st.sampled_from([gc.Param, gc.Cache]),
                    st.sampled_from([(), (2,)]),
                    st.sampled_from([np.float32, np.int32]),
                    st.sampled_from([{}, {"m": 1}, {"m": True}]),
                )
            )
            for _ in range(variables)
        ],
        "nodes": [
            (
                draw(st.sampled_from([gc.Dict, Linear])),
                {
                    key: _children(draw, nodes, variables)
                    for key in draw(st.sets(st.sampled_from("abc")))
                },
            )
            for _ in range(nodes)
        ],
    }


@st.composite
def recipe_pairs(draw):
    """Two recipes that differ in a few places, or not at all."""
    recipe = draw(recipes())
    other = {name: list(parts) for name, parts in recipe.items()}
    source = draw(recipes())
    for name, parts in other.items():
        for position in range(len(parts)):
            if draw(st.integers(0, 5)) == 5:
                parts[position] = source[name][position]
    return recipe, other


def build(recipe):
    variables = [
        kind(np.zeros(shape, dtype), **metadata)
        for kind, shape, dtype, metadata in recipe["variables"]
    ]
    nodes = [gc.Object.__new__(kind) for kind, _ in recipe["nodes"]]
    for node, (_, children) in zip(nodes, recipe["nodes"], strict=True):
        for key, (what, which) in children.items():
            child = {
                "node": lambda i: nodes[i],
                "variable": lambda i: variables[i],
                "static": lambda value: value,
                "list": lambda i: [variables[i], 1],
                "tuple": lambda i: (nodes[i],),
            }[what](which)
            setattr(node, key, child)
    return nodes[0]


def _abstract_state(node):
    return [
        (path, leaf.value.shape, leaf.value.dtype)
        for path, leaf in gc.state(node).flat_state()
    ]


@given(recipes())
def test_a_clone_does_not_differ(recipe):
    x = build(recipe)
    assert gc.diff(x, gc.clone(x)) == []
    assert gc.diff(x, build(recipe)) == []


@given(recipe_pairs())
def test_no_difference_exactly_if_equal(pair):
    a, b = map(build, pair)
    a_def, b_def = gc.graphdef(a), gc.graphdef(b)
    found = gc.diff(a, b)
    equal = a_def == b_def and _abstract_state(a) == _abstract_state(b)
    assert (found == []) == equal
    assert (gc.diff(a_def, b_def) == []) == (a_def == b_def)
    assert "definition" not in {d.kind for d in found}
    for difference in found:
        assert str(difference)


@given(recipe_pairs())
def test_swapping_the_graphs_swaps_the_sides(pair):
    def sides(differences, swapped):
        names = {"missing": "extra", "extra": "missing"} if swapped else {}
        return sorted(
            (
                str(d.path),
                names.get(d.kind, d.kind),
                *(map(str, (d.new, d.old) if swapped else (d.old, d.new))),
            )
            for d in differences
        )

    a, b = map(build, pair)
    assert sides(gc.diff(a, b), False) == sides(gc.diff(b, a), True)


@dataclasses.dataclass
class Settings:
    a: object = 1
    b: object = 2


@pytest.mark.parametrize(
    ("old", "new", "due"),
    [
        (Settings(b=Settings()), Settings(b=Settings(3)), [("b/a", 1, 3)]),
        (Settings([1, 2, 3]), Settings([3, 2, 1]), [("a/0", 1, 3), ("a/2", 3, 1)]),
        (Settings({"x": 1}), Settings({"y": 1}), [("a/x", 1, None), ("a/y", None, 1)]),
        (Settings(1), Settings(1.0), [("a", 1, 1.0)]),
        (Settings((1, 2)), Settings((1, 3)), [("a", (1, 2), (1, 3))]),
        (Settings({1, 2}), Settings({1, 3}), [("a", {1, 2}, {1, 3})]),
        (Settings(Settings()), Settings({}), [("a", Settings(), {})]),
    ],
)
def test_what_differs_within_a_static_value_has_its_path(old, new, due):
    found = gc.diff(gc.Dict(c=old), gc.Dict(c=new))
    told = sorted(("/".join(map(str, d.path)), d.old, d.new) for d in found)
    assert told == [(f"c/{path}", *values) for path, *values in due]


def test_an_order_of_keys_differs_as_a_whole():
    old, new = Settings({"x": 1, "y": 2}), Settings({"y": 2, "x": 1})
    (difference,) = gc.diff(gc.Dict(c=old), gc.Dict(c=new))
    assert (difference.path, difference.old, difference.new) == (("c",), old, new)
    assert [*difference.new.a] == ["y", "x"]
