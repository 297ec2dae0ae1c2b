"""Hypothesis strategies: random graphs, and random edits of a graph.

An edit is a tuple of small numbers, so that the same edit can be applied to a graph
and to a copy of it.
"""

import graph_zoo as zoo
import jax.numpy as jnp
from hypothesis import strategies as st

import graphcore as gc

names = st.sampled_from("abcde")
integers = st.integers(0, 4)
statics = st.one_of(
    st.sampled_from(
        [0, 1, True, False, 1.0, 0.0, -0.0, "a", "", b"x", 2j, float("nan"), ...]
    ),
    st.sampled_from([abs, zoo.double, zoo.PLAIN, zoo.Node, jnp.float32]),
    st.builds(zoo.Tag, st.sampled_from(["x", 1, 1.0, True])),
    st.frozensets(st.integers(0, 3), max_size=2),
)
metadata_values = st.one_of(
    st.sampled_from(["m", 1, True, 1.0, ("data", None), None, zoo.double]),
    st.builds(zoo.Tag, st.sampled_from(["x", 1])),
)
metadata = st.dictionaries(
    st.sampled_from(["unit", "sharding", "tag", "on_get_value"]),
    metadata_values,
    max_size=2,
).map(lambda d: {k: zoo.double if k == "on_get_value" else v for k, v in d.items()})
bare_arrays = st.sampled_from(zoo.ARRAYS)
values = st.one_of(
    st.sampled_from(zoo.ARRAYS),
    st.sampled_from(zoo.ARRAYS).map(lambda x: {"re": x, "im": (x, 2.0)}),
)


@st.composite
def variables(draw):
    value, notes = draw(values), draw(metadata)
    kind = draw(st.sampled_from((*zoo.VARIABLE_TYPES, zoo.Cell)))
    if kind is zoo.Cell:
        return zoo.Cell(value, notes)
    return kind.from_metadata(value, notes)


def fill(node, key, child):
    """Adds a child to any graph node, under a key that suits it."""
    if isinstance(node, gc.List):
        if isinstance(key, int):
            node.append(child)
        else:
            setattr(node, key, child)
    elif isinstance(node, zoo.Bag):
        node.items[key] = child
    elif isinstance(node, gc.Dict):
        node[key] = child
    else:
        setattr(node, f"k{key}" if isinstance(key, int) else key, child)


@st.composite
def graphs(draw, max_nodes=4, foreign=True):
    """A random graph: sharing, cycles, nested pytrees, all kinds of nodes."""
    kinds = zoo.NODE_TYPES if foreign else zoo.NODE_TYPES[:-1]
    nodes = [kind() for kind in draw(st.lists(st.sampled_from(kinds), max_size=3))]
    nodes.insert(0, draw(st.sampled_from(zoo.NODE_TYPES[:4]))())
    pool = draw(st.lists(variables(), min_size=1, max_size=4))
    shared = []  # plain containers that are reached more than once

    def child(depth):
        options = [statics, st.sampled_from(pool), st.sampled_from(nodes), bare_arrays]
        if shared:
            options.append(st.sampled_from(shared))
        kind = draw(st.integers(0, 9)) if depth else 0
        if kind < 5:
            return draw(st.one_of(options))
        if kind == 5:
            return None
        made = container(kind, depth)
        shared.append(made)
        return made

    def container(kind, depth):
        if kind == 6:
            return [child(depth - 1) for _ in range(draw(st.integers(0, 3)))]
        if kind == 7:
            keys = draw(st.one_of(st.sets(names), st.sets(integers)))
            return {key: child(depth - 1) for key in sorted(keys, reverse=True)}
        if kind == 8:
            return (child(depth - 1), child(depth - 1))
        make = draw(st.sampled_from([zoo.Point, zoo.Pair, zoo.JaxPair]))
        return make(child(depth - 1), child(depth - 1))

    for node in nodes:
        keys = draw(st.lists(st.one_of(names, integers), max_size=4, unique=True))
        for key in keys:
            fill(node, key, child(2))
    return nodes[0]


numbers = st.integers(0, 30)
edits = st.tuples(st.integers(0, 100), numbers, numbers, numbers)


def pick(sequence, number):
    return sequence[number % len(sequence)]


def new_child(root, number, other, like):
    """A child that an edit puts into the graph."""
    found = zoo.reachable(root)
    made = [
        lambda: pick(found, other),  # makes sharing and cycles
        lambda: pick([1, True, 1.0, 0.0, -0.0, "s", zoo.Tag("new")], other),
        lambda: zoo.Node(),
        lambda: gc.Param(like, unit="new"),
        lambda: gc.List([gc.Param(like), other]),
        lambda: [pick(found, other), other],
        lambda: {"p": gc.BatchStat(like), "q": {}},
        lambda: zoo.Cell(like),
        lambda: zoo.Bag(),
        lambda: zoo.JaxPair(pick(found, other), 1),
        lambda: like,
        lambda: (like, [like], zoo.JaxPair(like, 1)),
    ]
    child = pick(made, number)()
    # Plain containers can't be part of a cycle of their own.
    return zoo.Node() if in_own_containers(child) else child


def in_own_containers(child):
    def visit(x, above):
        inner = zoo.children(x)
        if inner is None or zoo.is_graph_node(x):
            return False
        if id(x) in above:
            return True
        return any(visit(c, above | {id(x)}) for _, c in inner)

    return visit(child, frozenset())


def set_value(variable, value):
    if isinstance(variable, zoo.Cell):
        variable.content = value
    else:
        variable.raw_value = value


