"""Checks of the entries that other nodes write, before the store is called.

A faulty, old or compromised node must not be able to write entries that other nodes cannot read,
or change entries that it has not read. So every value must match its key, and every change must be
conditional on the version or the create revision of the entry. For passwords and deletes of access
keys, a condition on the user's entry is enough. A transaction that deletes a topic must also write
its tombstone; without a tombstone the topic's data would never be removed.

Entries for requests and tasks of operators may be changed without a condition, and any node may
delete the entry of a node. Entries that show that a process is alive must have a lease; entries
that must survive, such as partition rows, must not have a lease."""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import msgspec

from penstock.metadata import cluster_entries as cluster
from penstock.metadata.address_books import BOOKS_PREFIX, book_key, decode_book_entry
from penstock.metadata.security import acl_rules as acls
from penstock.metadata.security import identity_entries as identities
from penstock.metadata.security.data_keys import DATA_KEYS_PREFIX, decode_data_key
from penstock.metadata.sns_keys import (
    SNS_KEYS_MAX,
    SNS_KEYS_PREFIX,
    decode_sns_key,
    is_sns_key_key,
)
from penstock.metadata.store import CHANGES_PER_TXN_MAX, Txn
from penstock.metadata.subscriptions import (
    SUBSCRIPTIONS_PREFIX,
    decode_subscription,
    subscription_key,
)
from penstock.metadata.topics.catalog import (
    MOVES_PREFIX,
    PRODUCER_IDS_KEY,
    TOMBS_PREFIX,
    TOMBSTONES_MAX,
    TOPICS_MAX,
    TOPICS_PREFIX,
    move_key,
    tomb_key,
    topic_key,
)
from penstock.metadata.topics.resource_configs import (
    CONFIGS_PREFIX,
    config_key,
    decode_configs,
    resource_of,
)
from penstock.model.errors import Damaged, InvalidRequest
from penstock.model.levels import LEVEL_FIRST
from penstock.model.limits import (
    ACLS_MAX,
    BOOK_ENTRIES_MAX,
    RESOURCE_CONFIGS_MAX,
    SUBSCRIPTIONS_MAX,
    TOKENS_MAX,
)
from penstock.model.names import is_account, is_region, is_sns_name
from penstock.model.ports import MoveTask
from penstock.model.topic import Topic
from penstock.replication.row import NO_NODE

DATA_KEYS_MAX: Final = 1_000_000  # some 300 bytes each
PRODUCER_ID_MAX: Final = 2**63 - 1
ROWS_MAX: Final = 1_000_000  # some 150 bytes each
MOVES_MAX: Final = 100_000  # a hundred for each of a thousand sources
NODE_TEXT_CHARS_MAX: Final = 1_024  # of each text in a node's entry

_FRONTEND_KEY = re.compile(rf"{cluster.FRONTENDS_PREFIX}[0-9a-f]{{32}}\Z")
_DATA_KEY = re.compile(rf"{DATA_KEYS_PREFIX}[0-9a-f]{{32}}/[0-9a-f]{{16}}\Z")


CLUSTER: Final = "cluster"  # the family of nodes, rows, manager and requests


class Rule(NamedTuple):
    family: str  # a transaction changes entries of one family only
    key_of: Callable[[str, bytes], str]  # returns the key under which a value must be
    entries_max: int
    follows: str = ""  # prefix of entries of which one may be compared instead
    is_put_blindly: bool = False  # may be put without a comparison
    is_deleted_blindly: bool = False
    is_leased: bool | None = None  # whether it must have a lease; None: optional


class _Id(msgspec.Struct):
    topic_id: str


_decode_id = msgspec.json.Decoder(_Id).decode
_decode = msgspec.json.Decoder(Topic).decode
_decode_move = msgspec.json.Decoder(MoveTask).decode


def topic_id_of(value: bytes) -> str:
    """Return the topic id in a stored topic, or an empty string if the value is unreadable."""
    try:
        return _decode_id(value).topic_id
    except (msgspec.DecodeError, ValueError):
        return ""


