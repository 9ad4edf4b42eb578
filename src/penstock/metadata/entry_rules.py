"""Rules for entries that other nodes write into the metadata, checked before the store is called.
Pure.

A faulty, old or compromised node must not be able to write entries that other nodes cannot read,
nor change entries that it has not read: every value must match its key, and every changed key must
be compared. Three changes need no comparison of their key, because another key is compared: a
tombstone (its topic), a password and the removal of a key (their user's entry, which names both). A
topic is deleted only together with writing its tombstone; without one its data would never be
removed.

A comparison is of the version or of the create revision; nodes and managers use the latter.
Operators' requests and tasks may overwrite any value; a node's entry may be removed by any node,
because a live node registers again. Entries that show that a process is alive must have a lease;
entries that must survive, such as partition rows and requests, must not.

A transaction changes one family of entries: topics, identities, data keys, producer ids, frontends,
tasks that move dead letters, configs of resources, access rules, delegation tokens, or the cluster
with its nodes, rows, manager and requests.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any, Final, NamedTuple

import msgspec

from penstock.metadata import cluster_entries as cluster
from penstock.metadata import frontends, producer_ids
from penstock.metadata import identity_entries as identities
from penstock.metadata.acl_rules import ACLS_PREFIX, account_of, acl_key, decode_acl
from penstock.metadata.calls import Txn
from penstock.metadata.catalog import (
    TOMBS_PREFIX,
    TOMBSTONES_MAX,
    TOPICS_MAX,
    TOPICS_PREFIX,
    tomb_key,
    topic_key,
)
from penstock.metadata.data_keys import DATA_KEYS_PREFIX, decode_data_key
from penstock.metadata.delegation_tokens import TOKENS_PREFIX, decode_token, token_key
from penstock.metadata.moves import MOVES_PREFIX, move_key
from penstock.metadata.resource_configs import (
    CONFIGS_PREFIX,
    config_key,
    decode_configs,
    resource_of,
)
from penstock.metadata.store import CHANGES_PER_TXN_MAX
from penstock.model.errors import Damaged, InvalidRequest
from penstock.model.levels import LEVEL_FIRST
from penstock.model.limits import ACLS_MAX, RESOURCE_CONFIGS_MAX, TOKENS_MAX
from penstock.model.names import is_account, is_region
from penstock.model.ports import MoveTask
from penstock.model.topic import Topic
from penstock.replication.row import NOBODY, PartitionRow

DATA_KEYS_MAX: Final = 1_000_000  # some 300 bytes each
PRODUCER_ID_MAX: Final = 2**63 - 1
ROWS_MAX: Final = 1_000_000  # some 150 bytes each
MOVES_MAX: Final = 100_000  # a hundred for each of a thousand sources
NODE_TEXT_CHARS_MAX: Final = 1_024  # of each text in a node's entry

_DATA_KEY = re.compile(rf"{DATA_KEYS_PREFIX}[0-9a-f]{{32}}/[0-9a-f]{{16}}\Z")


class Family(Enum):
    """Entries that may change in one transaction."""

    TOPICS = "topics"
    IDENTITIES = "identities"
    DATA_KEYS = "data keys"
    PRODUCER_IDS = "producer ids"
    FRONTENDS = "frontends"
    MOVES = "moves"
    CONFIGS = "configs"
    ACLS = "access rules"
    TOKENS = "delegation tokens"
    CLUSTER = "cluster"


class Rule(NamedTuple):
    family: Family
    place: Callable[[str, bytes], str | None]  # returns the key of a value; None: any key
    entries_max: int
    follows: str = ""  # prefix of the entries that may be compared instead
    is_put_unseen: bool = False  # may be put without a comparison
    is_deleted_unseen: bool = False
    is_leased: bool | None = None  # whether it must have a lease; None: optional


class _Id(msgspec.Struct):
    topic_id: str


_decode_id = msgspec.json.Decoder(_Id).decode
_decode = msgspec.json.Decoder(Topic).decode
_decode_move = msgspec.json.Decoder(MoveTask).decode


def topic_id_of(value: bytes) -> str:
    """Return the topic id without decoding the rest; empty if the value is unreadable."""
    try:
        return _decode_id(value).topic_id
    except (msgspec.DecodeError, ValueError):
        return ""


# ── Keys of values ───────────────────────────────────────────────────────────────────────────


def _topic(key: str, value: bytes) -> Topic:
    topic = _decode(value)
    if not (is_account(topic.account) and is_region(topic.region)) or "/" in topic.name:
        raise InvalidRequest(f"{key}: a topic of no account, region or name.")
    return topic


def _topic_place(key: str, value: bytes) -> str:
    topic = _topic(key, value)
    if topic.deleted_at_ms is not None:
        raise InvalidRequest(f"{key}: a deleted topic belongs among the tombstones.")
    return topic_key(topic.account, topic.region, topic.name)


def _tomb_place(key: str, value: bytes) -> str:
    topic = _topic(key, value)
    if topic.deleted_at_ms is None:
        raise InvalidRequest(f"{key}: a topic that is there is not the tombstone of itself.")
    return tomb_key(topic.topic_id)


def _tenant_place(_key: str, value: bytes) -> str:
    return identities.tenant_key(identities.decode_tenant(value).tenant.account)


def _user_place(_key: str, value: bytes) -> str:
    user = identities.decode_user(value).user
    return identities.user_key(user.account, user.name)


def _key_place(_key: str, value: bytes) -> str:
    return identities.key_key(identities.decode_key(value).key_id)


def _scram_place(_key: str, value: bytes) -> str:
    scram = identities.decode_scram(value)
    return identities.scram_key(scram.account, scram.user, scram.mechanism)


def _data_key_place(key: str, value: bytes) -> str | None:
    decode_data_key(value)
    if _DATA_KEY.match(key) is None:
        raise InvalidRequest(f"{key} names no topic and key.")
    return None


def _producer_ids_place(key: str, value: bytes) -> str:
    if not (value.isdigit() and len(value) <= 19 and int(value) <= PRODUCER_ID_MAX):
        raise InvalidRequest(f"{key} is a number.")
    return producer_ids.KEY


def _frontend_place(key: str, value: bytes) -> None:
    frontends.check_entry(key, value)


def _move_place(_key: str, value: bytes) -> str:
    return move_key(_decode_move(value).task_id)


def _configs_place(key: str, value: bytes) -> str:
    """Return the canonical key: nodes read only one of a name's percent-encodings."""
    decode_configs(value)
    return config_key(resource_of(key))


