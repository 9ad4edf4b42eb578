"""A topic of the node's own that coordinators keep their rows in: made on the first start, found
afterwards, made again if somebody deletes it, never resized."""

from collections.abc import Callable

from penstock.broker.group_log import GroupLog
from penstock.metadata.own_topic import make_own_topic
from penstock.model.limits import MIB
from penstock.model.ports import Catalog, Clock, Streams
from penstock.model.topic import Topic

PARTITION_COUNT = 4  # each is a log of its own; decisions rarely wait for another's sync
# Compaction leaves the last segment alone, and all of it is read when a coordinator starts.
SEGMENT_BYTES = 16 * MIB
# Rows are kept until they are overwritten, however old.
CONFIGS = {"cleanup.policy": "compact", "retention.ms": "-1"}


class InternalTopic:
    def __init__(
        self,
        name: str,
        *,
        streams: Streams,
        catalog: Catalog,
        namespace: tuple[str, str],
        clock: Clock,
        entropy: Callable[[int], bytes],
        segment_bytes: int = SEGMENT_BYTES,
    ) -> None:
        """``namespace``: account and region. ``segment_bytes``: of a topic that is made here."""
        self._name = name
        self._streams = streams
        self._catalog = catalog
        self._namespace = namespace
        self._clock = clock
        self._entropy = entropy
        self._segment_bytes = segment_bytes
        # Of a topic made again: as many as there were, and are coordinators of.
        self._partition_count = PARTITION_COUNT

    async def find_or_make(self) -> Topic:
        topic = self._find() or await self._make()
        self._partition_count = topic.partition_count
        return topic

    async def open_log(self, partition: int) -> GroupLog:
        return GroupLog(self._streams, await self.find_or_make(), partition, self._clock)

    def on_skipped(self, listener: Callable[[], None]) -> None:
        """Call ``listener`` whenever an operator has changed which rows are skipped."""

        def changed(before: Topic | None, after: Topic | None) -> None:
            if before is None or after is None:
                return
            place = (after.account, after.region), after.name
            is_ours = place == (self._namespace, self._name)
            if is_ours and before.skipped_rows != after.skipped_rows:
                listener()

        self._catalog.on_change(changed)

    def _find(self) -> Topic | None:
        return self._catalog.find(*self._namespace, self._name)

    async def _make(self) -> Topic:
        return await make_own_topic(
            self._catalog,
            self._namespace,
            self._name,
            partition_count=self._partition_count,
            configs={**CONFIGS, "segment.bytes": str(self._segment_bytes)},
            clock=self._clock,
            entropy=self._entropy,
        )
