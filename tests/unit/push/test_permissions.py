"""Webhooks with ``verify``: the endpoint is asked before the first message."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from tests.harness.endpoint import Endpoint, Step
from tests.unit.push.stage import PushStage, on_push, until

from penstock.model.calls import ReadPushStatus
from penstock.model.errors import Conflict
from penstock.push import permissions

ALLOWED = {"WebHook-Allowed-Origin": "penstock.example"}
ASKED = {"verify": "cloudevents", "auth": {"type": "bearer", "token": "t0ken"}}


@pytest.fixture(scope="module")
def endpoint() -> Iterator[Endpoint]:
    with Endpoint() as made:
        yield made


@pytest.fixture
async def push(
    tmp_path: Path, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[PushStage]:
    monkeypatch.setattr(permissions, "RETRY_SECONDS", 0.05)
    async with on_push(tmp_path, endpoint) as made:
        yield made


async def test_an_endpoint_is_asked_until_it_agrees(push: PushStage, endpoint: Endpoint) -> None:
    topic = await push.sns_topic()
    endpoint.plan("/asked", Step(status=405), Step(), Step(headers=ALLOWED), Step())
    one = await push.subscribe(topic, "/asked", webhook=ASKED)
    await push.publish(topic, "early")
    seen = await push.seen(4)
    await push.finished(topic, one)
    assert [each.method for each in seen] == ["OPTIONS"] * 3 + ["POST"]
    assert {each.headers["webhook-request-origin"] for each in seen} == {"penstock.example"}
    assert {each.headers["authorization"] for each in seen} == {"Bearer t0ken"}
    assert seen[3].body == "early"
    await push.publish(topic, "later")
    assert [each.method for each in await push.seen(5)][4:] == ["POST"], "it is asked once"


async def test_nothing_is_sent_without_permission(push: PushStage, endpoint: Endpoint) -> None:
    topic = await push.sns_topic()
    endpoint.plan("/no", Step(headers={"WebHook-Allowed-Origin": "other.example"}))
    one = await push.subscribe(topic, "/no", webhook=ASKED)
    await push.publish(topic, "never")
    assert {each.method for each in await push.seen(3)} == {"OPTIONS"}
    with pytest.raises(Conflict, match="WebHook-Allowed-Origin is neither"):
        await push.pushers.read_status(ReadPushStatus(topic, 0, one.id))
    await push.change(one, paused="by an operator")
    asking = push.pushers._permissions
    assert not asking._tasks, "a paused subscription asks nobody"
    await push.change(one, paused=None)
    assert asking._tasks
    await push.subscriptions.delete(one.id)
    assert not asking._tasks
    assert not asking._asked


async def test_the_endpoint_limits_the_rate(push: PushStage, endpoint: Endpoint) -> None:
    topic = await push.sns_topic()
    endpoint.plan("/rate", Step(headers={**ALLOWED, "WebHook-Allowed-Rate": "120"}), Step())
    one = await push.subscribe(topic, "/rate", webhook={**ASKED, "rate_per_s": 50})
    [asked] = await push.seen(1)
    assert asked.headers["webhook-request-rate"] == "3000"
    running = push.pushers._running
    await until(lambda: one.id in running, "it was not started")
    rate = running[one.id].plan.rate
    assert rate is not None
    assert rate.per_s == 2
