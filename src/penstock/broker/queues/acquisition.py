"""One ShareFetch of one partition: leases records and returns the batches that contain them.

Batches are sent whole. So the batches that fit into the reply are read first, beginning at the
first offset that can be leased, and then records of these batches are leased, until the request has
enough records. With ``read_committed``, records from the last stable offset on are not leased, and
records of aborted transactions are acked instead of delivered.

The next record of an ordered share may be anywhere in the log. So its records are leased one after
the other, as long as the batch of the next one fits into the reply."""

import asyncio
from bisect import bisect_right, insort
from collections.abc import Callable, Sequence

from penstock.broker.leases.leases import Leases
from penstock.broker.leases.record_reader import Reading
from penstock.broker.leases.waits import LeaseResult
from penstock.broker.partition.partition import Partition
from penstock.broker.queues.redrive import Redriver
from penstock.cursor.groups.settings import ShareSettings
from penstock.cursor.leases.fifo import FifoCursor
from penstock.cursor.leases.standard import StandardCursor
from penstock.model.calls import Acquire
from penstock.model.errors import Damaged
from penstock.model.limits import KIB, MIB, OFFSET_MAX, READ_BYTES_MAX
from penstock.model.message import AckReason, Claim, Delivery
from penstock.model.ports import LeaseRequest
from penstock.record.batch import ATTR_TRANSACTIONAL, BatchHeader, parse_header

READ_BYTES_MIN = 16 * KIB
JUDGING_TURNS_MAX = 100  # turns in which a filter may judge records until one is wanted
Batches = list[tuple[BatchHeader, bytes]]  # consecutive


