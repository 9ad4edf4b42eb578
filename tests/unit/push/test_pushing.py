"""Deliveries of subscriptions: a real broker, a real endpoint, and what becomes of each message."""

import asyncio
import json
import time
import uuid

import msgspec
import pytest
from tests.harness.endpoint import Endpoint, Step
from tests.unit.broker.stage import message
from tests.unit.push.stage import PushStage, until

from penstock.broker.context.context import CROSSINGS_MS_MAX
from penstock.cursor.leases.events import AckEvent, decode, is_shared_type, split_shared
from penstock.model.calls import Fetch, OpenShare, PushOne
from penstock.model.limits import MIB
from penstock.model.message import AckReason, Attribute
from penstock.model.ports import EARLIEST
from penstock.model.subscription import Replay, ReplayState, Subscription, share_group
from penstock.model.topic import Topic
from penstock.push import pushing
from penstock.record.batch import parse_header, split_batches
from penstock.record.control import iter_control

FAST = {"min_ms": 100, "max_ms": 100, "factor": 1.0}
RETRIES = '{"healthyRetryPolicy":{"minDelayTarget":1,"maxDelayTarget":1,"numRetries":1}}'


async def reasons(push: PushStage, topic: Topic, one: Subscription, count: int) -> list[AckReason]:
    """Return the reason of each ack of a subscription, from the events in the log."""
    share = push.stage.broker.find_share(topic, share_group(one))
    assert share is not None
    assert {row.share for row in push.rows} == {share.topic_id}
    found: list[AckReason] = []
    while len(found) < count:
        await asyncio.sleep(0.005)
        fetched = await push.stage.broker.call(Fetch(topic, 0, 0, MIB, is_committed=False))
        found.clear()
        for batch in split_batches(fetched.buffers):
            for _, kind, value in iter_control(batch) if parse_header(batch).is_control else ():
                if is_shared_type(kind):
                    share_id, number, data = split_shared(kind, value)
                    event = decode(number, data)
                    if isinstance(event, AckEvent) and share_id.hex() == share.topic_id:
                        found += [event.reason] * len(event.offsets)
    return sorted(found)


async def test_an_http_subscription_gets_signed_notifications_in_its_own_form(
    push: PushStage,
) -> None:
    topic = await push.sns_topic()
    one = await push.subscribe(topic, "/sns")
    raw = await push.subscribe(topic, "/raw", RawMessageDelivery="true")
    attributes = {"colour": Attribute("String", b"red")}
    await push.publish(topic, "hello", attributes=attributes)
    seen = {each.target: each for each in await push.seen(2)}
    document = json.loads(seen["/sns"].body)
    assert document["Message"] == "hello"
    assert document["MessageAttributes"] == {"colour": {"Type": "String", "Value": "red"}}
    assert document["UnsubscribeURL"].endswith(f"SubscriptionArn={one.arn}")
    assert document["Signature"]
    assert seen["/sns"].headers["x-amz-sns-subscription-arn"] == one.arn
    assert seen["/raw"].body == "hello"
    assert seen["/raw"].headers["x-amz-sns-rawdelivery"] == "true"
    await push.finished(topic, one)
    await push.finished(topic, raw)
    assert await push.outcomes(2) == ["delivered", "delivered"]


async def test_what_was_published_before_is_not_sent(push: PushStage) -> None:
    topic = await push.sns_topic(partitions=2)
    await push.publish(topic, "before", partition=1)
    one = await push.subscribe(topic, "/after", RawMessageDelivery="true")
    await push.publish(topic, "after", partition=1)
    assert [each.body for each in await push.seen(1)] == ["after"]
    await push.finished(topic, one)
    assert len(push.ledger()) == 1


