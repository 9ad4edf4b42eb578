"""Finds where each record of many batches begins and ends, by following chains of lengths.

A chain is a run of records, each of which begins with its length. Each step of the walk moves all
chains forward by one record, so the walk is fast if there are hundreds of chains. A chunk of small
batches has hundreds. In a chunk of large batches, a long batch is cut into several chains at
*marks*: records found by searching for their offset delta, which is known because the deltas of a
batch that was never compacted count up by one. A wrong mark (a value can contain the same bytes) is
always noticed: each chain must end, after its number of records, exactly where the next one begins.

Lengths of one and two bytes are looked up in a table. If a length is longer, or a chain does not
end where it should, a general walk begins again without marks and reads any length. Both walks
follow the last few long chains one by one. Only the general walk raises ``Unreadable``.
"""

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.pipeline.decoding.varints import Bytes, Longs, Unreadable, read_varints
from penstock.record.malformed import MalformedBatch
from penstock.record.record import decode_varint, encode_varint

_WIDTH: Final = 400  # chains of a chunk; finding more marks costs more time than it saves
_LINKS_MIN: Final = 64  # records of a chain; smaller offset deltas are single bytes
_DRIFT: Final = 24  # search distance of a mark, in records of average size
_TRIES_MAX: Final = 4  # matches that are examined for one mark
_NARROW: Final = 12  # with fewer chains, a step costs more than following them one by one
_NARROW_ANY: Final = 96  # the same for the general walk, whose steps cost more

Flags = npt.NDArray[np.bool_]


class Chains(NamedTuple):
    """Chains in the order of their bytes, each with at least one record."""

    starts: Longs
    stops: Longs
    counts: Longs


class StepPlan(NamedTuple):
    """Chains sorted by length, longest first: the chains that still have a record always come
    first."""

    order: Longs
    place: Longs  # index of each chain's first record
    lengths: Longs
    widths: Longs  # number of chains that take part in each step


def _jumps() -> npt.NDArray[np.int16]:
    """Return the distance to the next record by a record's first two bytes; 0 is unknown."""
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
    """Return the beginning (after its length) and the end of each record, batch by batch.
    ``is_dense``: the batches with a record for each of their offsets. Raises Unreadable."""
    whole = Chains(starts, stops, counts)
    chains = cut(data, whole, is_dense)
    found = _walk_short(data, chains)
    if found is None and chains is not whole:
        found = _walk_short(data, whole)
    return found or _walk_any(data, whole)


# ── Marks ────────────────────────────────────────────────────────────────────────────────────────


def cut(data: Bytes, chains: Chains, is_dense: Flags) -> Chains:
    """Cut long chains into several, if there are too few chains."""
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
    """Return the probable beginning of the record with this offset delta."""
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


# ── Walks ────────────────────────────────────────────────────────────────────────────────────────


def plan_steps(counts: Longs) -> StepPlan:
    """Return the plan for chains with these numbers of elements."""
    order = np.argsort(-counts, kind="stable")
    place = (np.cumsum(counts) - counts)[order]
    lengths = counts[order]
    steps = int(lengths[0]) if lengths.size else 0
    widths = np.searchsorted(-lengths, -np.arange(steps), side="left")
    return StepPlan(order, place, lengths, widths)


def _walk_short(data: Bytes, chains: Chains) -> tuple[Longs, Longs] | None:
    """Return None if a length has more than two bytes, or a chain does not end at its stop."""
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
    """Write the ends of one chain's records to ``ends``. ``at`` is the position of ``data``. Return
    False if the chain exceeds the data, or a length is invalid."""
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
            raise Unreadable("a record runs past the end")
        starts = np.concatenate(([start], end[first : last - 1]))
        begin[first:last] = read_varints(data, starts)[1]
        at[chain] = end[last - 1]
    if (end < begin).any() or (at != stops).any():
        raise Unreadable("the records do not match the length of their batch")
    return begin, end
