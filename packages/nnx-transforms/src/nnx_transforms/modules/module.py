"""Modules: objects with a few methods for what happens inside a model.

A module is a graph node whose attributes are its layers, variables and settings. What
is here beyond `graphcore.Object` lets a forward pass leave values behind (`sow`,
`perturb`) and lets a whole tree of modules change its settings (`train`, `eval`).
"""

from __future__ import annotations

import abc
import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from graphcore import (
    Filter,
    Object,
    Perturbation,
    Variable,
    get_node_impl,
    is_graph_node,
    is_variable,
    iter_graph,
    to_predicate,
    variable_type_from_name,
)
from nnx_transforms.transforms.graph_mode import accepts_graph_mode

__all__ = ["Module"]

_MISSING: Any = object()
CAPTURED = "__captures__"
"""The attribute that holds what `capture` collects from a module while it runs: one
variable for each type, whose value is a dict."""


class Module(Object):
    """Base class of layers and models.

    What is marked with `abc.abstractmethod` must be there in a subclass before it
    makes modules, with or without `abc.ABC` among the bases.

    Example:
        >>> import graphcore as gc, jax.numpy as jnp
        >>> class Scale(Module):
        ...     def __init__(self, factor):
        ...         self.factor = gc.Param(jnp.array(factor))
        ...     def __call__(self, x):
        ...         self.sow(gc.Intermediate, 'inputs', x)
        ...         return self.factor.value * x
        >>> scale = Scale(2.0)
        >>> float(scale(3.0)), scale.inputs.value
        (6.0, (3.0,))
    """

    if TYPE_CHECKING:
        # Lists of different layers are lists of modules to a type checker.
        __call__: Callable[..., Any]
        __abstractmethods__: frozenset[str]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        # `abc.update_abstractmethods` skips classes without this attribute.
        cls.__abstractmethods__ = frozenset[str]()
        abc.update_abstractmethods(cls)

    def sow(
        self,
        variable_type: type[Variable[Any]] | str,
        name: str,
        value: Any,
        reduce_fn: Callable[[Any, Any], Any] = lambda found, x: (*found, x),
        init_fn: Callable[[], Any] = tuple,
        capture_noop: bool | None = None,
    ) -> bool:
        """Records a value in a variable of this module, or for `capture`.

        Args:
            variable_type: The type of the variable, or its snake-case name.
            name: The attribute that holds the variable; made by the first call.
            value: An array of any shape and dtype, or a pytree.
            reduce_fn: `reduce_fn(recorded, value)` returns what is recorded next; by
                default, the value is appended to a tuple.
            init_fn: Returns what is recorded before the first value.
            capture_noop: Whether to record for `capture` only.

        Returns:
            Whether the value was recorded: `capture` may collect other types.

        Raises:
            ValueError: If the attribute is there and no variable of that type.

        Example:
            >>> import graphcore as gc
            >>> m = Module()
            >>> for x in (1, 2, 3):
            ...     _ = m.sow(gc.Intermediate, 'xs', x)
            ...     _ = m.sow(gc.Cache, 'total', x, lambda a, b: a + b, lambda: 0)
            >>> m.xs.value, m.total.value
            ((1, 2, 3), 6)
        """
        records = _records(self, "sow", variable_type, name, capture_noop)
        for before, record in records:
            before = init_fn() if before is _MISSING else before
            record(reduce_fn(before, value))
        return bool(records)

    def perturb(
        self,
        name: str,
        value: Any,
        variable_type: type[Variable[Any]] | str = Perturbation,
        capture_noop: bool | None = None,
    ) -> Any:
        """Adds a variable that is zero to a value on its way through this module.

        The gradient with respect to the variable is the one with respect to the value,
        which is otherwise out of reach.

        Args:
            name: The attribute that holds the variable; made by the first call.
            value: An array, or a pytree of them. Those of an inexact dtype have a
                gradient. Their shapes go with those of the first call.
            variable_type: The type of the variable, or its snake-case name.
            capture_noop: Whether to do so for `capture` only.

        Returns:
            The value plus the variable; the value itself, where `capture` collects
            other types.

        Raises:
            ValueError: If the attribute is there and no variable of that type, or one
                that the value can't be added to.

        Example:
            >>> import graphcore as gc, jax, jax.numpy as jnp
            >>> class Model(Module):
            ...     def __call__(self, x):
            ...         return self.perturb('hidden', 3 * x) ** 2
            >>> m = Model(); y = m(jnp.array(2.0))
            >>> graphdef, state = gc.split(m)
            >>> g = jax.grad(lambda s: gc.merge(graphdef, s)(jnp.array(2.0)))(state)
            >>> float(g.hidden.value)
            12.0
        """
        records = _records(self, "perturb", variable_type, name, capture_noop)
        for before, record in records:
            if before is _MISSING:
                before = jax.tree.map(jnp.zeros_like, value)
                record(before)
            try:
                value = jax.tree.map(jnp.add, value, before)
            except (TypeError, ValueError) as error:
                found, due = (jax.tree.map(np.shape, x) for x in (value, before))
                if found == due:
                    raise
                raise ValueError(
                    f"The {type(self).__name__} perturbs {name!r}, which has the shape "
                    f"{due}, as the first value had; got one of {found}. Give values "
                    "of other shapes another name."
                ) from error
        return value

    def iter_modules(self) -> Iterator[tuple[tuple[Any, ...], Any]]:
        """Lists this module and all modules below it, children before parents.

        Yields:
            `(path, module)`, each module once, at its first path; also those of other
            libraries.

        Example:
            >>> m = Module(); m.layers = [Module(), Module()]; m.last = m.layers[1]
            >>> [path for path, _ in m.iter_modules()]
            [('last',), ('layers', 0), ()]
        """
        return ((path, x) for path, x in iter_graph(self) if is_module(x))

    def iter_children(self) -> Iterator[tuple[Any, Any]]:
        """Lists the modules that are attributes of this one.

        Yields:
            `(name, module)`, in sorted order; also those of other libraries.

        Example:
            >>> m = Module(); m.b = Module(); m.a = Module(); m.a.inner = Module()
            >>> [name for name, _ in m.iter_children()]
            ['a', 'b']
        """
        pairs = get_node_impl(self).flatten(self)[0]
        return ((key, x) for key, x in pairs if is_module(x))

    @accepts_graph_mode
    def set_attributes(
        self,
        *filters: Filter,
        raise_if_not_found: bool = True,
        **attributes: Any,
    ) -> None:
        """Sets attributes of this module and the modules below it that have them.

        Args:
            *filters: Select the modules, any of them by path or type; all if left out.
            raise_if_not_found: Whether each attribute must be there at least once.
            **attributes: The new values.

        Raises:
            ValueError: If no selected module has one of the attributes; nothing is
                changed then.

        Example:
            >>> m = Module(); m.inner = Module(); m.inner.rate = 0.5
            >>> m.set_attributes(rate=0.1)
            >>> m.inner.rate, hasattr(m, 'rate')
            (0.1, False)
        """
        set_on_modules(self, filters or ..., raise_if_not_found, attributes)

    def train(self, **attributes: Any) -> None:
        """Switches this module and those below it to training.

        Sets `deterministic` and `use_running_average` to False where they are.

        Args:
            **attributes: Further attributes to set where they are.

        Example:
            >>> m = Module(); m.deterministic = True; m.train(); m.deterministic
            False
        """
        mode = {"deterministic": False, "use_running_average": False, **attributes}
        self.set_attributes(raise_if_not_found=False, **mode)

    def eval(self, **attributes: Any) -> None:
        """Switches this module and those below it to evaluation.

        Sets `deterministic` and `use_running_average` to True where they are.

        Args:
            **attributes: Further attributes to set where they are.

        Example:
            >>> m = Module(); m.deterministic = False; m.eval(); m.deterministic
            True
        """
        mode = {"deterministic": True, "use_running_average": True, **attributes}
        self.set_attributes(raise_if_not_found=False, **mode)


