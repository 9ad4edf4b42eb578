"""Configs of brokers, loggers and client metrics through the codecs, on a real store."""

import logging
from pathlib import Path

import pytest
from tests.unit.frontend_kafka_admin.stage import NODE, NODE_ID, Admin, admin_on, alter

from penstock.frontend.kafka.configs.broker_configs import (
    BROKER_TABLE,
    OVERRIDES_MAX,
    TOPIC_NAMES,
    is_read_only,
)
from penstock.frontend.kafka.configs.rows import read_by
from penstock.frontend.kafka.configs.topic_configs import TABLE
from penstock.metadata.topics.resource_configs import BROKER
from penstock.model.levels import BROKER_CONFIGS_STORED
from penstock.model.stream import settings_of
from penstock.wire.kafka.faults import ErrorCode

SET, DELETE, APPEND, SUBTRACT = range(4)
LOGGER, METRICS = 8, 16
ME, ALL = str(NODE_ID), ""
OK = (ErrorCode.NONE, None)
MANY_ADDRESSES = ",".join(f"10.0.{n // 256}.{n % 256}:5" for n in range(OVERRIDES_MAX + 1))


async def shown(
    admin: Admin, name: str, key: str, *, of: int = NODE
) -> tuple[str | None, int, list[tuple[str, str | None, int]]]:
    """Value, source and synonyms of a config."""
    (entry,) = (await admin.describe(name, [key], of=of, include_synonyms=True)).configs
    return entry.value, entry.config_source, [(s.name, s.value, s.source) for s in entry.synonyms]


# ── The table ────────────────────────────────────────────────────────────────────────────────
def test_every_default_of_a_broker_is_a_value_that_could_be_given() -> None:
    for row in BROKER_TABLE.values():
        if row.default is not None:
            assert read_by(row, row.default) == row.default


def test_every_default_of_topics_can_be_changed() -> None:
    names = {row.node_name for row in TABLE.values() if row.node_name is not None}
    assert names == set(TOPIC_NAMES) <= set(BROKER_TABLE)
    assert not any(map(is_read_only, BROKER_TABLE))


# ── Setting and showing ──────────────────────────────────────────────────────────────────────
async def test_one_broker_wins_over_all_and_both_are_shown(admin: Admin) -> None:
    week_ms = str(7 * 24 * 3_600_000)
    name = "log.retention.ms"
    assert await alter(admin, ALL, (name, SET, "2000"), of=NODE) == OK
    assert await shown(admin, ME, name) == ("2000", 3, [(name, "2000", 3), (name, week_ms, 5)])
    assert await alter(admin, ME, (name, SET, "1000"), of=NODE) == OK
    chain = [(name, "1000", 2), (name, "2000", 3), (name, week_ms, 5)]
    assert await shown(admin, ME, name) == ("1000", 2, chain)
    assert await shown(admin, ALL, name) == ("2000", 3, [(name, "2000", 3)])
    assert await alter(admin, ME, (name, DELETE, None), of=NODE) == OK
    assert await alter(admin, ALL, (name, DELETE, None), of=NODE) == OK
    assert await shown(admin, ME, name) == (week_ms, 5, [(name, week_ms, 5)])
    assert (await admin.describe(ALL, of=NODE)).configs == ()


async def test_a_topic_shows_and_gets_the_default_unless_it_has_a_value(admin: Admin) -> None:
    await admin.create("plain")
    await admin.create("own", {"retention.ms": "7"})
    await alter(admin, ALL, ("log.retention.ms", SET, "2000"), of=NODE)
    week_ms = str(7 * 24 * 3_600_000)
    chain = [("log.retention.ms", "2000", 3), ("log.retention.ms", week_ms, 5)]
    assert await shown(admin, "plain", "retention.ms", of=2) == ("2000", 3, chain)
    assert await shown(admin, "own", "retention.ms", of=2) == (
        "7",
        1,
        [("retention.ms", "7", 1), *chain],
    )
    defaults = admin.context.defaults
    assert settings_of(admin.stored("plain"), defaults).retention_ms == 2_000
    assert settings_of(admin.stored("own"), defaults).retention_ms == 7


