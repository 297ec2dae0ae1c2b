"""A folder of checkpoints of one run, which keeps the last and finds a whole one."""

from __future__ import annotations

import operator
import warnings
from typing import Any, Self

import jax
from jax.experimental import multihost_utils

from graphcore import Filter
from nnx_transforms.saving.errors import DamagedCheckpointError
from nnx_transforms.saving.files import PathLike, absolute, restore
from nnx_transforms.saving.storage import handlers, save_arguments, starting


class Manager:
    """Saves a run step by step, and finds where it can go on.

    A thin layer over orbax's `CheckpointManager`, which is at `.orbax`. Each step is a
    checkpoint of its own, `path/STEP`, that `restore` reads as well. With several
    processes, all of them make a manager and call its methods alike. Before the program
    ends, `wait` or `close` it, or use it in a `with`: else the last step may be lost.

    Args:
        path: The folder; made if it is not there. What an earlier saving left there
            that did not finish is removed when this manager first saves: one that only
            restores may look into the folder of a run that goes on.
        keep: How many steps to keep, the last ones; None for all.
        every: Of the steps, the first one and multiples of this are saved.
        asynchronous: Whether to save in the background.

    Raises:
        ValueError: If `keep` or `every` is less than one.

    Example:
        >>> import jax.numpy as jnp, nnx_transforms as nnx, tempfile
        >>> from nnx_transforms import saving
        >>> folder, model = tempfile.TemporaryDirectory(), nnx.Dict(w=nnx.Param(0.0))
        >>> with saving.Manager(folder.name, keep=2) as manager:
        ...     start = manager.restore(model) or 0  # nothing there yet
        ...     for step in range(start + 1, 6):
        ...         model.w.value += 0.5
        ...         saved = manager.save(step, model)
        >>> with saving.Manager(folder.name) as manager:
        ...     manager.steps, manager.restore(model), model.w.value
        ([4, 5], 5, 2.5)
        >>> folder.cleanup()
    """

    def __init__(
        self,
        path: PathLike,
        *,
        keep: int | None = None,
        every: int = 1,
        asynchronous: bool = True,
    ) -> None:
        import orbax.checkpoint as ocp
        from orbax.checkpoint import checkpoint_managers as policies

        if every < 1 or (keep is not None and keep < 1):
            raise ValueError(
                f"Found keep={keep} and every={every}, expected 1 or more of each; "
                "keep=None keeps all steps."
            )
        self._path, self._is_closed, self._has_saved = absolute(path), False, False
        self.orbax = ocp.CheckpointManager(
            self._path,
            handler_registry=handlers(),
            options=ocp.CheckpointManagerOptions(
                save_interval_steps=every,
                preservation_policy=policies.LatestN(keep),
                enable_async_checkpointing=asynchronous,
                # All processes go by what the first one finds in the folder.
                single_host_load_and_broadcast=True,
            ),
        )

    @property
    def steps(self) -> list[int]:
        """The steps that have a checkpoint, in order."""
        return sorted(map(int, self.orbax.all_steps()))

    def save(
        self, step: int, node: Any, filter: Filter = ..., *, force: bool = False
    ) -> bool:
        """Saves a step, if it is one to be saved.

        Args:
            step: The number of the step; higher than those before.
            node: A graph node, or a pytree with such in it.
            filter: Which variables to save.
            force: Whether to save it whatever `every` says, and where there are
                later ones.

        Returns:
            Whether it is saved; one that is there already is not.

        Raises:
            TypeError: If a variable holds something that can't be saved, with its path,
                or the step is no integer.
            ValueError: If there are later steps, or with `force` the same, the filter
                selects nothing, or the manager is closed.
        """
        try:
            step = operator.index(step)
        except TypeError:
            raise TypeError(f"The step is {step!r}, expected an integer.") from None
        import orbax.checkpoint as ocp

        if self._is_closed:
            raise ValueError("This manager is closed: make another to save more.")
        later = [known for known in self.steps if known > step]
        if later and not force:
            raise ValueError(
                f"Step {step} is not saved: {str(self._path)!r} has later ones, {later}"
                ", which `restore` would take. Go on from the last one, use another "
                "folder, or move them away and make another manager."
            )
        if force and step in self.steps:
            raise ValueError(
                f"Step {step} is not saved: {str(self._path)!r} has it already. Save "
                f"another step, or call `wait()` and `orbax.delete({step})` first."
            )
        if not force and not self.orbax.should_save(step):
            return False
        arguments = save_arguments(node, filter)
        if not self._has_saved and jax.process_index() == 0:
            for item in self._path.iterdir():
                if ocp.utils.is_tmp_checkpoint(item):
                    item.rmtree()
        self._has_saved = True
        with starting:  # where the processes wait for the first one
            return bool(self.orbax.save(step, args=arguments, force=True))

    def restore(
        self,
        node: Any,
        step: int | None = None,
        filter: Filter = ...,
        *,
        sharding: Any = None,
    ) -> int | None:
        """Restores the last whole checkpoint into a graph, in place.

        One that is damaged is passed over with a warning, and renamed to
        `STEP.damaged`, so that the run can save that step again.

        Args:
            node: As for `saving.restore`.
            step: Which step, and no other; the last whole one if left out.
            filter: As for `saving.restore`.
            sharding: As for `saving.restore`.

        Returns:
            The step, or None if there is no checkpoint; then nothing is changed.

        Raises:
            DifferentGraphError: If the graph differs from the one that was saved.
            DamagedCheckpointError: If the step that was asked for is not whole, or if
                none is.
            ValueError: As for `saving.restore`.
        """
        self.wait()
        if step is not None:
            restore(self._path / str(step), node, filter, sharding=sharding)
            return step
        damaged: list[int] = []
        for step in reversed(self.steps):
            try:
                restore(self._path / str(step), node, filter, sharding=sharding)
            except DamagedCheckpointError as error:
                warnings.warn(f"Step {step} is passed over: {error}", stacklevel=2)
                damaged.append(step)
            else:
                self._put_aside(damaged)
                return step
        if damaged:
            raise DamagedCheckpointError(
                f"None of the checkpoints in {str(self._path)!r} is whole: steps "
                f"{damaged}. Move them away to start anew."
            )
        return None

    def _put_aside(self, steps: list[int]) -> None:
        if not steps:
            return
        if jax.process_index() == 0:
            for step in steps:
                aside = self._path / f"{step}.damaged"
                aside.rmtree(missing_ok=True)
                (self._path / str(step)).rename(aside)
        multihost_utils.sync_global_devices("damaged checkpoints put aside")
        self.orbax.reload()

    def wait(self) -> None:
        """Waits until all is saved; raises what went wrong in the background."""
        self.orbax.wait_until_finished()

    def close(self) -> None:
        """Waits until all is saved, and ends the threads that save."""
        self._is_closed = True
        self.orbax.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