async def test_a_failed_message_is_sent_again_after_its_delay(
    push: PushStage, endpoint: Endpoint
) -> None:
    topic = await push.sns_topic()
    endpoint.plan("/retry", Step(status=503), Step())
    one = await push.subscribe(topic, "/retry", DeliveryPolicy=RETRIES)
    await push.publish(topic, "again")
    first, second = await push.seen(2)
    assert (second.at_ns - first.at_ns) / 1e9 >= 0.79, "one second, less the jitter"
    await push.finished(topic, one)
    assert await push.outcomes(2) == ["retry", "delivered"]
    assert [row.attempt for row in push.rows] == [1, 2]
    assert push.rows[0].status == 503


async def test_a_retry_after_header_delays_the_retry(push: PushStage, endpoint: Endpoint) -> None:
    topic = await push.sns_topic()
    endpoint.plan("/later", Step(status=429, headers={"Retry-After": "2"}), Step())
    await push.subscribe(topic, "/later", webhook={"retry": FAST})
    await push.publish(topic, "x")
    first, second = await push.seen(2)
    assert (second.at_ns - first.at_ns) / 1e9 >= 1.99


@pytest.mark.parametrize("is_raw", [True, False])
async def test_a_rejected_message_goes_to_the_dead_letter_queue_in_its_form(
    push: PushStage, endpoint: Endpoint, is_raw: bool
) -> None:
    topic, dead = await push.sns_topic(), await push.queue("dead")
    endpoint.plan("/bad", Step(status=400))
    redrive = json.dumps({"deadLetterTargetArn": dead.arn})
    one = await push.subscribe(
        topic, "/bad", RedrivePolicy=redrive, RawMessageDelivery=str(is_raw).lower()
    )
    attributes = {"colour": Attribute("String", b"red")}
    await push.publish(topic, "no", attributes=attributes)
    [delivery] = await push.received(dead)
    message = delivery.record.message
    if is_raw:
        assert message.body == b"no"
        assert dict(message.attributes or {}) == attributes
    else:
        assert json.loads(message.body)["Message"] == "no"
    await push.finished(topic, one)
    assert await push.outcomes(1) == ["dead"]


async def test_a_dead_letter_is_acked_only_when_no_backup_begins(
    push: PushStage, endpoint: Endpoint
) -> None:
    topic, dead = await push.sns_topic(), await push.queue("dead")
    endpoint.plan("/bad", Step(status=400))
    one = await push.subscribe(topic, "/bad", webhook={"dead_letter": "dead"})
    hold = push.stage.broker._context.hold
    hold.hold_crossings("backup", CROSSINGS_MS_MAX)
    await push.publish(topic, "no")
    assert await push.received(dead)
    finished = asyncio.create_task(push.finished(topic, one))
    await asyncio.wait((finished,), timeout=0.3)
    assert not finished.done()
    hold.release_crossings("backup")
    await finished


async def test_a_message_without_attempts_left_is_a_dead_letter(
    push: PushStage, endpoint: Endpoint
) -> None:
    topic, dead = await push.sns_topic(), await push.queue("dead")
    endpoint.plan("/down", Step(status=500))
    webhook = {"retry": {**FAST, "attempts_max": 3}, "dead_letter": "dead"}
    one = await push.subscribe(topic, "/down", webhook=webhook)
    await push.publish(topic, "tried")
    [delivery] = await push.received(dead)
    attributes = delivery.record.message.attributes or {}
    assert attributes["penstock.attempts"].value == b"3"
    assert attributes["penstock.status"].value == b"500"
    assert attributes["penstock.subscription"].value == one.id.encode()
    await push.finished(topic, one)
    assert await push.outcomes(3) == ["retry", "retry", "dead"]
    assert await reasons(push, topic, one, 1) == [AckReason.DEAD]


async def test_a_message_without_a_dead_letter_queue_is_dropped_and_told(
    push: PushStage, endpoint: Endpoint
) -> None:
    topic = await push.sns_topic()
    endpoint.plan("/drop", Step(status=422), Step())
    one = await push.subscribe(topic, "/drop", webhook={"dead_letter": "no-such-queue"})
    await push.publish(topic, "lost", "kept")
    await push.finished(topic, one)
    assert sorted(await push.outcomes(2)) == ["delivered", "dropped"]
    assert await reasons(push, topic, one, 2) == [AckReason.ACKED, AckReason.DROPPED]


