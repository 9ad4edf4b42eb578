"""Feature levels in greetings between nodes, over real sockets."""

from pathlib import Path

import pytest

from penstock.calls.internal.client import InternalClient
from penstock.calls.internal.connection import NodeEnd
from penstock.calls.internal.listener import InternalListener
from penstock.membership.cluster_view import ClusterLevel
from penstock.metadata.sqlite import SqliteStore
from penstock.model.levels import Levels
from penstock.wire.internal.calls import PING, CallHandlers, Nothing
from penstock.wire.internal.faults import Unreachable

OLD, NEW = Levels(1, 1), Levels(1, 2)


async def test_a_node_that_does_not_speak_the_level_in_force_is_told_so(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path / "store.db")
    level = ClusterLevel(store, NEW)
    await level.start()
    listener = InternalListener(
        CallHandlers(), NodeEnd("n1", "c", levels=NEW, check_hello=level.check_hello)
    )
    host, _, port = (await listener.start("127.0.0.1", 0)).rpartition(":")
    new = InternalClient(host, int(port), NodeEnd("n2", "c", levels=NEW))
    old = InternalClient(host, int(port), NodeEnd("n3", "c", levels=OLD))
    try:
        assert await new.call(PING, Nothing(), timeout_ms=5_000) == Nothing()
        with pytest.raises(Unreachable, match="Node n3 supports feature level 1; this cluster"):
            await old.call(PING, Nothing(), timeout_ms=5_000)
        assert await new.call(PING, Nothing(), timeout_ms=5_000) == Nothing()
    finally:
        await new.close()
        await old.close()
        await listener.drain(seconds_max=0)
        await level.stop()
        await store.close()
