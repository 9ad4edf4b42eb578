"""Jobs under SIGKILL: few times here; ``python -m benchmarks.pipeline.kills`` does it often."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from benchmarks.pipeline.kills import Harness, harness_in, kill_archive, kill_replay, kill_usage
from tests.pipeline.topics import Topics


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Harness, Topics]]:
    with harness_in(tmp_path_factory.mktemp("kills"), seed=1) as found:
        yield found


@pytest.mark.timeout(900)
def test_an_archive_is_complete_after_kills_of_driver_and_workers(
    stage: tuple[Harness, Topics],
) -> None:
    tally = kill_archive(*stage, ["between", "worker"])
    assert tally.kills["between"] == 1
    assert tally.skipped >= 1


@pytest.mark.timeout(900)
def test_a_replay_of_it_is_complete_and_without_copies_after_a_kill(
    stage: tuple[Harness, Topics],
) -> None:
    tally = kill_replay(*stage, ["sending"])
    assert tally.kills["sending"] == 1


@pytest.mark.timeout(900)
def test_usage_adds_up_after_kills_between_and_within_batches(
    stage: tuple[Harness, Topics],
) -> None:
    tally = kill_usage(*stage, ["between", "after"])
    assert tally.kills["between"] == 1