async def test_a_fixed_limit_is_never_exceeded(push: PushStage, endpoint: Endpoint) -> None:
    topic = await push.sns_topic(partitions=3)
    endpoint.plan("/three", Step(delay_ms=20))
    one = await push.subscribe(topic, "/three", webhook={"concurrency": 3})
    for partition in range(3):
        await push.publish(topic, *[f"{partition}-{n}" for n in range(20)], partition=partition)
    seen = await push.seen(60)
    await push.finished(topic, one)
    assert max(each.path_at_once for each in seen) == 3


async def test_an_endpoint_that_hangs_delays_no_other(push: PushStage, endpoint: Endpoint) -> None:
    topic = await push.sns_topic()
    endpoint.plan("/hang", Step(hold=True))
    await push.subscribe(topic, "/hang", webhook={})
    good = await push.subscribe(topic, "/good", webhook={})
    await push.publish(topic, *[str(n) for n in range(50)])
    await push.finished(topic, good)
    held = [each for each in push.ledger() if each.target == "/hang"]
    assert len(held) <= 4, "the first limit"
    endpoint.release("/hang")


async def test_the_messages_of_a_group_are_sent_in_order(
    push: PushStage, endpoint: Endpoint
) -> None:
    topic = await push.sns_topic()
    endpoint.plan("/order", Step(status=500), Step())
    webhook = {"ordered": "group", "retry": FAST}
    one = await push.subscribe(topic, "/order", webhook=webhook)
    await push.publish(topic, "a1", group="a")
    await push.seen(1)  # it fails
    await push.publish(topic, "a2", "a3", group="a")
    await push.publish(topic, "b1", "b2", group="b")
    await push.finished(topic, one)
    sent = [each.body for each in push.ledger()]
    assert [body for body in sent if body.startswith("a")] == ["a1", "a1", "a2", "a3"]
    assert [body for body in sent if body.startswith("b")] == ["b1", "b2"]


async def test_a_batch_has_many_messages_and_only_failed_ones_are_repeated(
    push: PushStage, endpoint: Endpoint
) -> None:
    topic = await push.sns_topic()
    failures = '{"batchItemFailures":[{"itemIdentifier":"1"}]}'
    endpoint.plan("/batch", Step(body=failures), Step())
    webhook = {"batch_max": 10, "batch_wait_ms": 200, "retry": FAST}
    one = await push.subscribe(topic, "/batch", webhook=webhook)
    await push.publish(topic, '"a"', '"b"', '"c"')
    first, second = await push.seen(2)
    assert first.body == '"a"\n"b"\n"c"\n'
    assert second.body == '"b"\n'
    await push.finished(topic, one)


async def test_a_filter_lets_only_wanted_messages_pass(push: PushStage) -> None:
    topic = await push.sns_topic()
    one = await push.subscribe(
        topic, "/red", RawMessageDelivery="true", FilterPolicy='{"colour":["red"]}'
    )
    for colour in ("blue", "red", "green", "red"):
        attributes = {"colour": Attribute("String", colour.encode())}
        await push.publish(topic, colour, attributes=attributes)
    assert [each.body for each in await push.seen(2)] == ["red", "red"]
    await push.finished(topic, one)
    assert len(push.ledger()) == 2


async def test_a_paused_subscription_sends_nothing_until_it_is_resumed(push: PushStage) -> None:
    topic = await push.sns_topic()
    one = await push.subscribe(topic, "/pause", webhook={})
    await push.publish(topic, "1")
    await push.seen(1)
    await push.finished(topic, one)
    await push.change(one, paused="by an operator")
    await push.publish(topic, "2")
    other = await push.subscribe(topic, "/other", webhook={})
    await push.publish(topic, "3")
    await push.seen(2)
    await push.finished(topic, other)
    assert [each.body for each in push.ledger() if each.target == "/pause"] == ["1"]
    await push.change(one, paused=None)
    await push.finished(topic, one)
    assert [each.body for each in push.ledger() if each.target == "/pause"] == ["1", "2", "3"]


