"""The schedule of a chaos run: the same from the same seed, one fault of a target at a time, every kind in its turn."""

from itertools import pairwise

import pytest

from tests.chaos.run import STRIKES
from tests.chaos.schedule import DEADLY, Engine, Fault, draw, kinds, struck

MINUTES = 30
ENGINES: list[Engine] = ["sqlite", "kafka"]


def faults(engine: Engine, seed: int = 7) -> list[Fault]:
    return draw(seed, MINUTES * 60, engine)


@pytest.mark.parametrize("engine", ENGINES)
def test_the_same_seed_draws_the_same_faults_and_another_one_others(engine: Engine) -> None:
    assert faults(engine) == faults(engine)
    assert faults(engine) != faults(engine, seed=8)


@pytest.mark.parametrize("engine", ENGINES)
def test_half_an_hour_has_every_kind_of_fault(engine: Engine) -> None:
    assert {fault.kind for fault in faults(engine)} == kinds(engine).keys()


@pytest.mark.parametrize("engine", ENGINES)
def test_faults_of_one_target_do_not_overlap_and_others_do(engine: Engine) -> None:
    drawn = faults(engine)
    for target in {target for fault in drawn for target in struck(fault.target)}:
        for one, after in pairwise(fault for fault in drawn if target in struck(fault.target)):
            assert one.at + one.seconds < after.at
    assert any(one.at + one.seconds > after.at for one, after in pairwise(drawn))
    assert all(fault.at + fault.seconds < MINUTES * 60 for fault in drawn)


@pytest.mark.parametrize("engine", ENGINES)
def test_every_kind_can_be_brought_about(engine: Engine) -> None:
    assert kinds(engine).keys() <= STRIKES.keys()


def test_a_process_that_leaves_half_of_a_batch_out_never_lives_on() -> None:
    dooms = [fault.detail for seed in range(20) for fault in faults("kafka", seed) if DEADLY in fault.detail]
    assert dooms
    assert all(doom.endswith("SIGKILL") for doom in dooms)


def test_kinds_can_be_left_out() -> None:
    assert "file_full" in {fault.kind for fault in draw(7, 600, "sqlite")}
    assert "file_full" not in {fault.kind for fault in draw(7, 600, "sqlite", without=["file_full"])}
