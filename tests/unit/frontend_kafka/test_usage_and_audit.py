"""What Kafka clients use is counted for their tenants, and what they change is noted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.unit.broker.stage import Stage, on_stage
from tests.unit.frontend.counted import Ids, fact_log, records
from tests.unit.frontend_kafka import test_fetch, test_produce
from tests.unit.frontend_kafka.rig import ACCOUNT, REGION, Rig, batch

from penstock.frontend.facts.audit import TOPIC, AuditTrail
from penstock.frontend.facts.usage import UsageTable
from penstock.frontend.kafka import audit
from penstock.frontend.kafka.usage import OPERATIONS, KafkaUsage
from penstock.net.kafka.listener import HangUp
from penstock.wire.facts.audit import AuditRecord, breaks, decode
from penstock.wire.facts.usage import UsageRow
from penstock.wire.kafka.apis import APIS, FETCH, PRODUCE
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.fetch import FetchPartition
from penstock.wire.kafka.generated import (
    alter_client_quotas,
    api_versions,
    create_partitions,
    create_topics,
    delete_records,
    delete_topics,
    elect_leaders,
    incremental_alter_configs,
    metadata,
    sasl_authenticate,
    sasl_handshake,
    unregister_broker,
)
from penstock.wire.kafka.generated import (
    alter_partition_reassignments as reassignments,
)

METADATA, API_VERSIONS, HANDSHAKE, AUTHENTICATE = 3, 18, 17, 36
CREATE, DELETE, DELETE_RECORDS, PARTITIONS, CONFIGS = 19, 20, 21, 37, 44
ELECT, REASSIGN, QUOTAS, UNREGISTER = 43, 45, 49, 64


class CountedRig(Rig):
    def __init__(self, audit: AuditTrail | None = None, **config: Any) -> None:
        super().__init__(**config)
        self.table = UsageTable(now_ms=0)
        self.context.usage = KafkaUsage(self.table, region=REGION)
        self.context.audit = audit

    def used(self) -> dict[tuple[str, str], UsageRow]:
        columns = self.table.take(now_ms=0)[1]
        return {(row.resource, row.op): row for row in columns.rows()}


@asynccontextmanager
async def trail_on(stage: Stage) -> AsyncIterator[AuditTrail]:
    trail = AuditTrail(fact_log(stage, TOPIC, Ids()), node="n1", clock=stage.clock)
    trail.start()
    try:
        yield trail
    finally:
        await trail.stop()


async def noted(stage: Stage) -> list[AuditRecord]:
    """Without the node's own words."""
    values = [record.value or b"" for record in await records(stage, TOPIC)]
    assert not list(breaks(values))
    return [decode(value) for value in values][1:-1]


# ── Usage ────────────────────────────────────────────────────────────────────────────────────


async def test_records_count_with_their_topics_and_requests_once() -> None:
    rig = CountedRig()
    for name in ("a", "b"):
        await rig.topic(name, partitions=2)
    large = batch(b"x" * 200_000)
    await rig.ask(PRODUCE, 9, test_produce.request("a", (0, batch(b"1", b"2")), (1, large)))
    await rig.ask(PRODUCE, 9, test_produce.request("b", (0, batch(b"3"))))
    used = rig.used()
    assert used["", "kafka:Write"].requests == 2
    row = used["a", "kafka:Write"]
    assert (row.tenant, row.region, row.requests) == (ACCOUNT, REGION, 0)
    assert (row.messages, row.bytes_in) == (3, len(batch(b"1", b"2")) + len(large))
    assert row.units64k == 1 + 4
    assert used["b", "kafka:Write"].messages == 1


async def test_what_is_refused_in_a_partition_moves_nothing() -> None:
    rig = CountedRig()
    await rig.topic("a")
    await rig.ask(PRODUCE, 9, test_produce.request("a", (7, batch(b"1"))))
    assert set(rig.used()) == {("", "kafka:Write")}


async def test_fetches_count_what_each_topic_gave() -> None:
    rig = CountedRig()
    first, second = await rig.topic("a", partitions=2), await rig.topic("b")
    rig.partition(first, 0).append(batch(b"1", b"2"))
    rig.partition(first, 1).append(batch(b"3"))
    rig.partition(second).append(batch(b"4"))
    partitions = [FetchPartition(index, 0, 1_000_000) for index in range(2)]
    await rig.ask(FETCH, 12, test_fetch.request("a", *partitions))
    await rig.ask(FETCH, 12, test_fetch.request("b", FetchPartition(0, 1, 1_000_000)))
    used = rig.used()
    row = used["a", "kafka:Read"]
    size = len(batch(b"1", b"2")) + len(batch(b"3"))
    assert (row.messages, row.bytes_out, row.requests) == (3, size, 0)
    assert used["", "kafka:Read"].requests == 2
    assert ("b", "kafka:Read") not in used  # it had nothing new


