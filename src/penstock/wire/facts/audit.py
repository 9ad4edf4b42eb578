"""Records of the audit topic ``__audit``: one record for each action, in one hash chain per node.

A record's value is one JSON object with the fields of ``AuditRecord`` in their order. ``seq`` is
the number of the node's previous record in the same partition plus one, ``prev_hash`` is the hash
of that record:

    hash(record) = SHA-256( hash(previous record) ‖ the record's value, byte for byte )

``prev_hash`` is in hexadecimal; for the first record, it is thirty-two zero bytes. A record that is
changed, removed or inserted breaks the chain, unless all later records are rewritten too. To detect
that as well, store the last hash in another place from time to time.

All nodes of a cluster write to the same partition, but each node has its own chain, because every
record would have to wait for all nodes if they had to agree on one order.

Fields may be added at the end; a field that changes its meaning needs a new ``VERSION``. Neither
affects the chain, which hashes bytes and not fields. ``docs/usage.md`` describes the fields."""

from collections.abc import Iterable, Iterator, Mapping
from hashlib import sha256
from typing import Any, Final

import msgspec

VERSION: Final = 1
SCHEMA_HEADER: Final = (b"schema", b"audit/%d" % VERSION)
FIRST_HASH: Final = bytes(32)
NAME_MAX: Final = 1_024  # characters of a name
TEXT_MAX: Final = 256  # characters of one parameter
PARAMS_MAX: Final = 50  # parameters on each of two levels
HIDDEN: Final = "(hidden)"
DEEPER: Final = "(more)"  # deeper levels are not searched for secrets
# Parameters with these words in their names are hidden. None is meant to be secret, but a secret in
# the wrong place must not stay readable.
_SECRETIVE: Final = ("password", "passwd", "secret", "token", "credential", "jaas", "private")

# Outcomes.
OK: Final = "ok"
DENIED: Final = "denied"
FAILED: Final = "failed"
UNKNOWN: Final = "unknown"  # the client disconnected before the end


class AuditUnreadable(Exception): ...


class AuditEntry(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    at_ms: int
    principal: str  # ARN of the caller; empty: unknown
    tenant: str = ""
    source_ip: str = ""
    action: str
    resource: str = ""
    outcome: str = OK
    error_code: str = ""
    request_id: str = ""
    params: Mapping[str, object] = {}


class AuditRecord(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    v: int = VERSION
    node: str
    seq: int
    prev_hash: str
    at_ms: int
    principal: str
    tenant: str
    source_ip: str
    action: str
    resource: str
    outcome: str
    error_code: str
    request_id: str
    params: Mapping[str, object]


class Link(msgspec.Struct, frozen=True, gc=False):
    """The end of a node's hash chain: the number and the hash of the last record."""

    seq: int = 0
    hash: bytes = FIRST_HASH


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(AuditRecord)


def decode(value: bytes) -> AuditRecord:
    try:
        record = _decoder.decode(value)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise AuditUnreadable(f"the value is not an audit record: {error}") from None
    if record.v != VERSION:
        raise AuditUnreadable(
            f"the audit record has version {record.v}; only {VERSION} is supported"
        )
    return record


def append(link: Link, entry: AuditEntry, *, node: str) -> tuple[bytes, Link]:
    """Return the value of the record that follows ``link``, and the new end of the chain."""
    record = AuditRecord(
        node=node, seq=link.seq + 1, prev_hash=link.hash.hex(), **msgspec.structs.asdict(entry)
    )
    try:
        value = _encoder.encode(record)
    except UnicodeEncodeError:
        # Some clients send halves of surrogate pairs, which must not stop the audit trail.
        record = msgspec.convert(_whole(msgspec.structs.asdict(record)), AuditRecord)
        value = _encoder.encode(record)
    return value, Link(record.seq, _hash(link.hash, value))


def link_of(value: bytes) -> Link:
    record = decode(value)
    try:
        before = bytes.fromhex(record.prev_hash)
    except ValueError:
        raise AuditUnreadable(f"the prev_hash {record.prev_hash[:80]!r} is not a hash") from None
    return Link(record.seq, _hash(before, value))


def breaks(values: Iterable[bytes]) -> Iterator[tuple[int, str]]:
    """Yield the index of each record that breaks the hash chain of its node, and the reason."""
    links: dict[str, Link] = {}
    for count, value in enumerate(values):
        try:
            record, after = decode(value), link_of(value)
        except AuditUnreadable as error:
            yield count, str(error)
            continue  # the next record will report that one is missing
        link = links.get(record.node)
        if link is not None:
            if record.seq != link.seq + 1:
                yield count, f"record {record.seq} of {record.node} follows record {link.seq}"
            elif record.prev_hash != link.hash.hex():
                yield count, f"record {record.seq} of {record.node} has a wrong prev_hash"
        links[record.node] = after


def redacted(params: Mapping[str, object]) -> dict[str, object]:
    """Return ``params`` without empty values, with long values cut and probable secrets hidden."""
    return _redacted(params, levels=2)


def _redacted(params: Mapping[str, object], *, levels: int) -> dict[str, object]:
    shown: dict[str, object] = {}
    for name, value in params.items():
        if len(shown) == PARAMS_MAX:
            break
        if value is None or value in ("", {}, [], ()):
            continue
        low = name.lower()
        is_secretive = any(word in low for word in _SECRETIVE)
        shown[name[:TEXT_MAX]] = HIDDEN if is_secretive else _shown(value, levels=levels - 1)
    return shown


def _shown(value: object, *, levels: int) -> object:
    if isinstance(value, bool | int | float):
        return value
    if levels and isinstance(value, Mapping):
        return _redacted({str(name): part for name, part in value.items()}, levels=levels)
    if levels and isinstance(value, list | tuple):
        return [_shown(part, levels=0) for part in value[:PARAMS_MAX]]
    return value[:TEXT_MAX] if isinstance(value, str) else DEEPER


def _hash(before: bytes, value: bytes) -> bytes:
    return sha256(before + value).digest()


def _whole(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, Mapping):
        return {_whole(name): _whole(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_whole(part) for part in value]
    return value
