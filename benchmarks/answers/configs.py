"""Configs, client quotas, users."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from benchmarks.answers.question import Fields, Question

TOPIC, BROKER, LOGGER, METRICS, GROUP = 2, 4, 8, 16, 32
SET, DELETE, APPEND = 0, 1, 2
BROKER_NAMES: Final = (
    "default.replication.factor",
    "log.cleaner.backoff.ms",
    "log.retention.ms",
    "message.max.bytes",
    "min.insync.replicas",
    "num.partitions",
    "offsets.topic.num.partitions",
    "offsets.topic.replication.factor",
    "transaction.max.timeout.ms",
)
OVERRIDES: Final = "max.connections.per.ip.overrides"
THROTTLE: Final = "leader.replication.throttled.rate"
ISOLATION: Final = "share.isolation.level"
GROUP_NAMES: Final = (
    "consumer.session.timeout.ms",
    "consumer.heartbeat.interval.ms",
    "consumer.assignment.interval.ms",
    "share.session.timeout.ms",
    "share.delivery.count.limit",
    "share.partition.max.record.locks",
    "share.renew.acknowledge.enable",
    "streams.session.timeout.ms",
    "streams.num.standby.replicas",
    "streams.initial.rebalance.delay.ms",
)


def configs(nodes: int) -> Iterator[Question]:
    def describe(note: str, kind: int, name: str, keys: Any = None) -> Question:
        one = {"resource_type": kind, "resource_name": name, "configuration_keys": keys}
        fields = {"resources": [one], "include_synonyms": True}
        return Question("DescribeConfigs", 4, fields, note=note)

    def alter(note: str, kind: int, name: str, *changes: tuple[str, int, str | None]) -> Question:
        configs = [
            {"name": key, "config_operation": operation, "value": value}
            for key, operation, value in changes
        ]
        one = {"resource_type": kind, "resource_name": name, "configs": configs}
        return Question("IncrementalAlterConfigs", 1, {"resources": [one]}, at=1, note=note)

    yield describe("topic", TOPIC, "t")
    yield describe("unknown topic", TOPIC, "no")
    for note, change in (
        ("set", ("retention.ms", SET, "1000")),
        ("bad value", ("retention.ms", SET, "soon")),
        ("unknown", ("no.such", SET, "1")),
        ("delete", ("retention.ms", DELETE, None)),
        ("append to a number", ("retention.ms", APPEND, "1")),
        ("kept", ("compression.zstd.level", SET, "4")),
        ("kept", ("local.retention.ms", SET, "1000")),
        ("no remote storage", ("remote.storage.enable", SET, "false")),
        ("remote storage", ("remote.storage.enable", SET, "true")),
        ("throttled", ("leader.replication.throttled.replicas", SET, "0:1")),
        ("no policy", ("cleanup.policy", SET, "")),
    ):
        yield alter(f"topic, {change[0]}, {note}", TOPIC, "t", change)
    yield alter("topic, same name twice", TOPIC, "t", *[("retention.ms", SET, "1")] * 2)
    yield alter("unknown topic", TOPIC, "no", ("retention.ms", SET, "1"))
    yield describe("topic, after changes", TOPIC, "t")
    if nodes == 1:
        yield describe("broker", BROKER, "1", list(BROKER_NAMES))
    yield describe("another broker", BROKER, "9")
    for name in ("1", ""):
        yield alter("broker, set", BROKER, name, ("log.retention.ms", SET, "3600000"))
        yield alter("broker, unknown", BROKER, name, ("no.such", SET, "1"))
        yield describe("broker, after changes", BROKER, name, ["log.retention.ms", "no.such"])
        yield alter("broker, read-only", BROKER, name, ("log.dirs", SET, "/x"))
        yield alter("broker, bad value", BROKER, name, ("log.retention.ms", SET, "soon"))
        yield alter("broker, null", BROKER, name, ("log.retention.ms", SET, None))
        yield alter("broker, append to a number", BROKER, name, ("log.retention.ms", APPEND, "1"))
        yield alter("broker, in sync", BROKER, name, ("min.insync.replicas", SET, "1"))
        yield alter("broker, overrides", BROKER, name, (OVERRIDES, SET, "127.0.0.1:9"))
        yield alter("broker, bad overrides", BROKER, name, (OVERRIDES, SET, "127.0.0.1"))
        yield alter("broker, overrides by host", BROKER, name, (OVERRIDES, SET, "localhost:9"))
        yield alter("broker, no overrides", BROKER, name, (OVERRIDES, DELETE, None))
        yield alter("broker, throttle", BROKER, name, (THROTTLE, SET, "1000"))
        yield alter("broker, no throttle", BROKER, name, (THROTTLE, DELETE, None))
        yield alter("broker, delete", BROKER, name, ("log.retention.ms", DELETE, None))
        yield alter("broker, delete unset", BROKER, name, ("log.segment.bytes", DELETE, None))
    yield alter("another broker", BROKER, "9", ("log.retention.ms", SET, "1"))
    yield alter("no broker", BROKER, "x", ("log.retention.ms", SET, "1"))
    yield alter("metrics", METRICS, "m", ("interval.ms", SET, "5000"))
    yield describe("metrics", METRICS, "m")
    for note, change in (
        ("too short", ("interval.ms", SET, "10")),
        ("no number", ("interval.ms", SET, "soon")),
        ("unknown", ("no.such", SET, "1")),
        ("bad match", ("match", SET, "bad")),
        ("match", ("match", SET, "client_id=a")),
    ):
        yield alter(f"metrics, {note}", METRICS, "m", change)
    yield alter("metrics without a name", METRICS, "", ("interval.ms", SET, "5000"))
    yield describe("metrics without a name", METRICS, "")
    yield alter("root logger, delete", LOGGER, "1", ("root", DELETE, None))
    yield alter("logger, unknown", LOGGER, "1", ("no.such.logger", SET, "DEBUG"))
    for name in GROUP_NAMES:
        yield alter(f"group, {name}", GROUP, "g", (name, SET, "7"))
    yield alter("group, read_committed", GROUP, "g", (ISOLATION, SET, "read_committed"))
    yield alter("group, unknown", GROUP, "g", ("no.such", SET, "1"))
    yield describe("group", GROUP, "g")
    for version, types in ((0, None), (1, []), (1, [GROUP]), (1, [TOPIC, BROKER]), (1, [99])):
        fields = {} if types is None else {"resource_types": types}
        yield Question("ListConfigResources", version, fields, note=f"types {types}")


def quotas() -> Iterator[Question]:
    def alter(note: str, entity: Fields, **ops: float | None) -> Question:
        return changed(note, entity, ops)

    def changed(
        note: str, entity: Fields, ops: Mapping[str, float | None], *, dry: bool = False
    ) -> Question:
        changes = [
            {"key": key, "value": value or 0.0, "remove": value is None}
            for key, value in ops.items()
        ]
        parts = [{"entity_type": kind, "entity_name": name} for kind, name in entity.items()]
        fields = {"entries": [{"entity": parts, "ops": changes}], "validate_only": dry}
        return Question("AlterClientQuotas", 1, fields, at=1, note=note)

    def describe(
        note: str, *filters: tuple[str, int, str | None], strict: bool = False
    ) -> Question:
        parts = [
            {"entity_type": kind, "match_type": how, "match": name} for kind, how, name in filters
        ]
        fields = {"components": parts, "strict": strict}
        return Question("DescribeClientQuotas", 1, fields, note=note)

    ann: Fields = {"user": "ann"}
    yield alter("user", ann, producer_byte_rate=1e6)
    yield alter("user and client", {**ann, "client-id": "app"}, consumer_byte_rate=1e6)
    yield alter("default user", {"user": None}, request_percentage=50.0)
    yield alter("address", {"ip": "127.0.0.1"}, connection_creation_rate=1e6)
    yield changed("only checked", {"user": "bob"}, {"producer_byte_rate": 1.0}, dry=True)
    yield alter("unknown key", ann, no_such=1.0)
    yield alter("key of addresses", ann, connection_creation_rate=1.0)
    yield alter("unknown type", {"group": "g"}, producer_byte_rate=1.0)
    yield alter("no entity", {}, producer_byte_rate=1.0)
    yield alter("empty name", {"user": ""}, producer_byte_rate=1.0)
    yield alter("address and user", {"ip": "127.0.0.1", "user": "ann"}, producer_byte_rate=1.0)
    yield alter("negative", ann, producer_byte_rate=-1.0)
    yield alter("fraction", ann, producer_byte_rate=1.5)
    yield alter("too large", ann, producer_byte_rate=1e19)
    yield alter("remove unset", {"user": "bob"}, producer_byte_rate=None)
    yield describe("user", ("user", 0, "ann"), strict=True)
    yield describe("user and any client", ("user", 0, "ann"), ("client-id", 2, None))
    yield describe("default user", ("user", 1, None))
    yield describe("addresses", ("ip", 2, None))
    yield describe("nothing, strict", strict=True)
    yield describe("unknown type", ("no.such", 2, None))
    yield describe("unknown match", ("user", 9, None))
    yield describe("exact without a name", ("user", 0, None))
    yield describe("address and user", ("ip", 2, None), ("user", 2, None))
    for entity, key in (
        (ann, "producer_byte_rate"),
        ({**ann, "client-id": "app"}, "consumer_byte_rate"),
        ({"user": None}, "request_percentage"),
        ({"ip": "127.0.0.1"}, "connection_creation_rate"),
    ):
        yield changed("remove", entity, {key: None})
    yield describe("all, after removing")


def users() -> Iterator[Question]:
    def change(note: str, name: str, salt: bytes, iterations: int = 4_096) -> Question:
        one = {"name": name, "mechanism": 1, "iterations": iterations, "salt": salt}
        fields = {"upsertions": [{**one, "salted_password": b"p" * 32}], "deletions": []}
        return Question("AlterUserScramCredentials", 0, fields, at=1, note=note)

    for note, name, salt, iterations in (
        ("plain", "ann", b"12345678", 4_096),
        ("salt of 4 bytes", "short", b"1234", 4_096),
        ("no salt", "bare", b"", 4_096),
        ("name with a space", "a b", b"12345678", 4_096),
        ("name outside ASCII", "ü", b"12345678", 4_096),
        ("long name", "x" * 100, b"12345678", 4_096),
        ("empty name", "", b"12345678", 4_096),
        ("too few iterations", "few", b"12345678", 4_095),
        ("too many iterations", "many", b"12345678", 16_385),
    ):
        yield change(note, name, salt, iterations)
    yield Question("DescribeUserScramCredentials", 0, {"users": None})
    entity = [{"entity_type": "user", "entity_name": "ann"}]
    for note, key, value, entities in (
        ("set", "producer_byte_rate", 1_000.0, entity),
        ("default", "producer_byte_rate", 1_000.0, [{**entity[0], "entity_name": None}]),
        ("unknown key", "no_such", 1.0, entity),
        ("zero", "producer_byte_rate", 0.0, entity),
        ("unknown entity", "producer_byte_rate", 1.0, [{**entity[0], "entity_type": "no"}]),
        ("no entity", "producer_byte_rate", 1.0, []),
    ):
        ops = [{"key": key, "value": value, "remove": False}]
        fields = {"entries": [{"entity": entities, "ops": ops}], "validate_only": False}
        yield Question("AlterClientQuotas", 1, fields, at=1, note=note)
    part = {"entity_type": "user", "match_type": 2, "match": None}
    yield Question("DescribeClientQuotas", 1, {"components": [part], "strict": False})
    rule = {
        "resource_type": 2,
        "resource_name": "t",
        "resource_pattern_type": 3,
        "host": "*",
        "principal": "User:*",
        "operation": 3,
        "permission_type": 2,
    }
    yield Question("CreateAcls", 3, {"creations": [rule]}, at=1)
    found = {"resource_type_filter": 1, "pattern_type_filter": 1, "operation": 1}
    found["permission_type"] = 1
    yield Question("DescribeAcls", 3, found)
    yield Question("DeleteAcls", 3, {"filters": [found]}, at=1)
    yield Question("CreateDelegationToken", 3, {"renewers": [], "max_lifetime_ms": -1}, at=1)
    yield Question("RenewDelegationToken", 2, {"hmac": b"none", "renew_period_ms": -1}, at=1)
    yield Question("ExpireDelegationToken", 2, {"hmac": b"none", "expiry_time_period_ms": -1}, at=1)
    yield Question("DescribeDelegationToken", 3, {"owners": None})
