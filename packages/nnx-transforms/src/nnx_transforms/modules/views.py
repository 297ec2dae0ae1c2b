"""Copies of models that share their variables and differ in settings."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterator
from typing import Any, TypeVar

from graphcore import Filter, clone, iter_graph, to_predicate
from nnx_transforms.graph import Path, iter_children
from nnx_transforms.modules.module import is_module, set_on_modules, unused
from nnx_transforms.transforms.graph_mode import accepts_graph_mode

__all__ = [
    "iter_module_children",
    "iter_modules",
    "view",
    "view_info",
    "with_attributes",
]

_A = TypeVar("_A")


@accepts_graph_mode
def iter_modules(node: Any, /) -> Iterator[tuple[Path, Any]]:
    """Lists all modules of a graph, children before parents.

    Args:
        node: A graph node or pytree node.

    Yields:
        `(path, module)`, each module once, at its first path; also those of other
        libraries.

    Example:
        >>> from nnx_transforms import Module
        >>> m = Module(); m.layers = [Module()]
        >>> [path for path, _ in iter_modules(m)]
        [('layers', 0), ()]
    """
    return ((path, x) for path, x in iter_graph(node) if is_module(x))


@accepts_graph_mode
def iter_module_children(node: Any, /) -> Iterator[tuple[Any, Any]]:
    """Lists the modules that a node holds itself.

    Args:
        node: A graph node or pytree node.

    Yields:
        `(key, module)` in sorted order; also those of other libraries.

    Example:
        >>> from nnx_transforms import Module
        >>> m = Module(); m.a = Module(); m.b = [Module()]
        >>> [key for key, _ in iter_module_children(m)]
        ['a']
    """
    return ((key, x) for key, x in iter_children(node) if is_module(x))


@accepts_graph_mode
def with_attributes(
    node: _A,
    /,
    *,
    only: Filter = ...,
    raise_if_not_found: bool = True,
    **attributes: Any,
) -> _A:
    """Copies a model, with attributes of its modules set.

    Args:
        node: The model; it stays as it is, and the copy has the same variables.
        only: Selects modules.
        raise_if_not_found: Whether an attribute that no selected module has is an
            error.
        **attributes: What to set on the selected modules that have the attribute.

    Returns:
        The copy.

    Raises:
        ValueError: If no selected module has one of the attributes.

    Example:
        >>> from nnx_transforms import Module
        >>> m = Module(); m.rate = 0.5
        >>> with_attributes(m, rate=0.1).rate, m.rate
        (0.1, 0.5)
    """
    twin = clone(node, variables=False)
    set_on_modules(twin, only, raise_if_not_found, attributes)
    return twin


@accepts_graph_mode
def view(
    node: _A, /, *, only: Filter = ..., raise_if_not_found: bool = True, **settings: Any
) -> _A:
    """Copies a model, with settings changed by the `set_view` methods of its modules.

    Args:
        node: The model; it stays as it is, and the copy has the same variables.
        only: Selects modules.
        raise_if_not_found: Whether a setting that no selected module takes is an
            error.
        **settings: Arguments of `set_view`; each module gets those that it takes.

    Returns:
        The copy.

    Raises:
        ValueError: If no selected module takes one of the settings.

    Example:
        >>> from nnx_transforms import Module
        >>> class Noise(Module):
        ...     deterministic = False
        ...     def set_view(self, deterministic=None):
        ...         self.deterministic = deterministic
        >>> noise = Noise()
        >>> view(noise, deterministic=True).deterministic, noise.deterministic
        (True, False)
    """
    missing = set(settings)
    twin = clone(node, variables=False)
    for value in _with_views(twin, only):
        parameters = inspect.signature(value.set_view).parameters
        takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
        taken = {k: v for k, v in settings.items() if takes_all or k in parameters}
        value.set_view(**taken)
        missing.difference_update(taken)
    if missing and raise_if_not_found:
        raise unused("setting of `set_view`", missing, node)
    return twin


@accepts_graph_mode
def view_info(node: Any, /, *, only: Filter = ...) -> str:
    """Describes what `view` can set in a model.

    Args:
        node: The model.
        only: Selects modules.

    Returns:
        For each class that has a `set_view` the arguments of it, with their defaults
        and what its docstring says of them.

    Example:
        >>> from nnx_transforms import Module
        >>> class Noise(Module):
        ...     def set_view(self, deterministic: bool | None = None):
        ...         '''Sets the mode.
        ...
        ...         Args:
        ...             deterministic: Whether to draw nothing.
        ...         '''
        >>> print(view_info(Noise()))
        Noise:
          deterministic: bool | None = None
            Whether to draw nothing.
    """
    classes: set[Any] = set(map(type, _with_views(node, only)))
    lines: list[str] = []
    for kind in sorted(classes, key=lambda kind: kind.__qualname__):
        lines.append(f"{kind.__qualname__}:")
        said = _argument_docs(inspect.getdoc(kind.set_view) or "")
        parameters = [*inspect.signature(kind.set_view).parameters.items()]
        for name, parameter in parameters[1:]:
            lines.append("  " + str(parameter).replace("'", ""))
            lines += textwrap.wrap(
                said.get(name, ""), 84, initial_indent="    ", subsequent_indent="    "
            )
    return "\n".join(lines)


def _with_views(node: Any, only: Filter) -> list[Any]:
    """What has a method `set_view`, of the parts that a filter selects."""
    takes = to_predicate(only)
    return [x for p, x in iter_graph(node) if hasattr(x, "set_view") and takes(p, x)]


def _argument_docs(doc: str) -> dict[str, str]:
    """What the section `Args:` of a docstring says, by argument."""
    section = re.split(r"\n(?=\S)", doc.partition("Args:\n")[2])[0]
    _, *parts = re.split(r"^(\w+)[^:\n]*:", textwrap.dedent(section), flags=re.M)
    return {
        name: " ".join(text.split())
        for name, text in zip(parts[::2], parts[1::2], strict=True)
    }
