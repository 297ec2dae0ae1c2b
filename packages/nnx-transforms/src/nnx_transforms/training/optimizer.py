"""An optimizer: a gradient transformation together with its state.

The state of an optax transformation is a pytree. Each of its leaves is kept in a
variable of its own, an `OptState`, at the same path:

- a leaf that belongs to a parameter (a momentum, say) carries that parameter's
  `sharding` and `mesh`, and is placed where the parameter is;
- filters, checkpoints and `explain_recompile` can speak of a single leaf, and a leaf
  that a step does not write costs nothing on the way out.

What holds them are the tuples and dicts of optax. Tuples can't change, so a compiled
step need not look at them. A `State`, which would have to be taken apart on each call,
is kept as graph nodes, and made of them where it is asked for.
"""

from __future__ import annotations

import contextlib
import functools
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from graphcore import (
    Dict,
    Filter,
    FlatState,
    Object,
    Param,
    State,
    Variable,
    VariableState,
    is_graph_node,
    is_variable,
    register_immutable_type,
    to_predicate,
    update,
    variables,
)
from graphcore.authors import (
    UNSET,
    Divided,
    key_path,
    path_text,
    raw_value_of,
    variable_impl,
    write_raw,
)
from nnx_transforms.sharding.shardings import PLACEMENT, sharding_key
from nnx_transforms.states.values import arrays_of
from nnx_transforms.transforms.graph_mode import accepts_graph_mode

__all__ = ["ModelAndOptimizer", "OptState", "Optimizer"]

A = TypeVar("A")
M = TypeVar("M")
Path = tuple[Any, ...]


class OptState(Variable[A]):
    """A leaf of the state of an optimizer, or its step count.

    Example:
        >>> OptState(0).value
        0
    """

    __slots__ = ()


class _Items(dict[Any, Any]):
    """A dict in the state of a transformation: what is set goes to the variables."""

    def __setitem__(self, key: Any, value: Any) -> None:
        kept = self[key]
        if is_variable(kept):
            value = jnp.asarray(value, kept.dtype)
        write_raw(_writes(kept, value))

    update = MutableMapping.update  # `dict.update` would bypass `__setitem__`


class _LiveState(State[Any, Any]):
    """A `State` in the state of a transformation, likewise."""

    __slots__ = ()
    __setitem__ = _Items.__setitem__

    def __getitem__(self, key: Any) -> Any:
        x = super().__getitem__(key)
        return _LiveState.lazily(lambda: x.raw_mapping) if type(x) is State else x


def _flatten_live(x: Any) -> tuple[list[Any], Any]:
    plain: Any = State.lazily(lambda: x.raw_mapping) if isinstance(x, State) else {**x}
    below = {"is_leaf": lambda child: child is not plain}
    children, structure = jax.tree_util.tree_flatten_with_path(plain, **below)
    return [(path[0], child) for path, child in children], structure


# JAX flattens them as a dict and a `State`, and unflattens to a plain one.
for _kind in (_Items, _LiveState):
    jax.tree_util.register_pytree_with_keys(_kind, _flatten_live, jax.tree.unflatten)


@register_immutable_type
@dataclass(frozen=True, eq=False, slots=True)
class _Rule:
    """What an optimizer knows beside its state.

    Static. Two optimizers made alike with one transformation share what was compiled.
    """

    tx: Any
    wrt: Filter
    tree: Any

    def __eq__(self, other: object) -> bool:
        return (
            type(other) is _Rule
            and self.tx is other.tx  # by identity, also where it defines `==`
            and self.tree is other.tree
            and bool(self.wrt == other.wrt)
        )

    def __hash__(self) -> int:
        return id(self.tx)

    def __repr__(self) -> str:  # short: the transformation by its identity
        wrt = getattr(self.wrt, "__name__", self.wrt)
        return f"Rule({type(self.tx).__name__} at {id(self.tx):#x}, wrt={wrt})"

    # It never changes, so copies of an optimizer share it, and with it compiled code.
    def __deepcopy__(self, memo: object) -> _Rule:
        return self


