"""Node and variable types for tests, and an independent description of a graph.

`canonical` is the oracle of the property-based tests. It knows the types in this
module by name and shares no code with the package: it neither asks the registry nor
flattens anything.
"""

import collections
import math

import jax
import jax.numpy as jnp
import numpy as np

import graphcore as gc


class Node(gc.Object):
    """A node of our own."""


class OtherNode(gc.Object):
    """A node of our own whose instances can become a `Node` and the reverse."""


class Bag:
    """A graph node type of somebody else."""

    def __init__(self, label="bag"):
        self.items = {}
        self.label = label


gc.register_graph_node_type(
    Bag,
    flatten=lambda bag: (
        sorted(bag.items.items(), key=lambda item: order(item[0])),
        bag.label,
    ),
    set_key=lambda bag, key, child: bag.items.__setitem__(key, child),
    pop_key=lambda bag, key: bag.items.pop(key),
    create_empty=lambda metadata: Bag(metadata),
    clear=lambda bag: bag.items.clear(),
    init=lambda bag, pairs: bag.items.update(pairs),
)


class Pair:
    """A pytree node type that only this package knows."""

    def __init__(self, first, second):
        self.first = first
        self.second = second


gc.register_pytree_node_type(
    Pair,
    flatten=lambda pair: ([("first", pair.first), ("second", pair.second)], None),
    unflatten=lambda pairs, metadata: Pair(**dict(pairs)),
)


@jax.tree_util.register_pytree_with_keys_class
class JaxPair:
    """A pytree node type that only JAX knows."""

    def __init__(self, left, right, unit="m"):
        self.left = left
        self.right = right
        self.unit = unit

    def tree_flatten_with_keys(self):
        key = jax.tree_util.GetAttrKey
        return ((key("left"), self.left), (key("right"), self.right)), self.unit

    @classmethod
    def tree_unflatten(cls, unit, children):
        return cls(*children, unit)


Point = collections.namedtuple("Point", ("x", "y"))


class Cell:
    """A variable type of somebody else."""

    def __init__(self, content, notes=None):
        self.content = content
        self.notes = dict(notes or {})


class OtherCell(Cell):
    """Handled as its base is."""


gc.register_variable_type(
    Cell,
    get_value=lambda cell: cell.content,
    set_value=lambda cell, value: setattr(cell, "content", value),
    get_metadata=lambda cell: cell.notes,
    create=lambda kind, value, metadata: kind(value, metadata),
)


class Hooked(gc.Param):
    """A variable type with hook methods."""

    def on_get_value(self, value):
        return value

    def on_set_value(self, value):
        return value


class Counter(gc.Variable):
    """A plain variable subclass."""


class Tag:
    """A static value that is hashable and can nevertheless change in place."""

    def __init__(self, word):
        self.word = word

    def __eq__(self, other):
        return isinstance(other, Tag) and self.word == other.word

    def __hash__(self):
        return hash(self.word)

    def __repr__(self):
        return f"Tag({self.word!r})"


class Plain:
    """A static value that is compared by identity."""

    def __deepcopy__(self, memo):
        return self

    def __reduce__(self):
        return "PLAIN"


PLAIN = Plain()


def double(variable, value):
    """A hook."""
    return value * 2


VARIABLE_TYPES = (gc.Variable, gc.Param, gc.BatchStat, Counter, Hooked)
PYTREE_TYPES = (list, dict, tuple, Point, Pair, JaxPair)
NODE_TYPES = (Node, OtherNode, gc.Dict, gc.List, Bag)


def order(key):
    """Integers before strings."""
    return (isinstance(key, str), key)


def is_variable(x):
    return isinstance(x, gc.Variable | Cell)


def is_graph_node(x):
    return isinstance(x, gc.Object | Bag)


