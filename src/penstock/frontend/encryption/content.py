"""The format of encrypted messages and records. ``sealing.py`` chooses the keys.

    ┌─────────┬──────────┬────────┬───────┬──────────────────────┐
    │ version │ topic id │ key id │ nonce │ ciphertext, tag 16 B │   AES-256-GCM
    │ 1 B     │ 16 B     │ 8 B    │ 12 B  │                      │
    └─────────┴──────────┴────────┴───────┴──────────────────────┘
    associated data: version, topic id, key id │ account │ 0, or 1 and the record's key

In a message, the body and attributes are encrypted; in a producer's record, the value and headers.
Brokers need the key or group, the ids and the times in plaintext. Topic id and key id identify the
data key, so content can be decrypted in other queues of its account, such as dead-letter queues.

The record's key is authenticated. The message id and the offset are not: a moved message gets a new
id, and the offset is unknown when a message is encrypted. So an attacker with write access to the
disk can neither read nor change content, but can move encrypted messages between queues of a
tenant, repeat or drop records, or add records that are not encrypted.

Batches of producers are encrypted record by record and stored uncompressed; value and headers
become one encrypted value. In a record without a value the encrypted content is in a header, so
that compaction recognizes the tombstone. A batch may have thousands of records, so the work is done
by generators that yield None to let other tasks run, or the id of a data key to load first."""

from collections.abc import Callable, Generator, Iterator
from typing import Final

from cryptography.exceptions import InvalidTag
from msgspec.structs import replace

from penstock.metadata.security.data_keys import DataKey
from penstock.model.message import Message
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
    decode_content,
    decode_message,
    encode_content,
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

VERSION: Final = b"\x01"
PLACE_BYTES: Final = 24  # topic id and key id
NONCE_BYTES: Final = 12
_HEAD_BYTES: Final = len(VERSION) + PLACE_BYTES
_CIPHERTEXT_AT: Final = _HEAD_BYTES + NONCE_BYTES
_TAG_BYTES: Final = 16
SEALED_BYTES_MIN: Final = _CIPHERTEXT_AT + _TAG_BYTES
UNKNOWN_KEY: Final = "the data key does not exist"
_LARGE_BYTES: Final = 16_384  # content above this size is not copied


class Unopenable(Exception):
    """Raised if content cannot be decrypted. The reason is for operators, never for clients."""


def seal(content: bytes, record_key: bytes | None, key: DataKey, nonce: bytes) -> bytes:
    head = VERSION + key.place
    bound = b"\x00" if record_key is None else b"\x01" + record_key
    return b"".join((head, nonce, key.encrypt(nonce, content, head + key.owner + bound)))


def place_of(sealed: bytes) -> bytes:
    """Return the topic id and the key id that identify the data key of encrypted content."""
    if len(sealed) < SEALED_BYTES_MIN:
        raise Unopenable("the encrypted content is too short")
    if sealed[: len(VERSION)] != VERSION:
        raise Unopenable(f"format version {sealed[0]} is not supported")
    return sealed[len(VERSION) : _HEAD_BYTES]


def unseal(sealed: bytes, record_key: bytes | None, key: DataKey, owner: bytes) -> bytes:
    """Decrypt content. Raises Unopenable if it was changed or belongs to another account."""
    if key.owner != owner:
        raise Unopenable("the content was encrypted for another account")
    bound = b"\x00" if record_key is None else b"\x01" + record_key
    data = (sealed if len(sealed) < _LARGE_BYTES else memoryview(sealed))[_CIPHERTEXT_AT:]
    nonce, known = sealed[_HEAD_BYTES:_CIPHERTEXT_AT], sealed[:_HEAD_BYTES] + owner + bound
    try:
        return key.decrypt(nonce, data, known)
    except InvalidTag:
        raise Unopenable("the content, the record key or the account has changed") from None


