"""Quotas of clients and the list of resources with configs, through the codecs, on a real store."""

import math
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.frontend_kafka_admin.stage import ACCOUNT, NODE_ID, Admin, admin_on, alter

from penstock.frontend.kafka.access import quotas as client_quotas
from penstock.frontend.kafka.access.quotas import (
    FETCHED,
    PRODUCED,
    ClientQuotas,
    Entity,
    entities_of,
    entity_of,
    entity_text,
    sorted_entity,
)
from penstock.metadata.topics.resource_configs import CLIENT_QUOTA, GROUP, Resource
from penstock.model.levels import BROKER_CONFIGS_STORED
from penstock.model.limits import CLIENT_NAME_CHARS_MAX, CLIENT_QUOTAS_PER_TENANT_MAX
from penstock.model.names import OFFSETS_TOPIC
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.generated.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasRequestEntityData,
    AlterClientQuotasRequestEntryData,
    OpData,
)
from penstock.wire.kafka.generated.describe_client_quotas import (
    ComponentData,
    DescribeClientQuotasRequest,
)
from penstock.wire.kafka.generated.list_config_resources import ListConfigResourcesRequest

Given = Sequence[tuple[str, str | None]]
EXACT, DEFAULT, ANY = range(3)
METRICS = 16
ANN: Given = (("user", "ann"),)
ANN_APP: Given = (("user", "ann"), ("client-id", "app"))
RATE = {PRODUCED: 1_000.0}


def entry(entity: Given, *ops: tuple[str, float | None]) -> AlterClientQuotasRequestEntryData:
    """An operation without a value removes the quota."""
    return AlterClientQuotasRequestEntryData(
        [AlterClientQuotasRequestEntityData(*part) for part in entity],
        [OpData(key, value or 0.0, remove=value is None) for key, value in ops],
    )


async def quota(
    admin: Admin,
    entity: Given,
    *ops: tuple[str, float | None],
    is_dry: bool = False,
    version: int | None = None,
) -> tuple[ErrorCode, str | None]:
    request = AlterClientQuotasRequest((entry(entity, *ops),), is_dry)
    (done,) = (await admin.ask(49, request, version)).entries
    assert {(part.entity_type, part.entity_name) for part in done.entity} == set(entity)
    return ErrorCode(done.error_code), done.error_message


async def quotas(
    admin: Admin,
    *components: tuple[str, int, str | None],
    is_strict: bool = False,
    version: int | None = None,
) -> dict[Entity, dict[str, float]]:
    request = DescribeClientQuotasRequest([ComponentData(*one) for one in components], is_strict)
    reply = await admin.ask(48, request, version)
    assert (reply.error_code, reply.error_message) == (0, "")
    return {
        sorted_entity([(part.entity_type, part.entity_name) for part in found.entity]): {
            value.key: value.value for value in found.values
        }
        for found in reply.entries
    }


# ── Setting and showing ──────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("version", range(2))
async def test_quotas_are_set_shown_and_removed(admin: Admin, version: int) -> None:
    ok = (ErrorCode.NONE, None)
    assert await quota(admin, ANN, (PRODUCED, 1_000.0), (FETCHED, 2.0), version=version) == ok
    assert await quota(admin, ANN_APP, ("request_percentage", 1.5), version=version) == ok
    assert await quota(admin, (("ip", None),), ("connection_creation_rate", 5.0)) == ok
    everything = {
        sorted_entity(ANN): {PRODUCED: 1_000.0, FETCHED: 2.0},
        sorted_entity(ANN_APP): {"request_percentage": 1.5},
        (("ip", None),): {"connection_creation_rate": 5.0},
    }
    assert await quotas(admin, version=version) == everything
    assert await quota(admin, ANN, (PRODUCED, None), (FETCHED, 3.0)) == ok
    assert await quotas(admin, ("user", EXACT, "ann"), is_strict=True) == {
        sorted_entity(ANN): {FETCHED: 3.0}
    }
    for entity in (ANN, ANN_APP, (("ip", None),)):
        keys = (PRODUCED, FETCHED, "request_percentage", "connection_creation_rate")
        assert await quota(admin, entity, *((key, None) for key in keys)) == ok
    assert await quotas(admin) == {}
    assert not admin.context.dynamic.stored.accounts(CLIENT_QUOTA)