def _topic(key: str, value: bytes) -> Topic:
    topic = _decode(value)
    if not (is_account(topic.account) and is_region(topic.region)) or "/" in topic.name:
        raise InvalidRequest(f"{key}: the topic has an invalid account, region or name.")
    if topic.sns is not None and not is_sns_name(topic.sns.name):
        raise InvalidRequest(f"{key}: the topic has an invalid SNS name.")
    return topic


def _topic_key(key: str, value: bytes) -> str:
    topic = _topic(key, value)
    if topic.deleted_at_ms is not None:
        raise InvalidRequest(f"{key}: a deleted topic must be stored as a tombstone.")
    return topic_key(topic.account, topic.region, topic.name)


def _tomb_key(key: str, value: bytes) -> str:
    topic = _topic(key, value)
    if topic.deleted_at_ms is None:
        raise InvalidRequest(f"{key}: the tombstone has no time of deletion.")
    return tomb_key(topic.topic_id)


def _user_key(_key: str, value: bytes) -> str:
    user = identities.decode_user(value).user
    return identities.user_key(user.account, user.name)


def _scram_key(_key: str, value: bytes) -> str:
    scram = identities.decode_scram(value)
    return identities.scram_key(scram.account, scram.user, scram.mechanism)


def _configs_key(key: str, value: bytes) -> str:
    # A name can be percent-encoded in several ways, of which nodes read only one.
    decode_configs(value)
    return config_key(resource_of(key))


def _data_key_key(key: str, value: bytes) -> str:
    decode_data_key(value)
    if _DATA_KEY.match(key) is None:
        raise InvalidRequest(f"{key} is not the metadata key of a data key.")
    return key


def _sns_key_key(key: str, value: bytes) -> str:
    decode_sns_key(value)
    if not is_sns_key_key(key):
        raise InvalidRequest(f"{key} is not the metadata key of a signing key.")
    return key


def _frontend_key(key: str, value: bytes) -> str:
    if _FRONTEND_KEY.match(key) is None:
        raise InvalidRequest(f"{key} is not the key of a frontend.")
    if not 1 <= len(value.decode()) <= cluster.FRONTEND_NAME_CHARS_MAX:
        raise InvalidRequest(
            f"{key}: the value must have 1 to {cluster.FRONTEND_NAME_CHARS_MAX} characters."
        )
    return key


def _producer_ids_key(key: str, value: bytes) -> str:
    if not (value.isdigit() and len(value) <= 19 and int(value) <= PRODUCER_ID_MAX):
        raise InvalidRequest(f"{key}: the value must be a number from 0 to {PRODUCER_ID_MAX}.")
    return PRODUCER_IDS_KEY


# ── Cluster entries ──────────────────────────────────────────────────────────────────────────


def _check_node(key: str, *nodes: int) -> None:
    if not all(1 <= node <= cluster.NODE_ID_MAX for node in nodes):
        raise InvalidRequest(f"{key}: node numbers must be 1 to {cluster.NODE_ID_MAX}.")


def _check_replicas(key: str, replicas: Sequence[int]) -> None:
    _check_node(key, *replicas)
    if not 1 <= len(replicas) <= cluster.NODES_MAX or len(set(replicas)) != len(replicas):
        raise InvalidRequest(f"{key}: replicas must name at least one node, and no node twice.")


def _node_entry_key(key: str, value: bytes) -> str:
    entry = cluster.decode_node(key, value)
    _check_node(key, entry.node)
    texts = (entry.name, entry.internal, entry.http, entry.kafka, entry.rack)
    if max(map(len, (*texts, entry.folder_id, entry.version))) > NODE_TEXT_CHARS_MAX:
        raise InvalidRequest(f"{key}: a field has more than {NODE_TEXT_CHARS_MAX} characters.")
    return cluster.node_key(entry.node)


def _row_key(key: str, value: bytes) -> str:
    row = cluster.decode_row(key, value)
    _check_replicas(key, row.replicas)
    if row.leader != NO_NODE and row.leader not in row.replicas:
        raise InvalidRequest(f"{key}: the leader must be one of the replicas.")
    if min(row.epoch, row.leader_incarnation, row.watermark_floor, row.in_sync_min - 1) < 0:
        raise InvalidRequest(f"{key}: a number is negative, or in_sync_min is below 1.")
    return _partition_key(key, cluster.partition_key)


