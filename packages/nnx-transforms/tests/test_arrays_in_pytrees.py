"""Many arrays in one pytree below a node, such as a state of optax: read and written
together, as if each were on its own.
"""

import copy
import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from frames import frames_of
from hypothesis import given, settings
from hypothesis import strategies as st

import nnx_transforms as nnx


class Pair(NamedTuple):
    a: Any
    b: Any


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Record:
    a: Any
    b: Any
    name: str = dataclasses.field(default="r", metadata={"static": True})


@jax.tree_util.register_pytree_node_class
class Fixed:
    """A module of a functional library."""

    def __init__(self, a, b):
        self.a, self.b = a, b

    def __repr__(self):
        return f"Fixed({self.a}, {self.b})"

    def tree_flatten(self):
        return (self.a, self.b), None

    @classmethod
    def tree_unflatten(cls, _, children):
        return cls(*children)


nnx.register_filtered_type(Fixed, immutable=True)


class Model(nnx.Module):
    def __init__(self, tree):
        self.w = nnx.Param(jnp.ones(2))
        self.tree = nnx.data(tree)


def is_float(x):
    return isinstance(x, jax.Array)


def bumped(tree):
    return jax.tree.map(lambda x: x + 1 if is_float(x) else x, tree)


LEAVES = st.one_of(
    st.integers(0, 9).map(lambda n: jnp.full((), float(n))),
    st.sampled_from(["s", 3, None, np.float32(2)]),
)
TREES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.sampled_from("abcd"), inner, max_size=4),
        st.builds(Pair, inner, inner),
        st.builds(Record, inner, inner, st.sampled_from(["r", "s"])),
        st.builds(Fixed, inner, inner),
    ),
    max_leaves=16,
)


def at(tree, path):
    for key in path:
        is_named = not isinstance(tree, list | dict) and isinstance(key, str)
        tree = getattr(tree, key) if is_named else tree[key]
    return tree


def containers(tree, path=()):
    """The dicts and lists that are reached without a copy, with their paths."""
    if isinstance(tree, dict | list):
        yield path, tree
    if isinstance(tree, dict):
        pairs = sorted(tree.items())  # JAX gives them in this order.
    elif isinstance(tree, list | tuple):
        pairs = enumerate(tree)
    elif isinstance(tree, Record):
        pairs = [("a", tree.a), ("b", tree.b)]
    else:
        pairs = []
    for key, child in pairs:
        yield from containers(child, (*path, key))


def bump_in_place(container):
    keys = container if isinstance(container, dict) else range(len(container))
    for key in keys:
        if is_float(container[key]):
            container[key] = container[key] + 1


def act(model, what, number):
    """Writes some arrays of a model, in place or with other containers."""
    found = [*containers(model.tree)]
    chosen = found[number % len(found)] if found else None
    if what == "all":
        model.tree = nnx.data(bumped(model.tree))
    elif what == "in place":
        for _, container in found:
            bump_in_place(container)
    elif what == "one" and chosen is not None:
        bump_in_place(chosen[1])
    elif what == "one anew" and chosen is not None and chosen[0]:
        *path, last = chosen[0]
        parent = at(model.tree, path)
        if isinstance(parent, dict | list):
            parent[last] = bumped(parent[last])
    elif what == "all but one" and chosen is not None:
        kept = chosen[1]
        model.tree = nnx.data(
            jax.tree.map(
                lambda x: x if x is kept else bumped(x),
                model.tree,
                is_leaf=lambda x: x is kept,
            )
        )
    elif what == "the variable":
        model.w.value = model.w.value + 1


def as_numbers(tree):
    return jax.tree.map(lambda x: float(x) if is_float(x) else x, tree)


@settings(max_examples=60, deadline=None)
@given(
    tree=TREES,
    whats=st.lists(
        st.sampled_from(
            ["all", "in place", "one", "one anew", "all but one", "the variable"]
        ),
        min_size=1,
        max_size=4,
    ),
    number=st.integers(0, 7),
)
def test_a_function_does_to_them_what_it_does_without_a_transform(tree, whats, number):
    mine, plain = Model(tree), Model(copy.deepcopy(tree))
    compiled = nnx.jit(lambda model, what: act(model, what, number), static_argnums=1)
    for what in whats:
        before = [[*containers(model.tree)] for model in (mine, plain)]
        seen = {path: str(as_numbers(x)) for path, x in before[1]}
        compiled(mine, what)
        act(plain, what, number)
        assert str(as_numbers(mine.tree)) == str(as_numbers(plain.tree))
        assert jax.tree.structure(mine.tree) == jax.tree.structure(plain.tree)
        assert float(mine.w.value[0]) == float(plain.w.value[0])
        after = [dict(containers(model.tree)) for model in (mine, plain)]
        for (path, old), (_, theirs) in zip(*before, strict=True):
            # Who else holds a container sees the same in it.
            assert str(as_numbers(old)) == str(as_numbers(theirs)), path
            now = after[1].get(path)
            # A container in which no array was written is the one that it was.
            if now is not None and str(as_numbers(now)) != seen[path]:
                is_kept = now is theirs
                assert (after[0][path] is old) == is_kept, (what, path)