async def test_filters_are_exact_default_any_and_strict(admin: Admin) -> None:
    both: Given = (("user", None), ("client-id", None))
    for entity in (ANN, ANN_APP, (("user", None),), both, (("client-id", "app"),)):
        await quota(admin, entity, (PRODUCED, 1.0))
    ann, ann_app, nobody, nothing, app = map(
        sorted_entity, (ANN, ANN_APP, (("user", None),), both, (("client-id", "app"),))
    )

    async def found(
        *components: tuple[str, int, str | None], is_strict: bool = False
    ) -> set[Entity]:
        return set(await quotas(admin, *components, is_strict=is_strict))

    assert await found() == {ann, ann_app, nobody, nothing, app}
    assert await found(is_strict=True) == set()
    assert await found(("user", EXACT, "ann")) == {ann, ann_app}
    assert await found(("user", EXACT, "ann"), is_strict=True) == {ann}
    assert await found(("user", DEFAULT, None)) == {nobody, nothing}
    assert await found(("user", DEFAULT, None), is_strict=True) == {nobody}
    assert await found(("user", ANY, None)) == {ann, ann_app, nobody, nothing}
    assert await found(("client-id", ANY, None), is_strict=True) == {app}
    assert await found(("user", ANY, None), ("client-id", EXACT, "app")) == {ann_app}
    assert await found(("ip", ANY, None)) == set()


@pytest.mark.parametrize(
    ("components", "code"),
    [
        ([("ip", ANY, None), ("user", ANY, None)], ErrorCode.INVALID_REQUEST),
        ([("foo", ANY, None)], ErrorCode.UNSUPPORTED_VERSION),
        ([("", ANY, None)], ErrorCode.INVALID_REQUEST),
        ([("user", ANY, None), ("user", DEFAULT, None)], ErrorCode.INVALID_REQUEST),
        ([("user", 9, None)], ErrorCode.INVALID_REQUEST),
        ([("user", EXACT, None)], ErrorCode.INVALID_REQUEST),
        ([("user", DEFAULT, "x")], ErrorCode.INVALID_REQUEST),
        ([("user", ANY, "x")], ErrorCode.INVALID_REQUEST),
    ],
)
async def test_bad_filters_are_refused(
    admin: Admin, components: list[tuple[str, int, str | None]], code: ErrorCode
) -> None:
    request = DescribeClientQuotasRequest([ComponentData(*one) for one in components])
    reply = await admin.ask(48, request)
    assert (reply.error_code, reply.entries) == (code, None)
    assert reply.error_message


@pytest.mark.parametrize(
    ("entity", "key", "value"),
    [
        (ANN, "foo", 5.0),
        (ANN, "connection_creation_rate", 5.0),
        ((("ip", "1.2.3.4"),), PRODUCED, 5.0),
        ((("group", "x"),), PRODUCED, 5.0),
        ((), PRODUCED, 5.0),
        ((("user", ""),), PRODUCED, 5.0),
        (ANN, PRODUCED, 0.0),
        (ANN, PRODUCED, -1.0),
        (ANN, PRODUCED, 1.5),
        (ANN, PRODUCED, 1e19),
        (ANN, "request_percentage", math.inf),
        (ANN, "request_percentage", math.nan),
        ((("ip", "no such host"),), "connection_creation_rate", 5.0),
        ((("ip", "1.1.1.1"),), "connection_creation_rate", 3e9),
        ((("ip", "1.1.1.1"), ("user", "u")), PRODUCED, 5.0),
        ((("user", "u" * (CLIENT_NAME_CHARS_MAX + 1)),), PRODUCED, 5.0),
        ((("client-id", "u" * (CLIENT_NAME_CHARS_MAX + 1)),), PRODUCED, 5.0),
        ((("user", "ü" * CLIENT_NAME_CHARS_MAX),), PRODUCED, 5.0),
    ],
)
async def test_bad_quotas_are_refused(admin: Admin, entity: Given, key: str, value: float) -> None:
    request = AlterClientQuotasRequest(
        (entry(entity, (key, value)), entry((("user", "bob"),), (PRODUCED, 7.0)))
    )
    if value == 0.0:
        request = AlterClientQuotasRequest(
            (
                AlterClientQuotasRequestEntryData(
                    [AlterClientQuotasRequestEntityData(*part) for part in entity],
                    [OpData(key, value)],
                ),
                request.entries[1],
            )
        )
    first, second = (await admin.ask(49, request)).entries
    assert (first.error_code, second.error_code) == (ErrorCode.INVALID_REQUEST, ErrorCode.NONE)
    assert first.error_message
    assert await quotas(admin) == {(("user", "bob"),): {PRODUCED: 7.0}}


