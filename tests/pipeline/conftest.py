"""One Spark session for all tests of the pipeline that do not need a process of their own.

A session takes seconds to start and half a gigabyte, so every test here belongs to one group that
runs on one worker: ``pytest --dist loadgroup``.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.harness.server import Server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.xdist_group("spark"))


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    from penstock.pipeline.session import close_session, open_session

    session = open_session("tests", master="local[2,4]", is_short=True)
    yield session
    close_session(session)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A real server with a Kafka listener, for the tests of one file."""
    folder = tmp_path_factory.mktemp("server")
    with Server(folder, fsync="never", kafka_port=0) as running:
        yield running
        running.assert_no_traceback()
