"""Forked processes: what was imported before is there at once in each of them."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from itertools import islice
from pathlib import Path
from typing import Any

from tools.mutation.targets import ROOT

__all__ = ["PYTEST", "TIMED_OUT", "import_what_tests_need", "in_fork", "in_processes"]

PYTEST = (
    *("-q", "-p", "no:cacheprovider", "--hypothesis-profile=mutation"),
    # Hypothesis is imported already, for the profile.
    *("-W", "ignore::pytest.PytestAssertRewriteWarning"),
)
"""How pytest is called in a process."""
TIMED_OUT = None
"""What `in_fork` returns for a process that took too long."""


def import_what_tests_need() -> None:
    """Imports what is not mutated and takes long, and settles how tests are run.

    No device is touched: JAX must not have started threads when a process is forked.
    """
    os.chdir(ROOT)
    os.environ.update(CI="1", JAX_PLATFORMS="cpu")
    import cloudpickle  # noqa: F401
    import jax.experimental.checkify
    import jax.experimental.pjit  # noqa: F401
    import optax  # noqa: F401
    import pytest  # noqa: F401
    from hypothesis import HealthCheck, Phase, settings

    # The first example that fails is enough, and the same ones are drawn each time.
    settings.register_profile(
        "mutation",
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=[*HealthCheck],
    )


def in_processes(
    call: Callable[..., Any], tasks: Iterable[Any], jobs: int, deadline: float
) -> Iterator[tuple[Any, Any]]:
    """Calls a function with the arguments of each task, some at a time.

    Args:
        call: The function.
        tasks: Tuples of arguments, each asked for when there is room for it.
        jobs: How many at a time.
        deadline: When to begin no more, by `time.monotonic`.

    Yields:
        The first argument and what the function returned, as they come.
    """
    left, running = iter(tasks), {}
    fork = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(jobs, mp_context=fork) as pool:
        while True:
            if time.monotonic() < deadline:
                for task in islice(left, jobs - len(running)):
                    running[pool.submit(call, *task)] = task[0]
            if not running:
                return
            for done in wait(running, return_when=FIRST_COMPLETED).done:
                yield running.pop(done), done.result()


def in_fork(run: Callable[..., int], *args: Any, log: Path, timeout: float) -> Any:
    """Calls a function in a process of its own.

    Args:
        run: The function; what it returns becomes the exit status.
        *args: Its arguments.
        log: Where its output goes.
        timeout: After how many seconds it is killed.

    Returns:
        The exit status, negative for a signal; `TIMED_OUT`.
    """
    child = multiprocessing.get_context("fork").Process(
        target=_child, args=(run, args, log)
    )
    child.start()
    child.join(timeout)
    timed_out = child.is_alive()
    if timed_out:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid or 0, signal.SIGKILL)
        child.join()
    return TIMED_OUT if timed_out else child.exitcode


def _child(run: Callable[..., int], args: tuple[Any, ...], log: Path) -> None:
    os.setpgid(0, 0)  # what the tests start goes with it
    gc.freeze()  # what is here already need not be looked through by those who collect
    with log.open("wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    try:
        status = run(*args)
    except SystemExit as stop:
        status = stop.code if type(stop.code) is int else 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
        status = 1
    # Threads of JAX and hooks at exit are of no interest any more.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
