"""Reads the data of a backup from the admin API. Leaders change and connections break during a long
copy, so failed requests are retried for a while, unless the server rejects them."""

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeVar

import msgspec

from penstock.cli.clients.http import Admin
from penstock.cli.terminal.failure import PASSING, Failure, Refused
from penstock.frontend.admin.operations import BASE_HEADER, NEXT_HEADER, START_HEADER
from penstock.frontend.admin.ports import Definition, PartitionCut, Piece, StartedBackup
from penstock.model.errors import TopicNotFound

BEGIN_WAIT_S = 45.0  # enough for an election
RETRY_SECONDS_MAX = 60.0
RETRY_PAUSE_SECONDS = 0.5
_TOPIC_GONE = "queue_not_found"

T = TypeVar("T")


class AdminSource:
    def __init__(self, admin: Admin) -> None:
        self._admin = admin
        self._path = ""

    def begin(self) -> StartedBackup:
        reply = self._admin.call(
            "POST", "backups", body={}, what="cannot begin a backup", wait_s=BEGIN_WAIT_S
        )
        begun = _as(StartedBackup, reply)
        self._path = f"backups/{begun.id}"
        return begun

    def definitions(self) -> Iterator[Definition]:
        return self._pages("definitions", Definition)

    def partitions(self) -> Iterator[PartitionCut]:
        return self._pages("partitions", PartitionCut)

    def _pages(self, name: str, kind: type[T]) -> Iterator[T]:
        path, what = f"{self._path}/{name}", f"cannot read the {name} of the backup"
        after: int | None = 0
        while after is not None:
            reply = _retried(partial(self._admin.get, path, {"after": after}, what=what))
            for one in reply[name]:
                yield _as(kind, one)
            after = reply["next"]

    def read(self, topic_id: str, partition: int, offset: int) -> Piece:
        query = {"topic_id": topic_id, "partition": partition, "offset": offset}
        try:
            path, what = f"{self._path}/records", f"cannot copy {topic_id}/{partition}"
            exchange = partial(self._admin.exchange, "GET", path, query, None, what, 0.0)
            headers, data = _retried(exchange)
        except Refused as refused:
            if refused.fault == _TOPIC_GONE:
                raise TopicNotFound(topic_id) from None
            raise
        try:
            offsets = (int(headers[name]) for name in (BASE_HEADER, NEXT_HEADER, START_HEADER))
            return Piece(data, *offsets)
        except (KeyError, ValueError):
            raise Failure(f"{self._admin.url} sent records without their offsets") from None

    def end(self) -> None:
        if self._path:
            self._admin.call("DELETE", self._path, what="cannot end the backup")


def _as(kind: type[T], reply: dict[str, Any]) -> T:
    try:
        return msgspec.convert(reply, kind)
    except msgspec.ValidationError as error:
        raise Failure("the server sent an invalid reply", str(error)) from None


def _retried(request: Callable[[], T]) -> T:
    until = time.monotonic() + RETRY_SECONDS_MAX
    while True:
        try:
            return request()
        except Failure as failure:
            if failure.exit_code not in PASSING or time.monotonic() >= until:
                raise
        time.sleep(RETRY_PAUSE_SECONDS)
