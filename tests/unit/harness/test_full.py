"""Parts of large sets: parts of successive rotations make up the whole, and the mark is there."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.harness.full import part

TESTS = Path(__file__).parents[2]


@pytest.mark.parametrize(("size", "count"), [(100, 10), (101, 10), (7, 3), (3, 5), (1, 1)])
def test_the_parts_of_all_rotations_are_the_set(size: int, count: int) -> None:
    items = range(size)
    parts = [part(items, count, rotation=turn, is_full=False) for turn in range(size)]
    assert {item for each in parts for item in each} == set(items)
    assert all(0 < len(each) <= count for each in parts)


def test_a_full_run_tries_everything() -> None:
    assert list(part(range(100), 3, rotation=2, is_full=True)) == list(range(100))


def test_every_file_that_tries_a_part_has_tests_that_make_faults_runs() -> None:
    marked = {Path(__file__), *TESTS.glob("faults/*.py")}  # its conftest.py marks all tests
    for file in {*TESTS.rglob("test_*.py")} - marked:
        text = file.read_text()
        is_run = "mark.full_set" in text or "mark.faults" in text
        assert is_run or "tests.harness.full import" not in text, file
