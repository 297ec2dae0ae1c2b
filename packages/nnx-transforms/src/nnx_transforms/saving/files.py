"""Saving a graph to a file, and restoring it: `save`, `save_async`, `restore`."""

from __future__ import annotations

import functools
import os
from typing import Any, TypeAlias, TypeVar

from graphcore import Filter
from nnx_transforms.saving.loading import Source, load_into
from nnx_transforms.saving.storage import (
    handlers,
    read_arrays,
    read_contents,
    save_arguments,
    starting,
)

A = TypeVar("A")
PathLike: TypeAlias = str | os.PathLike[str]


class Saving:
    """A saving that goes on in the background.

    Example:
        >>> import nnx_transforms as nnx, tempfile
        >>> from nnx_transforms import saving
        >>> folder = tempfile.TemporaryDirectory()
        >>> pending = saving.save_async(folder.name + '/run', nnx.Dict(n=nnx.Param(1)))
        >>> pending.wait()
        >>> folder.cleanup()
    """

    def __init__(self, checkpointer: Any) -> None:
        self._checkpointer = checkpointer

    def wait(self) -> None:
        """Waits until the checkpoint is there; raises what went wrong on the way."""
        try:
            self._checkpointer.wait_until_finished()
        finally:
            self._checkpointer.close()


def save(path: PathLike, node: Any, filter: Filter = ...) -> None:
    """Saves a graph: models, optimizers, random streams, whatever can be reached.

    Every variable is saved once, with its type and metadata, under its first path. The
    checkpoint is there as a whole or not at all. With several processes, all of them
    call this, and each writes its part.

    Args:
        path: A directory that does not exist yet.
        node: A graph node, or a pytree with such in it.
        filter: Which variables to save.

    Raises:
        ValueError: If the path exists already, or the filter selects nothing.
        TypeError: If a variable holds something that can't be saved, with its path.

    Example:
        >>> import jax.numpy as jnp, nnx_transforms as nnx, tempfile
        >>> from nnx_transforms import saving
        >>> model = nnx.Dict(w=nnx.Param(jnp.arange(3.0)))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     saving.save(folder + '/model', model)
        ...     fresh = nnx.Dict(w=nnx.Param(jnp.zeros(3)))
        ...     saving.restore(folder + '/model', fresh).w.value.tolist()
        [0.0, 1.0, 2.0]
    """
    save_async(path, node, filter).wait()


def save_async(path: PathLike, node: Any, filter: Filter = ...) -> Saving:
    """Saves a graph in the background.

    When this returns, the values have been copied: the graph may change at once. Call
    `wait` of what it returns before the program ends, or the checkpoint may be lost.

    Args:
        path: A directory that does not exist yet.
        node: A graph node, or a pytree with such in it.
        filter: Which variables to save.

    Returns:
        The saving, to wait for.

    Raises:
        ValueError: If the path exists already, or the filter selects nothing.
        TypeError: If a variable holds something that can't be saved, with its path.

    Example:
        >>> import jax.numpy as jnp, nnx_transforms as nnx, tempfile
        >>> from nnx_transforms import saving
        >>> model = nnx.Dict(w=nnx.Param(jnp.array(1.0)))
        >>> folder = tempfile.TemporaryDirectory()
        >>> pending = saving.save_async(folder.name + '/model', model)
        >>> model.w.value += 1  # what is saved is the value from before
        >>> pending.wait()
        >>> float(saving.restore(folder.name + '/model', model).w.value)
        1.0
        >>> folder.cleanup()
    """
    import orbax.checkpoint as ocp

    arguments = save_arguments(node, filter)
    handler = ocp.CompositeCheckpointHandler(handler_registry=handlers())
    checkpointer = ocp.AsyncCheckpointer(handler)
    try:
        with starting:
            checkpointer.save(absolute(path), args=arguments)
    except BaseException:
        checkpointer.close()
        raise
    return Saving(checkpointer)


def restore(
    path: PathLike, node: A, filter: Filter = ..., *, sharding: Any = None
) -> A:
    """Restores a graph in place.

    The graph may be in use, or abstract, as `eval_shape` makes it. All of it is
    restored or, if anything is wrong, nothing. The checkpoint may come from another
    mesh, another number of processes, or other devices. With several processes, all of
    them call this.

    Args:
        path: A checkpoint.
        node: A graph node, or a pytree with such in it. What a checkpoint does not hold
            stays: the objects themselves, static attributes, hooks.
        filter: Which variables to restore. What else the file has is left alone.
        sharding: Where to put the arrays: a `Sharding`, a `PartitionSpec` on the mesh
            in force, or a `StateSharding` with one for each filter, where None leaves a
            variable to the rule. Without it, an array goes where the one in the graph
            is; one of an abstract graph where its `sharding` says, or the variable's
            metadata, or else to the default device.

    Returns:
        The node.

    Raises:
        FileNotFoundError: If there is no checkpoint.
        DifferentGraphError: If the graph differs from the one that was saved: lists
            what is missing or new, of another shape, dtype or variable type, or shared
            otherwise, by path.
        DamagedCheckpointError: If the checkpoint is not whole.
        TypeError: If the graph is traced, as inside of `jit`, and no sharding is given.
        ValueError: If it is something else than a checkpoint of a graph, the filter
            selects nothing, or a sharding does not fit an array or lacks a mesh.

    Example:
        >>> import nnx_transforms as nnx, tempfile
        >>> from nnx_transforms import saving
        >>> make = lambda: nnx.Linear(2, 3, rngs=nnx.Rngs(0))
        >>> model = make()
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     saving.save(folder + '/model', model)
        ...     again = saving.restore(folder + '/model', nnx.eval_shape(make))
        >>> bool((again.kernel.value == model.kernel.value).all())
        True
    """

    def find() -> Source:
        directory = absolute(path)
        file = read_contents(directory)
        arrays = functools.partial(read_arrays, directory)
        return Source(str(path), file, file.first_name, filter, arrays)

    return load_into(node, filter, sharding, find)


def absolute(path: PathLike) -> Any:
    """A path as orbax needs it: absolute, with its own reading and writing."""
    from etils import epath

    return epath.Path(os.path.abspath(path) if "://" not in str(path) else path)
