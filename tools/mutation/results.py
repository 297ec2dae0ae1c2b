"""What is known of mutants: kept from run to run, with reasons for those that live."""

from __future__ import annotations

import json
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

from tools.mutation.mutants import Mutant
from tools.mutation.targets import STORE
from tools.mutation.trials import Verdict

__all__ = ["Results", "reason_of", "reasons"]

_REASONS = Path(__file__).with_name("survivors.toml")


class Results:
    """The verdicts so far, in a file that grows by a line for each."""

    def __init__(self) -> None:
        self._file = STORE / "results.jsonl"
        self._known: dict[tuple[str, ...], Verdict] = {}
        if self._file.exists():
            for line in self._file.read_text().splitlines():
                key, verdict = json.loads(line)
                self._known[tuple(key)] = Verdict(*verdict)

    def of(self, mutant: Mutant) -> Verdict | None:
        """The verdict on a mutant, None if there is none."""
        return self._known.get(mutant.key)

    def add(self, mutant: Mutant, verdict: Verdict) -> None:
        """Keeps a verdict; a later one on the same mutant counts."""
        self._known[mutant.key] = verdict
        with self._file.open("a") as file:
            file.write(json.dumps([mutant.key, verdict]) + "\n")

    def kills(self) -> Counter[str]:
        """How many mutants each test noticed."""
        return Counter(v.by for v in self._known.values() if v.status == "killed")

    def living(self, chosen: Iterable[Mutant]) -> list[Mutant]:
        """Those of some mutants that no test noticed, by place."""
        living = "survived", "uncovered"
        return sorted(m for m in chosen if (v := self.of(m)) and v.status in living)


def reasons() -> dict[tuple[str, str, str], str]:
    """Why a mutant that lives is none that a test should notice.

    Returns:
        The reason, by module and by the changed line before and after. Line numbers
        would change with every edit.
    """
    entries = tomllib.loads(_REASONS.read_text()).get("survivor", [])
    return {(e["module"], e["before"], e["after"]): e["reason"] for e in entries}


def reason_of(mutant: Mutant, known: Mapping[tuple[str, str, str], str]) -> str | None:
    """The reason for one mutant, None if there is none."""
    return known.get((mutant.module, *mutant.difference()))
