"""The steps of programs as a state machine for Hypothesis, which makes them short."""

from __future__ import annotations

from typing import Any

import hypothesis
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    rule,
    run_state_machine_as_test,
)

from tools.soak.worlds import Step, World, draw_step

__all__ = ["Programs", "check"]


@st.composite
def steps(draw: Any) -> Step:
    """Any step of a program."""
    return draw_step(lambda below: draw(st.integers(0, below - 1)))


class Programs(RuleBasedStateMachine):
    """A world, and steps in it."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()

    @rule(step=steps())
    def do(self, step: Step) -> None:
        """Each step compares the graph with its twin."""
        self.world.do(step)


def check(seed: int, examples: int, length: int = 8) -> None:
    """Runs short programs.

    Args:
        seed: Of the programs.
        examples: How many.
        length: How many steps they have at most.

    Raises:
        Exception: That of the shortest program that fails; its notes are the program.
    """
    machine = hypothesis.seed(seed)(type("Programs", (Programs,), {}))
    run_state_machine_as_test(
        machine,
        settings=hypothesis.settings(
            max_examples=examples,
            stateful_step_count=length,
            deadline=None,
            database=None,
            suppress_health_check=[*hypothesis.HealthCheck],
            phases=set(hypothesis.Phase) - {hypothesis.Phase.explain},
        ),
    )
