"""Decodes MessagePack columns of many records at once into arrays.

A record of ``__usage`` or ``__telemetry`` contains a table. Each column is a MessagePack array,
whose elements differ in size and must be read one after another (a chain). Each NumPy step moves
all chains forward by one element, as ``records`` does with record batches.

This module only decodes values that our writers write: whole numbers from 0, or from -32 in
``signed`` columns, and texts of less than 256 bytes. Other values may be valid too: the exception
``UnusualRecords`` names their records, which the caller decodes one by one with ``wire/facts``."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.pipeline.decoding.decoder import binary_column
from penstock.pipeline.decoding.records import Bytes, Longs, plan_steps

_ARRAY: Final = b"\x90"  # an empty array
_PADDING: Final = bytes(16)  # reads of some bytes after an element stay in the buffer
_FIX_ARRAY, _ARRAY_16, _ARRAY_32 = 0x90, 0xDC, 0xDD
_FIX_TEXT, _TEXT_8 = 0xA0, 0xD9
_NUMBERS: Final = {0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8}  # code: size of the big-endian number
_BELOW_ZERO: Final = 0xE0  # to 0xFF: -32 to -1, so a one-byte number is its byte as int8
_NUMBER_MIN: Final = -32
_NO_NUMBER: Final = -128
_NARROW: Final = 64  # with fewer chains, following them one by one costs less than a step

Column = msgspec.Raw
Flags = npt.NDArray[np.bool_]


def _sizes() -> Longs:
    """Return the sizes of elements, indexed by their first byte (0 for an unsupported type)."""
    sizes = np.zeros(256, np.int64)
    sizes[:0x80] = sizes[_BELOW_ZERO:] = 1
    sizes[_FIX_TEXT : _FIX_TEXT + 32] = 1 + np.arange(32)
    sizes[_TEXT_8] = 2  # plus the value of the second byte
    for code, width in _NUMBERS.items():
        sizes[code] = 1 + width
    return sizes


_SIZES: Final = _sizes()
_SIZES_LIST: Final = _SIZES.tolist()


class UnusualRecords(Exception):
    """Raised for records with values that this module does not decode."""

    def __init__(self, numbers: Sequence[int]) -> None:
        super().__init__(numbers)
        self.numbers = numbers  # indices of the records


class Columns(NamedTuple):
    counts: Longs  # rows of each record
    texts: Mapping[str, pa.Array]
    numbers: Mapping[str, Longs]

    def records_of(self, rows: Longs) -> list[int]:
        return _records_of(rows, self.counts)


def read_columns(
    records: Sequence[Mapping[str, Column]],
    *,
    texts: Sequence[str],
    numbers: Sequence[str],
    signed: Sequence[str] = (),
) -> Columns:
    """Decode the columns ``texts`` and ``numbers`` of records. If a record lacks a column of
    numbers, its numbers are all 0. The first column of ``texts`` gives a record's row count."""
    chains = _Chains(records, (*texts, *numbers))
    chains.check_counts(len(texts))
    found_numbers: dict[str, Longs] = {}
    wanted = list(range(len(texts)))
    least: dict[int, int] = {}
    for column, name in enumerate(numbers, len(texts)):
        least[column] = _NUMBER_MIN if name in signed else 0
        short = chains.short_numbers(column, least[column])
        if short is None:
            wanted.append(column)
        else:
            found_numbers[name] = short
    places = chains.places(wanted)
    found_texts = {name: chains.texts(places[c]) for c, name in enumerate(texts)}
    for column, name in enumerate(numbers, len(texts)):
        if column in places:
            found_numbers[name] = chains.numbers(column, places[column], least[column])
    return Columns(chains.rows, found_texts, found_numbers)


READ_BYTES: Final = 8 * 1_048_576  # of records that are decoded together: enough to be fast
Record = TypeVar("Record", bound=tuple[Any, ...])


def values_in(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, int, bytes]]:
    for batch in batches:
        columns = [batch.column(name).to_pylist() for name in ("partition", "offset", "value")]
        for partition, offset, value in zip(*columns, strict=True):
            yield partition, offset, value or b""


