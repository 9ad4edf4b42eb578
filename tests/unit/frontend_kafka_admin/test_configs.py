import pytest
from tests.unit.frontend_kafka_admin.stage import GROUP, NODE, NODE_ID, TOPIC, Admin, alter

from penstock.frontend.kafka.configs.broker_configs import BROKER_TABLE
from penstock.frontend.kafka.configs.rows import read_by
from penstock.frontend.kafka.configs.topic_configs import TABLE, row_of
from penstock.frontend.kafka.errors import ApiError
from penstock.model.topic import Fsync, Kind
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.generated.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)

SET, DELETE, APPEND, SUBTRACT = range(4)
DAY_MS = 24 * 3_600_000


# ── The table ────────────────────────────────────────────────────────────────────────────────
def test_every_default_is_a_value_that_could_be_given() -> None:
    for row in TABLE.values():
        if row.default is not None:
            assert read_by(row, row.default) == row.default


@pytest.mark.parametrize(
    ("name", "text", "stored"),
    [
        ("retention.ms", " 5000 ", "5000"),
        ("retention.ms", "-1", "-1"),
        ("retention.ms", "0007", "7"),
        ("cleanup.policy", "compact, delete,compact", "compact,delete"),
        ("preallocate", "TRUE", "true"),
        ("min.cleanable.dirty.ratio", "0.1", "0.1"),
        ("message.timestamp.type", "LogAppendTime", "LogAppendTime"),
        ("compression.type", "zstd", "zstd"),
        ("compression.gzip.level", "-1", "-1"),
        ("compression.gzip.level", "9", "9"),
        ("compression.lz4.level", "17", "17"),
        ("compression.zstd.level", "-131072", "-131072"),
        ("local.retention.ms", "-2", "-2"),
        ("local.retention.bytes", "5", "5"),
        ("remote.storage.enable", "False", "false"),
        ("remote.log.copy.disable", "true", "true"),
        ("remote.log.delete.on.disable", "true", "true"),
        ("leader.replication.throttled.replicas", "0:1, 1:2", "0:1,1:2"),
        ("leader.replication.throttled.replicas", "*", "*"),
        ("follower.replication.throttled.replicas", "", ""),
        ("cleanup.policy", "", ""),
    ],
)
def test_values_are_taken_in_their_plain_form(name: str, text: str, stored: str) -> None:
    assert read_by(row_of(name), text) == stored


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("retention.ms", ""),
        ("retention.ms", "-2"),
        ("retention.ms", "1.5"),
        ("retention.ms", "١"),
        ("retention.ms", "--1"),
        ("retention.ms", "-"),
        ("retention.ms", str(2**63)),
        ("retention.ms", "9" * 5_000),
        ("segment.bytes", str(2**31)),
        ("max.message.bytes", str(16 * 1_048_576 + 1)),
        ("min.insync.replicas", "0"),
        ("min.insync.replicas", "10"),
        ("cleanup.policy", ","),
        ("compression.gzip.level", "0"),
        ("compression.lz4.level", "18"),
        ("compression.zstd.level", "23"),
        ("local.retention.ms", "-3"),
        ("remote.storage.enable", "true"),
        ("leader.replication.throttled.replicas", "x"),
        ("follower.replication.throttled.replicas", "0:1," * 10_000),
        ("cleanup.policy", "delete,"),
        ("cleanup.policy", "truncate"),
        ("preallocate", "yes"),
        ("min.cleanable.dirty.ratio", "nan"),
        ("min.cleanable.dirty.ratio", "1.1"),
        ("message.timestamp.type", "logappendtime"),
        ("compression.type", "brotli"),
        ("penstock.queue", "1"),
        ("penstock.fsync", "sometimes"),
        ("message.format.version", "3.0"),
    ],
)
def test_values_outside_their_range_are_refused_with_the_name(name: str, text: str) -> None:
    with pytest.raises(ApiError, match=name.replace(".", r"\.")) as caught:
        read_by(row_of(name), text)
    assert caught.value.code is ErrorCode.INVALID_CONFIG
    assert len(caught.value.message) < 400


