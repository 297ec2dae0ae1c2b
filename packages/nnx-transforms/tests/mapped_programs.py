"""Random objects and random programs that change them, for tests of mapped functions.

A specification is drawn once and run twice: by the transformation under test on live
objects, and rewritten by hand as a pure function between `split` and `merge`.
"""

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st

import graphcore as gc
from nnx_transforms import BatchStat, Dict, Module, Param, Variable

SHAPE = (2, 3)


class Node(Module):
    pass


_index = st.integers(0, 5)
_name = st.sampled_from("pqz")
_number = st.integers(-2, 3)

graphs = st.fixed_dictionaries(
    {
        "parents": st.lists(_index, max_size=3),
        "variables": st.lists(st.tuples(_index, st.booleans()), min_size=1, max_size=4),
        "references": st.lists(st.tuples(_index, _index, st.booleans()), max_size=3),
    }
)
operations = st.one_of(
    st.tuples(st.just("write"), _index, _number),
    st.tuples(st.just("new"), _index, _name, _number),
    st.tuples(st.just("static"), _index, _number),
    st.tuples(st.just("delete"), _index, _index),
    st.tuples(st.just("point"), _index, _name, _index),
    st.tuples(st.just("share"), _index, _name, _index),
)
programs = st.tuples(st.lists(operations, max_size=6), _index)


def build(spec, size, axis):
    """The root of a graph; `Param`s are stacked along the axis."""
    nodes = [Node()]
    for number, parent in enumerate(spec["parents"]):
        node = Node()
        setattr(nodes[parent % len(nodes)], f"n{number}", node)
        nodes.append(node)
    variables = []
    for number, (owner, mapped) in enumerate(spec["variables"]):
        value = np.arange(6.0).reshape(SHAPE) + number
        if mapped:
            value = np.stack([value * (i + 1) for i in range(size)], axis)
        variable = (Param if mapped else BatchStat)(jnp.array(value), uid=number)
        setattr(nodes[owner % len(nodes)], f"v{number}", variable)
        variables.append(variable)
    for number, (owner, target, to_node) in enumerate(spec["references"]):
        pool = nodes if to_node else variables
        setattr(nodes[owner % len(nodes)], f"r{number}", pool[target % len(pool)])
    for number, node in enumerate(nodes):
        node.uid = number
    return nodes[0]


def reached(root):
    """All nodes and variables, in a fixed order."""
    nodes, variables, stack = [], [], [root]
    while stack:
        x = stack.pop()
        known = variables if isinstance(x, Variable) else nodes
        if any(x is y for y in known):
            continue
        known.append(x)
        if not isinstance(x, Variable):
            children = [child for _, child in sorted(vars(x).items())]
            stack += [c for c in reversed(children) if isinstance(c, Node | Variable)]
    return nodes, variables


def run(program, root, x):
    """Changes the object, and returns a number and one of its nodes."""
    steps, chosen = program
    for what, i, *rest in steps:
        nodes, variables = reached(root)
        node = nodes[i % len(nodes)]
        if what == "write" and variables:
            variable = variables[i % len(variables)]
            if isinstance(variable, Param):
                variable.value = variable.value * rest[0] + x
            else:
                variable.value = variable.value + rest[0]
        elif what == "new":
            setattr(node, rest[0], Param(jnp.full(SHAPE, x * rest[1])))
        elif what == "static":
            node.tag = rest[0]
        elif what == "delete":
            names = sorted(set(vars(node)) - {"uid"})
            if names:
                delattr(node, names[rest[0] % len(names)])
        elif what == "point":
            setattr(node, rest[0], nodes[rest[1] % len(nodes)])
        elif what == "share" and variables:
            setattr(node, rest[0], variables[rest[1] % len(variables)])
    nodes, variables = reached(root)
    total = sum((v.value.sum() for v in variables), x)
    return total, nodes[chosen % len(nodes)]


def axis_of(leaf, axis, otherwise=None):
    return axis if issubclass(leaf.type, Param) else otherwise


def leaves_of(state):
    return jax.tree.leaves(state, is_leaf=lambda x: isinstance(x, gc.VariableState))


