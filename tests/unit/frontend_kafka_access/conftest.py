from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.unit.frontend_kafka_access.stage import House, house_on


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    async with house_on(tmp_path) as house:
        yield house
