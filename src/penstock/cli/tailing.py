"""Reads a topic by offset and prints its records, without affecting other readers.

One fetch requests all partitions and gets a reply as soon as one of them has records, so nothing
polls. Records of aborted transactions are left out, as for a consumer that reads committed records;
those of open transactions are waited for. With a group, the tail begins at the group's committed
offsets and commits offsets after printing: after Ctrl-C or a closed pipe a record may be printed
again, and none is missed."""

import re
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from penstock.cli.failure import ExitCode, Failure
from penstock.cli.group_offsets import check_idle, commit, committed
from penstock.cli.interrupts import Interrupts
from penstock.cli.kafka_client import EARLIEST, Kafka, Place, refused, told
from penstock.cli.log_place import offsets_at, target_of
from penstock.cli.record_lines import as_item, as_text, value_text
from penstock.cli.session import Session
from penstock.net.kafka_client import Fetched
from penstock.record.batch import ATTR_TRANSACTIONAL, parse_header
from penstock.record.control import TYPE_ABORT, iter_control
from penstock.record.malformed import MalformedBatch
from penstock.record.record import RawRecord, iter_records
from penstock.wire.kafka.faults import ErrorCode

_WAIT_MS = 10_000
_WAIT_MS_SEVERAL = 250  # with several leaders, each is fetched from in turn
_PARTITION_BYTES = 1_048_576
_ANSWER_BYTES = 8 * 1_048_576
_RETRIES_MAX = 5
_RETRY_S = 0.2
_NO_END = 2**63


class TailWish(NamedTuple):
    origin: str | None = None  # None: the end; with a group, the beginning
    partition: int | None = None
    group: str | None = None
    count_max: int | None = None
    pattern: str | None = None
    is_following: bool = True


def tail(session: Session, topic: str, wish: TailWish) -> None:
    try:
        wanted = re.compile(wish.pattern) if wish.pattern is not None else None
    except re.error as error:
        raise Failure(
            "--grep cannot be used", f"not a regular expression: {error}", exit_code=ExitCode.USAGE
        ) from None
    reader = Reader(session, topic, wish)
    shown = 0
    with Interrupts() as interrupts:
        for found in reader.answers():
            with interrupts.held():
                for place, record in found:
                    reader.passed(place, record.offset + 1)
                    if wanted is not None and not wanted.search(value_text(record.value)):
                        continue
                    session.out.streamed(
                        as_item(topic, place.partition, record),
                        text=as_text(place.partition, record),
                        name="value",
                    )
                    shown += 1
                    if shown == wish.count_max:
                        break
                else:
                    reader.passed_all()
                reader.commit()
            if shown == wish.count_max:
                return


