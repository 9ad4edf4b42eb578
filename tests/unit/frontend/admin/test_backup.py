"""``/api/v1/backups`` over a real broker: who may, what is asked wrongly, and what is told."""

import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.unit.backup.vault import admin_of
from tests.unit.broker.stage import Stage, message, on_stage

from penstock.frontend.admin.api import AdminApi
from penstock.frontend.admin.operations import BASE_HEADER, NEXT_HEADER
from penstock.frontend.admin.request import Context, Info
from penstock.model.calls import Append
from penstock.model.topic import Topic
from penstock.record.batch import split_batches

from .conftest import Office
from .test_api import ACCOUNT, REGION


class Store(Office):
    """An office with a broker behind it."""

    stage: Stage

    def furnish_with(self, stage: Stage) -> None:
        self.stage = stage
        self.api = AdminApi(
            Context(
                broker=self.backend,
                catalog=self.catalog,
                meter=self.meter,
                health=self.health,
                clock=self.clock,
                info=Info("1", "n", "prod", ACCOUNT, REGION, "/data", 0),
                identities=self.identities,
                backup=admin_of(stage),
                everything=self.catalog,
            ),
            is_auth_on=True,
        )


@pytest.fixture
async def store(office: Office, tmp_path: Path) -> AsyncIterator[Store]:
    office.__class__ = Store
    assert isinstance(office, Store)
    async with on_stage(tmp_path / "broker") as stage:
        office.furnish_with(stage)
        yield office


async def topic_with(stage: Stage, count: int) -> Topic:
    topic = await stage.topic()
    for number in range(count):
        await stage.broker.call(Append(topic, 0, [message(str(number))]))
    return topic


@pytest.mark.parametrize("who", ["ann", "bob", "eve"])
async def test_only_operators_may_copy_everything(store: Store, who: str) -> None:
    assert await store.no(403, who, "POST", "backups", {})
    begun = await store.ok("root", "POST", "backups", {})
    for what in ("partitions", "definitions", "records?topic_id=a&partition=0&offset=0"):
        assert await store.no(403, who, "GET", f"backups/{begun['id']}/{what}")
    assert await store.no(403, who, "DELETE", f"backups/{begun['id']}")
    assert (await store.ask("", "GET", f"backups/{begun['id']}/partitions")).status == 401


async def test_a_backup_is_handed_out_piece_by_piece(store: Store) -> None:
    topic = await topic_with(store.stage, 3)
    begun = await store.ok("root", "POST", "backups", {})
    assert (begun["partitions"], begun["account"], begun["nodes"]) == (1, ACCOUNT, [])
    path = f"backups/{begun['id']}"
    await store.stage.broker.call(Append(topic, 0, [message("behind the cut")]))
    found = await store.ok("root", "GET", f"{path}/partitions")
    assert [(one["start_offset"], one["end_offset"]) for one in found["partitions"]] == [(0, 3)]
    assert (await store.ok("root", "GET", f"{path}/partitions?after={found['next']}"))[
        "next"
    ] is None
    defined = (await store.ok("root", "GET", f"{path}/definitions"))["definitions"]
    values = {one["key"]: json.loads(base64.b64decode(one["value"])) for one in defined}
    assert topic.topic_id in {value.get("topic_id") for value in values.values()}
    where = f"topic_id={topic.topic_id}&partition=0"
    reply = await store.ask("root", "GET", f"{path}/records?{where}&offset=1")
    told = dict(reply.headers)
    assert (told[BASE_HEADER], told[NEXT_HEADER]) == ("1", "3")
    assert len(list(split_batches([reply.body]))) == 2
    await store.ok("root", "DELETE", path)
    await store.no(404, "root", "GET", f"{path}/partitions")


async def test_what_makes_no_sense_is_named(store: Store) -> None:
    topic = await topic_with(store.stage, 1)
    begun = await store.ok("root", "POST", "backups", {})
    path = f"backups/{begun['id']}"
    assert "offset" in await store.no(400, "root", "GET", f"{path}/records?topic_id=a&partition=0")
    where = f"topic_id={topic.topic_id}&partition=7&offset=0"
    assert await store.no(404, "root", "GET", f"{path}/records?{where}")
    assert await store.no(400, "root", "GET", f"{path}/partitions?limit=0")
    assert await store.no(404, "root", "GET", "backups/no-such/partitions")
    assert await store.no(404, "root", "DELETE", "backups/no-such")


async def test_a_node_without_logs_says_so(office: Office) -> None:
    assert "broker" in await office.no(404, "root", "POST", "backups", {})