def read_together(
    records: Iterable[Record],
    read_many: Callable[[Sequence[Record]], None],
    read_one: Callable[[Record], None],
) -> None:
    """Pass records (tuples that end with the value) to ``read_many``, about ``READ_BYTES`` at a
    time. If ``read_many`` raises UnusualRecords, which it must do before it changes any state,
    pass the records that the exception names to ``read_one``, and continue without them."""

    def read(waiting: list[Record]) -> None:
        while waiting:
            try:
                read_many(waiting)
                return
            except UnusualRecords as odd:
                named = set(odd.numbers)
            for number in sorted(named):
                read_one(waiting[number])
            waiting = [each for number, each in enumerate(waiting) if number not in named]

    together: list[Record] = []
    size = 0
    for record in records:
        together.append(record)
        size += len(record[-1])
        if size >= READ_BYTES:
            read(together)
            together, size = [], 0
    read(together)


class _Chains:
    def __init__(self, records: Sequence[Mapping[str, Column]], names: Sequence[str]) -> None:
        self._count = len(records)
        nothing = memoryview(_ARRAY)
        self._views = [
            memoryview(record[name]) if name in record else nothing
            for name in names
            for record in records
        ]
        sizes = np.fromiter(map(len, self._views), np.int64, len(self._views))
        self._joined = b"".join([*self._views, _PADDING])
        self._data: Bytes = np.frombuffer(self._joined, np.uint8)
        ends = np.cumsum(sizes)
        counts, heads = _array_headers(self._data, ends - sizes)
        shape = len(names), self._count
        self._ends = ends.reshape(shape)
        self._array_headers = heads.reshape(shape)
        self._begins = (ends - sizes + heads).reshape(shape)
        self._counts = counts.reshape(shape)
        self.rows: Longs = self._counts[0]

    def check_counts(self, text_count: int) -> None:
        is_equal = self._counts == self.rows
        # A column of numbers may be missing, or not be an array at all (-1).
        is_equal[text_count:] |= self._counts[text_count:] == 0
        is_equal[0] &= self.rows >= 0
        self._reject(~is_equal.all(axis=0))

    def _reject(self, is_unusual: Flags) -> None:
        if is_unusual.any():
            raise UnusualRecords(np.flatnonzero(is_unusual).tolist())

    def short_numbers(self, column: int, least: int) -> Longs | None:
        """Return the numbers of a column if each has one byte, as in most columns, else None."""
        counts, begins, ends = self._counts[column], self._begins[column], self._ends[column]
        if (counts != self.rows).any() or (ends - begins != counts).any():
            return None
        views = self._views[column * self._count : (column + 1) * self._count]
        heads = self._array_headers[column].tolist()
        bodies = b"".join([view[head:] for view, head in zip(views, heads, strict=True)])
        found = np.frombuffer(bodies, np.int8)
        if found.size and found.min() < least:
            return None
        return found.astype(np.int64)

    def places(self, columns: Sequence[int]) -> dict[int, Longs]:
        counts = self._counts[columns]
        at, ends = _walk(self._data, self._begins[columns].ravel(), counts.ravel())
        self._reject((ends.reshape(counts.shape) != self._ends[columns]).any(axis=0))
        edges = np.cumsum(counts.sum(axis=1))[:-1]
        return dict(zip(columns, np.split(at, edges), strict=True))

    def texts(self, at: Longs) -> pa.Array:
        code = self._data[at]
        size = code ^ _FIX_TEXT  # of a short text; 32 and more for other types
        is_long = code == _TEXT_8
        begin = at + 1
        if is_long.any():
            self._reject_rows((size >= 32) & ~is_long)
            size = np.where(is_long, self._data[begin], size)
            begin += is_long
        else:
            self._reject_rows(size >= 32)
        raw = binary_column(pa.py_buffer(self._joined), begin, size.astype(np.int64))
        try:
            return raw.cast(pa.string())
        except pa.ArrowInvalid:
            self._reject_rows(np.array([not _is_text(each) for each in raw.to_pylist()]))
            raise AssertionError("a value is not UTF-8") from None

    def numbers(self, column: int, at: Longs, least: int) -> Longs:
        code = self._data[at]
        values = code.view(np.int8).astype(np.int64)
        for each, width in _NUMBERS.items():
            here = np.flatnonzero(code == each)
            if here.size:
                long = self._big_endian(at[here], width)
                long[long < 0] = _NO_NUMBER  # 2^63 and more does not fit
                values[here] = long
        self._reject_rows(values < least, column)
        missing = self._counts[column] != self.rows
        if not missing.any():
            return values
        filled = np.zeros(int(self.rows.sum()), np.int64)
        filled[np.repeat(~missing, self.rows)] = values
        return filled

    def _big_endian(self, at: Longs, width: int) -> Longs:
        values = self._data[at + 1].astype(np.int64)
        for place in range(2, width + 1):
            values <<= 8
            values |= self._data[at + place]
        return values

    def _reject_rows(self, is_unusual: Flags, column: int = 0) -> None:
        if is_unusual.any():
            raise UnusualRecords(_records_of(np.flatnonzero(is_unusual), self._counts[column]))


