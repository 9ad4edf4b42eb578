"""Fault tests share a marker and a seed: printed with every run, taken from PENSTOCK_FAULTS_SEED to
repeat one."""

from __future__ import annotations

import gc
import os
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.faults)


@pytest.fixture
def seed() -> str:
    """What chance is drawn from. Threads and kills still race: a seed repeats the plan of a run,
    not its every interleaving."""
    chosen = os.environ.get("PENSTOCK_FAULTS_SEED") or os.urandom(4).hex()
    print(f"PENSTOCK_FAULTS_SEED={chosen}")
    return chosen


@pytest.fixture(autouse=True)
def sockets_of_clients_are_theirs() -> Iterator[None]:
    """Some clients leave sockets to the garbage collector. That is theirs to do, and must not be
    found in the middle of another test; what our own code leaves open still fails."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
