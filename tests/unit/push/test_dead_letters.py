"""Which queues take dead letters. With authentication on, SNS needs a queue whose policy allows it;
a webhook does not: the right to send was checked when its dead-letter queue was set."""

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.unit.broker.stage import Stage, message, on_stage

from penstock.model.calls import Lease, OpenShare
from penstock.model.errors import TopicNotFound
from penstock.model.ports import EARLIEST, LeaseRequest
from penstock.model.subscription import Subscription, new_id
from penstock.push.dead_letters import DeadLetters

OTHER = "999999999999"


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    async with on_stage(tmp_path) as made:
        yield made


def subscription(topic_id: str, account: str, *, is_webhook: bool) -> Subscription:
    protocol, url = "webhook" if is_webhook else "https", "https://example.com/"
    return Subscription(
        id=new_id(topic_id, protocol, url, random=os.urandom(8)),
        topic_id=topic_id,
        source_arn="arn:aws:sqs:us-east-1:000000000000:source",
        account=account,
        region="us-east-1",
        protocol=protocol,
        endpoint=url,
        created_at_ms=0,
        webhook="{}" if is_webhook else "",
    )


@pytest.mark.parametrize(
    ("is_webhook", "is_own", "is_share", "is_taken"),
    [
        (True, True, False, True),
        (True, False, False, False),
        (True, True, True, False),
        (False, True, False, False),
    ],
)
async def test_a_queue_without_a_policy(
    stage: Stage, *, is_webhook: bool, is_own: bool, is_share: bool, is_taken: bool
) -> None:
    letters = DeadLetters(
        stage.broker,
        stage.catalog,
        os.urandom,
        None,
        lambda _topic, _queue: False,
        stage.broker._context.hold.crossing,
    )
    source, dead = await stage.topic("source"), await stage.topic("dead")
    if is_share:
        dead = await stage.broker.call(OpenShare(dead, 0, "readers", EARLIEST))
    account = source.account if is_own else OTHER
    one = subscription(source.topic_id, account, is_webhook=is_webhook)
    sent = message("lost?")
    try:
        await letters.append(one, source, dead.arn, sent, sent.body, {})
    except TopicNotFound:
        assert not is_taken
    found = await stage.broker.call(Lease(dead, LeaseRequest(10, 1_000, 0)))
    assert [each.record.message.body for each in found] == ([b"lost?"] if is_taken else [])
