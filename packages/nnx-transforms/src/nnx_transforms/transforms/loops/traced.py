"""Bodies whose trace JAX keeps apart from the loop or branch that they are part of.

Where JAX gives back only the arrays, or the structure of one branch out of several,
what a function did to its objects has to be known from its trace. JAX itself keeps
traces of functions by everything that they depend on: abstract values, configuration,
mesh, axis names. So the function is traced under a `jit` that leaves no trace in the
program; asking for the shapes of what it returns finds that trace, and with it the
static part of the output.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax

from graphcore.authors import Body, Change, Inside
from nnx_transforms.transforms.loops.cached_properties import not_kept
from nnx_transforms.transforms.loops.held import without_held

# Where the program is put together, not where it is compiled: newer JAX has both.
_AT_ONCE: Any = jax.Inline.JAX_EARLY if hasattr(jax, "Inline") else True


class TracedBody(Body):
    """A body that is traced on its own.

    Attributes:
        traced: `whole`, for `jax.eval_shape` and for the program.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)

        @functools.wraps(self, updated=())
        def traced(*args: Any) -> Any:
            return self.whole(*args)

        self.traced = jax.jit(traced, inline=_AT_ONCE)

    def whole(
        self, groups: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> tuple[list[Any], list[Any], Any, Change]:
        """Returns the values of all variables, those of new ones, output and change."""
        values = self.ungrouped(groups)
        left = self.run(values, args, kwargs or {})
        new = [w.value for w in left.written if w.position is None]
        now = without_held(left.all_values(values), values)
        return now, new, left.out, left.change

    def call(self, inside: Inside, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        with not_kept(inside.roots):
            return super().call(inside, args, kwargs)

    def change(self, *args: Any) -> Change:
        """What the function does to its objects, by the trace that JAX keeps."""
        traced = self.traced.trace(*args)
        # JAX before 0.9 tells the structure only with the shape of each leaf.
        structure = getattr(traced, "out_tree", None)
        if structure is None:
            structure = jax.tree.structure(traced.out_info)
        *_, static = jax.tree_util.treedef_children(structure)
        change = jax.tree.unflatten(static, ())
        assert isinstance(change, Change)
        return change
