"""Finds all records in the batches of a chunk, and their fields, without a Python object for each.

A *chain* is a run of records, each of which begins with its length. Each step of the walk moves all
chains forward by one record, so the walk is fast if there are hundreds of chains. A long batch is
cut into several chains at *marks*: records found by searching for their offset delta, which is
known because the deltas of a batch that was never compacted count up by one. A wrong mark (a value
can contain the same bytes) is always noticed: each chain must end, after its number of records,
exactly where the next one begins. Lengths of one and two bytes are looked up in a table. If a
length has more bytes, or a chain does not end where it should, a general walk starts over without
marks and reads any length. Then fields are read in blocks that fit in the processor's cache.

The input is not trusted. Reads are clipped to the buffer, so a wrong position gives a wrong number
and no crash. Wrong numbers are then noticed, because chains must end exactly where their batch
ends, fields exactly where their record ends, and offsets must lie within their batch. Otherwise
``Unreadable`` is raised, and ``decoder`` reads the batches one by one to find the invalid one."""

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.record.malformed import MalformedBatch
from penstock.record.message import SYSTEM_HEADER
from penstock.record.record import HEADERS_PER_RECORD_MAX, decode_varint, encode_varint

Bytes = npt.NDArray[np.uint8]
Longs = npt.NDArray[np.int64]

_BITS: Final = 7
_BYTES_MAX: Final = 10  # 64 bits in groups of seven
_LAST_BYTE_MAX: Final = 1  # the tenth byte has one bit


class Unreadable(ValueError):
    """Raised if at least one record of a chunk is invalid. The caller must find out which."""


def read_varints(data: Bytes, at: Longs) -> tuple[Longs, Longs]:
    byte = data.take(at, mode="clip")
    if not at.size or byte.max() < 0x80:
        low = byte.astype(np.int64)
        return (low >> 1) ^ -(low & 1), at + 1
    # Reads two bytes for all, without a branch: many deltas and sizes are just above or below 64.
    goes_on = byte >> _BITS
    second = data.take(at + 1, mode="clip")
    raw = (second & 0x7F).astype(np.int64)
    raw *= goes_on
    raw <<= _BITS
    raw |= byte & 0x7F
    after = at + 1
    after += goes_on
    value = (raw >> 1) ^ -(raw & 1)
    more = np.flatnonzero(second & (goes_on << _BITS))
    if more.size:
        value[more], after[more] = _long(data, raw[more], after[more])
    return value, after


def _long(data: Bytes, low: Longs, at: Longs) -> tuple[Longs, Longs]:
    raw = low.astype(np.uint64)
    at = at.copy()
    live = np.arange(at.size)
    for index in range(2, _BYTES_MAX):
        byte = data.take(at[live], mode="clip")
        if index == _BYTES_MAX - 1 and (byte > _LAST_BYTE_MAX).any():
            raise Unreadable("a varint has more than 64 bits")
        raw[live] |= (byte & 0x7F).astype(np.uint64) << np.uint64(_BITS * index)
        at[live] += 1
        live = live[byte >= 0x80]
        if not live.size:
            break
    sign = (raw & np.uint64(1)).astype(np.int64)
    return (raw >> np.uint64(1)).astype(np.int64) ^ -sign, at


_WIDTH: Final = 400  # chains of a chunk; finding more marks costs more time than it saves
_LINKS_MIN: Final = 64  # records of a chain; smaller offset deltas are single bytes
_DRIFT: Final = 24  # search distance of a mark, in records of average size
_TRIES_MAX: Final = 4  # matches that are examined for one mark
_NARROW: Final = 12  # with fewer chains, a step costs more than following them one by one
_NARROW_ANY: Final = 96  # the same for the general walk, whose steps cost more

Flags = npt.NDArray[np.bool_]


class Chains(NamedTuple):
    starts: Longs
    stops: Longs
    counts: Longs


class StepPlan(NamedTuple):
    order: Longs
    place: Longs  # index of each chain's first record
    lengths: Longs
    widths: Longs  # number of chains that take part in each step