async def test_what_is_named_twice_is_refused(admin: Admin) -> None:
    code, _ = await quota(admin, ANN, (PRODUCED, 1.0), (PRODUCED, 2.0))
    assert code == ErrorCode.INVALID_REQUEST
    request = AlterClientQuotasRequest((entry(ANN, (PRODUCED, 1.0)), entry(ANN, (FETCHED, 1.0))))
    (done,) = (await admin.ask(49, request)).entries
    assert done.error_code == ErrorCode.INVALID_REQUEST
    assert await quotas(admin) == {}


async def test_removing_what_is_not_set_and_dry_runs_change_nothing(admin: Admin) -> None:
    assert await quota(admin, ANN, (PRODUCED, None), ("foo", None)) == (ErrorCode.NONE, None)
    assert await quota(admin, ANN, (PRODUCED, 5.0), is_dry=True) == (ErrorCode.NONE, None)
    assert (await quota(admin, ANN, ("foo", 5.0), is_dry=True))[0] == ErrorCode.INVALID_REQUEST
    assert await quotas(admin) == {}


async def test_quotas_are_there_after_a_restart(tmp_path: Path) -> None:
    async with admin_on(tmp_path) as admin:
        await quota(admin, (("user", "a=&%ü"), ("client-id", None)), (PRODUCED, 5.0))
    async with admin_on(tmp_path) as admin:
        assert await quotas(admin) == {(("client-id", None), ("user", "a=&%ü")): {PRODUCED: 5.0}}


async def test_below_the_feature_level_no_quota_is_set(tmp_path: Path) -> None:
    async with admin_on(tmp_path, level=lambda: BROKER_CONFIGS_STORED - 1) as admin:
        code, message = await quota(admin, ANN, (PRODUCED, 5.0))
        assert code == ErrorCode.UNSUPPORTED_VERSION
        assert "penstock cluster upgrade" in (message or "")
        assert await quota(admin, ANN, (PRODUCED, None)) == (ErrorCode.NONE, None)


