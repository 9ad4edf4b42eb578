"""One server per test process for every compatibility test, and the clients that drive it.

The server runs with ``--fsync never``: these tests ask whether other people's clients are answered
rightly, not whether a disk keeps its word (``tests/faults`` does). Queues get names of their own,
so tests can share the server and run in any order."""

from __future__ import annotations

import gc
import itertools
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError
from tests.harness.server import Server

REGION = "us-east-1"
CREDENTIALS = {"aws_access_key_id": "testing", "aws_secret_access_key": "testing"}

_numbers = itertools.count(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.compat)


def sqs_client(url: str, *, read_timeout: float = 30.0) -> Any:
    """A boto3 client that shows each answer as it came: no retries to paper over a fault."""
    config = Config(
        retries={"max_attempts": 0, "mode": "standard"},
        connect_timeout=5,
        read_timeout=read_timeout,
        max_pool_connections=50,
    )
    return boto3.client("sqs", endpoint_url=url, region_name=REGION, config=config, **CREDENTIALS)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Shared by all tests of this process; ends with a graceful stop and a clean log."""
    with Server(tmp_path_factory.mktemp("penstock"), fsync="never") as running:
        yield running
        assert running.stop() == 0, running.stderr_tail()
        running.assert_no_traceback()


@pytest.fixture(scope="session")
def sqs(server: Server) -> Iterator[Any]:
    client = sqs_client(server.url)
    yield client
    client.close()


@pytest.fixture(scope="session")
def queue_name() -> Callable[..., str]:
    """``queue_name()`` or ``queue_name(".fifo")``: a name no other test has."""

    def name(suffix: str = "") -> str:
        return f"compat-{os.getpid()}-{next(_numbers)}{suffix}"

    return name


class MakeQueue(Protocol):
    """What the ``make_queue`` fixture is, for annotations: attributes go in as SQS names them,
    numbers and booleans welcome; ``FifoQueue=True`` gives the name its suffix. Returns the URL."""

    def __call__(
        self,
        name: str | None = None,
        *,
        tags: Mapping[str, str] | None = None,
        **attributes: object,
    ) -> str: ...


def attribute_text(value: object) -> str:
    """SQS attribute values travel as strings, booleans in lower case."""
    return str(value).lower() if isinstance(value, bool) else str(value)


@pytest.fixture
def make_queue(sqs: Any, queue_name: Callable[..., str]) -> Iterator[MakeQueue]:
    made: list[str] = []

    def make(
        name: str | None = None,
        *,
        tags: Mapping[str, str] | None = None,
        **attributes: object,
    ) -> str:
        texts = {key: attribute_text(value) for key, value in attributes.items()}
        if name is None:
            name = queue_name(".fifo" if texts.get("FifoQueue") == "true" else "")
        reply = sqs.create_queue(QueueName=name, Attributes=texts, tags=dict(tags or {}))
        url: str = reply["QueueUrl"]
        made.append(url)
        return url

    yield make
    for url in made:
        try:
            sqs.delete_queue(QueueUrl=url)
        except ClientError as error:
            if error.response["Error"]["Code"] != "AWS.SimpleQueueService.NonExistentQueue":
                raise


@pytest.fixture(autouse=True)
def sockets_of_clients_are_theirs() -> Iterator[None]:
    """Some clients leave sockets to the garbage collector. That is theirs to do, and must not be
    found in the middle of another test; what our own code leaves open still fails."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
