"""What was done, as it stands in ``__audit``: one record for each action, each tied to the one
before it of the same node.

A record's value is one JSON object, its fields in the order below and none left out. ``prev_hash``
is the hash of the node's record before in the same partition, ``seq`` its number plus one:

    hash(record) = SHA-256( hash(record before) ‖ the record's value, byte for byte )

in hexadecimal; thirty-two zero bytes stand before the first. A record that is changed, removed or
put in breaks the chain at that place, whatever is done to those around it, unless everything behind
it is written anew. The last hash is stored nowhere: note it elsewhere from time to time and even
that shows.

Nodes of a cluster write to the same partition, each a chain of its own: none could know what the
others are about to write, and to agree on an order first would make every entry wait for all.

**Changing it.** Fields may be added at the end; a field that changes its meaning is a new
``VERSION``. Neither touches the chain, which knows bytes only. ``docs/usage.md`` says what each
field means.
"""

from collections.abc import Iterable, Iterator, Mapping
from hashlib import sha256
from typing import Any, Final

import msgspec

VERSION: Final = 1
SCHEMA_HEADER: Final = (b"schema", b"audit/%d" % VERSION)
FIRST_HASH: Final = bytes(32)
NAME_MAX: Final = 1_024  # characters of a name
TEXT_MAX: Final = 256  # characters of one parameter
PARAMS_MAX: Final = 50  # on each of two levels
HIDDEN: Final = "(hidden)"
DEEPER: Final = "(more)"  # whatever it is, nobody has looked for secrets in it
# Part of a name whose value nobody should read. Of what is noted nothing is secret; whoever puts a
# secret in the wrong place should not find it here for thirty days.
_SECRETIVE: Final = ("password", "passwd", "secret", "token", "credential", "jaas", "private")

# How it ended.
OK: Final = "ok"
DENIED: Final = "denied"
FAILED: Final = "failed"
UNKNOWN: Final = "unknown"  # the client left while it was under way


class AuditUnreadable(Exception):
    """The value is no audit record, or one of a version that is not known here."""


class AuditEntry(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Who did what; where in the chain it will stand is not known yet."""

    at_ms: int
    principal: str  # ARN of the caller; empty: nobody we know
    tenant: str = ""
    source_ip: str = ""
    action: str
    resource: str = ""
    outcome: str = OK
    error_code: str = ""
    request_id: str = ""
    params: Mapping[str, object] = {}


class AuditRecord(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The value of one record."""

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
    """A place in a node's chain: its record before, by number and hash."""

    seq: int = 0
    hash: bytes = FIRST_HASH


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(AuditRecord)


def decode(value: bytes) -> AuditRecord:
    """Raises AuditUnreadable."""
    try:
        record = _decoder.decode(value)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise AuditUnreadable(f"not an audit record: {error}") from None
    if record.v != VERSION:
        raise AuditUnreadable(f"an audit record of version {record.v}, known is {VERSION}")
    return record


def append(link: Link, entry: AuditEntry, *, node: str) -> tuple[bytes, Link]:
    """The entry as a record behind ``link``, and the link behind it."""
    record = AuditRecord(
        node=node,
        seq=link.seq + 1,
        prev_hash=link.hash.hex(),
        at_ms=entry.at_ms,
        principal=entry.principal,
        tenant=entry.tenant,
        source_ip=entry.source_ip,
        action=entry.action,
        resource=entry.resource,
        outcome=entry.outcome,
        error_code=entry.error_code,
        request_id=entry.request_id,
        params=entry.params,
    )
    try:
        value = _encoder.encode(record)
    except UnicodeEncodeError:
        # Halves of characters, which some clients send. The trail must not stop at them.
        record = msgspec.convert(_whole(msgspec.structs.asdict(record)), AuditRecord)
        value = _encoder.encode(record)
    return value, Link(record.seq, _hash(link.hash, value))


def link_of(value: bytes) -> Link:
    """Where a node's chain goes on behind its last record. Raises AuditUnreadable."""
    record = decode(value)
    try:
        before = bytes.fromhex(record.prev_hash)
    except ValueError:
        raise AuditUnreadable(f"{record.prev_hash[:80]!r} is not a hash") from None
    return Link(record.seq, _hash(before, value))


def breaks(values: Iterable[bytes]) -> Iterator[tuple[int, str]]:
    """What is wrong with records of one partition, read in order: (how many came before it, why).
    The first of each node may have lost those in front of it to retention."""
    links: dict[str, Link] = {}
    for count, value in enumerate(values):
        try:
            record, after = decode(value), link_of(value)
        except AuditUnreadable as error:
            yield count, str(error)
            continue  # what follows ties to the record before, and says that one is missing
        link = links.get(record.node)
        if link is not None:
            if record.seq != link.seq + 1:
                yield count, f"number {record.seq} of {record.node} follows {link.seq}"
            elif record.prev_hash != link.hash.hex():
                yield count, f"number {record.seq} of {record.node} follows another than its last"
        links[record.node] = after


def redacted(params: Mapping[str, object]) -> dict[str, object]:
    """Parameters as they may be noted: values cut, what looks like a secret hidden, what says
    nothing left out."""
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
    """The same without halves of characters."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, Mapping):
        return {_whole(name): _whole(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_whole(part) for part in value]
    return value