async def test_other_requests_count_under_what_they_mostly_ask_for() -> None:
    rig = CountedRig()
    await rig.ask(METADATA, 12, metadata.MetadataRequest(topics=None))
    await rig.ask(API_VERSIONS, 3, api_versions.ApiVersionsRequest("c", "1"))
    with pytest.raises(HangUp):
        await rig.frontend.answer(rig.connection, b"\x00\x00")
    used = rig.used()
    assert used["", "kafka:Describe"].requests == 1
    assert used["", "kafka:Connect"].tenant == ""
    assert used["", ""].failed == 1


def test_every_api_has_an_operation() -> None:
    assert set(OPERATIONS) == {api.name for api in APIS.values()}


# ── Audit ────────────────────────────────────────────────────────────────────────────────────


def topic_wanted(name: str, **configs: str) -> create_topics.CreatableTopic:
    return create_topics.CreatableTopic(
        name=name,
        num_partitions=2,
        replication_factor=-1,
        configs=[
            create_topics.CreatableTopicConfig(key.replace("_", "."), value)
            for key, value in configs.items()
        ],
    )


async def test_what_changes_a_topic_is_noted_for_each_topic(tmp_path: Path) -> None:
    async with on_stage(tmp_path) as stage:
        async with trail_on(stage) as trail:
            rig = CountedRig(audit=trail)
            wanted = [topic_wanted("a", retention_ms="5000"), topic_wanted("b"), topic_wanted("/")]
            await rig.ask(CREATE, 7, create_topics.CreateTopicsRequest(topics=wanted))
            dry = create_topics.CreateTopicsRequest(
                topics=[topic_wanted("dry")], validate_only=True
            )
            await rig.ask(CREATE, 7, dry)
            more = create_partitions.CreatePartitionsTopic(name="a", count=5, assignments=None)
            request = create_partitions.CreatePartitionsRequest(topics=[more], timeout_ms=1_000)
            await rig.ask(PARTITIONS, 3, request)
            part = delete_records.DeleteRecordsPartition(0, 0)
            gone = delete_records.DeleteRecordsTopic("a", [part])
            await rig.ask(DELETE_RECORDS, 2, delete_records.DeleteRecordsRequest(topics=[gone]))
            names = delete_topics.DeleteTopicsRequest(topic_names=["b", "b2"])
            await rig.ask(DELETE, 5, names)
        found = await noted(stage)
    prefix = f"arn:aws:sqs:{REGION}:{ACCOUNT}:"
    assert [(r.action, r.resource.removeprefix(prefix), r.outcome) for r in found] == [
        ("kafka:CreateTopic", "a", "ok"),
        ("kafka:CreateTopic", "b", "ok"),
        ("kafka:CreateTopic", "/", "failed"),
        ("kafka:CreatePartitions", "a", "ok"),
        ("kafka:DeleteRecords", "a", "ok"),
        ("kafka:DeleteTopic", "b", "ok"),
        ("kafka:DeleteTopic", "b2", "failed"),
    ]
    assert found[0].params == {"partitions": 2, "configs": {"retention.ms": "5000"}}
    assert found[2].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION.name
    assert found[3].params == {"partitions": 5}
    assert found[4].params == {"before": {"0": 0}}
    assert {r.principal for r in found} == {f"arn:aws:iam::{ACCOUNT}:user/anonymous"}


async def test_moves_elections_and_nodes_are_noted(tmp_path: Path) -> None:
    async with on_stage(tmp_path) as stage:
        async with trail_on(stage) as trail:
            rig = CountedRig(audit=trail)
            await rig.topic("a", partitions=2)
            wanted: list[tuple[int, list[int] | None]] = [(0, [1]), (1, [9]), (2, None)]
            topic = reassignments.ReassignableTopic(
                "a", [reassignments.ReassignablePartition(*one) for one in wanted]
            )
            request = reassignments.AlterPartitionReassignmentsRequest(topics=[topic])
            await rig.ask(REASSIGN, 1, request)
            for partitions in ([0], [0, 7]):
                named = [elect_leaders.TopicPartitions("a", partitions)]
                await rig.ask(ELECT, 2, elect_leaders.ElectLeadersRequest(0, named))
            await rig.ask(UNREGISTER, 0, unregister_broker.UnregisterBrokerRequest(9))
        found = await noted(stage)
    assert [(r.action, r.error_code, r.params) for r in found] == [
        (
            "kafka:AlterPartitionReassignments",
            "INVALID_REPLICA_ASSIGNMENT",
            {"replicas": {"0": "1", "1": "9", "2": "cancelled"}},
        ),
        (
            "kafka:ElectLeaders",
            "UNKNOWN_TOPIC_OR_PARTITION",
            {"election_type": 0, "partitions": [7]},
        ),
        ("kafka:UnregisterBroker", "BROKER_ID_NOT_REGISTERED", {"node": 9}),
    ]


