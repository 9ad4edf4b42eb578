"""Keys that sign messages, over a real store and a real key ring."""

import asyncio
import os
import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime

import msgspec
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from tests.unit.metadata.conftest import MASTER
from tests.unit.metadata.test_data_keys import HandClock
from tests.unit.metadata.test_subscriptions import listed, shared, until  # noqa: F401

from penstock.metadata import sns_keys
from penstock.metadata.serving.entry_rules import check_txn
from penstock.metadata.sns_keys import (
    DAY_MS,
    KEPT_MS,
    KNOWN_MS,
    RENEW_MS,
    SNS_KEYS_PREFIX,
    SigningKey,
    SnsKeyEntry,
    SnsKeys,
    sns_key_key,
)
from penstock.metadata.sqlite import SqliteStore
from penstock.metadata.store import Store, Txn
from penstock.model.errors import InvalidRequest, Overloaded
from penstock.model.levels import PUSH
from penstock.node.keys.keyring import MasterKeyRing


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


def make(store: Store, clock: HandClock, master: bytes = MASTER, level: int = PUSH) -> SnsKeys:
    ring = MasterKeyRing(master)
    return SnsKeys(store, ring, clock=clock, entropy=os.urandom, level=lambda: level)


@pytest.fixture
async def near(shared: Store, clock: HandClock) -> AsyncIterator[SnsKeys]:  # noqa: F811
    keys = make(shared, clock)
    await keys.start()
    yield keys
    await keys.stop()


@pytest.fixture
async def far(shared: Store, clock: HandClock) -> AsyncIterator[SnsKeys]:  # noqa: F811
    """A second node on the same store."""
    keys = make(shared, clock)
    await keys.start()
    yield keys
    await keys.stop()


def certificate_of(keys: SnsKeys, key: SigningKey) -> x509.Certificate:
    pem = keys.certificate(key.certificate_id)
    assert pem is not None
    return x509.load_pem_x509_certificate(pem.encode())


def verify(certificate: x509.Certificate, key: SigningKey) -> None:
    signature = key.private.sign(b"text", padding.PKCS1v15(), hashes.SHA1())
    public = certificate.public_key()
    assert isinstance(public, RSAPublicKey)
    assert public.key_size == 2_048
    public.verify(signature, b"text", padding.PKCS1v15(), hashes.SHA1())


async def test_two_nodes_make_one_key_whose_certificate_both_know(
    near: SnsKeys, far: SnsKeys, clock: HandClock
) -> None:
    assert near.current() is None
    made = await asyncio.gather(*(keys.ready() for keys in (near, far, near, far)))
    assert len({key.certificate_id for key in made}) == 1
    await listed(near._entries._store, SNS_KEYS_PREFIX, {sns_key_key(1)})
    key = made[0]
    assert re.fullmatch("[0-9a-f]{32}", key.certificate_id)
    for keys in (near, far):
        await until(lambda keys=keys: keys.certificate(key.certificate_id) is not None)  # type: ignore[misc]
        certificate = certificate_of(keys, key)
        verify(certificate, await keys.ready())
        certificate.verify_directly_issued_by(certificate)
        now = datetime.fromtimestamp(clock.now_ms / 1_000, UTC)
        assert certificate.not_valid_before_utc < now
        assert (certificate.not_valid_after_utc - now).days >= 765
    assert near.certificate("0" * 32) is None


async def test_a_key_is_renewed_after_a_year_and_used_when_all_nodes_know_it(
    near: SnsKeys, far: SnsKeys, clock: HandClock
) -> None:
    first = await near.ready()
    clock.now_ms += RENEW_MS - 1
    assert await near.sweep() == 0
    assert len(near._ready) == 1
    clock.now_ms += 1
    await until(lambda: far.current() is not None)
    assert sum(await asyncio.gather(near.sweep(), far.sweep())) == 0
    await until(lambda: len(near._ready) == len(far._ready) == 2)
    assert near.current() is near._ready[1]
    clock.now_ms += KNOWN_MS
    second = await near.ready()
    assert second is near._ready[2]
    assert second.certificate_id != first.certificate_id
    await near.sweep()
    assert sorted(near._ready) == [1, 2]
    verify(certificate_of(near, first), first)  # messages that were signed earlier
    clock.now_ms += KEPT_MS - KNOWN_MS - 1
    assert await near.sweep() == 0  # and makes the third key
    await until(lambda: len(far._ready) == 3)
    clock.now_ms += 1
    assert await near.sweep() == 1
    assert await far.sweep() in (0, 1)
    await until(lambda: far.certificate(first.certificate_id) is None)
    assert near.certificate(first.certificate_id) is None
    assert near.certificate(second.certificate_id) is not None


