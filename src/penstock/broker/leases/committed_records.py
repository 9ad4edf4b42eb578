"""Which records of a log a share wants that delivers no records of aborted transactions."""

from collections.abc import Callable, Sequence

from penstock.cursor.producers import Aborted
from penstock.log.log import Log
from penstock.model.message import Record
from penstock.record.batch import ATTR_TRANSACTIONAL, parse_header

Wants = Callable[[Record], bool]


def wants_committed(aborted: Sequence[Aborted], log: Log, wants: Wants | None) -> Wants | None:
    """Return ``wants`` without the records of these transactions. None: all records are wanted."""
    if not aborted:
        return wants
    known = range(0)  # the offsets of the batch that was read last
    is_aborted = False

    def is_wanted(record: Record) -> bool:
        nonlocal known, is_aborted
        at = record.offset
        if at not in known and any(one.first_offset <= at < one.last_offset for one in aborted):
            # Transactions overlap: only the header of the batch names the producer.
            header = parse_header(log.read(at, bytes_max=1)[0])
            known = range(header.base_offset, header.next_offset)
            is_aborted = bool(header.attributes & ATTR_TRANSACTIONAL) and any(
                one.producer_id == header.producer_id
                and one.first_offset <= header.base_offset < one.last_offset
                for one in aborted
            )
        return not (at in known and is_aborted) and (wants is None or wants(record))

    return is_wanted
