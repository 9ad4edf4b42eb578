"""The fault lab's short profile: three nodes and three etcd members, real clients, a leader that is
killed, paused and cut off, and an etcd whose leader is killed. ``python -m tests.lab`` runs it, and
longer ones, by hand.

PENSTOCK_FAULTS_SEED repeats a plan, PENSTOCK_LAB_REPORT says where the report goes, and
PENSTOCK_LAB_KAFKA=off leaves Kafka clients out."""

from __future__ import annotations

import gc
import os
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.harness.etcd import LACKING
from tests.lab import plan
from tests.lab.report import write_report
from tests.lab.run import LabRun, Options, new_seed

pytestmark = [
    pytest.mark.faults,
    pytest.mark.slow,
    pytest.mark.skipif(LACKING is not None, reason=str(LACKING)),
    pytest.mark.timeout(900),
]


@pytest.fixture(autouse=True)
def sockets_of_clients_are_theirs() -> Iterator[None]:
    """Some clients leave sockets to the garbage collector; that must not be found elsewhere."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


def test_a_cluster_keeps_its_promises_through_the_short_profile(tmp_path: Path) -> None:
    seed = os.environ.get("PENSTOCK_FAULTS_SEED") or new_seed()
    print(f"PENSTOCK_FAULTS_SEED={seed}")
    with_kafka = os.environ.get("PENSTOCK_LAB_KAFKA", "on") != "off"
    options = Options(plan.PROFILES["smoke"], seed, with_kafka=with_kafka)
    outcome = LabRun(options, tmp_path / "cluster", tmp_path / "ledgers").go()
    page = write_report(outcome, Path(os.environ.get("PENSTOCK_LAB_REPORT") or tmp_path / "report"))
    print(outcome.judgement.text())
    assert outcome.judgement.is_good, f"{page}\n{outcome.judgement.text()}"
    assert outcome.judgement.coverage["partitions_compared"] > 0
    assert outcome.judgement.coverage["states_compared"] > 0