def _acl_place(key: str, value: bytes) -> str:
    return acl_key(account_of(key), decode_acl(value))


def _token_place(_key: str, value: bytes) -> str:
    return token_key(decode_token(value).token_id)


# ── Cluster entries ──────────────────────────────────────────────────────────────────────────


def _check_node(key: str, *nodes: int) -> None:
    if not all(1 <= node <= cluster.NODE_ID_MAX for node in nodes):
        raise InvalidRequest(f"{key}: a node has a number from 1 to {cluster.NODE_ID_MAX}.")


def _check_replicas(key: str, replicas: Sequence[int]) -> None:
    _check_node(key, *replicas)
    if not 1 <= len(replicas) <= cluster.NODES_MAX or len(set(replicas)) != len(replicas):
        raise InvalidRequest(f"{key}: a partition is on one node at least, on each of them once.")


def _node_place(key: str, value: bytes) -> str:
    entry = cluster.decode_node(key, value)
    _check_node(key, entry.node)
    said = [entry.name, entry.internal, entry.http, entry.kafka, entry.rack]
    said += [entry.folder_id, entry.version]
    if max(map(len, said)) > NODE_TEXT_CHARS_MAX:
        raise InvalidRequest(f"{key}: at most {NODE_TEXT_CHARS_MAX} characters each.")
    return cluster.node_key(entry.node)


def _row_place(key: str, value: bytes) -> str:
    row = cluster.decode_row(key, value)
    _check_replicas(key, row.replicas)
    if row.leader != NOBODY and row.leader not in row.replicas:
        raise InvalidRequest(f"{key}: whoever leads a partition has it.")
    if not _is_counted(row):
        raise InvalidRequest(f"{key}: a row counts from 0, and wants somebody in sync.")
    return _partition_place(key, cluster.partition_key)