def children(x):
    """The keys and children of a node; None for anything else."""
    kind = type(x)
    if kind is Bag:
        items = x.items
    elif kind is gc.List:
        items = {**dict(enumerate(list.copy(list(x)))), **vars(x)}
    elif isinstance(x, gc.Object):
        items = vars(x)
    elif kind is dict:
        items = x
    elif kind in (list, tuple):
        return list(enumerate(x))
    elif kind is Point:
        return [("x", x.x), ("y", x.y)]
    elif kind is Pair:
        return [("first", x.first), ("second", x.second)]
    elif kind is JaxPair:
        return [("left", x.left), ("right", x.right)]
    elif x is None:
        return []
    else:
        return None
    return sorted(items.items(), key=lambda item: order(item[0]))


def constant(x):
    """A static value in a form that compares strictly, and can't change."""
    if isinstance(x, float):
        return "float", math.copysign(1, x), "nan" if x != x else x
    if isinstance(x, Tag):
        return "Tag", x.word  # as its own `==` compares
    if isinstance(x, tuple):
        return "tuple", tuple(map(constant, x))
    if is_array(x):  # a bare one
        return "array", array(x)
    return type(x).__name__, x


def array(x):
    """A variable's value in a form that compares by content."""
    leaves, structure = jax.tree.flatten(x)
    return str(structure), tuple(
        (
            type(leaf).__name__ == "ndarray",
            str(np.asarray(leaf).dtype),
            np.asarray(leaf).shape,
            np.asarray(leaf).tobytes(),
        )
        for leaf in leaves
    )


def metadata_of(variable):
    if isinstance(variable, Cell):
        return variable.notes
    return variable.get_metadata()


def value_of(variable):
    return variable.content if isinstance(variable, Cell) else variable.raw_value


def canonical(root, label=lambda x: None):
    """Describes a graph by nested tuples.

    Args:
        root: Any node or variable.
        label: What to say about the identity of a graph node or variable.
    """
    seen = {}

    def visit(x):
        if is_variable(x) or is_graph_node(x):
            if id(x) in seen:
                return "seen", seen[id(x)]
            seen[id(x)] = len(seen)
        if is_variable(x):
            items = sorted(metadata_of(x).items())
            return (
                type(x).__name__,
                label(x),
                tuple((k, constant(v)) for k, v in items),
                array(value_of(x)),
            )
        inner = children(x)
        if inner is None:
            return constant(x)
        extra = x.label if type(x) is Bag else getattr(x, "unit", None)
        return (
            type(x).__name__,
            label(x) if is_graph_node(x) else None,
            extra if type(x) in (Bag, JaxPair) else None,
            tuple((constant(key), visit(child)) for key, child in inner),
        )

    return visit(root)


def reachable(root):
    """Every node and variable below a root, in a fixed order, pytree nodes as often
    as they are reached.
    """
    found = []
    seen = set()

    def visit(x):
        if is_variable(x) or is_graph_node(x):
            if id(x) in seen:
                return
            seen.add(id(x))
        inner = children(x)
        if inner is None and not is_variable(x):
            return
        found.append(x)
        for _, child in inner or ():
            visit(child)

    visit(root)
    return found


def variables_of(root):
    return [x for x in reachable(root) if is_variable(x)]


def is_array(x):
    return isinstance(x, jax.Array | np.ndarray)


def bare_arrays_of(root):
    """The arrays without a variable, as often as there are places for them."""
    nodes = [x for x in reachable(root) if not is_variable(x)]
    return [child for x in nodes for _, child in children(x) if is_array(child)]


def leaves_of(root):
    """What a state of the graph has leaves for."""
    return variables_of(root) + bare_arrays_of(root)


def graph_nodes_of(root):
    return [x for x in reachable(root) if is_graph_node(x)]


ARRAYS = (
    jnp.arange(3.0),
    jnp.ones((2, 2), jnp.bfloat16),
    jnp.array(7),
    jnp.zeros((0, 2)),
    np.arange(2),
)