# ── DescribeConfigs ──────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("version", range(1, 5))
async def test_all_configs_of_a_topic_are_shown_in_every_version(
    admin: Admin, version: int
) -> None:
    await admin.create("t", {"retention.ms": "604800000"})
    result = await admin.describe("t", version=version)
    assert (result.error_code, result.error_message) == (ErrorCode.NONE, "")
    assert (result.resource_type, result.resource_name) == (TOPIC, "t")
    shown = {config.name: config for config in result.configs}
    assert list(shown) == sorted(TABLE)
    # Said by the topic, though it is what the default says as well: tools compare the source.
    assert (shown["retention.ms"].value, shown["retention.ms"].config_source) == ("604800000", 1)
    assert (shown["segment.ms"].value, shown["segment.ms"].config_source) == ("604800000", 5)
    assert (shown["penstock.fsync"].value, shown["penstock.fsync"].config_source) == (None, 5)
    assert not any(config.is_sensitive or config.read_only for config in shown.values())
    if version >= 3:
        assert shown["cleanup.policy"].config_type == 7
        assert shown["retention.ms"].config_type == 5
        assert shown["max.message.bytes"].config_type == 3
        assert shown["preallocate"].config_type == 1
        assert shown["min.cleanable.dirty.ratio"].config_type == 6
        assert shown["compression.type"].config_type == 2


async def test_only_the_keys_asked_for_are_shown(admin: Admin) -> None:
    await admin.create("t")
    result = await admin.describe("t", ["segment.bytes", "no.such", "flush.ms"])
    assert [config.name for config in result.configs] == ["flush.ms", "segment.bytes"]
    assert len((await admin.describe("t", [])).configs) == len(TABLE)


async def test_synonyms_and_documentation_come_when_asked_for(admin: Admin) -> None:
    await admin.create("t", {"retention.ms": "5"})
    plain = await admin.config("t", "retention.ms")
    assert (plain.synonyms, plain.documentation) == ((), None)
    full = await admin.config(
        "t", "retention.ms", include_synonyms=True, include_documentation=True
    )
    assert [(s.name, s.value, s.source) for s in full.synonyms] == [
        ("retention.ms", "5", 1),
        ("log.retention.ms", str(7 * DAY_MS), 5),
    ]
    assert "after which records are deleted" in (full.documentation or "")


async def test_the_node_shows_what_tools_look_up(admin: Admin) -> None:
    result = await admin.describe(str(NODE_ID), of=NODE)
    shown = {config.name: config for config in result.configs}
    assert len(shown) == len(result.configs)
    expected = {
        "advertised.listeners": "PLAINTEXT://127.0.0.1:9092",
        "auto.create.topics.enable": "true",
        "default.replication.factor": "1",
        "log.retention.ms": str(7 * DAY_MS),
        "message.max.bytes": "1048588",
        "node.id": str(NODE_ID),
        "num.partitions": "3",
        "offsets.topic.replication.factor": "1",
    }
    assert {name: shown[name].value for name in expected} == expected
    fixed = {name for name, config in shown.items() if config.read_only}
    assert fixed.isdisjoint(BROKER_TABLE)
    assert fixed >= {"log.dirs", "node.id", "listeners", "transaction.max.timeout.ms"}
    assert {config.config_source for config in shown.values()} == {4, 5}


async def test_nothing_is_set_for_all_nodes_and_other_nodes_are_unknown(admin: Admin) -> None:
    assert (await admin.describe("", of=NODE)).configs == ()
    for name in ("99", "x"):
        assert (await admin.describe(name, of=NODE)).error_code == ErrorCode.INVALID_REQUEST


async def test_what_has_no_configs_is_told_apart(admin: Admin) -> None:
    assert (await admin.describe("none")).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert (await admin.describe("a b")).error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert (await admin.describe("", of=GROUP)).error_code == ErrorCode.INVALID_REQUEST
    for resource_type in (0, 3, 8):
        result = await admin.describe("1", of=resource_type)
        assert result.error_code == ErrorCode.INVALID_REQUEST
        assert result.resource_type == resource_type


# ── AlterConfigs ─────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("version", range(3))
async def test_altering_replaces_all_configs_in_every_version(admin: Admin, version: int) -> None:
    await admin.create("t", {"retention.ms": "5", "flush.ms": "6", "penstock.fsync": "never"})
    assert await admin.replace("t", {"flush.ms": "7"}, version=version) == (0, None)
    assert admin.stored("t").configs == {"flush.ms": "7"}
    assert admin.stored("t").fsync is None


async def test_altering_is_all_or_nothing(admin: Admin) -> None:
    await admin.create("t", {"retention.ms": "5"})
    before = admin.stored("t")
    code, message = await admin.replace("t", {"flush.ms": "7", "segment.ms": "x"})
    assert code == ErrorCode.INVALID_CONFIG
    assert "segment.ms" in (message or "")
    assert await admin.replace("t", {"flush.ms": "7"}, is_dry=True) == (0, None)
    assert admin.stored("t") == before