class Optimizer(Object, Generic[M]):
    """Updates the parameters of a model by a gradient transformation.

    Args:
        model: A graph node; kept, so that `update(grads)` knows what to update.
        tx: Anything with the `init(params)` and `update(grads, state, params)` of
            `optax.GradientTransformation`. Parameters and gradients are given to it as
            `State`s of arrays, keyed as in the model. They are nested dicts if its
            `init` refuses `State`s, because a mask or labels are such dicts.
        wrt: Selects the variables, and arrays without one, that are updated.

    Attributes:
        step: How many updates there were; a uint32 scalar.

    Raises:
        TypeError: If `tx` is no gradient transformation.
        ValueError: If the filter selects nothing.

    Example:
        >>> import graphcore as gc, jax.numpy as jnp, optax
        >>> model = gc.Dict(w=gc.Param(jnp.array([1.0, 2.0])))
        >>> optimizer = Optimizer(model, optax.sgd(0.5, momentum=0.9))
        >>> updates = optimizer.update(gc.State({'w': jnp.array([1.0, 1.0])}))
        >>> model.w.value.tolist(), optimizer.opt_state[0].trace['w'].value.tolist()
        ([0.5, 1.5], [1.0, 1.0])
        >>> gc.state(optimizer, OptState).flat_state().paths
        (('opt_state', 0, 'trace', 'w'), ('step',))
    """

    step: OptState[jax.Array]
    model: M

    @accepts_graph_mode
    def __init__(self, model: M, tx: Any, wrt: Filter = Param) -> None:
        init = getattr(tx, "init", None)
        if not callable(init) or not callable(getattr(tx, "update", None)):
            raise TypeError(
                f"Optimizer got tx={tx!r} of type {type(tx).__name__}, expected a "
                "gradient transformation with `init` and `update`, such as "
                "`optax.adam(1e-3)`."
            )
        selected: FlatState[Any] = variables(model, wrt).flat_state()
        if not selected:
            raise ValueError(
                f"wrt={wrt!r} selects no variables of the {type(model).__name__}, so "
                "there is nothing to optimize."
            )
        params = list(map(parameters_of, selected.leaves))
        # A `State` would take a dict among its values for a nested state.
        has_dicts = any(isinstance(value, Mapping) for value in params)
        tree = _dicts if has_dicts else _state
        try:
            state = init(tree(selected.paths, params))
        except Exception as error:
            # Masks and labels may be dicts, which don't fit a `State`.
            tree = _dicts
            try:
                state = init(tree(selected.paths, params))
            except Exception:
                raise error from None
        self.model = model
        self.step = OptState(jnp.zeros((), jnp.uint32))
        slots = []
        for leaf, x in _beside(state, selected):
            metadata = variable_impl(type(x)).metadata(x) if is_variable(x) else {}
            slots.append(OptState(jnp.asarray(leaf), **slot_placement(metadata)))
        self.__dict__["opt_state"] = jax.tree.map(
            lambda x: nodes_of(x) if type(x) is State else x,
            jax.tree.unflatten(jax.tree.structure(state), slots),
            is_leaf=lambda x: type(x) is State or is_variable(x),
        )
        self._rule = _Rule(tx, wrt, tree)

    @property
    def tx(self) -> Any:
        """The gradient transformation."""
        return self._rule.tx

    @property
    def wrt(self) -> Filter:
        """The filter that selects what is updated."""
        return self._rule.wrt

    def mirrors(
        self, *, any_shape: bool = False
    ) -> Iterator[tuple[OptState[Any], Any]]:
        """Pairs the leaves of the state that stand beside a parameter with it.

        Args:
            any_shape: Whether also those of another shape than the parameter, as the
                sums over rows that `optax.adafactor` keeps; it may be several.

        Yields:
            An `OptState` and the variable of the model that it belongs to, which has
            the same shape and is placed alike.

        Example:
            >>> import graphcore as gc, jax.numpy as jnp, optax
            >>> model = gc.Dict(w=gc.Param(jnp.ones(2)))
            >>> optimizer = Optimizer(model, optax.adam(0.1))
            >>> [parameter is model.w for _, parameter in optimizer.mirrors()]
            [True, True]
        """
        selected = variables(self.model, self.wrt).flat_state()
        pairs = _beside(self.opt_state, selected, any_shape)
        return ((slot, parameter) for slot, parameter in pairs if parameter is not None)

    @property
    def opt_state(self) -> Any:
        """The state of the gradient transformation, as the pytree that it made.

        Its leaves are the variables. One that is written is what the next step takes,
        and so is an item that is set: `opt_state.hyperparams['learning_rate'] = 0.1`,
        `opt_state[0].mu['kernel'] = x`. Setting it as a whole writes all of them; the
        paths must be the same.
        """
        return _shown(vars(self)["opt_state"])

    @opt_state.setter
    def opt_state(self, state: Any) -> None:
        write_raw(_writes(self.opt_state, state))

    def update(self, model: Any = UNSET, grads: Any = UNSET, **extra: Any) -> Any:
        """Updates the parameters, the transformation's state and the step count.

        Called as `update(grads)` or `update(model, grads)`.

        Args:
            model: The model to update; the one that the optimizer was made with, if
                left out.
            grads: The gradients, with a leaf for each variable that `wrt` selects, at
                the same path: a `State` as `grad` returns it, a module as `jax.grad`
                does, or nested dicts. What `wrt` does not select in a state is left
                out. For a transformation that takes them for each example, as
                `optax.contrib.differentially_private_aggregate`, with one more axis.
            **extra: Further arguments of the transformation's `update`, such as the
                `value` of the loss; `State`s become such ones as the parameters.

        Returns:
            What was added to the parameters, a `State` of arrays.

        Raises:
            ValueError: If the gradients don't have the paths and shapes of the
                parameters, or these have changed. Nothing is changed then.
            TypeError: If the gradients are not a mapping.

        Example:
            >>> import graphcore as gc, jax.numpy as jnp, optax
            >>> model = gc.Dict(w=gc.Param(jnp.array(1.0)))
            >>> optimizer = Optimizer(model, optax.sgd(0.1))
            >>> updates = optimizer.update(model, gc.State({'w': jnp.array(5.0)}))
            >>> float(updates.w), float(model.w.value)
            (-0.5, 0.5)
        """
        if grads is UNSET:
            model, grads = self.model, model
        elif model is UNSET:
            model = self.model
        if grads is UNSET or grads is self.model:
            raise TypeError(
                "Optimizer.update got no gradients: `update(model, grads)`."
            )
        if is_graph_node(grads):
            grads = variables(grads)
        selected: FlatState[Any] = variables(model, self.wrt).flat_state()
        values, paths = list(map(parameters_of, selected.leaves)), selected.paths
        tree = self._rule.tree
        params, kept = tree(paths, values), self.opt_state
        given = tree(paths, _aligned(grads, paths, values, self.wrt))
        before = jax.tree.map(raw_value_of, kept, is_leaf=is_variable)
        more = {name: _pure(value, tree) for name, value in extra.items()}
        try:
            updates, state = self.tx.update(given, before, params, **more)
            moves = [functools.reduce(operator.getitem, p, updates) for p in paths]
            _check_shapes("update", paths, moves, values)
            updated = jax.tree.map(moved, params, updates)
        except Exception as error:
            _refuse_abstract(error, model=params, gradients=given)
            if changed := _misfits(before, self.tx.init, params):
                raise ValueError(
                    "The parameters are not those that the Optimizer was made with: "
                    f"its state does not fit them at {changed}. Make a new Optimizer "
                    "when the structure of a model has changed."
                ) from error
            raise
        after = {p: functools.reduce(operator.getitem, p, updated) for p in paths}
        arrays = {path: x for path, x in selected if not is_variable(x)}
        writes: list[tuple[Any, Any]] = [(self.step, self.step.raw_value + 1)]
        writes += [
            (x, with_parameters(x, after[p])) for p, x in selected if p not in arrays
        ]
        with contextlib.ExitStack() as undo:
            if arrays:
                update(model, _state((*arrays,), map(after.__getitem__, arrays)))
                undo.callback(update, model, _state((*arrays,), arrays.values()))
            write_raw([*writes, *_writes(kept, state)])
            undo.pop_all()
        return updates if isinstance(updates, State) else State(updates)


