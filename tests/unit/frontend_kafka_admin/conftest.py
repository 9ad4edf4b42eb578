from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.unit.frontend_kafka_admin.stage import Admin, admin_on


@pytest.fixture
async def admin(tmp_path: Path) -> AsyncIterator[Admin]:
    async with admin_on(tmp_path, partitions_default=3) as admin:
        yield admin
