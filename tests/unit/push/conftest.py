from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from tests.harness.endpoint import Endpoint
from tests.unit.push.stage import PushStage, on_push


@pytest.fixture(scope="module")
def endpoint() -> Iterator[Endpoint]:
    with Endpoint() as made:
        yield made


@pytest.fixture
async def push(tmp_path: Path, endpoint: Endpoint) -> AsyncIterator[PushStage]:
    async with on_push(tmp_path, endpoint) as made:
        yield made