def _partition_key(key: str, key_of: Callable[[cluster.PartitionKey], str]) -> str:
    partition = cluster.partition_of(key)
    if partition.index < 0 or not partition.topic_id:
        raise InvalidRequest(f"{key} is not the key of a partition.")
    return key_of(partition)


def _manager_key(key: str, value: bytes) -> str:
    _check_node(key, cluster.decode_manager(key, value).node)
    return cluster.MANAGER_KEY


def _level_key(key: str, value: bytes) -> str:
    entry = cluster.decode_level(key, value)
    if entry.level < LEVEL_FIRST or (entry.wanted and entry.wanted <= entry.level):
        raise InvalidRequest(f"{key}: the level must be at least {LEVEL_FIRST} and can only rise.")
    return cluster.LEVEL_KEY


def _drain_key(key: str, value: bytes) -> str:
    node = cluster.node_of(key)
    _check_node(key, node)
    if value:
        raise InvalidRequest(f"{key}: the value must be empty.")
    return cluster.drain_key(node)


def _placement_request_key(key: str, value: bytes) -> str:
    request = cluster.decode_placement(key, value)
    _check_replicas(key, request.replicas)
    if request.before:
        _check_replicas(key, request.before)
    return _partition_key(key, cluster.placement_key)


# All prefixes and single keys that are served to other nodes.
_identities = partial(Rule, "identities")
_lasting = partial(Rule, is_leased=False)
_cluster = partial(Rule, CLUSTER, is_leased=False)
_overwritten = partial(Rule, is_put_blindly=True, is_deleted_blindly=True)
RULES: Final[Mapping[str, Rule]] = {
    TOPICS_PREFIX: Rule("topics", _topic_key, TOPICS_MAX),
    # Sweeps remove all but TOMBSTONES_MAX; more may exist until then.
    TOMBS_PREFIX: Rule(
        "topics", _tomb_key, 4 * TOMBSTONES_MAX, TOPICS_PREFIX, is_deleted_blindly=True
    ),
    identities.TENANTS_PREFIX: _identities(
        lambda _key, value: identities.tenant_key(identities.decode_tenant(value).tenant.account),
        identities.TENANTS_MAX,
    ),
    identities.USERS_PREFIX: _identities(_user_key, identities.USERS_MAX),
    identities.KEYS_PREFIX: _identities(
        lambda _key, value: identities.key_key(identities.decode_key(value).key_id),
        identities.USERS_MAX * identities.KEYS_PER_USER_MAX,
        identities.USERS_PREFIX,
    ),
    identities.SCRAM_PREFIX: _identities(
        _scram_key,
        identities.USERS_MAX * len(identities.KEY_BYTES_BY_MECHANISM),
        identities.USERS_PREFIX,
    ),
    DATA_KEYS_PREFIX: Rule("data keys", _data_key_key, DATA_KEYS_MAX),
    PRODUCER_IDS_KEY: Rule("producer ids", _producer_ids_key, 1),
    cluster.FRONTENDS_PREFIX: Rule("frontends", _frontend_key, cluster.FRONTENDS_MAX),
    MOVES_PREFIX: _overwritten(
        "moves", lambda _key, value: move_key(_decode_move(value).task_id), MOVES_MAX
    ),
    CONFIGS_PREFIX: _lasting("configs", _configs_key, RESOURCE_CONFIGS_MAX),
    acls.ACLS_PREFIX: _lasting(
        "access rules",
        lambda key, value: acls.acl_key(acls.account_of(key), acls.decode_acl(value)),
        ACLS_MAX,
    ),
    acls.TOKENS_PREFIX: _lasting(
        "delegation tokens",
        lambda _key, value: acls.token_key(acls.decode_token(value).token_id),
        TOKENS_MAX,
    ),
    SUBSCRIPTIONS_PREFIX: _lasting(
        "subscriptions",
        lambda _key, value: subscription_key(decode_subscription(value).id),
        SUBSCRIPTIONS_MAX,
    ),
    SNS_KEYS_PREFIX: _lasting("signing keys", _sns_key_key, SNS_KEYS_MAX),
    BOOKS_PREFIX: _lasting(
        "address books", lambda _key, value: book_key(decode_book_entry(value)), BOOK_ENTRIES_MAX
    ),
    cluster.NODES_PREFIX: Rule(
        CLUSTER, _node_entry_key, cluster.NODES_MAX, is_deleted_blindly=True, is_leased=True
    ),
    cluster.PARTITIONS_PREFIX: _cluster(_row_key, ROWS_MAX),
    cluster.MANAGER_KEY: Rule(CLUSTER, _manager_key, 1, is_leased=True),
    cluster.LEVEL_KEY: _cluster(_level_key, 1),
    cluster.DRAINS_PREFIX: _overwritten(CLUSTER, _drain_key, cluster.NODES_MAX, is_leased=False),
    cluster.PLACEMENTS_PREFIX: _overwritten(
        CLUSTER, _placement_request_key, ROWS_MAX, is_leased=False
    ),
}
_WISHES: Final = "/wishes/"  # the only family whose prefixes have two parts


