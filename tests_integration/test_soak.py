"""The soak session finds what it is there to find, and nothing where there is nothing."""

import itertools

import pytest

from tools.soak import machine
from tools.soak.plants import PLANTS, planted
from tools.soak.running import run_program

STEPS = 12


@pytest.mark.parametrize("plant", PLANTS)
def test_a_planted_fault_is_found_again_and_again(plant):
    with planted(plant):
        failures = (run_program(seed, STEPS) for seed in itertools.count())
        failure = next(found for found in failures if found is not None)
        again = run_program(failure.seed, len(failure.steps))
    assert failure.seed < 10
    assert again.steps == failure.steps
    assert type(again.error) is type(failure.error)
    # It is the library's fault alone.
    assert run_program(failure.seed, len(failure.steps)) is None


def test_hypothesis_makes_a_short_program():
    with planted("lost-write"), pytest.raises(AssertionError) as caught:
        machine.check(seed=0, examples=40)
    program = "\n".join(caught.value.__notes__)
    assert program.count("state.do(") <= 2
    machine.check(seed=0, examples=2, length=3)
