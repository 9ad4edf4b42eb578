"""A cluster over a real store, of either kind where that makes a difference."""

import hashlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from tests.harness.etcd import LACKING, EtcdCluster
from tests.unit.manager.cluster import Cluster

from penstock.metadata.sqlite import SqliteStore
from penstock.metadata.store import Store


@pytest.fixture(scope="session")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    if LACKING is not None:
        pytest.skip(LACKING)
    with EtcdCluster(tmp_path_factory.mktemp("etcd")) as cluster:
        yield cluster


@pytest.fixture
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    """SQLite, unless a test is marked to be run with "etcd" as its parameter."""
    if getattr(request, "param", "sqlite") == "sqlite":
        store: Store = await SqliteStore.open(tmp_path / "metadata.db")
    else:
        store = await open_etcd(request.getfixturevalue("etcd"), tmp_path)
    yield store
    await store.close()


async def open_etcd(etcd: EtcdCluster, folder: Path) -> Store:
    from penstock.metadata.etcd.links import EtcdConfig
    from penstock.metadata.etcd.store import EtcdStore

    name = hashlib.sha256(str(folder).encode()).hexdigest()[:16]
    return await EtcdStore.open(EtcdConfig(endpoints=etcd.endpoints, namespace=f"/test/{name}"))


@pytest.fixture
async def cluster(store: Store) -> AsyncIterator[Cluster]:
    cluster = Cluster(store)
    yield cluster
    await cluster.stop()