class ModelAndOptimizer(Optimizer[M]):
    """An `Optimizer`, by the name that Flax has for one that keeps its model.

    Example:
        >>> import graphcore as gc, jax.numpy as jnp, optax
        >>> model = gc.Dict(w=gc.Param(jnp.array(1.0)))
        >>> optimizer = ModelAndOptimizer(model, optax.sgd(0.5), wrt=gc.Param)
        >>> updates = optimizer.update(gc.State({'w': jnp.array(1.0)}))
        >>> float(optimizer.model.w.value)
        0.5
    """


def _parts(variable: Any) -> tuple[Any, Divided | None]:
    """The value of a variable, and what of it has a gradient, if that is not all."""
    value = arrays_of(raw_value_of(variable))
    if not Divided.matches(value):
        return value, None
    return value, value.only(lambda x: jnp.issubdtype(x.dtype, jnp.inexact))


def parameters_of(variable: Any) -> Any:
    """The value of a variable; of a module, its inexact arrays, None for the rest."""
    value, part = _parts(variable)
    return value if part is None else part.bare()


def with_parameters(variable: Any, parameters: Any) -> Any:
    """The value of a variable with other parameters; see `parameters_of`."""
    value, part = _parts(variable)
    if part is None:
        return parameters
    return Divided(jax.tree.leaves(parameters), part.frame).over(value).join()