def prefix_of(key: str) -> str:
    end = key.find("/", len(_WISHES) if key.startswith(_WISHES) else 1) + 1
    prefix = key[:end] if end else key
    if prefix not in RULES:
        raise InvalidRequest(
            "Only topics, identities, data keys, producer ids, frontends, moves of dead letters,"
            " configs of resources, access rules, delegation tokens, subscriptions, signing keys,"
            " address books and cluster entries are served."
        )
    return prefix


# ── Transactions ─────────────────────────────────────────────────────────────────────────────


def check_txn(txn: Txn) -> Sequence[str]:
    """Check a transaction, and return the keys that it may create."""
    keys = [*(key for key, _ in txn.puts), *txn.deletes]
    seen = [key for key, _ in (*txn.compare, *txn.compare_created)]
    if len(keys) > CHANGES_PER_TXN_MAX or len(seen) > CHANGES_PER_TXN_MAX:
        raise InvalidRequest(f"A transaction can name at most {CHANGES_PER_TXN_MAX} keys.")
    if len(set(keys)) != len(keys):
        raise InvalidRequest("The transaction changes a key more than once.")
    families = {RULES[prefix_of(key)].family for key in (*keys, *seen)}
    if len(families) > 1:
        raise InvalidRequest("A transaction can only change entries of one kind.")
    compared = {**dict(txn.compare_created), **dict(txn.compare)}
    tombs = _check_puts(txn.puts, compared, is_leased=txn.lease != 0)
    for key in txn.deletes:
        prefix = prefix_of(key)
        rule = RULES[prefix]
        if prefix == TOPICS_PREFIX and (key not in compared or key not in tombs):
            raise InvalidRequest(f"{key}: a delete must check the version and put a tombstone.")
        if not (rule.is_deleted_blindly or _is_compared(key, rule, compared)):
            raise InvalidRequest(f"{key}: a delete must be conditional on the entry's version.")
    return [key for key, _ in txn.puts if not compared.get(key)]


def _check_puts(
    puts: Sequence[tuple[str, bytes]], compared: Mapping[str, int], *, is_leased: bool
) -> set[str]:
    """Check the puts, and return the keys of the topics for which they contain a tombstone."""
    tombs: set[str] = set()
    for key, value in puts:
        prefix = prefix_of(key)
        rule = RULES[prefix]
        try:
            right = rule.key_of(key, value)
        except (msgspec.DecodeError, ValueError, Damaged) as error:
            raise InvalidRequest(f"{key}: the value cannot be read: {error}") from error
        if right != key:
            raise InvalidRequest(f"{key}: the value belongs under the key {right}.")
        if rule.is_leased is not None and rule.is_leased is not is_leased:
            how = "must" if rule.is_leased else "must not"
            raise InvalidRequest(f"{key} {how} be attached to a lease.")
        if prefix == TOMBS_PREFIX:
            tomb = _decode(value)
            tombs.add(topic_key(tomb.account, tomb.region, tomb.name))
        elif not (rule.is_put_blindly or _is_compared(key, rule, compared)):
            raise InvalidRequest(f"{key}: a change must be conditional on the entry's version.")
    return tombs


def _is_compared(key: str, rule: Rule, compared: Mapping[str, Any]) -> bool:
    if key in compared:
        return True
    return bool(rule.follows) and any(one.startswith(rule.follows) for one in compared)