def seal_message(message: Message, key: DataKey, nonce: bytes) -> Message:
    sealed = seal(encode_content(message), _group(message), key, nonce)
    return replace(message, body=sealed, attributes=None, is_sealed=True)


def open_message(message: Message, key: DataKey, owner: bytes) -> Message:
    content = unseal(message.body, _group(message), key, owner)
    try:
        body, attributes = decode_content(content)
    except MalformedBatch as error:
        # The record was written by a Kafka producer.
        raise Unopenable(str(error)) from None
    return replace(message, body=body, attributes=attributes, is_sealed=False)


def _group(message: Message) -> bytes | None:
    return None if message.group is None else message.group.encode()


STEP_RECORDS: Final = 128  # about a millisecond
STEP_BATCHES: Final = 1_024  # headers, about a millisecond
RECORD_BYTES_MIN: Final = 7  # the length, and six fields of at least a byte each
Find = Callable[[bytes], DataKey | None]  # finds a key by topic id and key id, in memory
Quarantine = list[tuple[int, str]]  # offsets and reasons
_NOTHING: Final = b"\x01\x00"  # no value, no headers
_NO_VALUE: Final = b"\x01"
_NO_HEADERS: Final = b"\x00"
_SEALED_NAME: Final = encode_varint(len(SEALED_HEADER)) + SEALED_HEADER
_ONLY_SEALED: Final = b"\x01\x02" + _SEALED_NAME  # no value, one header, its name


def check_count(blob: bytes | memoryview, header: BatchHeader) -> None:
    if header.count * RECORD_BYTES_MIN > len(blob):
        raise MalformedBatch(f"the batch cannot have {header.count} records in {len(blob)} bytes")


def seal_records(
    blob: bytes, header: BatchHeader, key: DataKey, entropy: Callable[[int], bytes]
) -> Generator[None, None, bytes]:
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
    return key if key is None or key.isascii() else group_of(key).encode()


def open_batch(
    batch: bytes, find: Find, owner: bytes, quarantine: Quarantine
) -> Generator[bytes | None, None, bytes]:
    """Decrypt a batch and return it uncompressed. Records that cannot be decrypted are moved to
    ``quarantine``. Yields the id of a key to load, or None to let other tasks run."""
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
                message = decode_message(blob, one.key_at, one.end, b"", 0, ATTR_SEALED, True)
                deltas = {"offset_delta": one.offset_delta, "timestamp_delta": one.time_delta}
                opened.append(encode_message(open_message(message, key, owner), **deltas))
        except Unopenable as error:
            quarantine.append((header.base_offset + one.offset_delta, str(error)))
        except UnicodeDecodeError as error:
            raise MalformedBatch(f"a text in the batch is not UTF-8: {error.reason}") from None
    yield None
    attributes = header.attributes & ~(ATTR_CODEC_MASK | ATTR_SEALED)
    return repacked(header._replace(attributes=attributes), opened)


def _sealed_part(blob: bytes, one: RecordSlice, is_own: bool) -> tuple[bytes | None, bool]:
    """Return the encrypted part of a record (None if it is not encrypted), and whether a producer
    wrote the record. ``is_own`` means that the server wrote the batch."""
    size, at = decode_varint(blob, one.value_at)
    if size < 0:
        if not blob.startswith(_ONLY_SEALED, one.value_at):
            return None, True
        size, at = decode_varint(blob, one.value_at + len(_ONLY_SEALED))
        return blob[at : at + size], True
    if blob[at + size : one.end] == _NO_HEADERS:
        return blob[at : at + size], True
    message = decode_message(blob, one.key_at, one.end, b"", 0, ATTR_SEALED, is_own)
    return message.body if message.is_sealed else None, False


def sealed_runs(buffer: bytes | memoryview) -> Iterator[tuple[bool, bytes | memoryview]]:
    """Split a buffer of batches. Yields True with each encrypted batch, False with each run of
    other batches, and now and then False with no data, so that other tasks can run."""
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
