"""A node that is about to stop: whoever waits for what it wrote is answered first."""

import asyncio
from pathlib import Path

from .stage import cluster, settles, until


async def test_a_node_does_not_go_before_it_knows_what_became_of_what_it_wrote(
    tmp_path: Path,
) -> None:
    async with cluster(tmp_path) as found:
        topic, key = await found.topic()
        leaving_node = found.nodes[1]
        found.nodes[3].is_cut = True  # nothing is committed without it, for a while
        await until(lambda: not found.nodes[3].replicators._fetcher._calls)
        sent = asyncio.ensure_future(found.sent(1, topic, "x"))
        await until(lambda: found.nodes[2].replica(key).log.durable_offset == 1)
        await found.elect(key, 2)
        await until(lambda: leaving_node.replica(key).replica.leader is None)
        leaving = asyncio.ensure_future(leaving_node.replicators.leave())
        await until(lambda: found.nodes[2].view.nodes[1].is_leaving)
        assert not sent.done()
        assert not leaving.done()
        found.nodes[3].is_cut = False
        assert await settles(sent) == [0]
        await settles(leaving)
