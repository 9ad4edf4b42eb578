"""Access rules and delegation tokens, which both systems are asked about with authentication on.

``root`` may do everything. ``ann`` may do what access rules say."""

from collections.abc import Iterator
from typing import Any, Final

from benchmarks.answers.question import COORDINATOR, Fields, Hmac, Question

DENY, ALLOW = 2, 3
LITERAL, PREFIXED = 3, 4
TOPIC, GROUP, CLUSTER, TRANSACTION, TOKEN, USER = range(2, 8)
ALL, READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE = range(2, 9)
CREATE_TOKENS, DESCRIBE_TOKENS = 13, 14
ANY: Final = 1
TIMES: Final = frozenset(
    ("issue_timestamp_ms", "expiry_timestamp_ms", "max_timestamp_ms", "issue_timestamp",
     "expiry_timestamp", "max_timestamp", "token_id", "hmac")
)  # fmt: skip


def rule(**changed: Any) -> Fields:
    """A rule that lets ann read topic t, unless ``changed`` says otherwise."""
    return {
        "resource_type": TOPIC,
        "resource_name": "t",
        "resource_pattern_type": LITERAL,
        "principal": "User:ann",
        "host": "*",
        "operation": READ,
        "permission_type": ALLOW,
        **changed,
    }


def rules_like(**changed: Any) -> Fields:
    """A filter that every rule fits, unless ``changed`` says otherwise."""
    return {
        "resource_type_filter": ANY,
        "resource_name_filter": None,
        "pattern_type_filter": ANY,
        "principal_filter": None,
        "host_filter": None,
        "operation": ANY,
        "permission_type": ANY,
        **changed,
    }


def access_questions() -> Iterator[Question]:
    made = {"name": "t", "num_partitions": 1, "replication_factor": 1}
    ignored = frozenset(("configs",))
    yield Question("CreateTopics", 7, {"topics": [made]}, at=1, note="t", ignored=ignored)
    yield from _rules()
    yield from _rights()
    yield from _tokens()


# ── Access rules ─────────────────────────────────────────────────────────────────────────────

RULES: Final = {
    "a user": rule(),
    "every user": rule(principal="User:*", permission_type=DENY),
    "another type of principal": rule(principal="Group:staff"),
    "a name with colons": rule(principal="User:CN=a,OU=b:c"),
    "no colon": rule(principal="ann"),
    "an empty principal": rule(principal=""),
    "no name": rule(principal="User:"),
    "no type": rule(principal=":ann"),
    "an address": rule(host="10.0.0.1"),
    "a host name": rule(host="host.example.org"),
    "no host": rule(host=""),
    "an empty name": rule(resource_name=""),
    "every topic": rule(resource_name="*"),
    "a name that no topic can have": rule(resource_name="a b/c"),
    "a prefix": rule(resource_pattern_type=PREFIXED),
    "the prefix *": rule(resource_name="*", resource_pattern_type=PREFIXED),
    "a cluster": rule(resource_type=CLUSTER, resource_name="kafka-cluster"),
    "a cluster of another name": rule(resource_type=CLUSTER, resource_name="x"),
    "every cluster": rule(resource_type=CLUSTER, resource_name="*"),
    "a prefixed cluster": rule(
        resource_type=CLUSTER, resource_name="kafka-cluster", resource_pattern_type=PREFIXED
    ),
    "an operation of another type": rule(operation=CREATE_TOKENS),
    "a user that is a resource": rule(
        resource_type=USER, resource_name="User:bob", operation=CREATE_TOKENS
    ),
    "a user without a type": rule(resource_type=USER, resource_name="bob", operation=CREATE_TOKENS),
    **{f"resource type {each}": rule(resource_type=each) for each in (0, 1, 8)},
    **{f"pattern type {each}": rule(resource_pattern_type=each) for each in (1, 2, 5)},
    **{f"operation {each}": rule(operation=each) for each in (1, 15, 16)},
    **{f"permission {each}": rule(permission_type=each) for each in (1, 4)},
}
FILTERS: Final = {
    "all": rules_like(),
    "topics": rules_like(resource_type_filter=TOPIC),
    "a name": rules_like(resource_name_filter="t"),
    "a literal name": rules_like(resource_name_filter="t", pattern_type_filter=LITERAL),
    "a prefix": rules_like(resource_name_filter="t", pattern_type_filter=PREFIXED),
    "what matches tt": rules_like(resource_name_filter="tt", pattern_type_filter=2),
    "what matches no name": rules_like(pattern_type_filter=2),
    "an empty name": rules_like(resource_name_filter=""),
    "a principal": rules_like(principal_filter="User:ann"),
    "every user": rules_like(principal_filter="User:*"),
    "a principal without a colon": rules_like(principal_filter="ann"),
    "a host": rules_like(host_filter="10.0.0.1"),
    "an operation": rules_like(operation=CREATE_TOKENS),
    "every operation": rules_like(operation=ALL),
    "denied": rules_like(permission_type=DENY),
    **{f"resource type {each}": rules_like(resource_type_filter=each) for each in (0, 8)},
    "pattern type 5": rules_like(pattern_type_filter=5),
    "operation 16": rules_like(operation=16),
    "permission 4": rules_like(permission_type=4),
}


