"""What was allowed a moment ago goes by one look-up, and never for longer than it is allowed."""

from typing import Any

import pytest
from tests.unit.frontend.memory import MemoryIdentities, Rig
from tests.unit.frontend.signing import (
    OTHER,
    OWN,
    REGION,
    SECRET,
    Client,
    allow,
    arn,
    deny,
    locked,
    policy,
    url,
)

from penstock.access.decisions import Decisions
from penstock.access.evaluation import Decision
from penstock.frontend.aws import context as grants
from penstock.frontend.limits.throttler import Throttler
from penstock.model.identity import ADMIN_POLICY, Caller, Circumstances, Limits, Rate, Tenant

SEND = {"QueueUrl": url("q"), "MessageBody": "m"}


class Weighed(Decisions):
    """Counts how often anything was weighed."""

    def __init__(self, identities: MemoryIdentities) -> None:
        super().__init__(identities)
        self.count = 0

    def decide(self, *given: Any, **how: Any) -> Decision:
        self.count += 1
        return super().decide(*given, **how)


async def house() -> tuple[Rig, MemoryIdentities, Client, Weighed]:
    rig, identities = locked()
    client = Client(rig)
    assert await client.code("CreateQueue", QueueName="q") == "OK"
    weighed = rig.frontend.decisions = Weighed(identities)
    return rig, identities, client, weighed


def kept_of(rig: Rig) -> dict[grants.GrantKey, grants.Grant]:
    return rig.frontend.grants._grants


async def test_requests_of_one_sort_are_weighed_once() -> None:
    _, _, client, weighed = await house()
    for _ in range(5):
        assert await client.code("SendMessage", **SEND) == "OK"
    assert weighed.count == 1
    assert await client.code("DeleteQueue", QueueUrl=url("q")) == "OK"
    assert weighed.count == 2, "another action is another sort"


async def test_a_single_send_and_a_batch_are_of_one_sort() -> None:
    rig, _, client, weighed = await house()
    entries = [{"Id": "a", "MessageBody": "m"}]
    assert await client.code("SendMessage", **SEND) == "OK"
    assert await client.code("SendMessageBatch", QueueUrl=url("q"), Entries=entries) == "OK"
    assert weighed.count == 1
    assert len(kept_of(rig)) == 1


async def test_a_new_policy_of_the_user_counts_with_the_next_request() -> None:
    _, identities, client, _ = await house()
    assert await client.code("SendMessage", **SEND) == "OK"
    identities.put(OWN, "root", "AKOWN", SECRET, ADMIN_POLICY, policy(deny("sqs:SendMessage")))
    assert await client.code("SendMessage", **SEND) == "AccessDenied"
    identities.put(OWN, "root", "AKOWN", SECRET, ADMIN_POLICY)
    assert await client.code("SendMessage", **SEND) == "OK"


async def test_a_new_policy_of_the_queue_counts_with_the_next_request() -> None:
    rig, _, client, _ = await house()
    assert await client.code("SendMessage", **SEND) == "OK"
    text = policy(deny("sqs:SendMessage", arn("q"), Principal="*"))

    await rig.catalog.change(OWN, REGION, "q", lambda t: t.with_settings(now_ms=1, policy=text))
    assert await client.code("SendMessage", **SEND) == "AccessDenied"
    await rig.catalog.change(OWN, REGION, "q", lambda t: t.with_settings(now_ms=2, policy=None))
    assert await client.code("SendMessage", **SEND) == "OK"


async def test_a_queue_that_is_gone_is_not_sent_to_and_one_made_anew_is_another() -> None:
    rig, _, client, _ = await house()
    assert await client.code("SendMessage", **SEND) == "OK"
    (first,) = kept_of(rig).values()
    await rig.catalog.delete(OWN, REGION, "q", now_ms=0)
    missing = "AWS.SimpleQueueService.NonExistentQueue"
    assert await client.code("SendMessage", **SEND) == missing
    assert await client.code("CreateQueue", QueueName="q") == "OK"
    assert await client.code("SendMessage", **SEND) == "OK"
    (second,) = kept_of(rig).values()
    assert second.topic.topic_id != first.topic.topic_id


async def test_what_depends_on_the_single_request_is_weighed_each_time() -> None:
    rig, identities, client, weighed = await house()
    at_home = {"IpAddress": {"aws:SourceIp": "10.0.0.0/8"}}
    identities.put(OWN, "root", "AKOWN", SECRET, policy(allow("sqs:*", Condition=at_home)))
    for count in (1, 2, 3):
        assert await client.code("SendMessage", **SEND) == "OK"
        assert weighed.count == count
    client.peer = "192.0.2.1"
    assert await client.code("SendMessage", **SEND) == "AccessDenied"
    assert not kept_of(rig)


