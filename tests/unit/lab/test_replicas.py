"""Copies are compared by their bytes, over what all of them have."""

from __future__ import annotations

import struct
from pathlib import Path

import crc32c
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.lab.replicas import compare, last_epoch


def batch(base: int, count: int = 1, filling: bytes = b"x") -> bytes:
    sealed = struct.pack(">hi", 0, count - 1) + bytes(34) + filling * 20
    rest = struct.pack(">iBI", 1, 2, crc32c.crc32c(sealed)) + sealed
    return struct.pack(">qi", base, len(rest)) + rest


def copy(folder: Path, *segments: bytes) -> Path:
    folder.mkdir(parents=True)
    for number, data in enumerate(segments):
        (folder / f"{number:020d}.log").write_bytes(data)
    return folder


def test_copies_that_end_differently_agree_as_far_as_both_reach(tmp_path: Path) -> None:
    one = copy(tmp_path / "n1", batch(0) + batch(1, 3) + batch(4) + bytes(500))
    two = copy(tmp_path / "n2", batch(0) + batch(1, 3))
    assert compare({"t/0": {"n1": one, "n2": two}}).split == []


def test_segments_may_be_cut_elsewhere_and_begin_later(tmp_path: Path) -> None:
    one = copy(tmp_path / "n1", batch(0) + batch(1), batch(2) + batch(3))
    two = copy(tmp_path / "n2", batch(1) + batch(2) + batch(3))
    assert compare({"t/0": {"n1": one, "n2": two}}).split == []


@pytest.mark.parametrize(
    "other",
    [
        batch(0) + batch(1, filling=b"y") + batch(2),
        batch(0) + batch(1, 2),
        batch(0) + batch(2),
    ],
)
def test_a_batch_that_differs_is_found(tmp_path: Path, other: bytes) -> None:
    one = copy(tmp_path / "n1", batch(0) + batch(1) + batch(2))
    two = copy(tmp_path / "n2", other + batch(3))
    assert len(compare({"t/0": {"n1": one, "n2": two}}).split) == 1


def test_a_copy_that_ends_before_what_was_committed_is_found(tmp_path: Path) -> None:
    one = copy(tmp_path / "n1", batch(0) + batch(1) + batch(2))
    two = copy(tmp_path / "n2", batch(0) + batch(1))
    copies = {"t/0": {"n1": one, "n2": two}}
    assert compare(copies, {"t/0": 2}).split == []
    assert compare(copies, {"t/0": 3}).split == ["t/0: n2 ends at 2, committed was 3"]


def test_the_latest_epoch_of_a_copy_is_read_from_its_batches(tmp_path: Path) -> None:
    later = bytearray(batch(1))
    later[12:16] = struct.pack(">i", 7)
    assert last_epoch(copy(tmp_path / "n1", batch(0) + bytes(later), batch(2))) == 7
    assert last_epoch(copy(tmp_path / "n2", bytes(100))) == -1


def test_a_copy_that_is_not_there_is_a_ghost(tmp_path: Path) -> None:
    one = copy(tmp_path / "n1", batch(0))
    found = compare({"t/0": {"n1": one, "n2": tmp_path / "n2"}})
    assert found.ghost == ["t/0: no copy on n2"]


@settings(max_examples=60, deadline=None)
@given(
    counts=st.lists(st.integers(1, 4), min_size=2, max_size=8),
    place=st.integers(0, 10_000),
    bit=st.integers(0, 7),
)
def test_any_single_bit_in_what_both_have_is_noticed(
    tmp_path_factory: pytest.TempPathFactory, counts: list[int], place: int, bit: int
) -> None:
    folder = tmp_path_factory.mktemp("copies")
    data, base = b"", 0
    for count in counts:
        data += batch(base, count)
        base += count
    spoilt = bytearray(data)
    at = 12 + place % (len(data) - 12)
    spoilt[at] ^= 1 << bit
    one = copy(folder / "n1", data)
    two = copy(folder / "n2", bytes(spoilt))
    assert compare({"t/0": {"n1": one, "n2": two}}, {"t/0": base}).split
