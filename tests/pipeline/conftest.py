"""One Spark session for the tests of this folder.

A session takes many seconds of CPU time to start, half a gigabyte, and its queries get faster with
every one that ran before, so one worker of a run does all files of this folder
(``tests/conftest.py``). Tests that start JVMs of their own are in ``processes``; tests that need no
JVM are in ``tests/unit/pipeline``. Every JVM finds the classes of Spark archived in the cache
folder; that is done once for a machine.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from _pytest.runner import runtestprotocol
from tests.harness.server import Server, penstock_command
from tests.pipeline.stage import QUERIES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WARM_S_MAX = 600.0
ATTEMPTS_MAX = 3
SLOW_START = re.compile("Python worker (failed )?to connect back")
TEST_S_MAX = 900  # the first test waits for the archive and for a JVM; only a hang takes longer


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        is_ours = Path(__file__).parent in item.path.parents
        if is_ours and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TEST_S_MAX))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Run a test again, with a new session and a new server, if Spark did not wait for a Python
    process that was slow to start. Spark gives each of them ten seconds, and no setting changes
    that; the runner of jobs tries again as well (``penstock.pipeline.runs.runner``)."""
    if Path(__file__).parent not in item.path.parents:
        return None
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for attempts_left in reversed(range(ATTEMPTS_MAX)):
        reports = runtestprotocol(item, log=False, nextitem=nextitem)
        if not any(each.failed and SLOW_START.search(str(each.longrepr)) for each in reports):
            break
        if attempts_left:
            item.session._setupstate.teardown_exact(None)
            item._initrequest()  # type: ignore[attr-defined]
    for each in reports:
        item.ihook.pytest_runtest_logreport(report=each)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


@pytest.fixture(scope="session")
def classes() -> None:
    """What ``penstock pipeline warm`` makes, if nobody has made it before. Without it everything
    works and takes longer. One worker makes it and the others wait: at the same time each would
    take three times as long."""
    from penstock.pipeline.spark.java import archive_file, find_java

    archive = archive_file(find_java())
    with (Path(tempfile.gettempdir()) / "penstock-tests-warm.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not archive.is_file():
            warm = subprocess.Popen(
                [penstock_command(), "pipeline", "warm"],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            try:
                warm.wait(WARM_S_MAX)
            except subprocess.TimeoutExpired:
                os.killpg(warm.pid, signal.SIGKILL)  # the JVM as well
                warm.wait()


@pytest.fixture(scope="session")
def spark(classes: None) -> Iterator[SparkSession]:
    from penstock.pipeline.session import close_session, open_session

    # Spark gives its Python processes ten seconds to start, and no setting changes that: where we
    # may (as root), everything of this worker goes before the tests of the other workers.
    with contextlib.suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, -5)
    session = open_session("tests", master="local[2,4]", is_short=True, conf=QUERIES)
    yield session
    close_session(session)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A real server with a Kafka listener, for the tests of one file."""
    folder = tmp_path_factory.mktemp("server")
    with Server(folder, fsync="never", kafka_port=0) as running:
        yield running
        running.assert_no_traceback()
