"""Two nodes over one real store, beside it or behind calls to a metadata service, and what tests of
identities put into it."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from tests.harness.etcd import LACKING, EtcdCluster
from tests.unit.metadata.cluster import QUICK, Cluster

from penstock.metadata.security import identity_entries as entries
from penstock.metadata.security.identities import StoredIdentities
from penstock.metadata.serving.remote_store import RemoteStore
from penstock.metadata.serving.service import MetadataConfig
from penstock.metadata.sqlite import SqliteStore
from penstock.metadata.store import Store
from penstock.model.identity import ScramCredential, Tenant, User
from penstock.node.keys.keyring import MasterKeyRing
from penstock.telemetry.clock import SystemClock

ACCOUNT = "111111111111"
OTHER = "222222222222"
MASTER = bytes(range(32))
DENY = '{"Version":"2012-10-17","Statement":[{"Effect":"Deny","Action":"sqs:*","Resource":"*"}]}'


def make_tenant(account: str = ACCOUNT, **changes: object) -> Tenant:
    fields = {"name": f"t{account}", "created_at_ms": 1, **changes}
    return Tenant(account, **fields)  # type: ignore[arg-type]


def make_scram(mechanism: str = "SCRAM-SHA-256", **changes: object) -> ScramCredential:
    size = entries.KEY_BYTES_BY_MECHANISM[mechanism]
    credential = ScramCredential(
        ACCOUNT, "ann", mechanism, 8_192, b"s" * 16, b"k" * size, b"v" * size
    )
    return msgspec.structs.replace(credential, **changes)


def make_node(store: Store, master: bytes = MASTER, *old: bytes) -> StoredIdentities:
    return StoredIdentities(store, MasterKeyRing(master, old=old), entropy=os.urandom)


async def until(condition: Callable[[], bool]) -> None:
    """For the watch of another node, which has no event to wait for."""
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.002)


@pytest.fixture(scope="session")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    """One for all tests of a process; each takes a namespace of its own."""
    if LACKING is not None:
        pytest.skip(LACKING)
    with EtcdCluster(tmp_path_factory.mktemp("etcd")) as cluster:
        yield cluster


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    store = await SqliteStore.open(tmp_path / "metadata.db")
    yield store
    await store.close()


@pytest.fixture(params=["own", "remote"])
async def shared(request: pytest.FixtureRequest, store: SqliteStore) -> AsyncIterator[Store]:
    """The store as a node has it that keeps it, and as one has it that asks for it."""
    if request.param == "own":
        yield store
        return
    cluster = Cluster(store, MetadataConfig())
    await cluster.join("m1")
    remote = RemoteStore(cluster.caller("m1"), clock=SystemClock(), config=QUICK)
    yield remote
    await remote.close()
    await cluster.stop()


@pytest.fixture
async def here(shared: Store) -> AsyncIterator[StoredIdentities]:
    here = make_node(shared)
    await here.start()
    yield here
    await here.stop()


@pytest.fixture
async def there(shared: Store) -> AsyncIterator[StoredIdentities]:
    """A second node on the same store."""
    there = make_node(shared)
    await there.start()
    yield there
    await there.stop()


@pytest.fixture
async def ann(here: StoredIdentities) -> User:
    await here.create_tenant(make_tenant())
    return await here.create_user(User(ACCOUNT, "ann", 1))
