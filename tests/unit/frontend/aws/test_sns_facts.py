"""What SNS requests count as, and what is recorded of them; repeated requests get one reply."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.unit.broker.stage import on_stage
from tests.unit.frontend.aws.test_idempotency import attempt
from tests.unit.frontend.aws.test_sns import QUEUE, TOPIC, Client, entries
from tests.unit.frontend.counted import ACCOUNT, REGION, CountedRig
from tests.unit.frontend.facts.test_audit import actions, noted, trail_on
from tests.unit.frontend.memory import MemoryCatalog, MemoryIdentities

from penstock.frontend.aws.accounting import refusal_of
from penstock.frontend.aws.context import FrontendConfig
from penstock.frontend.aws.idempotency import REPEATABLE
from penstock.frontend.aws.sns.actions import ACTIONS
from penstock.frontend.aws.sns.rules import facts
from penstock.frontend.facts import audit as audit_module
from penstock.frontend.facts.usage import Refusal, UsageTable
from penstock.frontend.limits.quotas import TenantQuotas
from penstock.model.identity import Limits as TenantLimits
from penstock.model.identity import Rate, Tenant
from penstock.wire.aws.sns.shapes import SubscribeRequest

READS = {
    "CheckIfPhoneNumberIsOptedOut",
    "GetDataProtectionPolicy",
    "GetEndpointAttributes",
    "GetPlatformApplicationAttributes",
    "GetSMSAttributes",
    "GetSMSSandboxAccountStatus",
    "GetSubscriptionAttributes",
    "GetTopicAttributes",
    "ListEndpointsByPlatformApplication",
    "ListOriginationNumbers",
    "ListPhoneNumbersOptedOut",
    "ListPlatformApplications",
    "ListSMSSandboxPhoneNumbers",
    "ListSubscriptions",
    "ListSubscriptionsByTopic",
    "ListTagsForResource",
    "ListTopics",
}
SENDS = {"Publish", "PublishBatch"}


class Counted(Client):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.rig: CountedRig = CountedRig(**options)


# ── Usage ────────────────────────────────────────────────────────────────────────────────────


async def test_a_publish_counts_as_a_send_under_the_name_of_the_stream() -> None:
    client = Counted()
    await client.topic()
    await client.call("Publish", TopicArn=TOPIC, Message="hello")
    await client.call("Publish", TargetArn=TOPIC, Message="ä")
    batch = {}
    for number, text in enumerate(("123", "45"), 1):
        batch[f"PublishBatchRequestEntries.member.{number}.Id"] = str(number)
        batch[f"PublishBatchRequestEntries.member.{number}.Message"] = text
    await client.call("PublishBatch", TopicArn=TOPIC, **batch)
    await client.call("GetTopicAttributes", TopicArn=TOPIC)
    await client.call("ListTopics")
    used = client.rig.used()
    row = used["sns.orders", "sns:Publish"]
    assert (row.tenant, row.region) == (ACCOUNT, REGION)
    assert (row.requests, row.messages, row.bytes_in) == (3, 4, 12)
    assert used["sns.orders", "sns:CreateTopic"].requests == 1
    assert used["sns.orders", "sns:GetTopicAttributes"].requests == 1
    assert used["", "sns:ListTopics"].requests == 1


async def test_a_subscription_counts_for_its_topic() -> None:
    client = Counted()
    await client.topic()
    arn = await client.subscribe()
    await client.call("GetSubscriptionAttributes", SubscriptionArn=arn)
    await client.call("Unsubscribe", SubscriptionArn=arn)
    used = client.rig.used()
    for name in ("Subscribe", "GetSubscriptionAttributes", "Unsubscribe"):
        assert used["sns.orders", f"sns:{name}"].requests == 1, name


@pytest.mark.parametrize(
    "arn",
    [
        f"arn:aws:sns:us-east-1:{ACCOUNT}:invented",
        "arn:aws:sns:us-east-1:222222222222:orders",
        "arn:aws:sns:eu-west-1:" + ACCOUNT + ":orders",
        "nonsense",
        "",
    ],
)
async def test_invented_topics_create_no_rows(arn: str) -> None:
    client = Counted()
    await client.topic()
    client.rig.used()
    await client.refused("Publish", TopicArn=arn, Message="hello")
    await client.call("DeleteTopic", TopicArn=f"arn:aws:sns:us-east-1:{ACCOUNT}:invented")
    assert set(client.rig.used()) == {("", "sns:Publish"), ("", "sns:DeleteTopic")}


async def test_a_rejected_publish_counts_for_its_topic_as_failed() -> None:
    client = Counted()
    await client.topic()
    await client.refused("Publish", TopicArn=TOPIC, Message="")
    row = client.rig.used()["sns.orders", "sns:Publish"]
    assert (row.requests, row.messages, row.failed) == (1, 0, 1)


def test_codes_of_sns_are_told_apart() -> None:
    assert refusal_of("AuthorizationError") is Refusal.DENIED
    assert refusal_of("Throttled") is Refusal.THROTTLED
    assert refusal_of("InvalidParameter") is Refusal.FAILED


def test_pushes_count_attempts_and_what_they_delivered() -> None:
    table = UsageTable(now_ms=0)
    key = (ACCOUNT, REGION, "sns.orders", "push:sqs")
    table.push(key, 3, 2, 100)
    table.push(key, 1, 1, 200_000)
    [row] = table.take(now_ms=0)[1].rows()
    assert (row.op, row.requests, row.messages, row.failed) == ("push:sqs", 4, 3, 1)
    assert (row.bytes_in, row.bytes_out, row.units64k) == (0, 200_100, 3 + 4)


# ── Limits ───────────────────────────────────────────────────────────────────────────────────


async def test_the_limit_of_a_resource_holds_for_each_topic_of_a_trusted_caller() -> None:
    limits = TenantLimits(tenant_requests=Rate(), queue_requests=Rate(per_s=0.001, burst=2))
    identities = MemoryIdentities()
    identities.put(ACCOUNT, "root", "AKOWN", "secret")
    identities.enter(Tenant(ACCOUNT, "own", 0, limits=limits))
    client = Counted(identities=identities)
    for name in ("orders", "others"):
        await client.topic(name)
        arn = TOPIC.replace("orders", name)
        await client.call("Publish", TopicArn=arn, Message="one")
        status, code, _ = await client.refused("Publish", TopicArn=arn, Message="two")
        assert (status, code) == (429, "Throttled")
        row = client.rig.used()[f"sns.{name}", "sns:Publish"]
        assert (row.requests, row.messages, row.throttled) == (2, 1, 1)


def test_the_used_part_of_the_quota_of_subscriptions_is_shown() -> None:
    counts = {ACCOUNT: 7}
    quotas = TenantQuotas(
        MemoryIdentities(), MemoryCatalog(), subscriptions=lambda account: counts.get(account, 0)
    )
    assert quotas.used(ACCOUNT)["subscriptions_max"] == 7
    assert quotas.used("222222222222")["subscriptions_max"] == 0


# ── Audit ────────────────────────────────────────────────────────────────────────────────────


def test_every_changing_action_is_audited() -> None:
    assert {name.removeprefix("sns:") for name in facts.PARAMS} == set(ACTIONS) - READS - SENDS


async def test_changes_of_topics_and_subscriptions_are_recorded(tmp_path: Path) -> None:
    tag = {"Tags.member.1.Key": "team", "Tags.member.1.Value": "hidden value"}
    grant = {"AWSAccountId.member.1": "222222222222", "ActionName.member.1": "Publish"}
    named = {"AttributeName": "DisplayName", "AttributeValue": "Orders"}
    raw = {"AttributeName": "RawMessageDelivery", "AttributeValue": "true"}
    async with on_stage(tmp_path) as stage:
        async with trail_on(stage) as trail:
            client = Counted(audit=trail)
            await client.topic(**entries("Attributes", {"DisplayName": "x"}), **tag)
            await client.call("SetTopicAttributes", TopicArn=TOPIC, **named)
            await client.call("AddPermission", TopicArn=TOPIC, Label="l", **grant)
            await client.call("RemovePermission", TopicArn=TOPIC, Label="l")
            await client.call("TagResource", ResourceArn=TOPIC, **tag)
            await client.call("UntagResource", ResourceArn=TOPIC, **{"TagKeys.member.1": "team"})
            arn = await client.subscribe()
            await client.call("Publish", TopicArn=TOPIC, Message="a secret")
            await client.call("SetSubscriptionAttributes", SubscriptionArn=arn, **raw)
            await client.call("ListSubscriptions")
            await client.call("Unsubscribe", SubscriptionArn=arn)
            await client.refused("ConfirmSubscription", TopicArn=TOPIC, Token="00ff")
            await client.call("DeleteTopic", TopicArn=TOPIC)
        found = (await noted(stage))[1:-1]
    expected: list[tuple[str, dict[str, object]]] = [
        ("CreateTopic", {"attributes": {"DisplayName": "x"}, "tags": ["team"]}),
        ("SetTopicAttributes", {"attributes": {"DisplayName": "Orders"}}),
        (
            "AddPermission",
            {"label": "l", "accounts": ["222222222222"], "actions": ["Publish"]},
        ),
        ("RemovePermission", {"label": "l"}),
        ("TagResource", {"tags": ["team"]}),
        ("UntagResource", {"tags": ["team"]}),
        ("Subscribe", {"protocol": "sqs", "endpoint": QUEUE}),
        (
            "SetSubscriptionAttributes",
            {"subscription": arn, "attributes": {"RawMessageDelivery": "true"}},
        ),
        ("Unsubscribe", {"subscription": arn}),
        ("ConfirmSubscription", {}),
        ("DeleteTopic", {}),
    ]
    assert [(one.action.removeprefix("sns:"), one.params) for one in found] == expected
    assert {one.resource for one in found} == {TOPIC}
    assert [one.outcome for one in found] == ["ok"] * 9 + ["failed", "ok"]
    text = json.dumps([one.params for one in found])
    assert "secret" not in text
    assert "hidden value" not in text
    assert "00ff" not in text


async def test_links_with_bad_tokens_do_not_fill_the_audit_log(tmp_path: Path) -> None:
    async with on_stage(tmp_path) as stage:
        async with trail_on(stage) as trail:
            client = Counted(config=FrontendConfig(is_auth_on=True), audit=trail)
            for _ in range(50):
                query = f"Action=ConfirmSubscription&TopicArn={TOPIC}&Token=00&Version=2010-03-31"
                reply = await client.rig.ask(method="GET", query=query, headers={"host": "h"})
                assert reply.status == 400, reply.body
        found = (await noted(stage))[1:-1]
    links = [one for one in found if one.action == "sns:ConfirmSubscription"]
    assert len(links) == audit_module.DENIED_PER_KIND_MAX
    assert {(one.outcome, one.source_ip) for one in links} == {("failed", "127.0.0.1")}
    assert "penstock:DenialsLeftOut" in actions(found)


@pytest.mark.parametrize(
    ("endpoint", "shown"),
    [
        ("https://me:geheim@example.com/hook", "https://me:****@example.com/hook"),
        ("https://example.com/@me", "https://example.com/@me"),
        ("https://me:ge/heim@example.com", "https://****@example.com"),
        ("https://me:geheim@exa mple.com", "https://****@exa mple.com"),
        ("https:/me:geheim@example.com", "****@example.com"),
        ("me:geheim@example.com", "****@example.com"),
        ("https://exa mple.com", "https://exa mple.com"),
        ("ann@example.com", "ann@example.com"),
        (QUEUE, QUEUE),
    ],
)
def test_the_password_of_an_endpoint_is_not_recorded(endpoint: str, shown: str) -> None:
    request = SubscribeRequest(topic_arn=TOPIC, protocol="https", endpoint=endpoint)
    assert facts.PARAMS["sns:Subscribe"](request)["endpoint"] == shown


# ── Repeated requests ────────────────────────────────────────────────────────────────────────


async def test_the_second_attempt_of_a_publish_gets_the_first_reply(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert SENDS < REPEATABLE
    client = Counted()
    await client.topic()
    headers = attempt(1)
    asked = client.rig.ask

    async def ask(**request: Any) -> Any:
        return await asked(**{**request, "headers": {**request["headers"], **headers}})

    monkeypatch.setattr(client.rig, "ask", ask)
    first = await client.call("Publish", TopicArn=TOPIC, Message="one")
    headers = attempt(2)
    second = await client.call("Publish", TopicArn=TOPIC, Message="one")
    assert first.findtext("PublishResult/MessageId") == second.findtext("PublishResult/MessageId")
    other = await client.call("Publish", TopicArn=TOPIC, Message="another")
    assert other.findtext("PublishResult/MessageId") != first.findtext("PublishResult/MessageId")
    [stored] = [log for log in client.rig.backend.records.values() if log]
    assert [record.message.body for record in stored] == [b"one", b"another"]