async def test_a_node_that_lags_uses_the_key_of_the_node_that_was_faster(
    store: SqliteStore, clock: HandClock
) -> None:
    near, far = make(store, clock), make(store, clock)
    for keys in (near, far):
        await keys.start()
    await far._entries.stop()  # it gets no changes any more
    first = await near.ready()
    assert (await far.ready()).certificate_id == first.certificate_id
    for keys in (near, far):
        await keys.stop()


async def test_a_sweep_makes_no_key_where_none_was_needed(near: SnsKeys) -> None:
    assert await near.sweep() == 0
    assert near.current() is None


async def test_the_same_key_signs_after_a_restart(store: SqliteStore, clock: HandClock) -> None:
    keys = make(store, clock)
    await keys.start()
    first = await keys.ready()
    await keys.stop()
    again = make(store, clock)
    await again.start()
    found = again.current()
    assert found is not None
    assert found.certificate_id == first.certificate_id
    verify(certificate_of(again, first), found)
    await again.stop()


async def test_a_lost_master_key_costs_the_key_but_not_the_certificate(
    store: SqliteStore, clock: HandClock
) -> None:
    keys = make(store, clock)
    await keys.start()
    first = await keys.ready()
    await keys.stop()
    other = make(store, clock, master=b"o" * 32)
    await other.start()
    assert other.current() is None
    assert other.certificate(first.certificate_id) is not None
    second = await other.ready()
    assert second.certificate_id != first.certificate_id
    verify(certificate_of(other, second), second)
    await other.stop()


async def test_keys_are_wrapped_again_by_a_new_master_key(
    store: SqliteStore, clock: HandClock
) -> None:
    keys = make(store, clock)
    await keys.start()
    first = await keys.ready()
    ring = MasterKeyRing(b"n" * 32, old=(MASTER,))
    resealed = await keys.reseal(ring.rewrap)
    assert (resealed.count, resealed.unreadable) == (1, 0)
    await keys.stop()
    again = make(store, clock, master=b"n" * 32)
    await again.start()
    assert (await again.ready()).certificate_id == first.certificate_id
    await again.stop()


async def test_a_key_is_made_although_its_first_caller_has_gone(near: SnsKeys) -> None:
    first = asyncio.create_task(near.ready())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task = near._creating
    assert task is not None
    first.cancel()
    await asyncio.wait([first, task])
    assert first.cancelled()
    assert near.current() is not None


async def test_no_key_is_made_below_the_feature_level(store: SqliteStore, clock: HandClock) -> None:
    keys = make(store, clock, level=PUSH - 1)
    await keys.start()
    with pytest.raises(Overloaded, match=r"feature level 8.*penstock cluster upgrade"):
        await keys.ready()
    assert (await store.list(SNS_KEYS_PREFIX))[0] == []
    await keys.stop()


def test_the_metadata_service_takes_keys_that_nodes_can_read() -> None:
    value = msgspec.json.encode(SnsKeyEntry("-----BEGIN", b"wrapped", 7 * DAY_MS))
    key = sns_key_key(12)
    assert check_txn(Txn(compare=[(key, 0)], puts=[(key, value)])) == [key]
    huge = msgspec.json.encode(SnsKeyEntry("x" * sns_keys.ENTRY_BYTES_MAX, b"", 1))
    for at, wrong in (
        (sns_key_key(0), value),
        (sns_key_key(-1), value),
        (f"{SNS_KEYS_PREFIX}x", value),
        (f"{SNS_KEYS_PREFIX}12/1", value),
        (f"{SNS_KEYS_PREFIX}012", value),
        (key, b"{}"),
        (key, huge),
        (key, msgspec.json.encode(SnsKeyEntry("", b"", -1))),
    ):
        with pytest.raises(InvalidRequest):
            check_txn(Txn(compare=[(at, 0)], puts=[(at, wrong)]))
    with pytest.raises(InvalidRequest, match="must be conditional"):
        check_txn(Txn(compare=(), puts=[(key, value)]))