def _jumps() -> npt.NDArray[np.int16]:
    """Return a table of distances to the next record, indexed by a record's first two bytes."""
    pair = np.arange(65_536)
    low, high = pair & 0xFF, pair >> 8
    short = (low >> 1) + 1
    longer = (((low & 0x7F) | (high << 7)) >> 1) + 2
    jump = np.where(low < 0x80, short, np.where(high < 0x80, longer, 0))
    return np.where(low & 1, 0, jump).astype(np.int16)  # the lowest bit is the sign


_JUMPS: Final = _jumps()


def walk(
    data: Bytes, starts: Longs, stops: Longs, counts: Longs, *, is_dense: Flags
) -> tuple[Longs, Longs]:
    """Return the position after each record's length field, and the end of each record."""
    whole = Chains(starts, stops, counts)
    chains = cut(data, whole, is_dense)
    found = _walk_short(data, chains)
    if found is None and chains is not whole:
        found = _walk_short(data, whole)
    return found or _walk_any(data, whole)


def cut(data: Bytes, chains: Chains, is_dense: Flags) -> Chains:
    counts = chains.counts
    links = max(_LINKS_MIN, int(counts.sum()) // _WIDTH)
    if len(counts) >= _WIDTH or not (is_dense & (counts >= 2 * links)).any():
        return chains
    starts: list[int] = []
    stops: list[int] = []
    sizes: list[int] = []
    rows = zip(*(each.tolist() for each in chains), is_dense.tolist(), strict=True)
    for start, stop, count, may_cut in rows:
        at, first = start, 0
        for number in range(links, count - links + 1, links) if may_cut else ():
            mean = (stop - at) / (count - first)
            found = _find_mark(data, number, at + int(mean * (number - first)), mean, at, stop)
            if found is not None:
                starts.append(at)
                stops.append(found)
                sizes.append(number - first)
                at, first = found, number
        starts.append(at)
        stops.append(stop)
        sizes.append(count - first)
    return Chains(*(np.array(each, np.int64) for each in (starts, stops, sizes)))


def _find_mark(
    data: Bytes, number: int, guess: int, mean: float, least: int, stop: int
) -> int | None:
    """Return where the record with this offset delta probably begins."""
    reach = int(mean * _DRIFT)
    low, high = max(least, guess - reach), min(stop, guess + reach)
    blob = data[low:high].tobytes()
    wanted, follower = encode_varint(number), encode_varint(number + 1)
    delta_at = -1
    for _ in range(_TRIES_MAX):
        delta_at = blob.find(wanted, delta_at + 1)
        if delta_at < 0:
            return None
        try:
            start = _start_of(blob, delta_at, follower)
        except IndexError:
            return None
        if start is not None:
            return low + start
    return None


def _start_of(blob: bytes, delta_at: int, follower: bytes) -> int | None:
    """Return the beginning of the record whose offset delta is at ``delta_at``, or None if the next
    record does not have the next delta. Raises IndexError if the blob ends too early."""
    at = delta_at - 1  # the last byte of the time delta
    if at < 1 or blob[at] >= 0x80:
        return None
    at -= 1
    while at and blob[at] >= 0x80:
        at -= 1
    if blob[at]:  # attributes
        return None
    for start in (at - 2, at - 1, at - 3):  # the length; usually two bytes
        if start < 0 or _after_varint(blob, start) != at:
            continue
        size, _ = decode_varint(blob, start)
        if size > 0 and at + size < len(blob):
            attributes_at = _after_varint(blob, at + size)
            if blob.startswith(follower, _after_varint(blob, attributes_at + 1)):
                return start
    return None


def _after_varint(blob: bytes, at: int) -> int:
    while blob[at] >= 0x80:
        at += 1
    return at + 1


def plan_steps(counts: Longs) -> StepPlan:
    order = np.argsort(-counts, kind="stable")
    place = (np.cumsum(counts) - counts)[order]
    lengths = counts[order]
    steps = int(lengths[0]) if lengths.size else 0
    widths = np.searchsorted(-lengths, -np.arange(steps), side="left")
    return StepPlan(order, place, lengths, widths)


def _walk_short(data: Bytes, chains: Chains) -> tuple[Longs, Longs] | None:
    """Find records whose lengths have one or two bytes. Return None if a length has more."""
    if not len(chains.starts) or data.size < 2:
        return None
    pairs: npt.NDArray[np.uint16] = np.ndarray(
        (data.size - 1,), np.dtype("<u2"), buffer=data, strides=(1,)
    )
    plan = plan_steps(chains.counts)
    at = chains.starts[plan.order]
    end = np.empty(int(chains.counts.sum()), np.int64)
    steps = len(plan.widths)
    step = 0
    try:
        if not _JUMPS[pairs[at]].all():
            return None
        while step < steps and plan.widths[step] >= _NARROW:
            width = int(plan.widths[step])
            front = at[:width]
            front += _JUMPS[pairs[front]]
            end[plan.place[:width] + step] = front
            step += 1
    except IndexError:  # beyond the buffer
        return None
    stops = chains.stops[plan.order]
    if step < steps:
        for chain in range(int(plan.widths[step])):
            first = int(plan.place[chain]) + step
            last = int(plan.place[chain] + plan.lengths[chain])
            begin, stop = int(at[chain]), int(stops[chain])
            if begin > stop or not _follow(data[begin:stop], begin, end[first:last]):
                return None
            at[chain] = end[last - 1]
    if (at != stops).any():
        return None
    start = np.empty_like(end)
    start[1:] = end[:-1]
    start[plan.place] = chains.starts[plan.order]
    return start + 1 + (data.take(start, mode="clip") >> 7), end


def _follow(data: Bytes, at: int, ends: Longs) -> bool:
    """Write the end of each record in ``data`` to ``ends``. Return False if a length is invalid."""
    blob = data.tobytes()
    base, at, limit = at, 0, len(blob)
    found = []
    try:
        for _ in range(len(ends)):
            low = blob[at]
            if low < 0x80:
                at += 1 + (low >> 1)
            elif (high := blob[at + 1]) < 0x80:
                at += 2 + (((low & 0x7F) >> 1) | (high << 6))
            else:
                size, at = decode_varint(blob, at)
                at += size
            if low & 1 or at > limit:  # the lowest bit is the sign
                return False
            found.append(at)
    except (IndexError, MalformedBatch):
        return False
    ends[:] = found
    ends += base
    return True


def _walk_any(data: Bytes, chains: Chains) -> tuple[Longs, Longs]:
    plan = plan_steps(chains.counts)
    total = int(chains.counts.sum())
    begin = np.empty(total, np.int64)
    end = np.empty(total, np.int64)
    at = chains.starts[plan.order]
    stops = chains.stops[plan.order]
    steps = len(plan.widths)
    step = 0
    while step < steps and plan.widths[step] >= _NARROW_ANY:
        width = int(plan.widths[step])
        size, after = read_varints(data, at[:width])
        into = plan.place[:width] + step
        begin[into] = after
        after += size
        end[into] = after
        at[:width] = after
        step += 1
    for chain in range(int(plan.widths[step]) if step < steps else 0):
        first = int(plan.place[chain]) + step
        last = int(plan.place[chain] + plan.lengths[chain])
        start, stop = int(at[chain]), int(stops[chain])
        if not 0 <= start <= stop or not _follow(data[start:stop], start, end[first:last]):
            raise Unreadable("a record runs past the end of its batch")
        starts = np.concatenate(([start], end[first : last - 1]))
        begin[first:last] = read_varints(data, starts)[1]
        at[chain] = end[last - 1]
    if (end < begin).any() or (at != stops).any():
        raise Unreadable("the records do not match the length of their batch")
    return begin, end


RECORD_BYTES_MIN: Final = 7  # seven fields of a byte each
_SYSTEM_NAME: Final = encode_varint(len(SYSTEM_HEADER)) + SYSTEM_HEADER
_BLOCK: Final = 8_192  # records whose fields are read together


class Fields(NamedTuple):
    """The fields of records. Each column has one element per record; a size of −1 means null."""

    time_delta: Longs
    offset_delta: Longs
    key_at: Longs
    key_size: Longs
    value_at: Longs
    value_size: Longs
    headers_at: Longs  # of the first header
    headers_count: Longs
    end: Longs

    def kept(self, keep: npt.NDArray[np.bool_] | slice) -> "Fields":
        return Fields(*(each[keep] for each in self))


class HeaderFields(NamedTuple):
    name_at: Longs
    name_size: Longs
    value_at: Longs
    value_size: Longs


def read_fields(data: Bytes, starts: Longs, stops: Longs, counts: Longs, spans: Longs) -> Fields:
    """Return the fields of all records. ``spans`` has the last offset delta of each batch."""
    if (counts * RECORD_BYTES_MIN > stops - starts).any():
        raise Unreadable("a batch is too short for its number of records")
    begin, end = walk(data, starts, stops, counts, is_dense=counts == spans + 1)
    total = len(begin)
    if total <= _BLOCK:
        fields = _read_block(data, begin, end)
    else:
        fields = Fields(*(np.empty(total, np.int64) for _ in Fields._fields))
        for at in range(0, total, _BLOCK):
            block = slice(at, at + _BLOCK)
            read = _read_block(data, begin[block], end[block])
            for whole, part in zip(fields, read, strict=True):
                whole[block] = part
    delta = fields.offset_delta
    if (delta < 0).any() or (delta > np.repeat(spans, counts)).any():
        raise Unreadable("an offset is outside its batch")
    return fields


def _read_block(data: Bytes, begin: Longs, end: Longs) -> Fields:
    time_delta, at = read_varints(data, begin + 1)  # after the attributes, which are unused
    offset_delta, at = read_varints(data, at)
    key_size, key_at = read_varints(data, at)
    value_size, value_at = read_varints(data, key_at + np.maximum(key_size, 0))
    headers_count, headers_at = read_varints(data, value_at + np.maximum(value_size, 0))
    if (
        (key_size < -1).any()
        or (value_size < -1).any()
        or (headers_count < 0).any()
        or (headers_count > HEADERS_PER_RECORD_MAX).any()
        or (key_at > end).any()
        or (key_size > end - key_at).any()
        or (value_at > end).any()
        or (value_size > end - value_at).any()
        or (headers_at > end).any()
        or ((headers_count == 0) & (headers_at != end)).any()
    ):
        raise Unreadable("the fields do not match the length of their record")
    key, value = (key_at, key_size), (value_at, value_size)
    return Fields(time_delta, offset_delta, *key, *value, headers_at, headers_count, end)


def without_system_header(data: Bytes, fields: Fields, which: npt.NDArray[np.bool_]) -> Fields:
    """Remove the header ``penstock``, if it is the first one, from records marked in ``which``."""
    rows = np.flatnonzero(which & (fields.headers_count > 0))
    at = fields.headers_at[rows]
    for number, octet in enumerate(_SYSTEM_NAME):
        is_same = (at + number < len(data)) & (
            data[np.minimum(at + number, len(data) - 1)] == octet
        )
        rows, at = rows[is_same], at[is_same]
    if not rows.size:
        return fields
    size, value_at = read_varints(data, at + len(_SYSTEM_NAME))
    after = value_at + np.maximum(size, 0)
    if (size > fields.end[rows] - value_at).any():
        raise Unreadable("the headers do not match the length of their record")
    headers_at, headers_count = fields.headers_at.copy(), fields.headers_count.copy()
    headers_at[rows] = after
    headers_count[rows] -= 1
    return fields._replace(headers_at=headers_at, headers_count=headers_count)


def read_headers(data: Bytes, fields: Fields) -> HeaderFields:
    total = int(fields.headers_count.sum())
    found = HeaderFields(*(np.empty(total, np.int64) for _ in range(4)))
    with_some = np.flatnonzero(fields.headers_count)
    counts = fields.headers_count[with_some]
    plan = plan_steps(counts)
    at = fields.headers_at[with_some][plan.order]
    stop = fields.end[with_some][plan.order]
    for step, width in enumerate(plan.widths.tolist()):
        name_size, name_at = read_varints(data, at[:width])
        # Each size is compared with the rest before it is added: a sum could overflow.
        if (name_size < 0).any() or (name_size > stop[:width] - name_at).any():
            raise Unreadable("the headers do not match the length of their record")
        value_size, value_at = read_varints(data, name_at + name_size)
        if (value_size < -1).any() or (value_size > stop[:width] - value_at).any():
            raise Unreadable("the headers do not match the length of their record")
        after = value_at + np.maximum(value_size, 0)
        into = plan.place[:width] + step
        found.name_at[into] = name_at
        found.name_size[into] = name_size
        found.value_at[into] = value_at
        found.value_size[into] = value_size
        at[:width] = after
    if (at != stop).any():
        raise Unreadable("the headers do not match the length of their record")
    return found
