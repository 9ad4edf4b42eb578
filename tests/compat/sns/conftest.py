"""The shared server with topics, queues and a subscription for all cases of SNS."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from tests.compat.sns.stage import Stage
from tests.harness.server import Server


@pytest.fixture(scope="session")
def stage(server: Server, queue_name: Callable[..., str]) -> Iterator[Stage]:
    made = Stage(server.url, queue_name())
    yield made
    for each in (made.sns, made.sqs, made.elsewhere):
        each.close()
