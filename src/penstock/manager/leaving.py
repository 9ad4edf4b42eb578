"""A controlled stop, as seen by the node that stops: wait until others lead what they can (R23).

It has said that it is leaving (``is_leaving`` in its entry, by ``Membership.change``), and remains
the same registration, so it goes on leading until somebody else has been elected; the manager sees
to that because of what the entry says.
"""

import asyncio

from penstock.metadata.cluster_view import ClusterView


class Handover:
    """How much a node leads that others could. One is made for a stop, before it is announced."""

    def __init__(self, view: ClusterView, node: int) -> None:
        self._view = view
        self._node = node
        self._changed = asyncio.Event()
        view.on_row(lambda _key, _view: self._changed.set())
        view.on_nodes(self._changed.set)

    def left(self) -> int:
        """Without partitions of which nobody else has everything: there is nobody to wait for."""
        others = {
            node
            for node, entry in self._view.nodes.items()
            if node != self._node and not entry.is_leaving
        }
        return sum(
            view.row.leader == self._node and not others.isdisjoint(view.row.whole)
            for view in self._view.rows.values()
        )

    async def wait(self, *, patience_ms: int) -> int:
        """Returns what is left when that is nothing, or when patience has ended."""
        try:
            async with asyncio.timeout(patience_ms / 1_000):
                while self.left():
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            pass
        return self.left()