def _is_counted(row: PartitionRow) -> bool:
    numbers = (row.epoch, row.leader_incarnation, row.watermark_floor, row.in_sync_min - 1)
    return min(numbers) >= 0


def _partition_place(key: str, key_of: Callable[[cluster.PartitionKey], str]) -> str:
    """Return the canonical key of a partition, the only one that nodes read."""
    place = cluster.partition_of(key)
    if place.index < 0 or not place.topic_id:
        raise InvalidRequest(f"{key} names no partition.")
    return key_of(place)


def _manager_place(key: str, value: bytes) -> str:
    _check_node(key, cluster.decode_manager(key, value).node)
    return cluster.MANAGER_KEY


def _level_place(key: str, value: bytes) -> str:
    entry = cluster.decode_level(key, value)
    if entry.level < LEVEL_FIRST or (entry.wanted and entry.wanted <= entry.level):
        raise InvalidRequest(f"{key}: levels count from {LEVEL_FIRST}, and are only ever raised.")
    return cluster.LEVEL_KEY


def _drain_place(key: str, value: bytes) -> str:
    node = cluster.node_of(key)
    _check_node(key, node)
    if value:
        raise InvalidRequest(f"{key} says everything by being there.")
    return cluster.drain_key(node)


def _wish_place(key: str, value: bytes) -> str:
    wish = cluster.decode_wish(key, value)
    _check_replicas(key, wish.replicas)
    if wish.before:
        _check_replicas(key, wish.before)
    return _partition_place(key, cluster.place_key)


# All prefixes and single keys that are served to other nodes.
RULES: Final[Mapping[str, Rule]] = {
    TOPICS_PREFIX: Rule(Family.TOPICS, _topic_place, TOPICS_MAX),
    # Removed down to TOMBSTONES_MAX by sweeps; more may exist meanwhile.
    TOMBS_PREFIX: Rule(
        Family.TOPICS, _tomb_place, 4 * TOMBSTONES_MAX, TOPICS_PREFIX, is_deleted_unseen=True
    ),
    identities.TENANTS_PREFIX: Rule(Family.IDENTITIES, _tenant_place, identities.TENANTS_MAX),
    identities.USERS_PREFIX: Rule(Family.IDENTITIES, _user_place, identities.USERS_MAX),
    identities.KEYS_PREFIX: Rule(
        Family.IDENTITIES,
        _key_place,
        identities.USERS_MAX * identities.KEYS_PER_USER_MAX,
        identities.USERS_PREFIX,
    ),
    identities.SCRAM_PREFIX: Rule(
        Family.IDENTITIES,
        _scram_place,
        identities.USERS_MAX * len(identities.KEY_BYTES_BY_MECHANISM),
        identities.USERS_PREFIX,
    ),
    DATA_KEYS_PREFIX: Rule(Family.DATA_KEYS, _data_key_place, DATA_KEYS_MAX),
    producer_ids.KEY: Rule(Family.PRODUCER_IDS, _producer_ids_place, 1),
    frontends.PREFIX: Rule(Family.FRONTENDS, _frontend_place, frontends.FRONTENDS_MAX),
    MOVES_PREFIX: Rule(
        Family.MOVES, _move_place, MOVES_MAX, is_put_unseen=True, is_deleted_unseen=True
    ),
    CONFIGS_PREFIX: Rule(Family.CONFIGS, _configs_place, RESOURCE_CONFIGS_MAX, is_leased=False),
    ACLS_PREFIX: Rule(Family.ACLS, _acl_place, ACLS_MAX, is_leased=False),
    TOKENS_PREFIX: Rule(Family.TOKENS, _token_place, TOKENS_MAX, is_leased=False),
    cluster.NODES_PREFIX: Rule(
        Family.CLUSTER, _node_place, cluster.NODES_MAX, is_deleted_unseen=True, is_leased=True
    ),
    cluster.PARTITIONS_PREFIX: Rule(Family.CLUSTER, _row_place, ROWS_MAX, is_leased=False),
    cluster.MANAGER_KEY: Rule(Family.CLUSTER, _manager_place, 1, is_leased=True),
    cluster.LEVEL_KEY: Rule(Family.CLUSTER, _level_place, 1, is_leased=False),
    cluster.DRAINS_PREFIX: Rule(
        Family.CLUSTER,
        _drain_place,
        cluster.NODES_MAX,
        is_put_unseen=True,
        is_deleted_unseen=True,
        is_leased=False,
    ),
    cluster.PLACES_PREFIX: Rule(
        Family.CLUSTER,
        _wish_place,
        ROWS_MAX,
        is_put_unseen=True,
        is_deleted_unseen=True,
        is_leased=False,
    ),
}
_WISHES: Final = "/wishes/"  # the only family whose prefixes have two parts