async def test_nobody_goes_by_the_pass_of_another() -> None:
    _, identities, client, _ = await house()
    identities.put(OWN, "bob", "AKBOB", SECRET, policy(allow("sqs:ReceiveMessage")))
    assert await client.code("SendMessage", **SEND) == "OK"
    assert await Client(client.rig, "AKBOB").code("SendMessage", **SEND) == "AccessDenied"
    missing = "AWS.SimpleQueueService.NonExistentQueue"
    assert await Client(client.rig, "AKOTHER").code("SendMessage", **SEND) == missing


async def test_queues_of_other_accounts_are_weighed_each_time() -> None:
    rig, _, client, weighed = await house()
    text = policy(allow("sqs:SendMessage", arn("q"), Principal={"AWS": OTHER}))
    await rig.catalog.change(OWN, REGION, "q", lambda t: t.with_settings(now_ms=1, policy=text))
    visitor = Client(client.rig, "AKOTHER")
    for _ in range(3):
        before = weighed.count
        assert await visitor.code("SendMessage", **SEND) == "OK"
        assert weighed.count > before
    assert not kept_of(rig)


async def test_grants_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grants, "GRANTS_MAX", 3)
    rig, _, client, _ = await house()
    for number in range(8):
        await client.code("CreateQueue", QueueName=f"n{number}")
        send = {"QueueUrl": url(f"n{number}"), "MessageBody": "m"}
        assert await client.code("SendMessage", **send) == "OK"
        assert len(kept_of(rig)) <= 3


async def test_no_pass_is_made_for_a_queue_that_is_not_there() -> None:
    rig, _, client, _ = await house()
    for number in range(5):
        await client.code("SendMessage", QueueUrl=url(f"none{number}"), MessageBody="m")
    assert not kept_of(rig)


async def test_new_limits_count_with_the_next_request() -> None:
    _, identities, client, _ = await house()

    def enter(rate: Rate) -> None:
        limits = Limits(tenant_requests=rate)
        identities.enter(Tenant(OWN, f"tenant-{OWN}", 0, limits=limits))

    enter(Rate(1e9, 1e9))
    for _ in range(3):
        assert await client.code("SendMessage", **SEND) == "OK"
    enter(Rate(1, 2))
    codes = [await client.code("SendMessage", **SEND) for _ in range(4)]
    assert codes == ["OK", "OK", "RequestThrottled", "RequestThrottled"]
    enter(Rate())
    assert await client.code("SendMessage", **SEND) == "OK"


def test_limits_are_current_while_their_buckets_are_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("penstock.frontend.limits.throttler.BUCKETS_MAX", 2)
    throttler = Throttler()
    of = Tenant(OWN, "one", 0, limits=Limits(queue_requests=Rate(4, 8)))
    caller = Caller(OWN, "root")
    limits = throttler.limits_of(of, caller, "sqs:SendMessage", arn("q"), now_ms=0)
    throttler.share_among(2)
    assert throttler.is_current(limits), "to the same buckets, of which less is ours"
    for name in ("r", "s"):
        throttler.limits_of(of, caller, "sqs:SendMessage", arn(name), now_ms=0)
    assert not throttler.is_current(limits)
    new = throttler.limits_of(of, caller, "sqs:SendMessage", arn("q"), now_ms=0)
    assert throttler.is_current(new)
    assert new.buckets[0] is not limits.buckets[0]


def test_only_what_holds_in_all_circumstances_is_said_to_be_kept() -> None:
    _, identities = locked()
    at_home = {"IpAddress": {"aws:SourceIp": "10.0.0.0/8"}}
    identities.put(OWN, "bob", "AKBOB", SECRET, policy(allow("sqs:*", Condition=at_home)))
    decisions = Decisions(identities)
    for user, is_kept in (("root", True), ("bob", False)):
        caller = Caller(OWN, user)
        about: dict[str, Any] = {"arn": arn("q"), "owner": OWN, "policy": None}
        assert not decisions.is_cached(caller, "sqs:SendMessage", **about)
        decisions.decide(
            caller, "sqs:SendMessage", **about, circumstances=lambda: Circumstances("10.1.1.1")
        )
        assert decisions.is_cached(caller, "sqs:SendMessage", **about) is is_kept
