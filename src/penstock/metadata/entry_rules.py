"""What another node may write into the catalog: the rules every entry must keep, checked before the
store is asked. Pure.

A node that is wrong, old or taken over must not be able to leave behind what the others cannot
read, nor change what it has not looked at: every key that changes is compared, every value is the
topic that its key says, and a topic goes only in exchange for its tombstone, for without one
nobody would ever remove its data.
"""

from collections.abc import Sequence

import msgspec

from penstock.metadata.calls import Txn
from penstock.metadata.catalog import TOMBS_PREFIX, TOPICS_PREFIX, tomb_key, topic_key
from penstock.metadata.store import CHANGES_PER_TXN_MAX
from penstock.model.errors import InvalidRequest
from penstock.model.names import is_account, is_region
from penstock.model.topic import Topic


class _Id(msgspec.Struct):
    topic_id: str


_decode_id = msgspec.json.Decoder(_Id).decode
_decode = msgspec.json.Decoder(Topic).decode


def topic_id_of(value: bytes) -> str:
    """Without reading the rest; empty when it cannot be read."""
    try:
        return _decode_id(value).topic_id
    except (msgspec.DecodeError, ValueError):
        return ""


def check_txn(txn: Txn) -> bool:
    """Whether it creates a topic. Raises InvalidRequest."""
    keys = [*(key for key, _ in txn.puts), *txn.deletes]
    if len(keys) > CHANGES_PER_TXN_MAX or len(txn.compare) > CHANGES_PER_TXN_MAX:
        raise InvalidRequest(f"A transaction changes at most {CHANGES_PER_TXN_MAX} keys.")
    if len(set(keys)) != len(keys):
        raise InvalidRequest("A transaction changes a key once.")
    for key in (*keys, *(key for key, _ in txn.compare)):
        if not key.startswith((TOPICS_PREFIX, TOMBS_PREFIX)):
            raise InvalidRequest("Only topics and their tombstones may be written.")
    compared = dict(txn.compare)
    tombs = _check_puts(txn.puts, compared)
    for key in txn.deletes:
        if key.startswith(TOPICS_PREFIX) and (key not in compared or key not in tombs):
            raise InvalidRequest(f"{key} goes only by its version and for its tombstone.")
    return any(compared.get(key) == 0 for key, _ in txn.puts if key.startswith(TOPICS_PREFIX))


def _check_puts(puts: Sequence[tuple[str, bytes]], compared: dict[str, int]) -> set[str]:
    """The keys of topics whose tombstones are put."""
    tombs: set[str] = set()
    for key, value in puts:
        try:
            topic = _decode(value)
        except (msgspec.DecodeError, ValueError) as error:
            raise InvalidRequest(f"{key}: the value is not a topic: {error}") from error
        if not (is_account(topic.account) and is_region(topic.region)) or "/" in topic.name:
            raise InvalidRequest(f"{key}: a topic of no account, region or name.")
        at = topic_key(topic.account, topic.region, topic.name)
        if key.startswith(TOMBS_PREFIX):
            if key != tomb_key(topic.topic_id) or topic.deleted_at_ms is None:
                raise InvalidRequest(f"{key} is not the tombstone of that topic.")
            tombs.add(at)
        elif key != at or topic.deleted_at_ms is not None:
            raise InvalidRequest(f"{key} is not where that topic belongs.")
        elif key not in compared:
            raise InvalidRequest(f"{key} is changed only by its version.")
    return tombs