def _rules() -> Iterator[Question]:
    for note, one in RULES.items():
        yield Question("CreateAcls", 3, {"creations": [one]}, at=1, note=note)
    both = [rule(), rule(operation=16), rule(operation=WRITE), rule(operation=WRITE)]
    yield Question("CreateAcls", 2, {"creations": both}, at=1, note="one wrong, one twice")
    yield Question("CreateAcls", 3, {"creations": []}, at=1, note="none")
    for note, one in FILTERS.items():
        yield Question("DescribeAcls", 3, one, note=note)
    cluster = rules_like(resource_type_filter=CLUSTER)
    yield Question("DeleteAcls", 3, {"filters": [cluster]}, at=1, note="the cluster")
    for by_ann in (
        Question("CreateAcls", 3, {"creations": [rule(), rule(resource_name="")]}, at=1),
        Question("DescribeAcls", 3, rules_like()),
        Question("DeleteAcls", 3, {"filters": [rules_like(), rules_like(operation=16)]}, at=1),
    ):
        yield by_ann._replace(by="ann")
    for note, one in FILTERS.items():
        if note not in ("all", "topics"):
            yield Question("DeleteAcls", 3, {"filters": [one]}, at=1, note=note)
    yield Question("DeleteAcls", 3, {"filters": []}, at=1, note="none")
    overlapping = [rules_like(resource_type_filter=TOPIC), rules_like(resource_type_filter=TOPIC)]
    yield Question("DeleteAcls", 3, {"filters": overlapping}, at=1, note="the same filter twice")
    yield Question("DeleteAcls", 3, {"filters": [rules_like()]}, at=1, note="all")
    yield Question("DescribeAcls", 3, rules_like(), note="none left")


def _rights() -> Iterator[Question]:
    """What ann may do, as bit sets, with one rule for each operation, and with pairs of rules."""
    names = {TOPIC: "t", GROUP: "g", CLUSTER: "kafka-cluster"}
    for resource_type, name in names.items():
        own = rule(resource_type=resource_type, resource_name=name)
        for operation in (ALL, *range(READ, 16)):
            allowed = own | {"operation": operation}
            denied = allowed | {"principal": "User:*", "permission_type": DENY}
            yield from _asked(resource_type, [allowed], f"allow {operation}")
            rules = [own | {"operation": ALL}, denied]
            yield from _asked(resource_type, rules, f"allow all, deny {operation}")
    yield from _asked(TOPIC, [rule(resource_name="*", operation=ALL)], "every topic")
    yield from _asked(TOPIC, [rule(resource_pattern_type=PREFIXED)], "a prefix")
    yield from _asked(TOPIC, [rule(resource_name="tt", resource_pattern_type=PREFIXED)], "longer")
    yield from _asked(TOPIC, [rule(host="127.0.0.1")], "the client's address")
    yield from _asked(TOPIC, [rule(host="10.0.0.1")], "another address")
    yield from _asked(TOPIC, [rule(host="localhost")], "a host name")
    yield from _asked(TOPIC, [rule(principal="Group:ann")], "another type of principal")