async def test_a_queue_stays_one_when_its_configs_are_replaced(admin: Admin) -> None:
    await admin.create("q", {"penstock.queue": "true", "retention.ms": "90000"})
    assert await admin.replace("q", {"flush.ms": "7"}) == (0, None)
    topic = admin.stored("q")
    assert topic.kind is Kind.STANDARD
    assert topic.settings.retention_ms == 90_000


async def test_other_nodes_and_unknown_resources_cannot_be_altered(admin: Admin) -> None:
    for resource_type, name in ((NODE, "99"), (NODE, "x"), (8, str(NODE_ID)), (3, "x")):
        code, message = await admin.replace(name, {"a": "b"}, of=resource_type)
        assert code == ErrorCode.INVALID_REQUEST
        assert message
    code, _ = await admin.replace("none", {})
    assert code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_the_topics_of_the_node_cannot_be_altered(admin: Admin) -> None:
    before = await admin.create_internal("__groups")
    code, _ = await admin.replace("__groups", {"retention.ms": "1"})
    assert code == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert admin.stored("__groups") == before
    assert (await admin.describe("__groups")).error_code == ErrorCode.NONE


# ── IncrementalAlterConfigs ──────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("version", range(2))
async def test_single_configs_are_set_and_unset_in_every_version(
    admin: Admin, version: int
) -> None:
    await admin.create("t", {"retention.ms": "5", "flush.ms": "6"})
    admin.clock.wall += 9
    code, message = await alter(
        admin,
        "t",
        ("segment.ms", SET, "7"),
        ("retention.ms", DELETE, None),
        ("penstock.fsync", SET, "interval"),
        version=version,
    )
    assert (code, message) == (ErrorCode.NONE, None)
    topic = admin.stored("t")
    assert topic.configs == {"flush.ms": "6", "segment.ms": "7"}
    assert topic.fsync is Fsync.INTERVAL
    assert topic.modified_at_ms == admin.clock.wall
    await alter(admin, "t", ("penstock.fsync", DELETE, None))
    assert admin.stored("t").fsync is None


async def test_lists_are_added_to_and_taken_from(admin: Admin) -> None:
    await admin.create("t")
    await alter(admin, "t", ("cleanup.policy", APPEND, "compact"))
    assert admin.stored("t").configs == {"cleanup.policy": "delete,compact"}
    await alter(admin, "t", ("cleanup.policy", APPEND, "compact"))
    await alter(admin, "t", ("cleanup.policy", SUBTRACT, "delete"))
    assert admin.stored("t").configs == {"cleanup.policy": "compact"}
    code, _ = await alter(admin, "t", ("cleanup.policy", APPEND, "shred"))
    assert code == ErrorCode.INVALID_CONFIG
    code, _ = await alter(admin, "t", ("retention.ms", APPEND, "1"))
    assert code == ErrorCode.INVALID_CONFIG
    assert admin.stored("t").configs == {"cleanup.policy": "compact"}
    await alter(admin, "t", ("cleanup.policy", SUBTRACT, "compact"))
    assert admin.stored("t").configs == {"cleanup.policy": ""}
    await alter(admin, "t", ("cleanup.policy", APPEND, "compact"))
    assert admin.stored("t").configs == {"cleanup.policy": "compact"}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (("retention.ms", SET, None), ErrorCode.INVALID_CONFIG),
        (("no.such", SET, "1"), ErrorCode.INVALID_CONFIG),
        (("no.such", DELETE, None), ErrorCode.INVALID_CONFIG),
        (("cleanup.policy", APPEND, None), ErrorCode.INVALID_CONFIG),
        (("retention.ms", 4, "1"), ErrorCode.INVALID_REQUEST),
        (("min.compaction.lag.ms", SET, "11"), ErrorCode.INVALID_CONFIG),
    ],
)
async def test_a_change_that_cannot_be_is_refused(
    admin: Admin, change: tuple[str, int, str | None], expected: ErrorCode
) -> None:
    await admin.create("t", {"max.compaction.lag.ms": "10"})
    code, message = await alter(admin, "t", change)
    assert code == expected
    assert message
    assert admin.stored("t").configs == {"max.compaction.lag.ms": "10"}