async def test_topics_of_the_node_and_the_nature_of_queues_do_not_follow(admin: Admin) -> None:
    internal = await admin.create_internal("__groups")
    queue = await admin.create_queue("q")
    changes = (
        ("log.retention.ms", SET, "1"),
        ("log.cleanup.policy", SET, "compact"),
        ("log.retention.bytes", SET, "1"),
        ("log.message.timestamp.type", SET, "CreateTime"),
        ("message.max.bytes", SET, "99"),
    )
    assert await alter(admin, ALL, *changes, of=NODE) == OK
    assert settings_of(internal, admin.context.defaults) == settings_of(internal)
    settings = settings_of(queue, admin.context.defaults)
    assert (settings.retention_ms, settings.retention_bytes) == (120_000, None)
    assert (settings.is_compacted, settings.is_deleted) == (False, True)
    assert settings.is_append_time
    assert settings.message_bytes_max == 99
    for name, value in (("cleanup.policy", "delete"), ("retention.bytes", "-1")):
        assert (await shown(admin, "q", name, of=2))[0] == value
        assert (await shown(admin, "__groups", name, of=2))[1] == 5


async def test_a_stream_that_becomes_a_queue_keeps_the_default_retention(admin: Admin) -> None:
    await admin.create("t")
    await alter(admin, ALL, ("log.retention.ms", SET, "86400000"), of=NODE)
    assert await alter(admin, "t", ("penstock.queue", SET, "true")) == OK
    assert admin.stored("t").settings.retention_ms == 86_400_000
    await admin.create("u")
    await alter(admin, ALL, ("log.retention.ms", SET, "-1"), of=NODE)
    code, message = await alter(admin, "u", ("penstock.queue", SET, "true"))
    assert code == ErrorCode.INVALID_CONFIG
    assert "retention.ms" in (message or "")


async def test_lists_of_brokers_are_added_to_and_taken_from(admin: Admin) -> None:
    name = "log.cleanup.policy"
    assert await alter(admin, ME, (name, APPEND, "compact"), of=NODE) == OK
    assert (await shown(admin, ME, name))[:2] == ("delete,compact", 2)
    assert await alter(admin, ME, (name, SUBTRACT, "delete"), of=NODE) == OK
    assert (await shown(admin, ME, name))[0] == "compact"
    code, _ = await alter(admin, ME, ("log.retention.ms", APPEND, "1"), of=NODE)
    assert code == ErrorCode.INVALID_CONFIG


async def test_an_unknown_name_is_kept_and_never_shown_with_its_value(admin: Admin) -> None:
    assert await alter(admin, ALL, ("my.secret", SET, "s3cret"), of=NODE) == OK
    assert admin.context.dynamic.of_all == {"my.secret": "s3cret"}
    for name in (ME, ALL):
        (entry,) = (
            await admin.describe(name, ["my.secret"], of=NODE, include_synonyms=True)
        ).configs
        assert (entry.value, entry.is_sensitive, entry.read_only) == (None, True, True)
        assert (entry.config_source, entry.config_type) == (3, 0)
        assert [(s.value, s.source) for s in entry.synonyms] == [(None, 3)]


async def test_replacing_takes_away_what_is_not_given(admin: Admin) -> None:
    await alter(admin, ME, ("log.retention.ms", SET, "5"), ("x", SET, "y"), of=NODE)
    assert await admin.replace(ME, {"log.roll.ms": "9"}, of=NODE) == OK
    assert admin.context.dynamic.own == {"log.roll.ms": "9"}
    assert await admin.replace(ME, {}, of=NODE) == OK
    assert admin.context.dynamic.own == {}


@pytest.mark.parametrize("name", [ME, ALL])
async def test_deleting_what_is_not_set_is_no_error(admin: Admin, name: str) -> None:
    for key in ("log.retention.ms", "never.set", "log.dirs", "leader.replication.throttled.rate"):
        assert await alter(admin, name, (key, DELETE, None), of=NODE) == OK