async def test_a_tenant_has_a_bounded_number_of_quotas(
    admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.frontend.kafka.access.quotas.CLIENT_QUOTAS_PER_TENANT_MAX", 2)
    assert CLIENT_QUOTAS_PER_TENANT_MAX == 1_000
    own = admin.context
    for name in ("a", "b", "c"):
        assert (await quota(admin, (("user", name),), (PRODUCED, 5.0)))[0] == ErrorCode.NONE
    admin.context = own.of("111122223333")
    for name in ("a", "b"):
        assert (await quota(admin, (("user", name),), (PRODUCED, 5.0)))[0] == ErrorCode.NONE
    code, _ = await quota(admin, (("user", "c"),), (PRODUCED, 5.0))
    assert code == ErrorCode.POLICY_VIOLATION
    assert (await quota(admin, (("user", "a"),), (PRODUCED, 6.0)))[0] == ErrorCode.NONE
    assert len(await quotas(admin)) == 2
    admin.context = own
    assert len(await quotas(admin)) == 3


async def test_an_operator_of_any_tenant_sees_quotas_of_addresses(admin: Admin) -> None:
    address: Given = (("ip", "10.0.0.1"),)
    admin.context = admin.context.of("111122223333")
    assert (await quota(admin, address, ("connection_creation_rate", 5.0)))[0] == ErrorCode.NONE
    assert (await quota(admin, ANN, (PRODUCED, 5.0)))[0] == ErrorCode.NONE
    for account, seen in (("111122223333", {address, ANN}), (ACCOUNT, {address})):
        admin.context = admin.context.of(account)
        assert set(await quotas(admin)) == seen


# ── Entities and buckets ─────────────────────────────────────────────────────────────────────
NAMES = st.none() | st.text(min_size=1)


@given(
    st.dictionaries(st.sampled_from(("user", "client-id", "ip")), NAMES, min_size=1).map(
        lambda parts: sorted_entity(list(parts.items()))
    )
)
def test_an_entity_is_read_as_it_was_written(entity: Entity) -> None:
    assert entity_of(entity_text(entity)) == entity


async def counted(admin: Admin) -> ClientQuotas:
    return ClientQuotas(admin.context.dynamic.stored)


async def test_the_most_specific_quota_counts(admin: Admin) -> None:
    stored = admin.context.dynamic.stored
    found = await counted(admin)
    assert not found.is_any
    levels = list(entities_of("ann", "app"))
    assert len(set(levels)) == 8
    for number, entity in reversed(list(enumerate(levels, 1))):
        resource = Resource(ACCOUNT, CLIENT_QUOTA, entity_text(entity))
        await stored.change(resource, {FETCHED: str(number)})
        assert found.is_any
        most = found.fetch_bytes_max(ACCOUNT, "ann", "app", now_ms=0)
        assert most == 10 * number
    assert found.fetch_bytes_max(ACCOUNT, "ann", "other", now_ms=0) == 20
    assert found.fetch_bytes_max(ACCOUNT, "bob", "other", now_ms=0) == 50
    assert found.fetch_bytes_max("111122223333", "ann", "app", now_ms=0) is None


async def test_clients_share_the_bucket_of_their_quota(admin: Admin) -> None:
    stored = admin.context.dynamic.stored

    async def set_for(entity: Entity, per_s: int) -> None:
        resource = Resource(ACCOUNT, CLIENT_QUOTA, entity_text(entity))
        await stored.change(resource, {PRODUCED: str(per_s)})

    found = await counted(admin)

    def pause(user: str, client_id: str, size: int) -> int:
        return found.charge(ACCOUNT, user, client_id, PRODUCED, size, now_ms=1_000_000)

    assert pause("ann", "a", 10**9) == 0
    await set_for((("user", "ann"),), 100)
    await set_for((("user", None),), 100)
    assert pause("ann", "a", 100) == 0
    assert 1_000 <= pause("ann", "b", 100) <= 1_001  # another client of the same user
    assert pause("bob", "b", 100) == 0  # each user has the default for itself
    assert found.charge(ACCOUNT, "ann", "a", FETCHED, 10**9, now_ms=1_000_000) == 0
    await set_for((("user", "ann"),), 1_000)
    assert pause("ann", "a", 100) == 0  # a changed quota counts at once


async def test_buckets_are_bounded(admin: Admin, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_quotas, "BUCKETS_MAX", 10)
    monkeypatch.setattr(client_quotas, "FOUND_MAX", 15)
    resource = Resource(ACCOUNT, CLIENT_QUOTA, entity_text((("client-id", None),)))
    await admin.context.dynamic.stored.change(resource, {PRODUCED: "100"})
    found = await counted(admin)
    for number in range(100):
        found.charge(ACCOUNT, "ann", str(number), PRODUCED, 1, now_ms=number)
        assert len(found._buckets) <= 10
        assert len(found._found) <= 15
    for number in range(100):  # clients without a quota are remembered as well
        found.charge("111122223333", "ann", str(number), PRODUCED, 1, now_ms=number)
        assert len(found._found) <= 15
    busy = found.charge(ACCOUNT, "ann", "99", PRODUCED, 1_000, now_ms=100)
    assert busy > 0


# ── ListConfigResources ──────────────────────────────────────────────────────────────────────
async def test_resources_with_configs_are_listed(admin: Admin) -> None:
    await admin.create("t")
    await admin.create("u")
    await alter(admin, "s", ("interval.ms", 0, "1000"), of=METRICS)
    stored = admin.context.dynamic.stored
    await stored.change(Resource(ACCOUNT, GROUP, "g"), {"consumer.session.timeout.ms": "46000"})
    await stored.change(Resource("111122223333", GROUP, "other"), {"x": "y"})

    async def listed(*types: int, version: int = 1) -> tuple[int, list[tuple[int, str]]]:
        reply = await admin.ask(74, ListConfigResourcesRequest(types), version)
        return reply.error_code, [
            (r.resource_type, r.resource_name) for r in reply.config_resources
        ]

    me = str(NODE_ID)
    assert await listed() == (0, [(2, "t"), (2, "u"), (4, me), (8, me), (16, "s"), (32, "g")])
    await admin.create_internal()
    assert (await listed(2))[1][:2] == [(2, OFFSETS_TOPIC), (2, "__groups")]
    assert await listed(version=0) == (0, [(16, "s")])
    assert await listed(32, 16, 32) == (0, [(16, "s"), (32, "g")])
    assert await listed(2, 99) == (ErrorCode.UNSUPPORTED_VERSION, [])
    admin.context = admin.context.of("111122223333")
    assert await listed(2, 32) == (0, [(2, OFFSETS_TOPIC), (32, "other")])