def _asked(resource_type: int, rules: list[Fields], note: str) -> Iterator[Question]:
    yield Question("CreateAcls", 3, {"creations": rules}, at=1, note=note)
    about = f"{note} (type {resource_type})"
    if resource_type == TOPIC:
        fields: Fields = {"topics": [{"name": "t"}], "allow_auto_topic_creation": False}
        fields["include_topic_authorized_operations"] = True
        placed = frozenset(("replica_nodes",))
        yield Question("Metadata", 12, fields, note=about, by="ann", ignored=placed)
    elif resource_type == CLUSTER:
        fields = {"include_cluster_authorized_operations": True}
        yield Question("DescribeCluster", 2, fields, note=about, by="ann")
    else:
        fields = {"groups": ["g"], "include_authorized_operations": True}
        yield Question("DescribeGroups", 5, fields, at=COORDINATOR, of="g", note=about, by="ann")
    yield Question("DeleteAcls", 3, {"filters": [rules_like()]}, at=1, note=note)


# ── Delegation tokens ────────────────────────────────────────────────────────────────────────


def _tokens() -> Iterator[Question]:
    def create(note: str, by: str = "ann", **fields: Any) -> Question:
        asked = {"renewers": [], "max_lifetime_ms": -1, **fields}
        return Question("CreateDelegationToken", 3, asked, at=1, note=note, by=by, ignored=TIMES)

    def owned_by(name: str, kind: str = "User") -> Fields:
        return {"owner_principal_type": kind, "owner_principal_name": name}

    def of(*names: str) -> list[Fields]:
        return [{"principal_type": "User", "principal_name": name} for name in names]

    yield create("own")
    yield create("with a renewer", renewers=of("root"))
    yield create("a renewer that is a group", renewers=[{**of("g")[0], "principal_type": "Group"}])
    yield create("of somebody else", **owned_by("root"))
    yield create("own, by name", **owned_by("ann"))
    yield create("of a group", **owned_by("ann", "Group"))
    yield create("an owner without a name", **owned_by(""))
    yield create("of another user, by root", by="root", **owned_by("ann"))
    for note, life_ms in (("no time", 0), ("a short time", 1_000), ("-2", -2), ("long", 10**12)):
        yield create(note, max_lifetime_ms=life_ms)
    yield from _changes()
    for by in ("ann", "root"):
        for note, owners in (("all", None), ("none", []), ("ann", of("ann")), ("no", of("no"))):
            asked: Fields = {"owners": owners}
            # Tokens come in any order.
            ignored = TIMES | {"token_requester_principal_name"}
            note = f"{note}, by {by}"
            yield Question("DescribeDelegationToken", 3, asked, note=note, by=by, ignored=ignored)
    rules = [rule(resource_type=USER, resource_name="User:root", operation=CREATE_TOKENS)]
    rules.append(rule(resource_type=USER, resource_name="User:root", operation=DESCRIBE_TOKENS))
    yield Question("CreateAcls", 3, {"creations": rules}, at=1, note="tokens of root")
    yield create("of root, by a rule", **owned_by("root"))


def _changes() -> Iterator[Question]:
    for api, version, period in (
        ("RenewDelegationToken", 2, "renew_period_ms"),
        ("ExpireDelegationToken", 2, "expiry_time_period_ms"),
    ):
        for note, hmac, by, period_ms in (
            ("an HMAC of no token", b"none", "ann", 1_000),
            ("the owner", Hmac(0), "ann", 60_000),
            ("neither", Hmac(0), "root", 60_000),
            ("a period of 0", Hmac(0), "ann", 0),
            ("a long period", Hmac(1), "ann", 10**12),
            ("a renewer", Hmac(1), "root", 60_000),
            ("at once", Hmac(1), "ann", -1),
            ("once more", Hmac(1), "ann", -1),
        ):
            fields = {"hmac": hmac, period: period_ms}
            yield Question(api, version, fields, at=1, note=note, by=by, ignored=TIMES)
