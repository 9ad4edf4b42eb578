"""The reply to a receive with large messages, made in turns.

Ten messages of 1 MiB take 60 ms to hash and to encode, and escaped they may take six times as many
bytes. So each message is encoded by itself, its long texts in pieces, and the pieces are never put
together: the listener writes them one after the other.
"""

import asyncio
import re
from collections.abc import Generator, Sequence
from typing import Final

from penstock.frontend.protocols import Codec
from penstock.frontend.sqs.incoming import View
from penstock.model.limits import KIB
from penstock.model.message import Delivery
from penstock.net.exchange import HttpReply
from penstock.net.turns import in_turns
from penstock.wire.aws.shapes import ReceivedMessage, ReceiveMessageReply

LARGE_BYTES: Final = 256 * KIB  # of bodies in one reply, or of the attributes of a message
PIECE_CHARS: Final = 64 * KIB


def is_large(deliveries: Sequence[Delivery], body_bytes: int) -> bool:
    """Asked for every receive, so without a generator."""
    if body_bytes > LARGE_BYTES:
        return True
    for delivery in deliveries:
        attributes = delivery.record.message.attributes
        if attributes and sum(len(one.value) for one in attributes.values()) > LARGE_BYTES:
            return True
    return False


async def encode_large(
    codec: Codec, view: View, deliveries: Sequence[Delivery], request_id: str, token: str
) -> HttpReply:
    """``token`` is random text, which stands in for long texts until they are encoded."""
    opening, closing, separator = codec.around_messages
    pieces: list[bytes] = []
    for number, delivery in enumerate(deliveries):
        shown = await asyncio.to_thread(view.show, delivery)  # which hashes it
        texts = _long_texts(shown, token)
        reply = codec.reply("ReceiveMessage", ReceiveMessageReply(messages=[shown]), request_id)
        # All replies begin and end alike: the first keeps its beginning, the last one its end.
        body = reply.body
        start = body.index(opening) + len(opening) if number else 0
        end = body.rindex(closing) if number < len(deliveries) - 1 else len(body)
        if number:
            pieces.append(separator)
        pieces += await in_turns(_filled_in(body[start:end], token, texts, codec))
    reply.body, reply.pieces = b"", tuple(pieces)
    return reply


def _long_texts(shown: ReceivedMessage, token: str) -> list[str]:
    """Take the long texts out of a message."""
    texts: list[str] = []
    if len(shown.body or "") > PIECE_CHARS:
        texts.append(shown.body or "")
        shown.body = f"{token}0;"
    for value in (shown.message_attributes or {}).values():
        if len(value.string_value or "") > PIECE_CHARS:
            value.string_value, text = f"{token}{len(texts)};", value.string_value or ""
            texts.append(text)
    return texts


def _filled_in(
    body: bytes, token: str, texts: Sequence[str], codec: Codec
) -> Generator[None, None, list[bytes]]:
    pieces: list[bytes] = []
    for number, part in enumerate(re.split(rb"%b(\d+);" % token.encode(), body)):
        if number % 2 == 0:
            pieces.append(part)
            continue
        text = texts[int(part)]
        for start in range(0, len(text), PIECE_CHARS):
            pieces.append(codec.text(text[start : start + PIECE_CHARS]))
            yield None
    return pieces
