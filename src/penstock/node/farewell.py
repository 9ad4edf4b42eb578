"""Stopping together: a node that alone has some partitions stays until the others have written what
they still had to say.

A node's last words, counts and notes of the final seconds, go to topics that any node may lead.
With several replicas somebody takes over from whoever stops. With one nobody can, and when all
nodes are told to stop at once, as the workers of one machine are, the slowest would wait in vain
for leaders that are gone. So each says when it has nothing more to write, by no longer telling
where it serves clients, and waits a moment for the others to say the same.
"""

import asyncio

from penstock.node.cluster_role import ClusterRole

PATIENCE_SECONDS: float = 1.0  # others may not be about to stop at all


async def say_farewell(cluster: ClusterRole, *, seconds_max: float = PATIENCE_SECONDS) -> None:
    """When this node serves no clients and has written everything, and before it leads no more."""
    changed = asyncio.Event()
    cluster.view.on_nodes(changed.set)
    await cluster.tell(http="", kafka="")
    try:
        async with asyncio.timeout(seconds_max):
            while _are_others_serving(cluster):
                changed.clear()
                await changed.wait()
    except TimeoutError:
        pass


def _are_others_serving(cluster: ClusterRole) -> bool:
    nodes = cluster.view.nodes.items()
    return any(entry.http for node, entry in nodes if node != cluster.node)