def tree_of(count):
    parts = [Pair(jnp.ones(()), {"x": jnp.ones(())}) for _ in range(count)]
    return {"parts": parts, "fixed": Fixed([jnp.zeros(())] * count, max)}


@pytest.mark.parametrize(
    "step",
    [
        lambda model: model.tree["fixed"].a[0] + 1,
        lambda model: setattr(model, "tree", nnx.data(bumped(model.tree))),
    ],
    ids=["read", "write"],
)
def test_a_call_takes_no_step_of_its_own_for_each_array(step):
    counts = []
    for size in (4, 40):
        model, f = Model(tree_of(size)), nnx.jit(step)
        for _ in range(3):
            f(model)
        ours = [name for file, name in frames_of(f, model) if "graphcore" in file]
        counts.append(len(ours))
    assert counts[0] == counts[1]


def test_a_pytree_that_jax_has_otherwise_is_not_looked_into_at_each_call():
    model = Model({"arrays": [jnp.ones(())] * 4, "number": 3})
    f = nnx.jit(lambda model: model.w.value + 1)
    for _ in range(3):
        f(model)
    assert not {"_learn", "divide"} & {name for _, name in frames_of(f, model)}


def test_an_edit_of_what_is_static_in_it_is_seen():
    model = Model({"r": [Record(jnp.ones(()), jnp.ones(())) for _ in range(3)]})
    names = nnx.jit(lambda model: [r.name for r in model.tree["r"]] == ["r"] * 3)
    assert names(model) and names(model)
    model.tree["r"][1].name = "other"
    assert not names(model)
    model.tree["r"][1].name = "r"
    model.tree["r"][0].a = 1.0  # a number is static
    kinds = nnx.jit(lambda model: [isinstance(r.a, float) for r in model.tree["r"]])
    assert kinds(model) == [True, False, False]


def test_equal_pytrees_keep_what_is_static_in_each():
    class Config:
        def __init__(self):
            self.scale = 1.0

        def __eq__(self, other):
            return type(other) is Config and other.scale == self.scale

        def __hash__(self):
            return hash(self.scale)

    def model():
        ones = [jnp.ones(()) for _ in range(3)]
        return Model({"r": Record(ones, jnp.ones(()), Config()), "c": Config()})

    @nnx.jit
    def step(model):
        model.tree = nnx.data(bumped(model.tree))

    models = [model(), model()]
    kept = [(m.tree["c"], m.tree["r"].name) for m in models]
    for _ in range(3):
        for m, (config, name) in zip(models, kept, strict=True):
            step(m)
            assert m.tree["c"] is config and m.tree["r"].name is name


def test_what_equals_the_static_part_of_a_pytree_is_told_from_it():
    @jax.tree_util.register_pytree_node_class
    class Typed(Fixed):
        kind = np.float32

        def tree_flatten(self):
            return (self.a, self.b), self.kind

        @classmethod
        def tree_unflatten(cls, kind, children):
            made = cls(*children)
            made.kind = kind
            return made

    model = Model([Typed(jnp.ones(()), jnp.ones(())) for _ in range(2)])
    is_class = nnx.jit(lambda model: isinstance(model.tree[0].kind, type))
    assert is_class(model) and is_class(model)
    model.tree[0] = copy.copy(model.tree[0])
    model.tree[0].kind = np.dtype("float32")
    assert not is_class(model)


def test_if_one_write_fails_all_are_taken_back():
    @jax.tree_util.register_pytree_node_class
    class Strict(Fixed):
        def __init__(self, a, b):
            if isinstance(a, jax.Array) and not isinstance(a, jax.core.Tracer):
                if a > 1:
                    raise ValueError("too much")
            super().__init__(a, b)

    ones = [jnp.ones(()) for _ in range(4)]
    model = Model({"x": [*ones], "s": Strict(jnp.ones(()), jnp.ones(()))})
    other, tree = nnx.Param(jnp.zeros(())), model.tree

    @nnx.jit
    def step(model, other):
        other.value += 1
        model.tree = nnx.data(bumped(model.tree))

    with pytest.raises(ValueError, match="too much"):
        step(model, other)
    assert model.tree is tree and tree["x"] == ones and float(other.value) == 0.0


def test_a_list_that_no_branch_replaces_is_written_in_place():
    model = Model([[jnp.full((), x) for x in (0.0, 1.0, 2.0)], [jnp.ones(())] * 8])

    def branch(i):
        def run(model):
            # Each branch writes another array of a list of its own.
            first = [*model.tree[0]]
            first[i] += 1
            model.tree[0] = first
            bump_in_place(model.tree[1])

        return run

    tree, other = model.tree, model.tree[1]
    for _ in range(2):
        nnx.switch(1, [branch(i) for i in range(3)], model)
    assert model.tree is tree and tree[1] is other
    assert as_numbers(tree) == [[0.0, 3.0, 2.0], [3.0] * 8]
