"""The number of live frontends, among which limits and quotas are divided.

Each frontend rewrites its entry in the store every BEAT_SECONDS (its heartbeat) and watches the
entries of all frontends. Another frontend counts as silent after some heartbeats of this frontend
that the watch has reported. So no clocks are compared, and during an outage of the store no
frontend counts as silent, which would raise the limits of the others. A frontend has a new id after
each start; the entry of a killed frontend is removed after FORGOTTEN_BEATS."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from penstock.metadata.cache import PrefixWatch
from penstock.metadata.cluster_entries import FRONTEND_NAME_CHARS_MAX, FRONTENDS_PREFIX
from penstock.metadata.store import Change, ChangeKind, Store
from penstock.model.errors import PenstockError, VersionConflict

BEAT_SECONDS: Final = 2.0
SILENT_BEATS_MAX: Final = 4  # after this number of heartbeats a silent frontend no longer counts
FORGOTTEN_BEATS: Final = 60  # after this number its entry is removed

log_ = logging.getLogger(__name__)


class _Heard(NamedTuple):
    turn: int
    version: int


class LiveFrontends(PrefixWatch):
    def __init__(self, store: Store, *, node: str, entropy: Callable[[int], bytes]) -> None:
        super().__init__(store, FRONTENDS_PREFIX)
        self._key = FRONTENDS_PREFIX + entropy(16).hex()
        self._value = node[:FRONTEND_NAME_CHARS_MAX].encode()
        self._version = 0  # version of this frontend's entry
        self._turn = 0  # number of own heartbeats that the watch has reported
        self._others: dict[str, _Heard] = {}  # by key
        self._task: asyncio.Task[None] | None = None
        self._beat_trouble: str | None = None
        self.count = 1  # number of live frontends, including this one
        self._listeners: list[Callable[[int], None]] = []

    def on_change(self, listener: Callable[[int], None]) -> None:
        self._listeners.append(listener)

    async def start(self) -> None:
        """Start counting. The count is known when this returns. Raises errors of the store."""
        await super().start()
        await self._try_to_beat()
        self._task = asyncio.create_task(self._beat_forever(), name="frontend beat")

    async def stop(self) -> None:
        """Stop and remove the entry, so that the others notice at once."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait((task,))
        await super().stop()
        if self._version:
            with suppress(PenstockError):
                await self._store.delete(self._key, if_version=self._version)

    async def _fill(self) -> None:
        entries, revision = await self._store.list(FRONTENDS_PREFIX)
        before, self._others = self._others, {}
        for entry in entries:
            if entry.key == self._key:
                continue
            known = before.get(entry.key)
            if known is None or known.version != entry.version:
                known = _Heard(self._turn, entry.version)
            self._others[entry.key] = known
        self.revision = revision
        self._recount()

    def _take(self, changes: Sequence[Change]) -> None:
        for change in changes:
            is_put = change.kind is ChangeKind.PUT
            if change.key == self._key:
                self._turn += is_put
                # The reply to a heartbeat may arrive before the watch reports an older one.
                self._version = max(change.version, self._version) if is_put else 0
            elif is_put:
                self._others[change.key] = _Heard(self._turn, change.version)
            else:
                self._others.pop(change.key, None)
        self.revision = changes[-1].version
        self._recount()

    def _recount(self) -> None:
        since = self._turn - SILENT_BEATS_MAX
        count = 1 + sum(heard.turn > since for heard in self._others.values())
        if count == self.count:
            return
        self.count = count
        log_.info("number of frontends changed", extra={"alive": count})
        for listener in self._listeners:
            listener(count)

    async def _beat_forever(self) -> None:
        while True:
            await asyncio.sleep(BEAT_SECONDS)
            await self._try_to_beat()

    async def _try_to_beat(self) -> None:
        try:
            await self.beat()
        except PenstockError as error:
            if self._beat_trouble is None:
                log_.warning("frontend heartbeat failed", extra={"reason": str(error)})
            self._beat_trouble = str(error)
        else:
            self._beat_trouble = None

    async def beat(self) -> None:
        """Send a heartbeat: rewrite this frontend's entry. Raises errors of the store."""
        try:
            version = await self._store.put(self._key, self._value, if_version=self._version)
        except VersionConflict:  # the last reply was lost, or the entry was removed
            entry = await self._store.get(self._key)
            version = await self._store.put(
                self._key, self._value, if_version=entry.version if entry else 0
            )
        self._version = max(version, self._version)
        before = self._turn - FORGOTTEN_BEATS
        for key, heard in tuple(self._others.items()):
            if heard.turn <= before:
                with suppress(VersionConflict):  # another frontend removed it, or it is alive again
                    await self._store.delete(key, if_version=heard.version)