def prefix_of(key: str) -> str:
    """Return the served prefix of a key. Raises InvalidRequest."""
    end = key.find("/", len(_WISHES) if key.startswith(_WISHES) else 1) + 1
    prefix = key[:end] if end else key
    if prefix not in RULES:
        raise InvalidRequest(
            "Only topics, identities, data keys, producer ids, frontends, moves of dead letters,"
            " configs of resources, access rules, delegation tokens and what a cluster says of"
            " itself are served."
        )
    return prefix


# ── Transactions ─────────────────────────────────────────────────────────────────────────────


def check_txn(txn: Txn) -> Sequence[str]:
    """Check a transaction and return the keys that it may create. Raises InvalidRequest."""
    keys = [*(key for key, _ in txn.puts), *txn.deletes]
    seen = [key for key, _ in (*txn.compare, *txn.compare_created)]
    if len(keys) > CHANGES_PER_TXN_MAX or len(seen) > CHANGES_PER_TXN_MAX:
        raise InvalidRequest(f"A transaction changes at most {CHANGES_PER_TXN_MAX} keys.")
    if len(set(keys)) != len(keys):
        raise InvalidRequest("A transaction changes a key once.")
    families = {RULES[prefix_of(key)].family for key in (*keys, *seen)}
    if len(families) > 1:
        raise InvalidRequest("A transaction keeps to one kind of things.")
    compared = {**dict(txn.compare_created), **dict(txn.compare)}
    tombs = _check_puts(txn.puts, compared, is_leased=txn.lease != 0)
    _check_deletes(txn.deletes, compared, tombs)
    return [key for key, _ in txn.puts if not compared.get(key)]


def _check_puts(
    puts: Sequence[tuple[str, bytes]], compared: Mapping[str, int], *, is_leased: bool
) -> set[str]:
    """Return the keys of topics whose tombstones are put."""
    tombs: set[str] = set()
    for key, value in puts:
        prefix = prefix_of(key)
        rule = RULES[prefix]
        try:
            place = rule.place(key, value)
        except (msgspec.DecodeError, ValueError, Damaged) as error:
            raise InvalidRequest(f"{key}: the value cannot be read: {error}") from error
        if place is not None and place != key:
            raise InvalidRequest(f"{key} is not where that value belongs, which is {place}.")
        if rule.is_leased is not None and rule.is_leased is not is_leased:
            how = "only with" if rule.is_leased else "never with"
            raise InvalidRequest(f"{key} ends {how} a lease.")
        if prefix == TOMBS_PREFIX:
            tomb = _decode(value)
            tombs.add(topic_key(tomb.account, tomb.region, tomb.name))
        elif not (rule.is_put_unseen or _is_looked_at(key, rule, compared)):
            raise InvalidRequest(f"{key} is changed only by its version.")
    return tombs


def _check_deletes(deletes: Sequence[str], compared: Mapping[str, int], tombs: set[str]) -> None:
    for key in deletes:
        prefix = prefix_of(key)
        rule = RULES[prefix]
        if prefix == TOPICS_PREFIX and (key not in compared or key not in tombs):
            raise InvalidRequest(f"{key} goes only by its version and for its tombstone.")
        if not (rule.is_deleted_unseen or _is_looked_at(key, rule, compared)):
            raise InvalidRequest(f"{key} goes only by its version.")


def _is_looked_at(key: str, rule: Rule, compared: Mapping[str, Any]) -> bool:
    if key in compared:
        return True
    return bool(rule.follows) and any(one.startswith(rule.follows) for one in compared)
