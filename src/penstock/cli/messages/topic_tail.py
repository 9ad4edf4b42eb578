"""Reads a topic by offset and prints its records, without affecting other readers.

Records of aborted transactions are left out. Records of open transactions are printed once they are
committed. With a group, offsets are committed after printing, so no record is missed."""

import time
from collections.abc import Iterator, Sequence

from penstock.cli.clients.kafka import Kafka, failing, refused
from penstock.cli.command import Session
from penstock.cli.messages.peeking import TailRequest
from penstock.cli.messages.producing import as_item, as_text, value_text
from penstock.cli.messages.sending import Interrupts
from penstock.cli.terminal.failure import PASSING, ExitCode, Failure, Unhealthy
from penstock.cli.topics import offsets
from penstock.net.kafka_client.client import Fetched, KafkaRefused, Place
from penstock.record.batch import ATTR_TRANSACTIONAL
from penstock.record.control import TYPE_ABORT, iter_control
from penstock.record.malformed import MalformedBatch
from penstock.record.record import RawRecord, iter_records
from penstock.wire.kafka.faults import ErrorCode

_WAIT_MS = 10_000
_WAIT_MS_SEVERAL = 250  # with several leaders, which are fetched from one after the other
_PARTITION_BYTES = 1_048_576
_REPLY_BYTES = 8 * 1_048_576
_RETRIES_MAX = 5
_RETRY_S = 0.2
_NO_END = 2**63


def tail(session: Session, topic: str, request: TailRequest) -> None:
    matches = request.matcher()
    reader = Reader(session, topic, request)
    shown = 0
    with Interrupts() as interrupts:
        for found in reader.fetches():
            with interrupts.held():
                for place, record in found:
                    reader.done[place] = record.offset + 1
                    if not matches(value_text(record.value)):
                        continue
                    session.out.streamed(
                        as_item(topic, place.partition, record),
                        text=as_text(place.partition, record),
                        name="value",
                    )
                    shown += 1
                    if shown == request.count_max:
                        break
                else:  # the whole reply was printed; skip markers after its last record
                    reader.done.update(reader.fetched)
                reader.commit()
            if shown == request.count_max:
                return