def edit_structure(root, edit):
    """One edit through the public ways; the same on every copy of a graph."""
    op, i, j, k = edit
    nodes = zoo.graph_nodes_of(root)
    node = pick(nodes, i)
    keys = [key for key, _ in zoo.children(node)]
    like = zoo.ARRAYS[0]
    if op < 40:
        key = pick([*keys, "new", "a", 7], j)
        if isinstance(node, gc.List) and key in range(len(node)):
            node[key] = new_child(root, k, j, like)
        else:
            fill(node, key, new_child(root, k, j, like))
    elif op < 60 and keys:
        key = pick(keys, j)
        if isinstance(node, zoo.Bag):
            del node.items[key]
        elif isinstance(node, gc.List | gc.Dict) and (
            isinstance(node, gc.Dict) or isinstance(key, int)
        ):
            del node[key]
        else:
            delattr(node, key)
    elif op < 70 and len(keys) > 1:
        one, two = pick(keys, j), pick(keys, k)
        first, second = (dict(zoo.children(node))[key] for key in (one, two))
        put(node, one, second)
        put(node, two, first)
    else:
        edit_variable(root, edit)


def put(node, key, child):
    if isinstance(node, zoo.Bag):
        node.items[key] = child
    elif isinstance(node, gc.Dict) or (
        isinstance(node, gc.List) and isinstance(key, int)
    ):
        node[key] = child
    else:
        setattr(node, key, child)


def edit_variable(root, edit):
    op, i, j, _ = edit
    found = zoo.variables_of(root)
    if not found:
        return
    variable = pick(found, i)
    if op < 85:
        old = zoo.value_of(variable)
        if isinstance(old, dict):
            set_value(variable, {**old, "re": old["re"] + 1})
        else:
            set_value(variable, old + 1)
    elif not isinstance(variable, zoo.Cell):
        if j % 3 and "unit" in variable.get_metadata():
            del variable.unit
        else:
            variable.unit = pick(["s", 1, True, 1.0, zoo.Tag("t")], j)


def edit_behind(root, edit):
    """One edit that no method of the package sees."""
    op, i, j, k = edit
    found = zoo.reachable(root)
    nodes = [x for x in found if isinstance(x, gc.Object)]
    node = pick(nodes, i)
    child = new_child(root, k, j, zoo.ARRAYS[0])
    op %= 15
    if op == 0:
        object.__setattr__(node, "behind", child)
    elif op == 1:
        vars(node)["through_vars"] = child
    elif op == 2:
        node.__dict__ = dict(reversed(vars(node).items()))
    elif op == 3 and vars(node):
        del vars(node)[pick(list(vars(node)), j)]
    elif op == 4:
        swap = {zoo.Node: zoo.OtherNode, zoo.OtherNode: zoo.Node}
        if type(node) in swap:
            object.__setattr__(node, "__class__", swap[type(node)])
    elif op == 5:
        owned = [x for x in found if type(x) in (gc.Param, gc.BatchStat)]
        if owned:
            variable = pick(owned, j)
            variable.__class__ = (
                gc.Param if type(variable) is gc.BatchStat else gc.BatchStat
            )
    elif op in (6, 7):
        lists = [x for x in found if type(x) in (list, dict) and x]
        if lists:
            container = pick(lists, i)
            keys = list(container) if type(container) is dict else range(len(container))
            key = pick(list(keys), j)
            old = container[key]
            container[key] = strange_twin(old, k)
            if in_own_containers(container):
                container[key] = old
    elif op == 8:
        lists = [x for x in found if type(x) is list]
        if lists:
            pick(lists, i).append(k)
    elif op == 9:
        tags = [
            c
            for x in found
            for _, c in (zoo.children(x) or ())
            if isinstance(c, zoo.Tag)
        ] + [
            value
            for x in found
            if zoo.is_variable(x)
            for value in zoo.metadata_of(x).values()
            if isinstance(value, zoo.Tag)
        ]
        if tags:
            pick(tags, i).word = pick(["changed", 1, True, 1.0, 0.0, -0.0], j)
    elif op == 10:
        bags = [x for x in found if type(x) is zoo.Bag]
        if bags:
            pick(bags, i).label = pick(["bag", "sack"], j)
    elif op == 11:
        cells = [x for x in found if isinstance(x, zoo.Cell)]
        if cells:
            pick(cells, i).notes["unit"] = pick([1, True, "m", zoo.Tag("x")], j)
    elif op == 12:
        cells = [x for x in found if isinstance(x, zoo.Cell)]
        if cells:
            cell = pick(cells, i)
            cell.__class__ = zoo.OtherCell if type(cell) is zoo.Cell else zoo.Cell
    elif op == 13:
        holders = [vars(x) if type(x) is gc.Dict else x for x in found]
        numbered = [
            (x, key) for x in holders if type(x) is dict for key in x if key in (0, 1)
        ]
        if numbered:
            holder, key = pick(numbered, i)
            child = holder.pop(key)
            holder[int(key) if isinstance(key, bool) else bool(key)] = child
    else:
        pairs = [x for x in found if type(x) in (zoo.Pair, zoo.JaxPair)]
        if pairs:
            pair = pick(pairs, i)
            name = pick(["first", "second"], j)
            if type(pair) is zoo.JaxPair:
                name = {"first": "left", "second": "right"}[name]
            old = getattr(pair, name)
            setattr(pair, name, strange_twin(old, k))
            if in_own_containers(pair):
                setattr(pair, name, old)


def strange_twin(old, number):
    """Something that equals the old child, or nearly, and is not it."""
    if isinstance(old, bool | int | float):
        return pick([1, True, 1.0, 0, False, 0.0, -0.0], number)
    if isinstance(old, zoo.Tag):
        return zoo.Tag(old.word)
    if type(old) in (list, dict):
        return old.copy()
    if type(old) is tuple:
        return (*old,)
    if isinstance(old, gc.Variable):
        return old.copy()
    return pick([1, "other", old], number)