def inner_split(root, node):
    graphdef, state = gc.split(Dict(root=root, out=node))
    leaves, structure = jax.tree.flatten(state)
    return leaves, (graphdef, structure, leaves_of(state))


def vmap_by_hand(program, root, xs, axis):
    """What `vmap` should leave: the number, and `Dict(root=…, out=…)`."""
    graphdef, state = gc.split(root)
    values, structure = jax.tree.flatten(state)
    in_axes = [axis_of(leaf, axis) for leaf in leaves_of(state)]
    found = {}

    def pure(values, x):
        inner = gc.merge(graphdef, structure.unflatten(values))
        total, node = run(program, inner, x)
        leaves, found["rest"] = inner_split(inner, node)
        return total, leaves

    shapes = [
        v if a is None else jnp.take(v, 0, a)
        for v, a in zip(values, in_axes, strict=True)
    ]
    jax.eval_shape(pure, shapes, xs[0])
    out_axes = [axis_of(leaf, axis) for leaf in found["rest"][2]]
    total, leaves = jax.vmap(pure, (in_axes, 0), (0, out_axes))(values, xs)
    new_graphdef, new_structure, _ = found["rest"]
    return total, gc.merge(new_graphdef, new_structure.unflatten(leaves))


def scan_by_hand(program, root, xs, axis):
    """What `scan` should leave, with `Param`s scanned and all else carried."""
    graphdef, state = gc.split(root)
    values, structure = jax.tree.flatten(state)
    in_axes = [axis_of(leaf, axis) for leaf in leaves_of(state)]
    scanned = [
        jnp.moveaxis(v, a, 0)
        for v, a in zip(values, in_axes, strict=True)
        if a is not None
    ]
    carried = [v for v, a in zip(values, in_axes, strict=True) if a is None]
    found = {}

    def body(carry, scanned):
        (mine, x), carry = scanned, list(carry)
        slices, carries = list(mine), list(carry)
        now = [(slices if a is not None else carries).pop(0) for a in in_axes]
        inner = gc.merge(graphdef, structure.unflatten(now))
        inner_state = gc.split(inner)[1]
        kept = {
            path: _at(inner, path)
            for path, leaf in inner_state.flat_state()
            if axis_of(leaf, axis) is None
        }
        total, node = run(program, inner, x)
        leaves, found["rest"] = inner_split(inner, node)
        return [v.value for v in kept.values()], (total, leaves)

    carry, (total, leaves) = jax.lax.scan(body, carried, (scanned, xs))
    new_graphdef, new_structure, states = found["rest"]
    final = []
    for leaf, state in zip(leaves, states, strict=True):
        if axis_of(state, axis) is None:
            final.append(leaf[-1])
        else:
            final.append(jnp.moveaxis(leaf, 0, axis))
    return total, gc.merge(new_graphdef, new_structure.unflatten(final)), carry


def _at(root, path):
    for key in path:
        root = getattr(root, key)
    return root


def assert_same_graph(ours, by_hand):
    """Equal definitions, which include all sharing, and equal values."""
    (graphdef, state), (expected, values) = gc.split(ours), gc.split(by_hand)
    assert graphdef == expected
    for a, b in zip(jax.tree.leaves(state), jax.tree.leaves(values), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)


def assert_identity(before, root):
    """What was there before is the same object still."""
    nodes, variables = before
    for x in reached(root)[0]:
        assert x is nodes[x.uid]
    for v in reached(root)[1]:
        uid = v.get_metadata().get("uid")
        assert uid is None or v is next(w for w in variables if w.uid == uid)


def by_uid(root):
    nodes, variables = reached(root)
    return {n.uid: n for n in nodes}, variables


def snapshot(root):
    graphdef, state = gc.split(root)
    return graphdef, jax.tree.leaves(state)


def assert_untouched(root, before):
    """The same structure, and the very same arrays."""
    graphdef, leaves = snapshot(root)
    assert graphdef == before[0]
    assert all(a is b for a, b in zip(leaves, before[1], strict=True))
