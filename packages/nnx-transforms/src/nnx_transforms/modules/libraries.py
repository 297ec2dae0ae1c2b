"""What modules of a library are made of: ours, and those that adapters know."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from graphcore import Variable, counterparts_of, is_node_type
from nnx_transforms.modules.containers import Dict
from nnx_transforms.modules.module import Module
from nnx_transforms.randomness.rngs import Rngs


class Library(NamedTuple):
    """A library of modules.

    Attributes:
        modules: Their base class.
        variables: The base class of their variables.
        streams: Random streams as its layers take them, made as our `Rngs` are.
        containers: Classes whose items are their attributes, so that nothing else may
            be put there; a subclass may record.
        attribute: Makes an attribute of a tuple of variables; None if modules record
            nothing in `CAPTURED`.
    """

    modules: type[Any]
    variables: type[Any]
    streams: Callable[..., Any]
    containers: tuple[type[Any], ...]
    attribute: Callable[[tuple[Any, ...]], Any] | None

    def kinds(self, given: Iterable[type[Any]]) -> list[type[Any]]:
        """The library's own types of variables for those given.

        Args:
            given: Types of variables, of any library.

        Returns:
            Those of this library among them and their counterparts.
        """
        every = (kind for x in given for kind in counterparts_of(x))
        return [kind for kind in every if issubclass(kind, self.variables)]


LIBRARIES = [Library(Module, Variable, Rngs, (Dict,), tuple)]
"""All that are known."""


def library_of(kind: type[Any]) -> Library | None:
    """The library that a class of modules is of.

    Args:
        kind: A class.

    Returns:
        The library; None if the class is none of modules.
    """
    is_node_type(kind)  # for its effect: it loads the adapters of a library
    return next((x for x in LIBRARIES if issubclass(kind, x.modules)), None)


def recording(modules: Iterable[tuple[Any, Any]]) -> Iterator[tuple[Any, Any, Library]]:
    """The modules in which `capture` can record.

    Args:
        modules: Pairs of a path and a module.

    Yields:
        `(path, module, library)`.
    """
    for path, module in modules:
        library = library_of(type(module))
        if library is None or library.attribute is None:
            continue
        if type(module) not in library.containers:
            yield path, module, library