async def test_names_that_need_a_restart_are_refused_all_at_once(admin: Admin) -> None:
    for name in (ME, ALL):
        assert await alter(admin, name, ("log.dirs", SET, "x"), of=NODE) == (
            ErrorCode.INVALID_REQUEST,
            "Cannot update these configs dynamically: [log.dirs]",
        )
    changes = (
        ("log.retention.ms", SET, "5"),
        ("num.partitions", SET, "5"),
        ("listener.name.x.ssl.keystore.password", SET, "p"),
    )
    code, message = await alter(admin, ME, *changes, of=NODE)
    assert code == ErrorCode.INVALID_REQUEST
    assert "[num.partitions, listener.name.x.ssl.keystore.password]" in (message or "")
    assert admin.context.dynamic.own == {}
    assert (await admin.replace(ME, {"log.dirs": "x"}, of=NODE))[0] == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize(
    ("name", "key", "value", "code"),
    [
        (ME, "log.retention.ms", "abc", ErrorCode.INVALID_REQUEST),
        (ME, "log.retention.ms", None, ErrorCode.INVALID_REQUEST),
        (ME, "log.retention.ms", "-5", ErrorCode.INVALID_REQUEST),
        (ME, "max.connections", "0", ErrorCode.INVALID_REQUEST),
        (ME, "max.connections.per.ip.overrides", "10.0.0.1", ErrorCode.INVALID_REQUEST),
        (ME, "max.connections.per.ip.overrides", "10.0.0.1:x", ErrorCode.INVALID_REQUEST),
        (ME, "max.connections.per.ip.overrides", "localhost:5", ErrorCode.INVALID_REQUEST),
        (ME, "max.connections.per.ip.overrides", MANY_ADDRESSES, ErrorCode.INVALID_REQUEST),
        (ME, "leader.replication.throttled.rate", "abc", ErrorCode.INVALID_REQUEST),
        (ME, "min.insync.replicas", "1", ErrorCode.INVALID_CONFIG),
        (ALL, "min.insync.replicas", "0", ErrorCode.INVALID_REQUEST),
        (ALL, "log.cleaner.min.compaction.lag.ms", "11", ErrorCode.INVALID_CONFIG),
        ("99", "log.retention.ms", "5", ErrorCode.INVALID_REQUEST),
        ("x", "log.retention.ms", "5", ErrorCode.INVALID_REQUEST),
    ],
)
async def test_a_bad_value_changes_nothing(
    admin: Admin, name: str, key: str, value: str | None, code: ErrorCode
) -> None:
    await alter(admin, ALL, ("log.cleaner.max.compaction.lag.ms", SET, "10"), of=NODE)
    before = dict(admin.context.dynamic.of_all)
    found, message = await alter(admin, name, (key, SET, value), of=NODE)
    assert found == code
    assert message
    assert admin.context.dynamic.of_all == before
    assert not admin.context.dynamic.own


async def test_a_dry_run_changes_nothing(admin: Admin) -> None:
    assert await alter(admin, ALL, ("log.retention.ms", SET, "5"), of=NODE, is_dry=True) == OK
    assert admin.context.dynamic.of_all == {}


async def test_what_was_set_is_there_after_a_restart(tmp_path: Path) -> None:
    async with admin_on(tmp_path) as admin:
        await alter(
            admin, ALL, ("log.retention.ms", SET, "5"), ("max.connections", SET, "9"), of=NODE
        )
        await alter(admin, ME, ("log.retention.ms", SET, "6"), of=NODE)
        await alter(admin, "s", ("interval.ms", SET, "1000"), of=METRICS)
    async with admin_on(tmp_path) as admin:
        assert (await shown(admin, ME, "log.retention.ms"))[:2] == ("6", 2)
        assert (await shown(admin, ME, "max.connections"))[:2] == ("9", 3)
        assert (await shown(admin, "s", "interval.ms", of=METRICS))[:2] == ("1000", 7)
        assert admin.context.defaults.settings.retention_ms == 6


async def test_the_longest_retention_of_any_broker_counts_for_data_keys(admin: Admin) -> None:
    topic = (await admin.create("t"), admin.stored("t"))[1]
    dynamic = admin.context.dynamic
    assert dynamic.retention_ms_max(topic) == 7 * 24 * 3_600_000
    await alter(admin, ALL, ("log.retention.ms", SET, "1000"), of=NODE)
    assert dynamic.retention_ms_max(topic) == 1_000
    await dynamic.change(BROKER, "99", {"log.retention.ms": "5000"})
    assert dynamic.retention_ms_max(topic) == 5_000
    assert settings_of(topic, dynamic.defaults).retention_ms == 1_000
    await dynamic.change(BROKER, "99", {"log.retention.ms": "-1"})
    assert dynamic.retention_ms_max(topic) is None


async def test_below_the_feature_level_only_deleting_nothing_is_allowed(tmp_path: Path) -> None:
    async with admin_on(tmp_path, level=lambda: BROKER_CONFIGS_STORED - 1) as admin:
        for of, name, key in ((NODE, ALL, "log.retention.ms"), (METRICS, "s", "interval.ms")):
            code, message = await alter(admin, name, (key, SET, "5000"), of=of)
            assert code == ErrorCode.UNSUPPORTED_VERSION
            assert "penstock cluster upgrade" in (message or "")
            assert await alter(admin, name, (key, DELETE, None), of=of) == OK
        assert not admin.context.dynamic.of_all