async def test_an_endpoint_that_is_gone_pauses_its_webhook(
    push: PushStage, endpoint: Endpoint
) -> None:
    topic = await push.sns_topic()
    endpoint.plan("/gone", Step(status=410))
    one = await push.subscribe(topic, "/gone", webhook={"concurrency": 1})
    await push.publish(topic, "1", "2")
    await until(lambda: push.stored(one).paused == "gone", "it was not paused")
    await push.seen(1)


async def test_a_failing_webhook_pauses_itself(push: PushStage, endpoint: Endpoint) -> None:
    topic = await push.sns_topic()
    endpoint.plan("/fail", Step(status=500))
    one = await push.subscribe(topic, "/fail", webhook={"retry": FAST})
    # Less than the admin API accepts.
    sooner = one.webhook.replace('"auto_pause_ms":0', '"auto_pause_ms":200')
    await push.change(one, webhook=sooner)
    await push.publish(topic, "1")
    await until(lambda: push.stored(one).paused == "failing", "it was not paused")


async def test_the_share_of_a_deleted_subscription_is_deleted(push: PushStage) -> None:
    topic = await push.sns_topic()
    one = await push.subscribe(topic, "/delete")
    await push.publish(topic, "1")
    await push.seen(1)
    await push.subscriptions.delete(one.id)
    await until(
        lambda: push.stage.broker.find_share(topic, share_group(one)) is None, "the share is left"
    )
    await push.publish(topic, "2")
    assert len(push.ledger()) == 1


async def test_a_new_home_goes_on_where_the_last_one_was(
    push: PushStage, endpoint: Endpoint
) -> None:
    topic = await push.sns_topic()
    endpoint.plan("/move", Step(), Step(status=500), Step())
    webhook = {"concurrency": 1, "retry": FAST}
    one = await push.subscribe(topic, "/move", webhook=webhook)
    await push.publish(topic, "1", "2")
    await push.seen(2)
    await push.outcomes(2)
    await push.stop()
    push.start()
    await push.publish(topic, "3")
    await push.finished(topic, one)
    assert sorted(each.body for each in push.ledger()) == ["1", "2", "2", "3"]
    assert max(row.attempt for row in push.rows) == 2


async def test_a_new_home_with_a_fixed_limit_waits_for_the_requests_of_the_last_one(
    push: PushStage,
) -> None:
    topic = await push.sns_topic()
    one = await push.subscribe(topic, "/wait", webhook={"concurrency": 1, "timeout_ms": 1_000})
    await push.stop()
    began_ns = time.monotonic_ns()
    push.start(is_clustered=True)
    await push.publish(topic, "1")
    reply = await push.pushers.push_one(PushOne(topic, 0, one.id, message("test")))
    assert reply.status == 200
    seen = await push.seen(2)
    assert {each.body for each in seen} == {"1", "test"}
    assert min(each.at_ns for each in seen) - began_ns >= 1_000_000_000


async def test_a_replay_sends_old_messages_again_marked_as_replayed(push: PushStage) -> None:
    topic = await push.sns_topic()
    await push.publish(topic, "old 1", "old 2")
    one = await push.subscribe(topic, "/replay")
    await push.publish(topic, "new")
    await push.seen(1)
    replay = Replay(1, starts=(0,), until=(2,), created_at_ms=1)
    await push.change(one, replays=(replay,))
    seen = await push.seen(3)
    sent = [json.loads(each.body) for each in seen]
    assert [(each["Message"], each.get("Replayed", False)) for each in sent] == [
        ("new", False),
        ("old 1", True),
        ("old 2", True),
    ]
    await until(
        lambda: push.stored(one).replays[0].state is ReplayState.COMPLETED,
        "the replay did not end",
    )
    await until(
        lambda: push.stage.broker.find_share(topic, share_group(one, 1)) is None,
        "the share of the replay is left",
    )


