"""Proof that both ends of a connection know one secret, without sending the secret.

    caller                              answerer
    HELLO nonce                      →
                                     ←  HELLO nonce, proof of the answerer
    HELLO nonce, proof of the caller →
                                     ←  HELLO

A proof is HMAC-SHA256, keyed with the secret, over the side that proves, the port that the answerer
listens on, and both greetings with their nonces. Each part has a reason:

- the nonces are new for each connection, so a recorded proof is useless;
- the side prevents a caller from sending the answerer's own proof back;
- the port prevents a process that took over a port from forwarding the greeting to another
  listener: that listener proves another port than the one the caller connected to;
- the greetings prevent changes to the ids and features in them.

The caller sends its proof only to an answerer that has proved the secret first."""

import hmac
from enum import StrEnum
from typing import Final

import msgspec

from penstock.wire.internal.faults import HelloRefused
from penstock.wire.internal.frame import Hello

SECRET_BYTES: Final = 32
NONCE_BYTES: Final = 32


class Side(StrEnum):
    CALLER = "caller"
    ANSWERER = "answerer"


_encode = msgspec.msgpack.Encoder().encode


def prove(secret: bytes, side: Side, *, caller: Hello, answerer: Hello, port: int) -> bytes:
    """Return the proof of one side. Proofs inside the greetings are left out."""
    said = (side, port, _plain(caller), _plain(answerer))
    return hmac.digest(secret, _encode(said), "sha256")


def check_proof(secret: bytes, side: Side, *, caller: Hello, answerer: Hello, port: int) -> None:
    """Check the proof in the greeting of one side. Raises HelloRefused."""
    shown = caller if side is Side.CALLER else answerer
    expected = prove(secret, side, caller=caller, answerer=answerer, port=port)
    if len(shown.nonce) != NONCE_BYTES or not hmac.compare_digest(shown.proof, expected):
        raise HelloRefused(
            f"Node {shown.node_id} did not prove the secret that the workers of this server share."
        )


def _plain(hello: Hello) -> Hello:
    return msgspec.structs.replace(hello, proof=b"")