# ── Loggers ──────────────────────────────────────────────────────────────────────────────────
async def test_levels_of_loggers_are_listed_set_and_unset(admin: Admin) -> None:
    name = "penstock.test.loggers"
    logger = logging.getLogger(name)
    levels = {c.name: c for c in (await admin.describe(ME, of=LOGGER)).configs}
    assert {"root", name} <= set(levels)
    assert {c.config_source for c in levels.values()} == {6}
    for text, number in (("DEBUG", 10), ("trace", 5), ("WARN", 30), ("FATAL", 50)):
        assert await alter(admin, ME, (name, SET, text), of=LOGGER) == OK
        assert logger.level == number
        assert (await shown(admin, ME, name, of=LOGGER))[0] == text.upper()
    assert await alter(admin, ME, (name, SET, "INFO"), of=LOGGER, is_dry=True) == OK
    assert logger.level == 50
    assert await alter(admin, ME, (name, DELETE, None), of=LOGGER) == OK
    assert logger.level == logging.NOTSET


@pytest.mark.parametrize(
    ("name", "change", "code"),
    [
        (ME, ("no.such", SET, "DEBUG"), ErrorCode.INVALID_CONFIG),
        (ME, ("no.such", DELETE, None), ErrorCode.INVALID_CONFIG),
        (ME, ("penstock.test.bad", SET, "LOUD"), ErrorCode.INVALID_CONFIG),
        (ME, ("root", DELETE, None), ErrorCode.INVALID_REQUEST),
        (ME, ("penstock.test.bad", APPEND, "DEBUG"), ErrorCode.INVALID_REQUEST),
        ("", ("penstock.test.bad", SET, "DEBUG"), ErrorCode.INVALID_REQUEST),
        ("99", ("penstock.test.bad", SET, "DEBUG"), ErrorCode.INVALID_REQUEST),
    ],
)
async def test_a_bad_level_changes_none(
    admin: Admin, name: str, change: tuple[str, int, str | None], code: ErrorCode
) -> None:
    logger, other = logging.getLogger("penstock.test.bad"), logging.getLogger("penstock.test.ok")
    found, message = await alter(admin, name, ("penstock.test.ok", SET, "ERROR"), change, of=LOGGER)
    assert (found, bool(message)) == (code, True)
    assert (logger.level, other.level) == (logging.NOTSET, logging.NOTSET)


async def test_loggers_of_other_nodes_are_not_shown(admin: Admin) -> None:
    for name in ("", "99", "x"):
        assert (await admin.describe(name, of=LOGGER)).error_code == ErrorCode.INVALID_REQUEST


# ── Client metrics ───────────────────────────────────────────────────────────────────────────
async def test_client_metrics_are_kept(admin: Admin) -> None:
    changes = (
        ("interval.ms", SET, "1000"),
        ("match", SET, "client_id=a.*, client_software_name=b"),
        ("metrics", SET, "org.apache."),
    )
    assert await alter(admin, "s", *changes, of=METRICS) == OK
    found = {
        c.name: (c.value, c.config_source) for c in (await admin.describe("s", of=METRICS)).configs
    }
    assert found == {
        "interval.ms": ("1000", 7),
        "match": ("client_id=a.*,client_software_name=b", 7),
        "metrics": ("org.apache.", 7),
    }
    assert await alter(admin, "s", ("metrics", DELETE, None), of=METRICS) == OK
    assert (await shown(admin, "s", "metrics", of=METRICS)) == ("", 5, [])
    assert await admin.replace("s", {"interval.ms": "5000"}, of=METRICS) == OK
    assert (await shown(admin, "s", "match", of=METRICS))[:2] == ("", 5)
    assert (await shown(admin, "s", "interval.ms", of=METRICS))[:2] == ("5000", 7)


@pytest.mark.parametrize(
    ("name", "change", "code"),
    [
        ("s", ("interval.ms", SET, "10"), ErrorCode.INVALID_REQUEST),
        ("s", ("interval.ms", SET, "3600001"), ErrorCode.INVALID_REQUEST),
        ("s", ("interval.ms", SET, "x"), ErrorCode.INVALID_CONFIG),
        ("s", ("foo", SET, "1"), ErrorCode.INVALID_REQUEST),
        ("s", ("match", SET, "bad"), ErrorCode.INVALID_CONFIG),
        ("s", ("match", SET, "who=1"), ErrorCode.INVALID_CONFIG),
        ("", ("interval.ms", SET, "1000"), ErrorCode.INVALID_REQUEST),
    ],
)
async def test_bad_client_metrics_are_refused(
    admin: Admin, name: str, change: tuple[str, int, str | None], code: ErrorCode
) -> None:
    found, message = await alter(admin, name, change, of=METRICS)
    assert (found, bool(message)) == (code, True)
    assert (await admin.describe("", of=METRICS)).error_code == ErrorCode.INVALID_REQUEST
