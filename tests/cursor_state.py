"""A hash of a lease cursor's state, equal on all replicas that have applied the same log."""

import hashlib

import msgspec

from penstock.cursor.leases.lease import LeaseCursor
from penstock.cursor.leases.parts import decode_snapshot


def state_hash(cursor: LeaseCursor) -> bytes:
    """Return a hash of the state that all folds of one log share: everything but clocks and the
    delay counts, which a replica that reads only batch headers does not have."""
    snapshot = decode_snapshot(cursor.snapshot(now_ms=0))
    value = (
        *msgspec.structs.astuple(snapshot)[:6],
        [row[:5] for row in snapshot.entries],
        snapshot.acked_ahead,
        [row[:3] for row in snapshot.attempts],
    )
    return hashlib.blake2b(msgspec.msgpack.encode(value), digest_size=16).digest()
