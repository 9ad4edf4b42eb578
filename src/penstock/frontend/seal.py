"""One sealed content: how it looks, how it is made and how it is opened again. Pure: the key and
the nonce are arguments; which key, and for which topics, is decided in ``sealing.py``.

    ┌─────────┬──────────┬────────┬───────┬──────────────────────┐
    │ version │ topic id │ key id │ nonce │ ciphertext, tag 16 B │   AES-256-GCM
    │ 1 B     │ 16 B     │ 8 B    │ 12 B  │                      │
    └─────────┴──────────┴────────┴───────┴──────────────────────┘
    authenticated with it: version, topic id, key id │ account │ 0, or 1 and the record's key

What is sealed of a message is its body and its attributes, of a producer's record its value and its
headers (``record/message.py`` has the layout). What a broker goes by stays in the clear: the key or
group, ids, times. The key is authenticated all the same: a content put under another key does not
open, nor does one that was sealed for another account.

Topic and key id name the data key, so a sealed content opens in every queue and topic of its
account: a dead letter and a moved message travel as they are, and no broker needs a key for it. The
message id is not authenticated, because a moved message gets a new one; nor is the place in the
log, which nobody knows yet when a message is sealed. So a person who can write to the disk can read
nothing and change no content, but can move sealed messages between the queues of one tenant, repeat
whole records, leave them out, or add some that were never sealed.

Another layout takes another version; ``unseal`` then reads both.
"""

from typing import Final, Protocol

from cryptography.exceptions import InvalidTag
from msgspec.structs import replace

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
_NO_KEY: Final = b"\x00"
_KEY: Final = b"\x01"
_LARGE_BYTES: Final = 16_384  # from here on a view is cheaper than a copy


class TopicKey(Protocol):
    """A data key, ready for use."""

    place: bytes  # topic id and key id
    owner: bytes  # the account

    def encrypt(self, nonce: bytes, data: bytes, authenticated: bytes, /) -> bytes: ...

    def decrypt(self, nonce: bytes, data: bytes | memoryview, authenticated: bytes, /) -> bytes: ...


class Unopenable(Exception):
    """The reason, which names no content: shown to operators, never to clients."""


def seal(content: bytes, record_key: bytes | None, key: TopicKey, nonce: bytes) -> bytes:
    head = VERSION + key.place
    bound = _NO_KEY if record_key is None else _KEY + record_key
    return b"".join((head, nonce, key.encrypt(nonce, content, head + key.owner + bound)))


def place_of(sealed: bytes) -> bytes:
    """Which data key opens it. Raises Unopenable."""
    if len(sealed) < SEALED_BYTES_MIN:
        raise Unopenable("too short")
    if sealed[: len(VERSION)] != VERSION:
        raise Unopenable(f"version {sealed[0]} is not known")
    return sealed[len(VERSION) : _HEAD_BYTES]


def unseal(sealed: bytes, record_key: bytes | None, key: TopicKey, owner: bytes) -> bytes:
    """The content, with ``key`` of the place that it names. ``owner`` is the account that reads it:
    nobody is given what was sealed for another. Raises Unopenable."""
    if key.owner != owner:
        raise Unopenable("sealed for another account")
    bound = _NO_KEY if record_key is None else _KEY + record_key
    data: bytes | memoryview
    if len(sealed) < _LARGE_BYTES:
        data = sealed[_CIPHERTEXT_AT:]
    else:
        data = memoryview(sealed)[_CIPHERTEXT_AT:]
    try:
        return key.decrypt(
            sealed[_HEAD_BYTES:_CIPHERTEXT_AT], data, sealed[:_HEAD_BYTES] + owner + bound
        )
    except InvalidTag:
        raise Unopenable("changed, or put where it does not belong") from None


def seal_message(message: Message, key: TopicKey, nonce: bytes) -> Message:
    group = message.group
    bound = None if group is None else group.encode()
    sealed = seal(encode_content(message), bound, key, nonce)
    return replace(message, body=sealed, attributes=None, is_sealed=True)


def open_message(message: Message, key: TopicKey, owner: bytes) -> Message:
    """As it was before it was sealed. Raises Unopenable."""
    group = message.group
    bound = None if group is None else group.encode()
    content = unseal(message.body, bound, key, owner)
    try:
        body, attributes = decode_content(content)
    except MalformedBatch as error:
        # Sealed as a producer sent it, unopened; a queue takes none such.
        raise Unopenable(str(error)) from None
    return replace(message, body=body, attributes=attributes, is_sealed=False)