async def test_a_redelivery_is_a_replay_and_a_test_is_not(push: PushStage) -> None:
    topic = await push.sns_topic()
    one = await push.subscribe(topic, "/again")
    await push.publish(topic, "once")
    await push.outcomes(1)
    for is_test in (False, True):
        call = PushOne(topic, 0, one.id, offset=push.rows[0].offset, is_test=is_test)
        assert (await push.pushers.push_one(call)).status == 200
    marks = [(row.is_replay, row.is_test, bool(row.share)) for row in push.rows]
    assert marks == [(False, False, True), (True, False, False), (False, True, False)]


async def test_attempts_count_while_the_breaker_of_an_sns_subscription_is_open(
    push: PushStage, endpoint: Endpoint
) -> None:
    topic, dead = await push.sns_topic(), await push.queue("dead")
    endpoint.plan("/outage", Step(status=500))
    redrive = json.dumps({"deadLetterTargetArn": dead.arn})
    one = await push.subscribe(topic, "/outage", DeliveryPolicy=RETRIES, RedrivePolicy=redrive)
    await push.publish(topic, *[str(n) for n in range(40)])
    assert len(await push.received(dead, 40)) == 40
    await push.finished(topic, one)
    assert len(push.ledger()) < 80, "most attempts were only counted"


async def test_a_webhook_that_holds_uses_up_no_attempt_during_an_outage(
    push: PushStage, endpoint: Endpoint
) -> None:
    topic = await push.sns_topic()
    endpoint.plan("/hold", *[Step(status=500)] * 6, Step())
    webhook = {"concurrency": 1, "retry": {**FAST, "attempts_max": 10}}
    one = await push.subscribe(topic, "/hold", webhook=webhook)
    await push.publish(topic, *[str(n) for n in range(10)])
    await push.finished(topic, one)
    assert len(push.ledger()) == 16


async def test_at_most_once_sends_a_message_once(push: PushStage, endpoint: Endpoint) -> None:
    topic = await push.sns_topic()
    endpoint.plan("/once", Step(status=500), Step())
    webhook = {"guarantee": "at_most_once", "retry": FAST}
    one = await push.subscribe(topic, "/once", webhook=webhook)
    await push.publish(topic, "1", "2")
    await push.finished(topic, one)
    assert sorted(await push.outcomes(2)) == ["delivered", "dropped"]
    assert len(await push.seen(2)) == 2


async def test_at_most_once_waits_for_an_outage_to_end(push: PushStage, endpoint: Endpoint) -> None:
    """An attempt that was only counted must not be the one attempt of a message."""
    topic = await push.sns_topic()
    endpoint.plan("/waits", *[Step(status=500)] * 6, Step())
    webhook = {"guarantee": "at_most_once", "on_outage": "count", "concurrency": 1}
    one = await push.subscribe(topic, "/waits", webhook=webhook)
    await push.publish(topic, *[str(number) for number in range(10)])
    await push.finished(topic, one)
    assert sorted(each.body for each in await push.seen(10)) == [str(n) for n in range(10)]
    assert sorted(await push.outcomes(10)) == ["delivered"] * 4 + ["dropped"] * 6


async def test_a_webhook_consumes_a_queue(push: PushStage, endpoint: Endpoint) -> None:
    queue = await push.queue("work")
    endpoint.plan("/work", Step(status=500), Step())
    await push.publish(queue, "before")
    await push.subscribe(queue, "/work", webhook={"mode": "consume", "retry": FAST})
    await push.publish(queue, "after")
    await push.outcomes(3)
    await until(lambda: _is_empty(push, queue.topic_id), "the queue is not empty")
    assert sorted(each.body for each in push.ledger())[-1] == "before"


def _is_empty(push: PushStage, topic_id: str) -> bool:
    [queue] = [q for q in push.stage.broker.partitions.queues() if q.topic.topic_id == topic_id]
    stats = queue.stats()
    return stats.visible + stats.in_flight == 0