class Reader:
    def __init__(self, session: Session, topic: str, request: TailRequest) -> None:
        self._session = session
        self._kafka: Kafka = session.kafka
        self._topic = topic
        self._request = request
        self._what = f"cannot read topic '{topic}'"
        origin = request.origin or ("earliest" if request.group is not None else "latest")
        if isinstance(origin, str):
            origin = offsets.target_of(origin, what="cannot start at", option="--from")
        with failing(self._what):
            places = self._kafka.places(topic)
            if request.partition is not None:
                places = [place for place in places if place.partition == request.partition]
                if not places:
                    missing = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                    raise KafkaRefused(missing, subject=f"partition {request.partition}")
            if request.group is not None:
                offsets.check_idle(self._kafka, request.group, what=self._what)
            # The next offset to print, and the end of the log when the command started.
            self.done, self._ends = offsets.offsets_at(
                self._kafka, places, origin, is_committed=True
            )
        self._places = places
        if request.group is not None:
            known = offsets.committed(self._kafka, request.group)
            self.done |= {place: known[place] for place in places if place in known}
        self.fetched = dict(self.done)  # the next offset to fetch
        self._committed = dict(self.done)

    @classmethod
    def of_internal(
        cls, session: Session, topic: str, request: TailRequest, missing: Failure
    ) -> "Reader":
        try:
            return cls(session, topic, request)
        except Failure as failure:
            if failure.exit_code is ExitCode.NOT_FOUND:
                raise missing from None
            raise

    def fetches(self) -> Iterator[list[tuple[Place, RawRecord]]]:
        places = self._places
        retries = 0
        while True:
            if not self._request.is_following:
                places = [place for place in places if self.fetched[place] < self._ends[place]]
                if not places:
                    return
            found: list[tuple[Place, RawRecord]] = []
            is_moved = is_failing = False
            for place, part in self._fetch(places).items():
                before = self.fetched[place]
                if part.error_code:
                    is_failing = self._correct(place, part.error_code) or is_failing
                else:
                    found += ((place, record) for record in self._records(place, part))
                is_moved = is_moved or self.fetched[place] != before
            retries = retries + 1 if is_failing else 0
            if is_failing:
                if retries > _RETRIES_MAX:
                    raise refused(self._what, ErrorCode.LEADER_NOT_AVAILABLE)
                time.sleep(_RETRY_S * retries)
                self._kafka.metadata([self._topic])
            elif not is_moved and not self._request.is_following:
                return  # records up to the end were removed meanwhile
            if is_moved:
                yield found

    def _fetch(self, places: Sequence[Place]) -> dict[Place, Fetched]:
        wait_ms = 0
        if self._request.is_following:
            wait_ms = _WAIT_MS if self._kafka.has_one_leader(places) else _WAIT_MS_SEVERAL
        with failing(self._what):
            return self._kafka.try_fetch(
                {place: self.fetched[place] for place in places},
                wait_ms=wait_ms,
                bytes_min=1 if wait_ms else 0,
                bytes_max=_REPLY_BYTES,
                partition_bytes_max=_PARTITION_BYTES,
            )

    def _records(self, place: Place, part: Fetched) -> Iterator[RawRecord]:
        aborted = {(each.producer_id, each.first_offset) for each in part.aborted}
        # With --no-follow, records that arrived after the start of the command are left out.
        stop = _NO_END if self._request.is_following else self._ends[place]
        try:
            for header, batch in offsets.whole_batches(bytes(part.records)):
                begin = self.fetched[place]
                mine = [each for each in aborted if each[0] == header.producer_id]
                is_transactional = bool(header.attributes & ATTR_TRANSACTIONAL)
                is_aborted = any(first <= header.base_offset for _, first in mine)
                if header.is_control:
                    kinds = [kind for _, kind, _ in iter_control(batch)] if is_transactional else []
                    if mine and TYPE_ABORT in kinds:
                        aborted.discard(min(mine))  # the producer's next transaction may commit
                elif not (is_transactional and is_aborted):
                    yield from (r for r in iter_records(batch) if begin <= r.offset < stop)
                self.fetched[place] = max(begin, min(header.next_offset, stop))
        except MalformedBatch as error:
            raise Unhealthy(
                f"{self._what}: partition {place.partition}",
                f"a batch at or after offset {self.fetched[place]} cannot be read: {error}",
                "check the data folder with `penstock storage verify` while the server is stopped",
            ) from None

    def _correct(self, place: Place, code: int) -> bool:
        """Handle the error of a failed fetch. An offset that is out of range is corrected. Returns
        True if the error is temporary. Raises Failure for all other errors."""
        if code == ErrorCode.OFFSET_OUT_OF_RANGE:
            with failing(self._what):
                starts, ends = self._kafka.bounds([place], is_committed=True)
            offset = self.fetched[place]
            nearest = min(max(offset, starts[place]), ends[place])
            reason = "was removed" if nearest > offset else "is after the end of the log"
            self._session.remark(
                f"partition {place.partition}: offset {offset} {reason}, continuing at {nearest}"
            )
            self.fetched[place] = self.done[place] = nearest
            return False
        failure = refused(f"{self._what}: partition {place.partition}", code)
        if failure.exit_code not in PASSING:
            raise failure
        return True

    def commit(self) -> None:
        if (group := self._request.group) is None:
            return
        self._session.out.flush()
        moved = {place: at for place, at in self.done.items() if at != self._committed[place]}
        if moved:
            with failing(f"cannot commit offsets of group '{group}'"):
                offsets.commit(self._kafka, group, moved)
            self._committed.update(moved)