def _records_of(rows: Longs, counts: Longs) -> list[int]:
    found: list[int] = np.unique(np.searchsorted(np.cumsum(counts), rows, side="right")).tolist()
    return found


def _is_text(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True


def _array_headers(data: Bytes, at: Longs) -> tuple[Longs, Longs]:
    """Return the number of elements (-1 if not an array) and the header size of each array."""
    code = data[at]
    counts = np.full(len(at), -1, np.int64)
    sizes = np.ones(len(at), np.int64)
    short = np.flatnonzero((code & 0xF0) == _FIX_ARRAY)
    counts[short] = code[short] & 0x0F
    for kind, width in ((_ARRAY_16, 2), (_ARRAY_32, 4)):
        here = np.flatnonzero(code == kind)
        if here.size:
            counts[here] = 0
            for place in range(1, width + 1):
                counts[here] = counts[here] << 8 | data[at[here] + place]
            sizes[here] += width
    return counts, sizes


def _walk(data: Bytes, begins: Longs, counts: Longs) -> tuple[Longs, Longs]:
    """Return the positions of all elements of all arrays, and the end of each array. The end is
    wrong if an element has an unknown type; the caller must check it."""
    found = np.empty(int(counts.sum()), np.int64)
    ends = np.empty(len(counts), np.int64)
    order, place, lengths, by_step = plan_steps(counts)
    at = begins[order]
    widths = by_step.tolist()
    steps = len(widths)
    step = 0
    while step < steps and widths[step] >= _NARROW:
        width = widths[step]
        here = at[:width]
        found[place[:width] + step] = here
        code = data[here]
        long = np.flatnonzero(code == _TEXT_8)
        if long.size:
            at[long] += data[at[long] + 1]
        here += _SIZES[code]
        step += 1
    if step < steps:
        blob = data.tobytes()
        for chain in range(widths[step]):
            into = int(place[chain]) + step
            count = int(lengths[chain]) - step
            links, at[chain] = _follow(blob, int(at[chain]), count)
            found[into : into + count] = links
    ends[order] = at
    return found, ends


def _follow(blob: bytes, at: int, count: int) -> tuple[list[int], int]:
    links = []
    for _ in range(count):
        links.append(at)
        code = blob[at]
        at += _SIZES_LIST[code]
        if code == _TEXT_8:
            at += blob[at - 1]
    return links, at


def listed(columns: object, *, texts: Sequence[str], numbers: Sequence[str]) -> Columns:
    """Convert a record that was decoded without ``read_columns`` to ``Columns``."""
    found = {name: pa.array(getattr(columns, name), pa.string()) for name in texts}
    count = len(found[texts[0]])
    return Columns(
        np.array([count], np.int64),
        found,
        {name: np.array(getattr(columns, name), np.int64) for name in numbers},
    )
