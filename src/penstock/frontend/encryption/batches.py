"""Batches of producers, encrypted record by record when produced and decrypted when fetched.

A record keeps key, offset and time; value and headers become one encrypted value. The batch keeps
producer id, epoch, sequence and transaction, and is stored uncompressed, because encrypted data
does not compress. For a broker that leases or compacts the records they are ordinary records. On
fetch, value and headers are restored byte for byte.

A record without value and headers is not encrypted. A record without a value keeps none, so that
compaction recognizes the tombstone: its encrypted content is in a header.

A batch may have thousands of records, so the work is done by generators that yield None to let
other tasks run, or the id of a data key that must be loaded first."""

from collections.abc import Callable, Generator, Iterator
from typing import Final

from penstock.frontend.encryption.content import (
    NONCE_BYTES,
    UNKNOWN_KEY,
    Unopenable,
    open_message,
    place_of,
    seal,
    unseal,
)
from penstock.metadata.security.data_keys import DataKey
from penstock.record.batch import (
    ATTR_CODEC_MASK,
    ATTR_SEALED,
    BatchHeader,
    is_server_batch,
    parse_header,
    repacked,
)
from penstock.record.malformed import MalformedBatch
from penstock.record.message import (
    FOREIGN,
    SEALED_HEADER,
    decode_message,
    encode_message,
    group_of,
)
from penstock.record.record import (
    RecordSlice,
    decode_varint,
    encode_varint,
    records_blob,
    slices_of,
)

STEP_RECORDS: Final = 128  # about a millisecond
STEP_BATCHES: Final = 1_024  # headers, about a millisecond
RECORD_BYTES_MIN: Final = 7  # the length, and six fields of at least a byte each
Find = Callable[[bytes], DataKey | None]  # by topic id and key id, from memory
Quarantine = list[tuple[int, str]]  # offsets and reasons
_NOTHING: Final = b"\x01\x00"  # no value, no headers
_NO_VALUE: Final = b"\x01"
_NO_HEADERS: Final = b"\x00"
_SEALED_NAME: Final = encode_varint(len(SEALED_HEADER)) + SEALED_HEADER
_ONLY_SEALED: Final = b"\x01\x02" + _SEALED_NAME  # no value, one header, its name


def check_count(blob: bytes | memoryview, header: BatchHeader) -> None:
    """Raise MalformedBatch if the count in the header is too high for the bytes: uses of a key are
    counted by it."""
    if header.count * RECORD_BYTES_MIN > len(blob):
        raise MalformedBatch(f"{header.count} records in {len(blob)} bytes")


def seal_records(
    blob: bytes, header: BatchHeader, key: DataKey, entropy: Callable[[int], bytes]
) -> Generator[None, None, bytes]:
    """Return the encrypted batch. Raises MalformedBatch."""
    sealed: list[bytes] = []
    nonces, nonce_at = b"", 0
    for one in slices_of(blob, header):
        if nonce_at == len(nonces):
            if sealed:
                yield None
            left = min(STEP_RECORDS, header.count - len(sealed))
            nonces, nonce_at = entropy(NONCE_BYTES * left), 0
        nonce = nonces[nonce_at : nonce_at + NONCE_BYTES]
        nonce_at += NONCE_BYTES
        sealed.append(_sealed(blob, one, key, nonce))
    yield None
    attributes = header.attributes & ~ATTR_CODEC_MASK | ATTR_SEALED
    return repacked(header._replace(attributes=attributes), sealed)


def _sealed(blob: bytes, one: RecordSlice, key: DataKey, nonce: bytes) -> bytes:
    value_at = one.value_at
    content = blob[value_at : one.end]
    if content == _NOTHING:
        return blob[one.start : one.end]
    value = seal(FOREIGN + content, _bound(one.key), key, nonce)
    is_null = content.startswith(_NO_VALUE)
    front = blob[one.fields_at : value_at]
    size = encode_varint(len(value))
    fields = (front, _ONLY_SEALED, size, value) if is_null else (front, size, value, _NO_HEADERS)
    return _framed(b"".join(fields))


