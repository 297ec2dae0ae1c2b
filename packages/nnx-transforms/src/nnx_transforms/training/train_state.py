"""The state of training as one pytree."""

from __future__ import annotations

import dataclasses
from typing import Any, Generic, Self, TypeVar

import jax
import jax.numpy as jnp
from typing_extensions import dataclass_transform

from graphcore import GraphDef, State
from nnx_transforms.training.optimizer import moved

_M = TypeVar("_M")


@dataclass_transform(frozen_default=True)
class TrainState(Generic[_M]):
    """A graph's definition and parameters with the state of their optimization.

    It is a frozen dataclass and a pytree, and so are its subclasses, which may add
    fields. The transformation `tx` is static; so is a field whose metadata say
    `pytree_node: False`.

    Args:
        graphdef: The definition of the model.
        params: Its parameters.
        opt_state: The state of the gradient transformation.
        step: How many updates there were.
        tx: Anything with the `init` and `update` of `optax.GradientTransformation`.

    Example:
        >>> import graphcore as gc, jax, jax.numpy as jnp, optax
        >>> graphdef, params = gc.split(gc.Dict(w=gc.Param(jnp.array(3.0)), f=abs))
        >>> state = TrainState.create(graphdef, params=params, tx=optax.sgd(0.5))
        >>> grads = jax.tree.map(jnp.ones_like, state.params)
        >>> state = state.apply_gradients(grads)
        >>> float(state.params.w.value), int(state.step), state.apply('params').f(-2)[0]
        (2.5, 1, 2)
    """

    graphdef: GraphDef[_M]
    params: State[Any, Any]
    opt_state: Any
    step: jax.Array
    tx: Any = dataclasses.field(metadata={"pytree_node": False})

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        _register(cls)

    @classmethod
    def create(
        cls,
        graphdef: GraphDef[Any],
        *,
        params: Any,
        tx: Any,
        step: int = 0,
        **fields: Any,
    ) -> Self:
        """Makes the state to start training from.

        Args:
            graphdef: The definition of the model.
            params: Its parameters.
            tx: The gradient transformation.
            step: The number of updates so far.
            **fields: The values of further fields.

        Returns:
            The state.

        Example:
            >>> import graphcore as gc, optax
            >>> graphdef, params = gc.split(gc.Dict(w=gc.Param(1.0)))
            >>> int(TrainState.create(graphdef, params=params, tx=optax.sgd(1.0)).step)
            0
        """
        make: Any = cls
        return make(  # type: ignore[no-any-return]
            graphdef=graphdef,
            params=params,
            opt_state=tx.init(params),
            step=jnp.asarray(step),
            tx=tx,
            **fields,
        )

    def apply(self, state: Any, *states: Any) -> Any:
        """Calls the model, as `call` of `graphcore` does.

        Args:
            state: A state, or the name of a field that holds one.
            *states: More of them.

        Returns:
            A proxy: `state.apply('params')(x)` returns the output and the definition
            and state after the call.

        Example:
            >>> import graphcore as gc, optax
            >>> graphdef, params = gc.split(gc.Dict(w=gc.Param(1.0), f=abs))
            >>> state = TrainState.create(graphdef, params=params, tx=optax.sgd(1.0))
            >>> state.apply('params').f(-1)[0]
            1
        """
        parts = (
            getattr(self, s) if isinstance(s, str) else s for s in (state, *states)
        )
        return self.graphdef.apply(*parts)

    def apply_gradients(self, grads: Any, **changes: Any) -> Self:
        """Updates the parameters.

        Args:
            grads: The gradients, a state as `params` is.
            **changes: The values of further fields.

        Returns:
            The state after the update; this one stays as it is.

        Example:
            >>> import graphcore as gc, optax
            >>> graphdef, params = gc.split(gc.Dict(w=gc.Param(1.0)))
            >>> state = TrainState.create(graphdef, params=params, tx=optax.sgd(1.0))
            >>> float(state.apply_gradients(params).params.w.value)
            0.0
        """
        updates, opt_state = self.tx.update(grads, self.opt_state, self.params)
        params = jax.tree.map(moved, self.params, updates)
        step = self.step + 1
        return self.replace(params=params, opt_state=opt_state, step=step, **changes)

    def replace(self, **changes: Any) -> Self:
        """Returns a copy with other values of fields.

        Args:
            **changes: The values by the names of the fields.

        Returns:
            The copy.

        Example:
            >>> import graphcore as gc, optax
            >>> graphdef, params = gc.split(gc.Dict(w=gc.Param(1.0)))
            >>> state = TrainState.create(graphdef, params=params, tx=optax.sgd(1.0))
            >>> state.replace(step=7).step
            7
        """
        return dataclasses.replace(self, **changes)  # type: ignore[type-var]


def _register(cls: Any) -> None:
    fields = dataclasses.fields(dataclasses.dataclass(frozen=True, kw_only=True)(cls))
    static = [f.name for f in fields if not f.metadata.get("pytree_node", True)]
    others = [f.name for f in fields if f.name not in static]
    jax.tree_util.register_dataclass(cls, data_fields=others, meta_fields=static)


_register(TrainState)