def moved(param: Any, update: Any) -> jax.Array:
    """A parameter after an update, in the parameter's dtype."""
    return jnp.asarray(param + update, jnp.result_type(param))


def _refuse_abstract(error: Exception, **trees: Any) -> None:
    """Says which parameter or gradient is abstract, if one is."""
    for name, tree in trees.items():
        for path, x in _by_path(tree).items():
            if isinstance(x, jax.ShapeDtypeStruct):
                raise TypeError(
                    f"Optimizer.update got the {name} with {x!r} at "
                    f"{path_text(path)!r}: that is abstract, as `eval_shape` makes it. "
                    "Give the model values first, with `update` or from a checkpoint."
                ) from error


def _misfits(state: Any, init: Callable[[Any], Any], params: Any) -> list[str]:
    """Where a state does not have the shapes of a new one; nothing if that can't be."""
    try:
        trees = state, jax.eval_shape(init, params)
    except Exception:  # it needs values, say: what was raised before tells more
        return []
    was, due = ({p: np.shape(x) for p, x in _by_path(tree).items()} for tree in trees)
    return [path_text(p) for p in was | due if was.get(p) != due.get(p)]


def _aligned(
    grads: Any, paths: tuple[Path, ...], values: list[Any], wrt: Filter
) -> list[Any]:
    """The gradients in the order of the parameters."""
    if not isinstance(grads, Mapping):
        raise TypeError(
            f"Optimizer.update got gradients of type {type(grads).__name__}, expected "
            "a State, as `grad` returns it for a graph node, or nested dicts."
        )
    state: State[Any, Any] = grads if isinstance(grads, State) else State(grads)
    found = dict(state.flat_state())
    missing = [path_text(path) for path in paths if path not in found]
    # Gradients of more than is trained are usual, say of all parameters where only a
    # LoRA is trained. So only those are refused that `wrt` does select.
    selects = to_predicate(wrt)
    extra = [
        path_text(path)
        for path in found.keys() - set(paths)
        if not isinstance(found[path], VariableState) or selects(path, found[path])
    ]
    if missing or extra:
        told = [f"none for {missing}"] * bool(missing)
        told += [f"superfluous ones for {sorted(extra)}"] * bool(extra)
        raise ValueError(
            "The gradients don't fit the variables that the optimizer updates: "
            f"{', '.join(told)}. Differentiate with respect to the same filter, `wrt`, "
            "that the optimizer has."
        )
    aligned = [raw_value_of(found[path]) for path in paths]
    _check_shapes("gradient", paths, aligned, values, each=True)
    return aligned


def _check_shapes(
    what: str, paths: tuple[Path, ...], given: Any, values: Any, each: bool = False
) -> None:
    """Refuses what has not the shape of its parameter, or, with `each`, rows of it."""
    for path, x, value in zip(paths, given, values, strict=True):
        found, due = _shape(x), _shape(value)
        if found != due and not (each and found[1:] == due):
            raise ValueError(
                f"The {what} for {path_text(path)!r} has shape {found}, expected that "
                f"of the variable, {due}."
            )


