import pytest

from penstock.frontend.admin import health as health_module
from penstock.frontend.admin.health import TRANSITIONS, Health, State


def test_a_node_is_ready_only_between_start_and_drain() -> None:
    health = Health()
    assert (health.state, health.is_ready) == (State.STARTING, False)
    health.ready()
    assert (health.state, health.is_ready) == (State.READY, True)
    health.drain()
    assert (health.state, health.is_ready) == (State.DRAINING, False)
    health.drain()
    assert health.state is State.DRAINING


def test_there_is_no_way_back() -> None:
    health = Health()
    health.drain()
    with pytest.raises(AssertionError):
        health.ready()
    assert TRANSITIONS.keys() == set(State)


def test_a_blocking_reason_takes_the_node_out_until_it_is_resolved() -> None:
    health = Health()
    health.ready()
    health.report("disk", "no space left", is_blocking=True)
    assert not health.is_ready
    health.report("disk", "still no space left", is_blocking=True)
    assert [reason.text for reason in health.reasons] == ["still no space left"]
    health.resolve("disk")
    health.resolve("disk")
    assert health.is_ready


def test_other_reasons_are_only_shown() -> None:
    health = Health()
    health.ready()
    health.report("partition x/0", "damaged at byte 7", is_blocking=False)
    assert health.is_ready
    assert len(health.reasons) == 1


def test_reasons_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health_module, "REASONS_MAX", 3)
    health = Health()
    for n in range(10):
        health.report(str(n), "x", is_blocking=False)
    health.report("0", "newer", is_blocking=False)
    assert [(reason.name, reason.text) for reason in health.reasons] == [
        ("0", "newer"),
        ("1", "x"),
        ("2", "x"),
    ]


def test_a_blocking_reason_counts_even_when_there_are_too_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(health_module, "REASONS_MAX", 2)
    health = Health()
    health.ready()
    for n in range(5):
        health.report(str(n), "only shown", is_blocking=False)
    health.report("disk", "full", is_blocking=True)
    assert not health.is_ready
    assert len(health.reasons) == 2


def test_progress_is_a_percentage_that_ends_with_the_start() -> None:
    health = Health()
    assert health.percent_started == 0
    health.progress(done=1, total=3)
    assert health.percent_started == 33
    health.ready()
    assert health.percent_started == 100