class Reader:
    def __init__(self, session: Session, topic: str, wish: TailWish) -> None:
        self._session = session
        self._kafka: Kafka = session.kafka
        self._topic = topic
        self._group = wish.group
        self._is_following = wish.is_following
        self._what = f"cannot read topic '{topic}'"
        places = self._kafka.places(topic, what=self._what)
        if wish.partition is not None:
            places = [place for place in places if place.partition == wish.partition]
            if not places:
                raise refused(
                    f"{self._what}: partition {wish.partition}",
                    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                )
        self._places = places
        self._done, self._ends = self._begin(wish)  # printed up to here, the end as it was
        self._next = dict(self._done)  # fetched up to here
        self._told = dict(self._done)  # committed up to here

    def _begin(self, wish: TailWish) -> tuple[dict[Place, int], dict[Place, int]]:
        origin = wish.origin or ("earliest" if wish.group is not None else "latest")
        now_ms = int(time.time() * 1_000)
        target = target_of(origin, now_ms, what="cannot begin at", option="--from")
        if wish.group is not None:
            check_idle(self._kafka, wish.group, what=self._what)
        starts, ends = offsets_at(
            self._kafka, self._places, target, what=self._what, is_committed=True
        )
        if wish.group is not None:
            known = committed(self._kafka, wish.group)
            starts |= {place: known[place] for place in self._places if place in known}
        return starts, ends

    # ── Reading ──────────────────────────────────────────────────────────────────────────────

    def answers(self) -> Iterator[list[tuple[Place, RawRecord]]]:
        """Yield the records of each fetch, in the order of the log within each partition."""
        places = self._places
        retries = 0
        while True:
            if not self._is_following:
                places = [place for place in places if self._next[place] < self._ends[place]]
                if not places:
                    return
            found: list[tuple[Place, RawRecord]] = []
            is_moved = is_troubled = False
            for place, part in self._fetch(places).items():
                before = self._next[place]
                if part.error_code:
                    is_troubled = self._look_into(place, part.error_code) or is_troubled
                else:
                    found += ((place, record) for record in self._records(place, part))
                is_moved = is_moved or self._next[place] != before
            retries = retries + 1 if is_troubled else 0
            if is_troubled:
                self._try_later(retries)
            elif not is_moved and not self._is_following:
                return  # records up to the end were removed meanwhile
            if is_moved:
                yield found

    def _fetch(self, places: Sequence[Place]) -> dict[Place, Fetched]:
        wait_ms = 0
        if self._is_following:
            wait_ms = _WAIT_MS if self._kafka.has_one_leader(places) else _WAIT_MS_SEVERAL
        with told(self._what):
            return self._kafka.client.try_fetch(
                {place: self._next[place] for place in places},
                wait_ms=wait_ms,
                bytes_min=1 if wait_ms else 0,
                bytes_max=_ANSWER_BYTES,
                partition_bytes_max=_PARTITION_BYTES,
            )

    def _records(self, place: Place, part: Fetched) -> Iterator[RawRecord]:
        aborted = {(each.producer_id, each.first_offset) for each in part.aborted}
        # Unless we follow, records that arrived after the start of the command are left out.
        stop = _NO_END if self._is_following else self._ends[place]
        try:
            for batch in _whole_batches(bytes(part.records)):
                header = parse_header(batch)
                begin = self._next[place]
                if not header.is_control and not _is_aborted(batch, aborted):
                    yield from (r for r in iter_records(batch) if begin <= r.offset < stop)
                if header.is_control and header.attributes & ATTR_TRANSACTIONAL:
                    _end_aborted(batch, aborted)
                self._next[place] = max(begin, min(header.next_offset, stop))
        except MalformedBatch as error:
            raise Failure(
                f"{self._what}: {place.partition}",
                f"a batch behind offset {self._next[place]} cannot be read: {error}",
                "check the data folder with `penstock storage verify` while the server is stopped",
                exit_code=ExitCode.UNHEALTHY,
            ) from None

    def _look_into(self, place: Place, code: int) -> bool:
        """Return True to retry, False if the offset was corrected. Raises Failure otherwise."""
        if code == ErrorCode.OFFSET_OUT_OF_RANGE:
            start = self._kafka.offsets({place: EARLIEST}, what=self._what)[place]
            self._session.remark(
                f"partition {place.partition}: offset {self._next[place]} is not there any more,"
                f" going on at {start}"
            )
            self._next[place] = self._done[place] = start
            return False
        failure = refused(f"{self._what}: {place.partition}", code)
        if failure.exit_code not in (ExitCode.UNREACHABLE, ExitCode.TIMEOUT):
            raise failure
        return True

    def _try_later(self, retries: int) -> None:
        if retries > _RETRIES_MAX:
            raise refused(self._what, ErrorCode.LEADER_NOT_AVAILABLE)
        time.sleep(_RETRY_S * retries)
        self._kafka.metadata([self._topic])

    # ── Progress ─────────────────────────────────────────────────────────────────────────────

    def passed(self, place: Place, offset: int) -> None:
        self._done[place] = offset

    def passed_all(self) -> None:
        """Mark a whole reply as printed, including markers after its last record."""
        self._done.update(self._next)

    def commit(self) -> None:
        if self._group is None:
            return
        self._session.out.flush()
        moved = {place: at for place, at in self._done.items() if at != self._told[place]}
        if moved:
            what = f"cannot commit for group '{self._group}'"
            commit(self._kafka, self._group, moved, what=what)
            self._told.update(moved)


def _whole_batches(data: bytes) -> Iterator[bytes]:
    """Yield whole batches. The last one of a reply may be cut: it is fetched again."""
    at = 0
    while at < len(data):
        try:
            size = parse_header(data, at).total_bytes
        except MalformedBatch:
            return
        if at + size > len(data):
            return
        yield data[at : at + size]
        at += size


def _is_aborted(batch: bytes, aborted: Iterable[tuple[int, int]]) -> bool:
    header = parse_header(batch)
    if not header.attributes & ATTR_TRANSACTIONAL:
        return False
    return any(
        producer_id == header.producer_id and first <= header.base_offset
        for producer_id, first in aborted
    )


def _end_aborted(marker: bytes, aborted: set[tuple[int, int]]) -> None:
    """Remove the oldest aborted transaction of the producer; its next transaction may commit."""
    header = parse_header(marker)
    if any(kind == TYPE_ABORT for _, kind, _ in iter_control(marker)):
        mine = [each for each in aborted if each[0] == header.producer_id]
        if mine:
            aborted.discard(min(mine))