def set_on_modules(
    node: Any, only: Filter, must_be_found: bool, attributes: dict[str, Any]
) -> None:
    """Sets attributes of the modules of a graph that have them: all or none.

    Args:
        node: The graph.
        only: Selects modules.
        must_be_found: Whether an attribute that no selected module has is an error.
        attributes: The attributes.

    Raises:
        ValueError: If no selected module has one of them.
    """
    takes = to_predicate(only)
    modules = (m for path, m in iter_graph(node) if is_module(m) and takes(path, m))
    changes = [(m, name) for m in modules for name in attributes if hasattr(m, name)]
    missing = attributes.keys() - {name for _, name in changes}
    if missing and must_be_found:
        raise unused("attribute", missing, node)
    with contextlib.ExitStack() as undo:
        for module, name in changes:
            before, was_own = getattr(module, name), name in vars(module)
            setattr(module, name, attributes[name])
            if name in vars(module) and not was_own:
                undo.callback(delattr, module, name)  # the class's shows again
            else:
                undo.callback(setattr, module, name, before)
        undo.pop_all()


def is_module(x: Any) -> bool:
    """Tells whether something is a module, of ours or of another library.

    Args:
        x: Any object. Graph nodes of other libraries, such as Flax's, are modules if
            their class has a base of the name `Module`.

    Returns:
        Whether it is one.
    """
    if isinstance(x, Object):
        return isinstance(x, Module)
    return is_module_class(type(x)) and is_graph_node(x)


def is_module_class(kind: type[Any]) -> bool:
    """Whether a class has the name `Module`, or a base that has."""
    return any(base.__name__ == "Module" for base in kind.__mro__)


def unused(what: str, missing: Iterable[str], node: Any) -> ValueError:
    """The error where no selected module takes what is to be set.

    Args:
        what: What is to be set, in words.
        missing: The names that none has.
        node: The model.

    Returns:
        The error.
    """
    return ValueError(
        f"No selected module of the {type(node).__name__} has the {what} "
        f"{sorted(missing)}. Check the names and filters, or pass "
        "`raise_if_not_found=False`."
    )


def _set_item(variable: Any, name: str, value: Any) -> None:
    variable.value = {**variable.value, name: value}


def _records(
    module: Module,
    method: str,
    variable_type: type[Variable[Any]] | str,
    name: str,
    capture_noop: bool | None,
) -> list[tuple[Any, Callable[[Any], None]]]:
    """What is recorded under a name, and what records something in its place.

    That is an attribute of the module; while `capture` runs, an item in each
    variable of the type that it collects.
    """
    kind: Any = variable_type
    if isinstance(kind, str):
        kind = variable_type_from_name(kind)
    captured = module.__dict__.get(CAPTURED, () if capture_noop else None)
    if captured is not None:
        return [
            (x.value.get(name, _MISSING), functools.partial(_set_item, x, name))
            for x in captured
            if type(x) is kind
        ]
    found = getattr(module, name, _MISSING)
    if found is _MISSING:
        return [(_MISSING, lambda first: setattr(module, name, kind(first)))]
    if not is_variable(found) or type(found) is not kind:
        raise ValueError(
            f"Cannot {method} into {type(module).__name__}/{name}: expected a "
            f"{kind.__name__} or no attribute of that name, found a "
            f"{type(found).__name__}. Choose another name or variable type."
        )
    return [(found.value, functools.partial(setattr, found, "value"))]
