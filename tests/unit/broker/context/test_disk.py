"""When a disk counts as full, and what operators and clients are told of it."""

import os
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.unit.broker.stage import HandClock

from penstock.broker.context.disk import DiskBudget, reserve_of
from penstock.model.limits import KIB, MIB
from penstock.model.troubles import Kind, Trouble

SIZE = 130 * MIB  # 5 % of it are reserved
RESERVE = SIZE * 5 // 100


class Disk:
    """A disk whose free bytes a test decides about."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, reserve_bytes: int = 0) -> None:
        self.free = SIZE
        self.clock = HandClock()
        monkeypatch.setattr(os, "statvfs", self._state)
        self.budget = DiskBudget(Path("/data"), self.clock, reserve_bytes=reserve_bytes)

    def _state(self, _folder: Path) -> SimpleNamespace:
        return SimpleNamespace(f_bavail=self.free, f_frsize=1, f_blocks=SIZE)

    def left(self, above_reserve: int) -> None:
        """Have this many bytes free above the reserve."""
        self.free = self.budget.reserve_bytes + above_reserve
        self.clock.advance(1_000)

    def trouble(self) -> Trouble:
        found = self.budget.trouble()
        assert found is not None
        return found


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


def test_the_reserve_is_64_mib_or_a_share_of_a_small_disk_or_what_is_asked_for() -> None:
    assert reserve_of(100 * 1_024 * MIB, 0) == 64 * MIB
    assert reserve_of(SIZE, 0) == RESERVE
    assert reserve_of(SIZE, 100 * MIB) == 100 * MIB


def test_the_first_refused_append_begins_the_state_although_smaller_ones_would_fit(
    disk: Disk,
) -> None:
    disk.left(500 * KIB)
    assert disk.budget.trouble() is not None, "it is low, and not full"
    assert disk.trouble().kind is Kind.DISK_LOW
    assert not disk.budget.admits(900 * KIB)
    assert disk.trouble().kind is Kind.DISK_FULL
    assert disk.budget.admits(100 * KIB)
    assert disk.trouble().kind is Kind.DISK_FULL, "large messages are still refused"


def test_the_state_ends_when_the_refused_append_fits_with_one_percent_to_spare(disk: Disk) -> None:
    disk.left(500 * KIB)
    assert not disk.budget.admits(900 * KIB)
    disk.left(900 * KIB + RESERVE // 100 - 1)
    assert disk.trouble().kind is Kind.DISK_FULL
    disk.left(900 * KIB + RESERVE // 100)
    assert disk.trouble().kind is Kind.DISK_LOW


def test_a_disk_that_others_have_filled_is_full_before_anything_is_sent(disk: Disk) -> None:
    disk.left(0)
    assert disk.trouble().kind is Kind.DISK_FULL
    disk.left(RESERVE // 100)
    assert disk.trouble().kind is Kind.DISK_FULL
    disk.left(RESERVE // 100 + 1)
    assert disk.trouble().kind is Kind.DISK_LOW


def test_there_is_a_warning_at_twice_the_reserve_that_does_not_come_and_go(disk: Disk) -> None:
    assert disk.budget.trouble() is None
    disk.left(RESERVE)
    assert disk.budget.trouble() is None
    disk.left(RESERVE - 1)
    assert disk.trouble().kind is Kind.DISK_LOW
    disk.left(RESERVE + RESERVE // 100 - 1)
    assert disk.trouble().kind is Kind.DISK_LOW
    disk.left(RESERVE + RESERVE // 100)
    assert disk.budget.trouble() is None


def test_operators_and_clients_read_the_same_words_and_only_the_log_has_the_folder(
    disk: Disk,
) -> None:
    disk.left(512 * KIB)
    assert not disk.budget.admits(MIB)
    trouble = disk.trouble()
    assert trouble.text.startswith("the disk is full: 7.0 MiB free, 6.5 MiB reserved")
    assert disk.budget.refusal[1:].startswith(trouble.text[1:])
    assert "receive and delete messages" in trouble.do
    assert trouble.do in disk.budget.refusal
    assert "/data" not in disk.budget.refusal + trouble.text + trouble.do
    assert trouble.facts() == {
        "free_bytes": disk.free,
        "reserve_bytes": RESERVE,
        "folder": "/data",
    }


def test_a_reserve_that_is_asked_for_counts_on_a_small_disk_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk = Disk(monkeypatch, reserve_bytes=SIZE // 2)
    assert not disk.budget.admits(SIZE // 2 + 1)
    assert disk.budget.admits(SIZE // 2)
