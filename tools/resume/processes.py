"""Several processes of one program on this machine, which make up one JAX system."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import IO

import jax

ROOT = Path(__file__).resolve().parents[2]
DEVICES = 4
PATIENCE = 300.0  # seconds without news, on a machine that has other work


def join_processes(process: int, processes: int, port: int) -> None:
    """Makes this process one of several; to be called before anything else of JAX.

    Args:
        process: Which one it is.
        processes: How many there are.
        port: Where the first one listens, on the loopback.
    """
    if processes > 1:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(f"127.0.0.1:{port}", processes, process)


class Processes:
    """The processes of one program. Leaving the context ends them.

    They share four CPU devices, and get the arguments `--process`, `--processes` and
    `--port`.

    Args:
        module: The program, as for `python -m`.
        arguments: Its further arguments.
        count: How many processes.
        log: A file for what they print to their stderr.

    Attributes:
        lines: What each has printed so far.
    """

    def __init__(
        self, module: str, arguments: list[str], count: int, log: Path
    ) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        flags = f"--xla_force_host_platform_device_count={DEVICES // count}"
        environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags}
        command = [sys.executable, "-m", module, *arguments]
        command += [f"--processes={count}", f"--port={port}"]
        self._log = log
        self._news = threading.Condition()
        self.lines: list[list[str]] = [[] for _ in range(count)]
        with log.open("wb") as errors:
            self._members = [
                subprocess.Popen(
                    [*command, f"--process={index}"],
                    cwd=ROOT,
                    env=environment,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    text=True,
                )
                for index in range(count)
            ]
        self._readers = [
            threading.Thread(target=self._read, args=(member.stdout, lines))
            for member, lines in zip(self._members, self.lines, strict=True)
        ]
        for reader in self._readers:
            reader.start()

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill(random.Random(0))
        for member in self._members:
            member.wait()
        for reader in self._readers:
            reader.join()

    def _read(self, output: IO[str], lines: list[str]) -> None:
        with output:
            for line in output:
                # Gloo reports to everybody, from several threads at once.
                if line.startswith("[Gloo]") or "connected peer ranks" in line:
                    continue
                with self._news:
                    lines.append(line.strip())
                    self._news.notify_all()
        with self._news:
            self._news.notify_all()

    def wait_for(self, start: str, count: int = 1) -> None:
        """Waits until the first process has printed lines of a kind, or has ended.

        Args:
            start: How they begin.
            count: How many.
        """

        def is_there() -> bool:
            found = sum(line.startswith(start) for line in self.lines[0])
            return found >= count or not self._readers[0].is_alive()

        with self._news:
            while not is_there():
                if not self._news.wait(PATIENCE):
                    raise TimeoutError(f"No news; so far {self.lines}.")

    def kill(self, chance: random.Random) -> None:
        """Kills all that still run, in any order, at nearly the same moment."""
        for member in chance.sample(self._members, len(self._members)):
            if member.poll() is None:
                member.send_signal(signal.SIGKILL)
                time.sleep(chance.uniform(0, 0.05))

    def finish(self) -> list[list[str]]:
        """Waits for the end.

        Returns:
            What each has printed.

        Raises:
            RuntimeError: If one fails.
        """
        end = time.monotonic() + PATIENCE
        while None in (codes := [member.poll() for member in self._members]):
            # One that fails leaves the others waiting for it.
            if any(codes) or time.monotonic() > end:
                break
            time.sleep(0.05)
        if any(code != 0 for code in codes):
            log = self._log.read_text(errors="replace")
            raise RuntimeError(f"The processes ended with {codes}:\n{log[:8000]}")
        for reader in self._readers:
            reader.join()
        return self.lines
