"""What a signal handler or another thread writes while a graph is walked."""

import graph_zoo as zoo
import pytest

import graphcore as gc


class Interrupted:
    """A node whose reading is interrupted once."""

    def __init__(self, handler):
        self.handler = handler

    def read(self):
        handler, self.handler = self.handler, None
        if handler is not None:
            handler()
        return [("handler", None)], None


gc.register_graph_node_type(
    Interrupted,
    flatten=Interrupted.read,
    set_key=setattr,
    pop_key=lambda node, key: vars(node).pop(key),
    create_empty=lambda metadata: object.__new__(Interrupted),
    clear=lambda node: vars(node).clear(),
    init=lambda node, pairs: vars(node).update(pairs),
    containers=["__dict__"],
)

WRITES = {
    "attribute": lambda root: setattr(root, "scale", 2.0),
    "behind the node's back": lambda root: vars(root).update(scale=2.0),
    "new variable": lambda root: setattr(root, "added", gc.Param(3)),
    "list": lambda root: root.blocks.append(gc.Param(3)),
    "list that is a node": lambda root: root.heads.append(gc.Param(3)),
    "dict": lambda root: root.blocks[0].pop("w"),
    "metadata": lambda root: root.first.set_metadata(tag="new"),
    "foreign node": lambda root: root.bag.items.update(x=gc.Param(3)),
    "foreign metadata": lambda root: root.cell.notes.update(tag="new"),
}


def model():
    return gc.Dict(
        bag=zoo.Bag(),
        blocks=[{"w": gc.Param(1)}],
        cell=zoo.Cell(1, {"tag": "old"}),
        first=gc.Param(1, tag="old"),
        heads=gc.List([gc.Param(1)]),
        later=Interrupted(None),
        scale=1.0,
    )


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_it_is_seen_by_the_next_walk(write):
    root, due = model(), model()
    root.later.handler = lambda: write(root)
    gc.graphdef(root)
    write(due)
    assert gc.graphdef(root) == gc.graphdef(due)
