"""Exponential moving averages of variables."""

from __future__ import annotations

import functools
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from graphcore import Filter, Object, State, VariableState, graphdef, merge, variables
from graphcore.authors import path_text, taken_state, write_raw
from nnx_transforms.statelib import to_flat_state
from nnx_transforms.states.values import map_value
from nnx_transforms.training.optimizer import nodes_of, parameters_of, with_parameters
from nnx_transforms.transforms.graph_mode import accepts_graph_mode

_A = TypeVar("_A")


class EMA(Object):
    """Keeps an exponential moving average of the variables of a model.

    Args:
        params: A graph node, or a state, whose variables are copied to start from. Of
            a module of another library in a variable, the inexact arrays are averaged.
        decay: How much of the average is kept in an update, from 0 to 1.
        only: Selects the variables that are averaged.

    Raises:
        TypeError: If there is a random key among what is averaged, or something that
            is no variable; with the path.

    Attributes:
        params: The averages: variables of the same types and metadata, nested as the
            model's are.

    Example:
        >>> import graphcore as gc, jax.numpy as jnp
        >>> model = gc.Dict(w=gc.Param(jnp.array(1.0)))
        >>> ema = EMA(model, decay=0.75)
        >>> model.w.value = jnp.array(5.0); ema.update(model)
        >>> float(ema.params['w'].value), float(ema.apply_to(model).w.value)
        (2.0, 2.0)
    """

    @accepts_graph_mode
    def __init__(self, params: Any, decay: float, *, only: Filter = ...) -> None:
        self.decay = decay
        self.filter = only
        given = params if isinstance(params, State) else variables(params)
        self.params = nodes_of(given.filter(only).map(_copied))

    def update(self, updates: Any) -> None:
        """Moves the averages towards the present values of a model.

        Args:
            updates: A model as the one that the averages were started from, or a state
                of such a model.

        Raises:
            ValueError: If it lacks a variable. Nothing is changed then.

        Example:
            >>> import graphcore as gc, jax.numpy as jnp
            >>> ema = EMA(gc.Dict(w=gc.Param(jnp.array(0.0))), decay=0.5)
            >>> ema.update({'w': jnp.array(1.0)})
            >>> float(ema.params['w'].value)
            0.5
        """
        averages = dict(variables(self.params).flat_state())
        given = updates if isinstance(updates, State | dict) else variables(updates)
        new = dict(to_flat_state(given))
        if missing := sorted(path_text(path) for path in averages.keys() - new.keys()):
            raise ValueError(
                f"The update of the moving average has nothing at {missing}: expected "
                "a value for each variable that it was made for."
            )

        def moved(average: Any, value: Any) -> Any:
            new = self.decay * average + (1.0 - self.decay) * value
            return new.astype(average.dtype)  # also of integers, as counters are

        def averaged(old: Any, new: Any) -> Any:
            of_both = parameters_of(old), parameters_of(new)
            return with_parameters(old, jax.tree.map(moved, *of_both))

        write_raw([(old, averaged(old, new[p])) for p, old in averages.items()])

    def apply_to(self, model: _A) -> _A:
        """Copies a model, with the averages in the place of its variables.

        Args:
            model: A model as the one that the averages were started from.

        Returns:
            A model that has the averaged variables themselves, so that it sees later
            updates, and shares the other variables with the model.

        Example:
            >>> import graphcore as gc, jax.numpy as jnp
            >>> model = gc.Dict(w=gc.Param(jnp.array(1.0)))
            >>> ema = EMA(model, decay=0.9)
            >>> ema.apply_to(model).w is ema.params['w']
            True
        """
        averages = variables(self.params)
        twin: _A = merge(graphdef(model), variables(model), averages, copy=False)
        return twin


def _copied(path: Any, variable: Any) -> Any:
    state = taken_state(variable)
    if not isinstance(state, VariableState):
        raise TypeError(
            f"EMA got a {type(variable).__name__} at {path_text(path)!r}, expected "
            "variables alone. Leave it out with `only`, or hold it in a variable."
        )
    for leaf in jax.tree.leaves(parameters_of(variable)):
        if jnp.issubdtype(jnp.result_type(leaf), jax.dtypes.extended):  # random keys
            raise TypeError(
                f"EMA got a {type(variable).__name__} at {path_text(path)!r} with "
                f"values of type {jax.typeof(leaf)}, of which there is no average. "
                "Leave it out with `only`, as in `EMA(model, decay, only=nnx.Param)`."
            )
    copied = functools.partial(jax.tree.map, jnp.copy)
    return state.replace(map_value(copied, state.value)).to_variable()
