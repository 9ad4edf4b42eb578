"""Rates of new connections: of one address, of the default, and of all together."""

import pytest
from tests.unit.frontend_kafka_admin.stage import ACCOUNT, Admin

from penstock.frontend.kafka.access import quotas as connection_rates
from penstock.frontend.kafka.access.quotas import CREATION_RATE, ConnectionRates, entity_text
from penstock.metadata.topics.resource_configs import CLIENT_QUOTA, Resource


async def rate(
    admin: Admin, address: str | None, per_s: int | None, account: str = ACCOUNT
) -> None:
    resource = Resource(account, CLIENT_QUOTA, entity_text((("ip", address),)))
    text = None if per_s is None else str(per_s)
    await admin.context.dynamic.stored.change(resource, {CREATION_RATE: text})


def rates_of(admin: Admin) -> ConnectionRates:
    return ConnectionRates(admin.context.dynamic.stored, account=ACCOUNT)


def admitted(rates: ConnectionRates, address: str, *, now_ms: float, tries: int = 10) -> int:
    return sum(rates.admits(address, now_ms=now_ms) for _ in range(tries))


async def test_an_address_opens_as_many_a_second_as_its_quota(admin: Admin) -> None:
    rates = rates_of(admin)
    assert admitted(rates, "10.0.0.1", now_ms=0) == 10
    await rate(admin, "10.0.0.1", 4)
    await rate(admin, "10.0.0.2", 4, account="111122223333")
    for found in (rates, rates_of(admin)):  # told of it, and started with it
        assert admitted(found, "10.0.0.1", now_ms=1_000) == 4
        assert admitted(found, "::ffff:10.0.0.1", now_ms=1_000) == 0, "the same address"
        assert admitted(found, "10.0.0.1", now_ms=1_400) == 1
        assert admitted(found, "10.0.0.1", now_ms=9_000) == 4
        assert admitted(found, "10.0.0.2", now_ms=1_000) == 10, "a tenant sets no rates"
    await rate(admin, "10.0.0.1", None)
    assert admitted(rates, "10.0.0.1", now_ms=9_000) == 10


async def test_the_default_counts_for_each_address(admin: Admin) -> None:
    rates = rates_of(admin)
    await rate(admin, None, 2)
    await rate(admin, "0:0:0:0:0:0:0:1", 5)
    assert admitted(rates, "10.0.0.1", now_ms=0) == 2
    assert admitted(rates, "10.0.0.2", now_ms=0) == 2
    assert admitted(rates, "::1", now_ms=0) == 5
    assert admitted(rates, "2001:db8::1", now_ms=0) == 2
    assert admitted(rates, "2001:db8::2", now_ms=0) == 0, "of the same network"


async def test_the_rate_of_all_holds_beside_the_others(admin: Admin) -> None:
    rates = rates_of(admin)
    rates.limit(4)
    assert admitted(rates, "10.0.0.1", now_ms=0, tries=3) == 3
    rates.limit(4)
    assert admitted(rates, "10.0.0.2", now_ms=0) == 1
    await rate(admin, None, 1)
    assert admitted(rates, "10.0.0.1", now_ms=9_000) == 1
    assert admitted(rates, "10.0.0.2", now_ms=9_000) == 1
    rates.limit(None)
    await rate(admin, None, None)
    assert admitted(rates, "10.0.0.2", now_ms=9_000) == 10


async def test_what_is_remembered_of_addresses_is_bounded(
    admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_rates, "BUCKETS_MAX", 10)
    rates = rates_of(admin)
    await rate(admin, None, 1)
    for number in range(100):
        assert rates.admits(f"10.0.0.{number}", now_ms=0)
        assert len(rates._buckets) <= 10
