"""The number of live frontends, for limits and quotas that they divide among themselves.

Each frontend rewrites its entry every BEAT_SECONDS, and watches the entries of all. The silence of
another frontend is counted in own beats that the watch has reported. So no clocks are compared, and
while the metadata is not reachable no frontend counts as silent: an outage does not double a limit.

An id is random and new with every start. The entry of a killed frontend stops counting after some
beats and is removed later. The ``frontend`` package knows what is divided, and how.
"""

import asyncio
import logging
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from penstock.metadata.following import Following
from penstock.metadata.store import Change, ChangeKind, Store
from penstock.model.errors import InvalidRequest, PenstockError, VersionConflict

PREFIX: Final = "/frontends/"
# Every beat is a write that all frontends are notified of: a hundred make fifty beats a second.
FRONTENDS_MAX: Final = 100
BEAT_SECONDS: Final = 2.0
SILENT_BEATS_MAX: Final = 4  # after this silence a frontend no longer counts
FORGOTTEN_BEATS: Final = 60  # after this its entry is removed, by the first frontend that notices
NODE_CHARS_MAX: Final = 255
_KEY: Final = re.compile(rf"{PREFIX}[0-9a-f]{{32}}\Z")

log_ = logging.getLogger(__name__)


def check_entry(key: str, value: bytes) -> None:
    """Check an entry; its value is the node's name, for operators. Raises InvalidRequest."""
    if _KEY.match(key) is None:
        raise InvalidRequest(f"{key} names no frontend.")
    if not 1 <= len(value.decode()) <= NODE_CHARS_MAX:
        raise InvalidRequest(f"{key}: the value is the name of a node.")


class _Heard:
    __slots__ = ("turn", "version")

    def __init__(self, turn: int, version: int) -> None:
        self.turn = turn
        self.version = version


class LiveFrontends:
    def __init__(self, store: Store, *, node: str, entropy: Callable[[int], bytes]) -> None:
        self._store = store
        self._key = PREFIX + entropy(16).hex()
        self._value = node[:NODE_CHARS_MAX].encode()
        self._version = 0  # of this frontend's entry
        self._turn = 0  # number of own beats that the watch has reported
        self._others: dict[str, _Heard] = {}  # by key
        self._revision = 0
        self._following = Following(
            store, PREFIX, fill=self._fill, take=self._take, revision=lambda: self._revision
        )
        self._task: asyncio.Task[None] | None = None
        self._trouble: str | None = None
        self._count = 1
        self._listeners: list[Callable[[int], None]] = []

    @property
    def count(self) -> int:
        """The number of live frontends, including this one."""
        return self._count

    def on_change(self, listener: Callable[[int], None]) -> None:
        """Call ``listener`` with each new count."""
        self._listeners.append(listener)

    async def start(self) -> None:
        """Start to beat. The count is known when this returns, before any request is served. Raises
        the errors of the store."""
        await self._following.start()
        await self._try_to_beat()
        self._task = asyncio.create_task(self._beat_forever(), name="frontend beat")

    async def stop(self) -> None:
        """Stop and remove the entry, so that the others need not wait for the silence."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait((task,))
        await self._following.stop()
        if self._version:
            with suppress(PenstockError):
                await self._store.delete(self._key, if_version=self._version)

    # ── Watching ─────────────────────────────────────────────────────────────────────────────

    async def _fill(self) -> None:
        entries, revision = await self._store.list(PREFIX)
        before, self._others = self._others, {}
        for entry in entries:
            if entry.key == self._key:
                continue
            known = before.get(entry.key)
            # An unchanged entry is not a sign of life.
            is_same = known is not None and known.version == entry.version
            self._others[entry.key] = (
                known if known is not None and is_same else _Heard(self._turn, entry.version)
            )
        self._revision = revision
        self._recount()

    def _take(self, changes: Sequence[Change]) -> None:
        for change in changes:
            is_put = change.kind is ChangeKind.PUT
            if change.key == self._key:
                self._turn += is_put
                # A beat's reply may arrive before the watch reports an older beat.
                self._version = max(change.version, self._version) if is_put else 0
            elif is_put:
                self._others[change.key] = _Heard(self._turn, change.version)
            else:
                self._others.pop(change.key, None)
        self._revision = changes[-1].version
        self._recount()

    def _recount(self) -> None:
        since = self._turn - SILENT_BEATS_MAX
        count = 1 + sum(heard.turn > since for heard in self._others.values())
        if count == self._count:
            return
        self._count = count
        log_.info("frontends", extra={"alive": count})
        for listener in self._listeners:
            listener(count)

    # ── Beating ──────────────────────────────────────────────────────────────────────────────

    async def _beat_forever(self) -> None:
        while True:
            await asyncio.sleep(BEAT_SECONDS)
            await self._try_to_beat()

    async def _try_to_beat(self) -> None:
        try:
            await self.beat()
        except PenstockError as error:
            if self._trouble is None:
                log_.warning("frontend not heard by the others", extra={"why": str(error)})
            self._trouble = str(error)
        else:
            self._trouble = None

    async def beat(self) -> None:
        """Rewrite the own entry once. Raises the errors of the store."""
        try:
            version = await self._store.put(self._key, self._value, if_version=self._version)
        except VersionConflict:  # the last reply was lost, or the entry was removed
            entry = await self._store.get(self._key)
            version = await self._store.put(
                self._key, self._value, if_version=entry.version if entry else 0
            )
        self._version = max(version, self._version)
        await self._forget()

    async def _forget(self) -> None:
        before = self._turn - FORGOTTEN_BEATS
        for key, heard in tuple(self._others.items()):
            if heard.turn <= before:
                with suppress(VersionConflict):  # removed by another, or alive again
                    await self._store.delete(key, if_version=heard.version)
