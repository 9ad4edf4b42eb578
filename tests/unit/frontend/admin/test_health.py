import msgspec
import pytest

from penstock.frontend.admin import ports as health_module
from penstock.frontend.admin.ports import Health, State
from penstock.model.troubles import NO_MANAGER, Kind, Trouble


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
    health.ready()
    with pytest.raises(AssertionError):
        health.ready()
    health.drain()
    with pytest.raises(AssertionError):
        health.ready()


def trouble(name: str, text: str = "x", *, is_blocking: bool = False) -> Trouble:
    return Trouble(
        Kind.LOG_DAMAGED,
        name,
        text,
        "do this",
        over=f"{name} is over",
        is_blocking=is_blocking,
        facts=lambda: {"folder": "/data"},
    )


def test_a_blocking_trouble_takes_the_node_out_until_it_is_over() -> None:
    health = Health()
    health.ready()
    health.show([trouble("disk", is_blocking=True)])
    assert not health.is_ready
    health.show([trouble("disk", "still no space left", is_blocking=True)])
    assert [reason["text"] for reason in health.reasons] == ["still no space left"]
    health.show([])
    assert health.is_ready


def test_other_troubles_are_only_shown_and_never_with_their_facts() -> None:
    health = Health()
    health.ready()
    health.show([trouble("partition x/0", "damaged")])
    assert health.is_ready
    (reason,) = health.reasons
    assert msgspec.to_builtins(reason) == {
        "kind": "log_damaged",
        "name": "partition x/0",
        "text": "damaged",
        "do": "do this",
        "is_blocking": False,
    }


def test_the_log_has_one_line_when_a_trouble_begins_and_one_when_it_ends(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    health = Health()
    health.show([trouble("a", "first text")])
    health.show([trouble("a", "another text"), trouble("b", "b is wrong")])
    health.show([trouble("b", "b is wrong")])
    said = [(one.levelname, one.message, vars(one)["trouble"]) for one in caplog.records]
    assert said == [
        ("ERROR", "first text", "log_damaged"),
        ("ERROR", "b is wrong", "log_damaged"),
        ("INFO", "a is over", "log_damaged"),
    ]
    assert vars(caplog.records[0])["do"] == "do this"
    assert {vars(one)["folder"] for one in caplog.records} == {"/data"}


def test_every_kind_has_a_series_that_counts_its_troubles() -> None:
    health = Health()
    health.show([trouble("a"), trouble("b"), NO_MANAGER])
    found = {labels: value for family, (labels, value) in health.samples()}
    assert found.keys() == {(kind.value,) for kind in Kind}
    assert {kind: value for kind, value in found.items() if value} == {
        ("log_damaged",): 2,
        ("no_manager",): 1,
    }


def test_reasons_are_bounded_and_blocking_ones_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health_module, "REASONS_MAX", 2)
    health = Health()
    health.ready()
    health.show([*(trouble(str(n)) for n in range(5)), trouble("row", is_blocking=True)])
    assert not health.is_ready
    assert [reason["name"] for reason in health.reasons] == ["row", "0"]


def test_progress_is_a_percentage_that_ends_with_the_start() -> None:
    health = Health()
    assert health.percent_started == 0
    health.progress = lambda: (1, 3)
    assert health.percent_started == 33
    health.ready()
    assert health.percent_started == 100