class Acquisition:
    def __init__(
        self,
        partition: Partition,
        leases: Leases,
        redriver: Redriver,
        settings: ShareSettings,
        call: Acquire,
        *,
        in_flight_max: int,
    ) -> None:
        self.deliveries: list[Delivery] = []  # filled as records are leased
        self._partition = partition
        self._leases = leases
        self._redriver = redriver
        self._is_committed = settings.is_committed
        self._attempts_max = redriver.attempts_max(leases.topic)
        if settings.deliveries_max is not None and leases.topic.settings.redrive is None:
            self._attempts_max = settings.deliveries_max
        self._in_flight_max = min(in_flight_max, settings.locks_max)
        self._call = call
        self._bytes_left = call.bytes_max
        self._is_strict = call.is_strict  # even the first batch must fit
        self._read_bytes = READ_BYTES_MIN  # grows with each read; most fetches need little
        self._batches: dict[int, bytes] = {}  # by base offset
        self._judging_turns = 0
        self._fitting: Batches = []  # of an ordered share: read for the lease in progress

    def batches(self) -> list[bytes]:
        return [self._batches[base] for base in sorted(self._batches)]

    def _up_to(self) -> int:
        high_watermark = self._partition.journal.high_watermark
        if not self._is_committed:
            return high_watermark
        return self._partition.stream.producers.last_stable_offset(high_watermark)

    async def lease(self) -> None:
        if isinstance(self._leases.cursor, FifoCursor):
            await self._lease_ordered()
            return
        leases, passed, count = self._leases, -1, self._call.count
        while len(self.deliveries) < count:
            up_to = self._up_to()
            offset = leases.next_offset(up_to=up_to)
            if isinstance(offset, Reading):
                if self._is_judging_long():
                    return
                await leases.reader.ready()
                continue
            if offset is None or offset <= passed:
                break
            batches = self._next_batches(offset, up_to)
            if not batches:
                break
            cursor = leases.cursor
            assert isinstance(cursor, StandardCursor), "the kind of a share does not change"
            with cursor.only_below(batches[-1][0].next_offset):
                result = leases.lease(
                    LeaseRequest(count - len(self.deliveries), self._call.lease_ms),
                    attempts_max=self._attempts_max,
                    in_flight_max=self._in_flight_max,
                )
            if not (result.deliveries or result.late or result.dead):
                passed = offset  # none could be leased, or the in-flight limit is reached
            await self._settle(result, batches)

    async def _lease_ordered(self) -> None:
        leases, is_cut = self._leases, True
        while is_cut:
            cursor = leases.cursor
            assert isinstance(cursor, FifoCursor), "the kind of a share does not change"
            self._fitting, up_to = [], self._up_to()
            with cursor.only_if(self._fitter(up_to), group_max=self._call.group_max or OFFSET_MAX):
                result = leases.lease(
                    LeaseRequest(self._call.count - len(self.deliveries), self._call.lease_ms),
                    attempts_max=self._attempts_max,
                    in_flight_max=self._in_flight_max,
                    up_to=up_to,
                )
            await self._settle(result, self._fitting)
            is_cut = result.is_cut and not (self.deliveries or self._is_judging_long())
            if is_cut:
                await leases.reader.ready()

    def _is_judging_long(self) -> bool:
        """Return True if the call must end, because the next wanted record is far away. The share's
        listeners are called soon, so that consumers call again."""
        if self._leases.cursor.wants is None:
            return False
        self._judging_turns += 1
        is_long = self._judging_turns > JUDGING_TURNS_MAX
        if is_long:
            self._leases.wake_later()
        return is_long

    def _fitter(self, up_to: int) -> Callable[[int], bool]:
        """Return a function that reads the batch of a record, if the reply has room for it."""
        left = self._bytes_left

        def fits(offset: int) -> bool:
            nonlocal left
            if offset >= up_to:
                return False
            if _find(self._fitting, offset) is not None:
                return True
            try:
                batch = self._partition.log.read(offset, bytes_max=1)[0]
            except Damaged as damage:
                self._partition.found_damage(damage)
                return True  # leased and not delivered, as from a queue
            if len(batch) > left and (self._fitting or self._batches or self._is_strict):
                return False
            left -= len(batch)
            insort(self._fitting, (parse_header(batch), batch), key=_base_offset)
            return True

        return fits

    def _next_batches(self, offset: int, up_to: int) -> Batches:
        is_first = not (self._batches or self._is_strict)
        if self._bytes_left <= 0 and not is_first:
            return []
        read_max = max(1, min(self._bytes_left, self._read_bytes))
        self._read_bytes = min(4 * self._read_bytes, READ_BYTES_MAX)
        try:
            found = self._partition.log.read(offset, bytes_max=read_max, up_to=up_to)
        except Damaged as damage:
            self._partition.found_damage(damage)
            return []
        batches: Batches = []
        size = 0
        for batch in found:
            header = parse_header(batch)
            # A batch that is already in the reply needs no more room.
            size += 0 if header.base_offset in self._batches else len(batch)
            if size > self._bytes_left and (batches or not is_first):
                break
            batches.append((header, batch))
        return batches

    async def _settle(self, result: LeaseResult, batches: Batches) -> None:
        deliveries = self.deliveries
        first = len(deliveries)
        deliveries.extend(result.deliveries)
        if result.dead:
            await self._redriver.move(self._leases, result.dead)
        if result.flush is not None and (result.deliveries or result.late):
            is_ordered = self._leases.topic.is_fifo  # a lost lease would unlock its group
            await (result.flush.committed if is_ordered else result.flush.written).wait()
        if result.late:
            await self._leases.finish(result)
            deliveries[first:] = result.deliveries
        if self._is_committed and batches:
            await self._ack_aborted(batches, first)
        await self._add_batches(deliveries[first:], batches)

    async def _ack_aborted(self, batches: Batches, first: int) -> None:
        start, end = batches[0][0].base_offset, batches[-1][0].next_offset
        ranges = self._partition.stream.producers.aborted_between(start, end)
        if not ranges:
            return
        aborted = {
            header.base_offset
            for header, _ in batches
            if header.attributes & ATTR_TRANSACTIONAL
            and any(
                each.producer_id == header.producer_id
                and each.first_offset <= header.base_offset <= each.last_offset
                for each in ranges
            )
        }
        kept: list[Delivery] = []
        gone: list[Claim] = []
        for each in self.deliveries[first:]:
            at = _find(batches, each.record.offset)
            if at is not None and at[0].base_offset in aborted:
                gone.append(each.claim)
            else:
                kept.append(each)
        self.deliveries[first:] = kept
        if gone:
            # No consumer received them, so they count as expired.
            await self._leases.ack(gone, reason=AckReason.EXPIRED)

    async def _add_batches(self, deliveries: Sequence[Delivery], batches: Batches) -> None:
        for delivery in deliveries:
            offset = delivery.record.offset
            found = _find(batches, offset)
            if found is None:  # a record of a message group that was skipped before
                batch = self._partition.log.read(offset, bytes_max=1)[0]
                found = (parse_header(batch), batch)
            header, batch = found
            if header.base_offset not in self._batches:
                self._batches[header.base_offset] = batch
                self._bytes_left -= len(batch)
                if len(batch) > MIB:
                    await asyncio.sleep(0)  # reading a batch of 16 MiB takes milliseconds


def _base_offset(batch: tuple[BatchHeader, bytes]) -> int:
    return batch[0].base_offset


def _find(batches: Batches, offset: int) -> tuple[BatchHeader, bytes] | None:
    at = bisect_right(batches, offset, key=_base_offset) - 1
    return batches[at] if at >= 0 and offset < batches[at][0].next_offset else None