async def test_a_rate_limit_spreads_requests(push: PushStage) -> None:
    topic = await push.sns_topic()
    one = await push.subscribe(topic, "/rate", webhook={"rate_per_s": 20})
    await push.publish(topic, *[str(n) for n in range(40)])
    await push.finished(topic, one)
    seen = push.ledger()
    assert (seen[-1].at_ns - seen[0].at_ns) / 1e9 > 0.9, "20 at once, 20 in the next second"


async def test_messages_flow_while_requests_are_made_one_by_one(push: PushStage) -> None:
    topic = await push.sns_topic()
    one = await push.subscribe(topic, "/flow", webhook={})
    for n in range(100):
        await push.publish(topic, str(n))
        if n % 10 == 0:
            await asyncio.sleep(0)
    await push.finished(topic, one)
    assert sorted(int(each.body) for each in push.ledger()) == list(range(100))


async def test_partitions_that_are_added_to_a_topic_are_sent_too(push: PushStage) -> None:
    topic = await push.sns_topic()
    one = await push.subscribe(topic, "/grown", webhook={})
    await push.publish(topic, "old")
    await push.seen(1)
    grown = await push.stage.catalog.change(
        topic.account,
        topic.region,
        topic.name,
        lambda before: msgspec.structs.replace(before, partition_count=2),
    )
    push.pushers.led(grown, 1, is_led=True)
    push.pushers.topic_changed(grown)
    await push.publish(grown, "new", partition=1)
    await push.seen(2)
    assert sorted(each.body for each in push.ledger()) == ["new", "old"]
    assert push.stored(one).paused is None


async def test_a_changed_delivery_policy_of_the_topic_holds_from_the_next_attempt(
    push: PushStage, endpoint: Endpoint
) -> None:
    topic, dead = await push.sns_topic(), await push.queue("dead")
    endpoint.plan("/policy", Step(status=500))
    redrive = json.dumps({"deadLetterTargetArn": dead.arn})
    await push.subscribe(topic, "/policy", RedrivePolicy=redrive)
    policy = '{"http":{"defaultHealthyRetryPolicy":{"numRetries":0}}}'
    assert topic.sns is not None
    sns = msgspec.structs.replace(topic.sns, attributes={"DeliveryPolicy": policy})
    changed = await push.stage.catalog.change(
        topic.account, topic.region, topic.name, lambda t: msgspec.structs.replace(t, sns=sns)
    )
    push.pushers.topic_changed(changed)
    await push.publish(changed, "x")
    await push.received(dead)
    assert len(push.ledger()) == 1


async def test_a_subscription_with_many_waiting_retries_goes_on_when_they_are_due(
    push: PushStage, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pushing, "RETRIES_MAX", 5)
    monkeypatch.setattr(pushing, "FULL_SECONDS", 0.05)
    topic = await push.sns_topic()
    endpoint.plan("/full", *[Step(status=425)] * 5, Step())
    one = await push.subscribe(topic, "/full", webhook={"retry": FAST})
    await push.publish(topic, *[str(n) for n in range(30)])
    await push.finished(topic, one)
    assert len(push.ledger()) == 35


async def test_a_sweep_deletes_shares_of_deleted_subscriptions_and_no_others(
    push: PushStage,
) -> None:
    """Older versions have groups whose names begin with the mark of subscriptions."""
    topic, call, find = await push.sns_topic(), push.stage.broker.call, push.stage.broker.find_share
    one = await push.subscribe(topic, "/swept")
    await until(lambda: find(topic, share_group(one)) is not None, "there is no share")
    gone = share_group(msgspec.structs.replace(one, id=str(uuid.uuid4())), 2)
    for group in ("~workers", gone):
        await call(OpenShare(topic, 0, group, start=EARLIEST))
    await push.pushers.sweep()
    await push.pushers.sweep()
    assert find(topic, share_group(one)) is not None
    assert find(topic, "~workers") is not None
    assert find(topic, gone) is None