def _framed(fields: bytes) -> bytes:
    return encode_varint(len(fields)) + fields


def _bound(key: bytes | None) -> bytes | None:
    """Return the key as the group of a message has it: a copy of the record as a message, such as a
    dead letter, is decrypted with that."""
    return key if key is None or key.isascii() else group_of(key).encode()


def open_batch(
    batch: bytes, find: Find, owner: bytes, quarantine: Quarantine
) -> Generator[bytes | None, None, bytes]:
    """Return the batch as it was produced, uncompressed. Records that cannot be decrypted are left
    out and added to ``quarantine``. Yields the id of a key that ``find`` does not have, which the
    caller may load now."""
    header = parse_header(batch)
    blob = records_blob(batch, header)
    is_own = is_server_batch(header)
    opened: list[bytes] = []
    for number, one in enumerate(slices_of(blob, header), 1):
        if number % STEP_RECORDS == 0:
            yield None
        try:
            sealed, is_producers = _sealed_part(blob, one, is_own)
            if sealed is None:
                opened.append(blob[one.start : one.end])
                continue
            place = place_of(sealed)
            key = find(place)
            if key is None:
                yield place
                key = find(place)
            if key is None:
                raise Unopenable(UNKNOWN_KEY)
            if is_producers:
                content = unseal(sealed, _bound(one.key), key, owner)
                fields = blob[one.fields_at : one.value_at] + content[len(FOREIGN) :]
                opened.append(_framed(fields))
            else:
                opened.append(_opened_message(blob, one, key, owner))
        except Unopenable as error:
            quarantine.append((header.base_offset + one.offset_delta, str(error)))
        except UnicodeDecodeError as error:
            raise MalformedBatch(f"text that is not UTF-8: {error.reason}") from None
    yield None
    attributes = header.attributes & ~(ATTR_CODEC_MASK | ATTR_SEALED)
    return repacked(header._replace(attributes=attributes), opened)


def _sealed_part(blob: bytes, one: RecordSlice, is_own: bool) -> tuple[bytes | None, bool]:
    """Return the encrypted part of a record (None: plaintext), and whether a producer made the
    record. ``is_own``: the server wrote the batch, so a record may be a message."""
    size, at = decode_varint(blob, one.value_at)
    if size >= 0 and blob[at + size : one.end] == _NO_HEADERS:
        return blob[at : at + size], True
    if size < 0:
        if not blob.startswith(_ONLY_SEALED, one.value_at):
            return None, True
        size, at = decode_varint(blob, one.value_at + len(_ONLY_SEALED))
        return blob[at : at + size], True
    message = decode_message(blob, one.key_at, one.end, b"", 0, ATTR_SEALED, is_own)
    return message.body if message.is_sealed else None, False


def _opened_message(blob: bytes, one: RecordSlice, key: DataKey, owner: bytes) -> bytes:
    message = decode_message(blob, one.key_at, one.end, b"", 0, ATTR_SEALED, True)
    return encode_message(
        open_message(message, key, owner),
        offset_delta=one.offset_delta,
        timestamp_delta=one.time_delta,
    )


def sealed_runs(
    buffer: bytes | memoryview,
) -> Iterator[tuple[bool, bytes | memoryview]]:
    """Split a buffer of whole batches into single encrypted batches and runs of others. Yields an
    empty piece now and then, to let other tasks run: a buffer may have half a million batches."""
    begin = position = count = 0
    end = len(buffer)
    while position < end:
        count += 1
        if count % STEP_BATCHES == 0:
            yield False, b""
        header = parse_header(buffer, position)
        stop = position + header.total_bytes
        if header.is_sealed:
            if begin < position:
                yield False, buffer[begin:position]
            yield True, buffer[position:stop]
            begin = stop
        position = stop
    if begin < end:
        yield False, buffer if not begin else buffer[begin:]
