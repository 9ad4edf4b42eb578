"""Closes the logs that a test has left open, as tests of crashes do."""

from collections.abc import Iterator

import pytest
from tests.unit.log.stage import OPENED


@pytest.fixture(autouse=True)
def closed_logs() -> Iterator[None]:
    yield
    while OPENED:
        OPENED.pop().close(clean=False)