async def test_the_same_thing_is_changed_once_per_request(admin: Admin) -> None:
    await admin.create("t")
    code, _ = await alter(admin, "t", ("flush.ms", SET, "1"), ("flush.ms", SET, "2"))
    assert code == ErrorCode.INVALID_REQUEST
    resource = AlterConfigsResource(TOPIC, "t", (AlterableConfig("flush.ms", SET, "1"),))
    response = await admin.ask(44, IncrementalAlterConfigsRequest((resource, resource)))
    assert [r.error_code for r in response.responses] == [ErrorCode.INVALID_REQUEST] * 2
    assert admin.stored("t").configs == {}


async def test_an_incremental_dry_run_changes_nothing(admin: Admin) -> None:
    await admin.create("t")
    code, _ = await alter(admin, "t", ("flush.ms", SET, "1"), is_dry=True)
    assert code == ErrorCode.NONE
    code, _ = await alter(admin, "t", ("flush.ms", SET, "x"), is_dry=True)
    assert code == ErrorCode.INVALID_CONFIG
    assert admin.stored("t").configs == {}


# ── Streams that become queues ───────────────────────────────────────────────────────────────
async def test_a_stream_is_opened_as_a_queue_and_keeps_its_retention(admin: Admin) -> None:
    await admin.create("t", {"retention.ms": "86400000", "segment.ms": "9"})
    before = admin.stored("t")
    assert (await admin.config("t", "penstock.queue")).value == "false"
    code, _ = await alter(admin, "t", ("penstock.queue", SET, "true"))
    assert code == ErrorCode.NONE
    after = admin.stored("t")
    assert (after.kind, after.topic_id) == (Kind.STANDARD, before.topic_id)
    assert after.settings.retention_ms == DAY_MS
    assert after.configs == {"segment.ms": "9"}
    for name, value in (
        ("penstock.queue", "true"),
        ("retention.ms", "86400000"),
        ("message.timestamp.type", "LogAppendTime"),
    ):
        assert (await admin.config("t", name)).value == value


async def test_a_queue_is_never_turned_back(admin: Admin) -> None:
    await admin.create_queue("q")
    for change in (("penstock.queue", SET, "false"), ("penstock.queue", DELETE, None)):
        code, message = await alter(admin, "q", change)
        assert code == ErrorCode.INVALID_CONFIG
        assert "queue" in (message or "")
    code, _ = await alter(admin, "q", ("penstock.queue", SET, "true"))
    assert code == ErrorCode.NONE
    assert admin.stored("q").kind is Kind.STANDARD


@pytest.mark.parametrize("name", ["a.b", "q.fifo", "x" * 81])
async def test_a_name_that_no_queue_can_have_stays_a_stream(admin: Admin, name: str) -> None:
    await admin.create(name)
    code, message = await alter(admin, name, ("penstock.queue", SET, "true"))
    assert code == ErrorCode.INVALID_CONFIG
    assert "name" in (message or "")
    assert admin.stored(name).kind is Kind.STREAM


async def test_more_partitions_than_a_queue_has_stay_a_stream(admin: Admin) -> None:
    await admin.create("t", partitions=65)
    code, message = await alter(admin, "t", ("penstock.queue", SET, "true"))
    assert code == ErrorCode.INVALID_CONFIG
    assert "65" in (message or "")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("cleanup.policy", "compact"),
        ("cleanup.policy", "compact,delete"),
        ("retention.bytes", "1000"),
        ("retention.ms", "-1"),
        ("retention.ms", "59000"),
        ("retention.ms", "60500"),
        ("retention.ms", str(15 * DAY_MS)),
        ("message.timestamp.type", "CreateTime"),
    ],
)
async def test_what_a_queue_cannot_do_is_refused_before_and_after(
    admin: Admin, name: str, value: str
) -> None:
    await admin.create("t", {name: value})
    code, message = await alter(admin, "t", ("penstock.queue", SET, "true"))
    assert code == ErrorCode.INVALID_CONFIG
    assert name in (message or "")
    assert admin.stored("t").kind is Kind.STREAM
    await admin.create_queue("q")
    before = admin.stored("q")
    code, _ = await alter(admin, "q", (name, SET, value))
    assert code == ErrorCode.INVALID_CONFIG
    assert admin.stored("q") == before


async def test_the_retention_of_a_queue_is_set_through_its_config(admin: Admin) -> None:
    await admin.create_queue("q")
    assert (await admin.config("q", "retention.ms")).value == "120000"
    code, _ = await alter(admin, "q", ("retention.ms", SET, "60000"))
    assert code == ErrorCode.NONE
    assert admin.stored("q").settings.retention_ms == 60_000
    assert admin.stored("q").configs == {}
    await alter(admin, "q", ("retention.ms", DELETE, None))
    assert admin.stored("q").settings.retention_ms == 4 * DAY_MS
