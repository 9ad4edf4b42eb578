import time
from pathlib import Path

import pytest

from penstock.model.ports import Clock
from penstock.node.process.folder import DataFolder
from penstock.telemetry import clock as clock_module
from penstock.telemetry.clock import ClockAnchor, SystemClock, elapsed_trustworthy


def test_it_is_a_clock_with_both_times_in_milliseconds() -> None:
    clock: Clock = SystemClock()
    assert abs(clock.wall_ms() - time.time() * 1_000) < 1_000
    first = clock.mono_ms()
    assert abs(first - time.clock_gettime(time.CLOCK_BOOTTIME) * 1_000) < 1_000
    assert clock.mono_ms() >= first


def test_two_anchors_of_one_running_machine_agree() -> None:
    assert elapsed_trustworthy(SystemClock().anchor(), SystemClock().anchor())


@pytest.mark.parametrize(
    ("before", "now", "is_trusted"),
    [
        (ClockAnchor("a", 1_000), ClockAnchor("a", 1_000), True),
        (ClockAnchor("a", 1_000), ClockAnchor("a", 2_000), True),
        (ClockAnchor("a", 2_000), ClockAnchor("a", 1_000), True),
        (ClockAnchor("a", 1_000), ClockAnchor("a", 2_001), False),  # wall clock set forward
        (ClockAnchor("a", 2_001), ClockAnchor("a", 1_000), False),  # and back
        (ClockAnchor("a", 1_000), ClockAnchor("b", 1_000), False),  # another boot
        (ClockAnchor("", 1_000), ClockAnchor("", 1_000), False),  # boot unknown
    ],
)
def test_elapsed_time_is_trusted_on_the_same_boot_with_an_even_wall_clock(
    before: ClockAnchor, now: ClockAnchor, is_trusted: bool
) -> None:
    assert elapsed_trustworthy(before, now) is is_trusted


def test_without_a_boot_id_nothing_is_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clock_module, "BOOT_ID", tmp_path / "missing")
    assert SystemClock().anchor().boot_id == ""
    assert not elapsed_trustworthy(SystemClock().anchor(), SystemClock().anchor())


class SetClock(SystemClock):
    """A system clock whose wall clock was set by ``by_ms``."""

    by_ms = 0

    def wall_ms(self) -> int:
        return super().wall_ms() + self.by_ms


def test_time_is_trusted_from_the_first_start_after_the_clock_was_set(tmp_path: Path) -> None:
    folder, clock = DataFolder(tmp_path), SetClock()
    try:
        first = folder.renew_anchor(clock)
        assert folder.renew_anchor(clock) == first
        clock.by_ms = 5_000
        second = folder.renew_anchor(clock)
        assert second >= first + 5_000
        assert folder.renew_anchor(clock) == second  # the start after that does not forget it
    finally:
        folder.release()