async def test_configs_are_noted_with_what_looks_like_a_secret_hidden(tmp_path: Path) -> None:
    async with on_stage(tmp_path) as stage:
        async with trail_on(stage) as trail:
            rig = CountedRig(audit=trail)
            await rig.topic("a")
            api = incremental_alter_configs
            configs = [
                api.AlterableConfig("retention.ms", 0, "7000"),
                api.AlterableConfig("ssl.keystore.password", 0, "hunter2"),
            ]
            resource = api.AlterConfigsResource(2, "a", configs)
            await rig.ask(CONFIGS, 1, api.IncrementalAlterConfigsRequest([resource]))
        [record] = await noted(stage)
    assert record.action == "kafka:AlterConfigs"
    assert record.params == {
        "configs": {"retention.ms": "7000", "ssl.keystore.password": "(hidden)"}
    }


async def test_quotas_and_configs_of_brokers_are_noted(tmp_path: Path) -> None:
    async with on_stage(tmp_path) as stage:
        async with trail_on(stage) as trail:
            rig = CountedRig(audit=trail)
            api = alter_client_quotas
            wanted = (("ann", "producer_byte_rate", 0.0, True), (None, "foo", 1.0, False))
            entries = [
                api.AlterClientQuotasRequestEntryData(
                    [api.AlterClientQuotasRequestEntityData("user", name)],
                    [api.OpData(key, value, is_removed)],
                )
                for name, key, value, is_removed in wanted
            ]
            await rig.ask(QUOTAS, 1, api.AlterClientQuotasRequest(entries))
            await rig.ask(QUOTAS, 1, api.AlterClientQuotasRequest(entries, validate_only=True))
            configs = incremental_alter_configs
            secret = configs.AlterableConfig("log.dirs", 0, "hunter2")
            resource = configs.AlterConfigsResource(4, "1", [secret])
            await rig.ask(CONFIGS, 1, configs.IncrementalAlterConfigsRequest([resource]))
        found = await noted(stage)
    action = "kafka:AlterClientQuotas"
    assert [(r.action, r.error_code, r.params) for r in found] == [
        (
            action,
            "",
            {"entity": {"user": "ann"}, "quotas": {"producer_byte_rate": "removed"}},
        ),
        (action, "INVALID_REQUEST", {"entity": {"user": "<default>"}, "quotas": {"foo": 1.0}}),
        (
            "kafka:AlterConfigs",
            "INVALID_REQUEST",
            {"configs": ["log.dirs"], "resource": "4/1"},
        ),
    ]


async def test_many_failures_of_one_request_are_counted_and_what_was_done_is_all_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "FAILURES_MAX", 3)
    async with on_stage(tmp_path) as stage:
        async with trail_on(stage) as trail:
            rig = CountedRig(audit=trail)
            for number in range(5):
                await rig.topic(f"t{number}")
            names = [f"no{number}" for number in range(10)] + [f"t{number}" for number in range(5)]
            await rig.ask(DELETE, 5, delete_topics.DeleteTopicsRequest(topic_names=names))
        found = await noted(stage)
    outcomes = [record.outcome for record in found]
    assert outcomes == ["failed"] * 3 + ["ok"] * 6
    assert found[-1].params == {"failures_left_out": 7}


async def test_a_client_that_leaves_in_the_middle_leaves_a_note(tmp_path: Path) -> None:
    async with on_stage(tmp_path) as stage:
        async with trail_on(stage) as trail:
            rig = CountedRig(audit=trail)
            await rig.topic("a")
            under_way = asyncio.Event()

            async def forever(*_args: Any, **_fields: Any) -> Any:
                under_way.set()
                await asyncio.Event().wait()

            rig.catalog.delete = forever  # type: ignore[method-assign]
            request = delete_topics.DeleteTopicsRequest(topic_names=["a"])
            deleting = asyncio.create_task(rig.ask(DELETE, 5, request))
            await under_way.wait()
            deleting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await deleting
        [record] = await noted(stage)
    assert (record.action, record.outcome) == ("kafka:DeleteTopics", "unknown")


async def test_log_ins_are_noted_without_their_passwords(tmp_path: Path) -> None:
    async with on_stage(tmp_path) as stage:
        async with trail_on(stage) as trail:
            rig = CountedRig(audit=trail)
            await rig.ask(HANDSHAKE, 1, sasl_handshake.SaslHandshakeRequest("PLAIN"))
            token = sasl_authenticate.SaslAuthenticateRequest(b"\x00111111111111\x00hunter2")
            await rig.ask(AUTHENTICATE, 2, token)
            strange = CountedRig(audit=trail, is_auth_on=True, login_refusal_ms=0)
            strange.connection.peer = "127.0.0.1"
            await strange.ask(HANDSHAKE, 1, sasl_handshake.SaslHandshakeRequest("PLAIN"))
            await strange.ask(AUTHENTICATE, 2, token)
        allowed, denied = await noted(stage)
    assert (allowed.action, allowed.outcome) == ("kafka:LogIn", "ok")
    assert allowed.tenant == "111111111111"
    assert (denied.outcome, denied.error_code) == ("denied", "SASL_AUTHENTICATION_FAILED")
    assert (denied.principal, denied.source_ip) == ("", "127.0.0.1")
    assert "hunter2" not in repr((allowed, denied))
