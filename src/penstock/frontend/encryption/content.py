"""The format of encrypted content of messages and records. Pure: ``sealing.py`` chooses keys.

    ┌─────────┬──────────┬────────┬───────┬──────────────────────┐
    │ version │ topic id │ key id │ nonce │ ciphertext, tag 16 B │   AES-256-GCM
    │ 1 B     │ 16 B     │ 8 B    │ 12 B  │                      │
    └─────────┴──────────┴────────┴───────┴──────────────────────┘
    authenticated as well: version, topic id, key id │ account │ 0, or 1 and the record's key

Encrypted are body and attributes of a message, value and headers of a producer's record
(``record/message.py`` has the layout). Brokers need the rest in plaintext: key or group, ids and
times. The key is authenticated: content moved to another key or account cannot be decrypted.

Topic id and key id identify the data key, so content can be decrypted in every queue and topic of
its account: dead letters and moved messages are copied as they are, without a key. The message id
is not authenticated, because a moved message gets a new one, nor is the offset, which is unknown
when a message is encrypted. So with write access to the disk one can read nothing and change no
content, but can move encrypted messages between queues of a tenant, repeat or drop whole records,
or add records that were never encrypted. Another layout needs another version."""

from typing import Final

from cryptography.exceptions import InvalidTag
from msgspec.structs import replace

from penstock.metadata.security.data_keys import DataKey
from penstock.model.message import Message
from penstock.record.malformed import MalformedBatch
from penstock.record.message import decode_content, encode_content

VERSION: Final = b"\x01"
PLACE_BYTES: Final = 24  # topic id and key id
NONCE_BYTES: Final = 12
_HEAD_BYTES: Final = len(VERSION) + PLACE_BYTES
_CIPHERTEXT_AT: Final = _HEAD_BYTES + NONCE_BYTES
_TAG_BYTES: Final = 16
SEALED_BYTES_MIN: Final = _CIPHERTEXT_AT + _TAG_BYTES
UNKNOWN_KEY: Final = "its data key is unknown"
_LARGE_BYTES: Final = 16_384  # above, a view is cheaper than a copy


class Unopenable(Exception):
    """Content cannot be decrypted. The reason is for operators, never for clients."""


def seal(content: bytes, record_key: bytes | None, key: DataKey, nonce: bytes) -> bytes:
    head = VERSION + key.place
    bound = b"\x00" if record_key is None else b"\x01" + record_key
    return b"".join((head, nonce, key.encrypt(nonce, content, head + key.owner + bound)))


def place_of(sealed: bytes) -> bytes:
    """Return topic id and key id of the data key. Raises Unopenable."""
    if len(sealed) < SEALED_BYTES_MIN:
        raise Unopenable("too short")
    if sealed[: len(VERSION)] != VERSION:
        raise Unopenable(f"version {sealed[0]} is unknown")
    return sealed[len(VERSION) : _HEAD_BYTES]


def unseal(sealed: bytes, record_key: bytes | None, key: DataKey, owner: bytes) -> bytes:
    """Decrypt content for the account ``owner``, which must be that of the key."""
    if key.owner != owner:
        raise Unopenable("encrypted for another account")
    bound = b"\x00" if record_key is None else b"\x01" + record_key
    data = (sealed if len(sealed) < _LARGE_BYTES else memoryview(sealed))[_CIPHERTEXT_AT:]
    nonce, known = sealed[_HEAD_BYTES:_CIPHERTEXT_AT], sealed[:_HEAD_BYTES] + owner + bound
    try:
        return key.decrypt(nonce, data, known)
    except InvalidTag:
        raise Unopenable("modified, or moved to another key or account") from None


def seal_message(message: Message, key: DataKey, nonce: bytes) -> Message:
    sealed = seal(encode_content(message), _group(message), key, nonce)
    return replace(message, body=sealed, attributes=None, is_sealed=True)


def open_message(message: Message, key: DataKey, owner: bytes) -> Message:
    content = unseal(message.body, _group(message), key, owner)
    try:
        body, attributes = decode_content(content)
    except MalformedBatch as error:
        # A record of a producer, in the format of Kafka.
        raise Unopenable(str(error)) from None
    return replace(message, body=body, attributes=attributes, is_sealed=False)


def _group(message: Message) -> bytes | None:
    return None if message.group is None else message.group.encode()