def _shape(value: Any) -> Any:
    """The shape of an array; of a pytree of arrays, the shapes of all."""
    if jax.tree_util.all_leaves((value,)):
        return jnp.shape(value)
    return [jnp.shape(leaf) for leaf in jax.tree.leaves(value)]


def _state(paths: tuple[Path, ...], values: Iterable[Any]) -> Any:
    return State.from_flat_path(zip(paths, values, strict=True))


def _dicts(paths: tuple[Path, ...], values: Iterable[Any]) -> Any:
    return _state(paths, values).raw_mapping


def _pure(value: Any, tree: Callable[..., Any]) -> Any:
    """A state without variables, as the transformation gets those of parameters."""
    if not isinstance(value, State):
        return value
    flat: FlatState[Any] = value.flat_state()
    return tree(flat.paths, map(raw_value_of, flat.leaves))


def nodes_of(state: State[Any, Any]) -> Dict:
    """Graph nodes that hold what a state holds, nested as it is."""
    return Dict((k, nodes_of(x) if type(x) is State else x) for k, x in state.items())


def _of_nodes(node: Dict) -> dict[Any, Any]:
    # By `vars`, because keys may be names of methods of `Dict`.
    return {k: _of_nodes(x) if type(x) is Dict else x for k, x in vars(node).items()}


def _shown(tree: Any) -> Any:
    """What an optimizer keeps, as the pytree that the transformation made."""

    def shown(x: Any) -> Any:
        if type(x) is Dict:
            return _LiveState.lazily(functools.partial(_of_nodes, x))
        return _Items((k, _shown(y)) for k, y in x.items()) if type(x) is dict else x

    return jax.tree.map(
        shown, tree, is_leaf=lambda x: type(x) in (dict, Dict) or is_variable(x)
    )


def _writes(kept: Any, state: Any) -> list[tuple[Any, Any]]:
    """The writes that store a state of a transformation, or a part, in variables."""
    slots, leaves = map(_by_path, (kept, state))
    if slots.keys() != leaves.keys():
        missing = [path_text(path) for path in slots if path not in leaves]
        extra = [path_text(path) for path in leaves if path not in slots]
        raise ValueError(
            "The state of the gradient transformation changed its structure, so it "
            f"can't be stored: there is nothing for {missing}, and no place for "
            f"{extra}. Make a new Optimizer for another transformation or other "
            "parameters."
        )
    return [(x, jnp.asarray(raw_value_of(leaves[path]))) for path, x in slots.items()]


def _by_path(tree: Any) -> dict[Path, Any]:
    leaves = jax.tree_util.tree_leaves_with_path(
        tree, is_leaf=lambda x: is_variable(x) or isinstance(x, VariableState)
    )
    return {key_path(path): leaf for path, leaf in leaves}


def _beside(
    state: Any, selected: FlatState[Any], any_shape: bool = False
) -> Iterator[tuple[Any, Any]]:
    """Pairs the leaves of a state with the parameters that they stand beside, or None.

    The state mirrors the parameters, so the path of such a leaf ends in the path of its
    parameter, or of an array in it, and the shapes agree. Of any shape, there may be
    several beside one parameter, so the path may go on.
    """
    parameters = {
        (*path, *key_path(below)): (x, np.shape(array))
        for path, x in selected
        for below, array in jax.tree_util.tree_leaves_with_path(parameters_of(x))
    }
    for keys, leaf in _by_path(state).items():
        stops = range(len(keys), 0, -1) if any_shape else [len(keys)]
        parts = (keys[i:stop] for stop in stops for i in range(stop))
        found = (parameters[part] for part in parts if part in parameters)
        shape = np.shape(raw_value_of(leaf))
        yield leaf, next((x for x, of in found if any_shape or of == shape), None)


def slot_placement(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Says where what stands beside a parameter is placed.

    Args:
        metadata: The metadata of the parameter.

    Returns:
        The metadata of its place; of another one, if `optimizer_sharding` names it.

    Example:
        >>> slot_placement({'sharding': ('model',), 'unit': 'm'})
        {'sharding': ('model',)}
    """
    kept = {key: metadata[key] for key in PLACEMENT if key in metadata}
    if "optimizer_sharding" in metadata:
        name = sharding_key(metadata)
        name = name if name in metadata else "out_sharding"
        kept[name] = metadata["optimizer_sharding"]
    return kept
