"""Access rules made, shown and removed through Kafka's own API, and what they come to."""

import asyncio
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.frontend_kafka_access.asks import ASKS, NO_CLUSTER, NO_GROUP, NO_TOPIC, NO_TXN
from tests.unit.frontend_kafka_access.stage import (
    OTHER,
    OWN,
    REGION,
    Client,
    House,
    allow,
    codes,
    deny,
    house_on,
    policy,
)

from penstock.access.evaluation import Kind, compile_policy
from penstock.frontend.kafka.access.acls import POLICY, AclPolicies
from penstock.metadata.security import acl_rules
from penstock.model import limits
from penstock.model.acls import Acl, PatternType, ResourceType
from penstock.model.identity import User
from penstock.model.levels import ACLS_STORED
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.fetch import FetchPartition, FetchRequest, FetchTopic
from penstock.wire.kafka.generated.create_acls import AclCreation, CreateAclsRequest
from penstock.wire.kafka.generated.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from penstock.wire.kafka.generated.describe_acls import DescribeAclsRequest
from penstock.wire.kafka.generated.init_producer_id import InitProducerIdRequest
from penstock.wire.kafka.primitives import ZERO_UUID

CREATE, DESCRIBE, DELETE = 30, 29, 31
READ, WRITE, ALL = 3, 4, 2
ALLOW, DENY = 3, 2
pytestmark = pytest.mark.slow
ANYTHING = (1, None, 1, None, None, 1, 1)
Rule = tuple[int, str, int, str, str, int, int]


def rule(**fields: Any) -> Rule:
    """User ann may read topic t, unless said otherwise."""
    found = {
        "resource_type": int(ResourceType.TOPIC),
        "name": "t",
        "pattern": int(PatternType.LITERAL),
        "principal": "User:ann",
        "host": "*",
        "operation": READ,
        "permission": ALLOW,
        **fields,
    }
    return tuple(found.values())


async def create(client: Client, *rules: Rule) -> list[int]:
    request = CreateAclsRequest([AclCreation(*each) for each in rules])
    return [each.error_code for each in (await client.ask(CREATE, request)).results]


async def shown(client: Client, *wanted: Any) -> list[Rule]:
    found = await client.ask(DESCRIBE, DescribeAclsRequest(*(wanted or ANYTHING)))
    assert found.error_code == 0, found
    return sorted(
        (
            of.resource_type,
            of.resource_name,
            of.pattern_type,
            each.principal,
            each.host,
            each.operation,
            each.permission_type,
        )
        for of in found.resources
        for each in of.acls
    )


async def delete(client: Client, *wanted: Any) -> list[Rule]:
    request = DeleteAclsRequest([DeleteAclsFilter(*(wanted or ANYTHING))])
    (found,) = (await client.ask(DELETE, request)).filter_results
    assert found.error_code == 0, found
    return sorted(
        (
            each.resource_type,
            each.resource_name,
            each.pattern_type,
            each.principal,
            each.host,
            each.operation,
            each.permission_type,
        )
        for each in found.matching_acls
    )


async def test_a_rule_is_text_and_shown_as_it_was_made(house: House) -> None:
    root = await house.root()
    rules = [
        rule(),
        rule(name="*", operation=WRITE),
        rule(name="pre", pattern=int(PatternType.PREFIXED), permission=DENY),
        rule(name="odd*na$me?", host="10.0.0.1", operation=ALL),
        rule(principal="User:*", host="example.org"),
        rule(principal="User:*", host=""),
        rule(principal="Group:staff"),
        rule(principal="User:"),
        rule(principal="User:CN=ann,OU=a:b", operation=12),
        rule(resource_type=int(ResourceType.GROUP), name="g"),
        rule(resource_type=int(ResourceType.GROUP), name="g/", pattern=4, operation=8),
        rule(resource_type=int(ResourceType.CLUSTER), name="kafka-cluster", operation=12),
        rule(resource_type=4, name="kafka-cluster", pattern=4),
        rule(resource_type=int(ResourceType.TRANSACTIONAL_ID), name="x", operation=15),
        rule(resource_type=int(ResourceType.DELEGATION_TOKEN), name="x", operation=8),
        rule(resource_type=int(ResourceType.USER), name="User:ann", operation=13),
        rule(resource_type=int(ResourceType.USER), name="User:ann", operation=14),
    ]
    assert await create(root, *rules) == [0] * len(rules)
    assert await shown(root) == sorted(rules)
    assert await create(root, rules[0], rules[0]) == [0, 0]  # again is harmless
    assert await shown(root) == sorted(rules)
    assert await delete(root) == sorted(rules)
    assert await shown(root) == []


async def topic_codes(client: Client) -> dict[str, set[int]]:
    """What one user is told about topic t."""
    names = ("Metadata", "Produce by name", "Fetch by name")
    asks = {ask.name: ask for ask in ASKS if ask.name in names}
    return {
        name: set(codes(await client.ask(ask.key, ask.request(b""), ask.version)))
        for name, ask in asks.items()
    }


@pytest.mark.parametrize(
    ("operation", "denied"),
    [
        (ALL, {"Metadata", "Produce by name", "Fetch by name"}),
        (READ, {"Fetch by name"}),
        (WRITE, {"Produce by name"}),
        (8, {"Metadata"}),
        (6, set()),
    ],
)
@pytest.mark.parametrize("principal", ["User:*", "User:ann"])
@pytest.mark.parametrize(("name", "pattern"), [("t", 3), ("t", 4), ("", 3), ("*", 3)])
async def test_a_deny_beats_every_allow(
    house: House, operation: int, denied: set[str], principal: str, name: str, pattern: int
) -> None:
    await house.topic()
    root = await house.root()
    await house.user("ann", allow("kafka:*"))
    client = await house.client("ann")
    await create(root, rule(operation=ALL), rule(principal="User:*", operation=ALL))
    if name:
        made = rule(name=name, pattern=pattern, principal=principal, operation=operation)
        assert await create(root, (*made[:-1], DENY)) == [0]
    found = {name for name, found in (await topic_codes(client)).items() if NO_TOPIC in found}
    assert found == (denied if name else set())
    # Operators are bound by their policies alone.
    assert not {NO_TOPIC} & set().union(*(await topic_codes(root)).values())


async def test_a_rule_made_before_its_user_holds_for_the_user(house: House) -> None:
    await house.topic()
    root = await house.root()
    assert await create(root, rule(operation=ALL)) == [0]
    await house.user("ann")
    await house.user("bob")
    for name, is_allowed in (("ann", True), ("bob", False)):
        found = await topic_codes(await house.client(name))
        assert all((NO_TOPIC not in each) == is_allowed for each in found.values()), found


async def test_rules_give_nothing_to_operators_either(house: House) -> None:
    await house.topic()
    root = await house.root()
    await house.user("chief", is_operator=True)
    await create(root, rule(principal="User:*", operation=ALL))
    found = await topic_codes(await house.client("chief"))
    assert all(NO_TOPIC in each for each in found.values())


async def test_a_policy_that_denies_beats_a_rule_that_allows(house: House) -> None:
    await house.topic()
    root = await house.root()
    await house.user("ann", deny("kafka:Read"))
    await create(root, rule(operation=ALL))
    found = await topic_codes(await house.client("ann"))
    assert {name for name, each in found.items() if NO_TOPIC in each} == {"Fetch by name"}


async def test_rules_decide_on_groups_transactions_and_the_cluster(house: House) -> None:
    root = await house.root()
    await house.user("ann")
    await house.user("bob", allow("kafka:*"))
    ann, bob = await house.client("ann"), await house.client("bob")
    groups, transactions, cluster = 3, 5, 4
    wanted = {
        "Heartbeat": (groups, "g", NO_GROUP),
        "EndTxn": (transactions, "x", NO_TXN),
    }
    for name, (resource_type, resource, code) in wanted.items():
        ask = next(ask for ask in ASKS if ask.name == name)

        async def found(client: Client, ask: Any = ask) -> set[int]:
            return set(codes(await client.ask(ask.key, ask.request(b""), ask.version)))

        assert code in await found(ann)
        assert code not in await found(bob)
        about_all = {"resource_type": resource_type, "name": resource, "operation": ALL}
        await create(
            root,
            rule(**about_all),
            rule(**about_all, principal="User:bob", permission=DENY),
        )
        assert code not in await found(ann)
        assert code in await found(bob)
    assert await create(ann, rule()) == [NO_CLUSTER]
    await create(root, rule(resource_type=cluster, name="kafka-cluster", operation=7))
    assert await create(ann, rule()) == [0]


async def test_a_producer_id_is_for_those_whom_a_rule_lets_write_somewhere(house: House) -> None:
    root = await house.root()
    await house.user("ann")
    client = await house.client("ann")
    ask = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1_000)

    async def code() -> int:
        return int((await client.ask(22, ask)).error_code)

    assert await code() == NO_CLUSTER
    await create(root, rule(name="w-", pattern=4, operation=WRITE, host="10.0.0.1"))
    assert await code() == NO_CLUSTER  # not from here
    await create(root, rule(name="w-", pattern=4, operation=WRITE))
    assert await code() == 0
    await create(root, rule(name="*", operation=WRITE, permission=DENY, principal="User:*"))
    assert await code() == NO_CLUSTER


async def test_rules_are_followed_at_once_and_without_a_new_connection(house: House) -> None:
    await house.topic()
    root = await house.root()
    await house.user("ann")
    client = await house.client("ann")
    fetch = next(ask for ask in ASKS if ask.name == "Fetch by name")

    async def found() -> set[int]:
        return set(codes(await client.ask(1, fetch.request(b""), 12)))

    assert NO_TOPIC in await found()
    await create(root, rule())
    assert NO_TOPIC not in await found()
    await create(root, rule(name="t", pattern=4, permission=DENY, operation=ALL))
    assert NO_TOPIC in await found()
    await delete(root, 1, None, 1, None, None, 1, DENY)
    assert NO_TOPIC not in await found()
    await delete(root)
    assert NO_TOPIC in await found()
    assert house.identities.acls(OWN) is None


async def waiting_fetch(house: House, client: Client) -> asyncio.Task[Any]:
    """A fetch that waits for the first record of topic t."""
    request = FetchRequest(20_000, 1, [FetchTopic("t", ZERO_UUID, [FetchPartition(0, 0, 1_000)])])
    task = asyncio.create_task(client.ask(1, request, 12))
    while not len(house.context.parked):
        await asyncio.sleep(0)
        assert not task.done(), task
    return task


async def send_record(client: Client) -> None:
    ask = next(ask for ask in ASKS if ask.name == "Produce by name")
    assert NO_TOPIC not in set(codes(await client.ask(0, ask.request(b""), ask.version)))


async def test_a_fetch_that_waits_is_denied_what_a_rule_denies_meanwhile(house: House) -> None:
    await house.topic()
    root = await house.root()
    await house.user("ann", allow("kafka:*"))
    waiting = await waiting_fetch(house, await house.client("ann"))
    await create(root, rule(principal="User:*", permission=DENY))
    await send_record(root)
    assert NO_TOPIC in set(codes(await waiting))


async def test_a_rule_for_a_host_is_followed_there_only(house: House) -> None:
    root = await house.root()
    await house.user("ann")
    group = int(ResourceType.GROUP)
    await create(root, rule(resource_type=group, name="g", host="10.0.0.1"))
    beat = next(ask for ask in ASKS if ask.name == "Heartbeat").request(b"")
    for peer, is_allowed in (("10.0.0.1", True), ("10.0.0.2", False)):
        client = await house.client("ann", peer=peer)
        assert (NO_GROUP in set(codes(await client.ask(12, beat)))) != is_allowed


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ((2, None, 1, None, None, 1, 1), ["a", "ab", "*", "b"]),
        ((3, None, 1, None, None, 1, 1), ["g"]),
        ((2, "ab", 3, None, None, 1, 1), ["ab"]),
        ((2, "a", 4, None, None, 1, 1), ["a"]),
        ((2, "a", 1, None, None, 1, 1), ["a"]),
        ((2, "abc", 2, None, None, 1, 1), ["a", "*"]),
        ((2, "ab", 2, None, None, 1, 1), ["a", "ab", "*"]),
        ((1, None, 1, "User:bob", None, 1, 1), ["b"]),
        ((1, None, 1, None, "10.0.0.1", 1, 1), ["b"]),
        ((1, None, 1, None, None, WRITE, 1), ["ab"]),
        ((1, None, 1, None, None, 1, DENY), ["*"]),
        ((1, None, 1, "User:nobody", None, 1, 1), []),
    ],
)
async def test_filters_find_what_they_name(
    house: House, wanted: tuple[Any, ...], expected: list[str]
) -> None:
    root = await house.root()
    for name in ("ann", "bob"):
        await house.user(name)
    rules = [
        rule(name="a", pattern=4),
        rule(name="ab", operation=WRITE),
        rule(name="*", permission=DENY),
        rule(name="b", principal="User:bob", host="10.0.0.1"),
        rule(resource_type=3, name="g"),
    ]
    assert await create(root, *rules) == [0] * 5
    assert sorted(each[1] for each in await shown(root, *wanted)) == sorted(expected)
    assert sorted(each[1] for each in await delete(root, *wanted)) == sorted(expected)
    assert len(await shown(root)) == 5 - len(expected)


@pytest.mark.parametrize(
    "fields",
    [
        {"resource_type": 0},
        {"resource_type": 1},
        {"resource_type": 8},
        {"name": ""},
        {"name": "n" * 1_025},
        {"pattern": 0},
        {"pattern": 1},
        {"pattern": 2},
        {"principal": "ann"},
        {"principal": ""},
        {"principal": "User:" + "n" * 1_020},
        {"host": "h" * 1_025},
        {"operation": 0},
        {"operation": 1},
        {"operation": 16},
        {"permission": 0},
        {"permission": 1},
        {"resource_type": 4, "name": "other", "operation": 8},
    ],
)
async def test_a_rule_that_makes_no_sense_is_refused_and_the_others_are_made(
    house: House, fields: dict[str, Any]
) -> None:
    root = await house.root()
    await house.user("ann")
    found = await create(root, rule(**fields), rule())
    assert found == [ErrorCode.INVALID_REQUEST, 0]
    assert await shown(root) == [rule()]


@pytest.mark.parametrize("place", [0, 2, 5, 6])
@pytest.mark.parametrize("number", [0, 99])
async def test_a_filter_that_makes_no_sense_finds_and_deletes_nothing(
    house: House, place: int, number: int
) -> None:
    root = await house.root()
    await create(root, rule())
    wanted: list[Any] = list(ANYTHING)
    wanted[1] = "t"
    assert await shown(root, *wanted) == [rule()]
    wanted[place] = number
    assert await shown(root, *wanted) == []
    request = DeleteAclsRequest([DeleteAclsFilter(*wanted)])
    (result,) = (await root.ask(DELETE, request)).filter_results
    assert result.error_code == ErrorCode.INVALID_REQUEST
    assert await shown(root) == [rule()]


async def test_rules_that_cannot_be_deleted_are_one_error_of_each_filter(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error for each rule would be a reply of 10,000,000 entries."""
    root = await house.root()
    await create(root, rule())
    monkeypatch.setattr(acl_rules, "TRIES_MAX", 0)
    request = DeleteAclsRequest([DeleteAclsFilter(*ANYTHING)] * 2)
    for result in (await root.ask(DELETE, request)).filter_results:
        assert (result.error_code, result.matching_acls) == (
            ErrorCode.THROTTLING_QUOTA_EXCEEDED,
            (),
        )
    assert await shown(root) == [rule()]


async def test_rules_are_of_one_account(house: House) -> None:
    root = await house.root()
    await house.user("ann", allow("*"), account=OTHER)
    other = await house.client("ann", account=OTHER)
    for account in (OWN, OTHER):
        await house.topic(account=account)
    await house.user("ann", allow("kafka:*"))
    own = await house.client("ann")
    denial = rule(principal="User:*", operation=ALL, permission=DENY)
    assert await create(other, denial) == [0]
    assert await shown(root) == []
    assert await delete(root) == []
    assert await shown(other) == [denial]
    assert all(NO_TOPIC in found for found in (await topic_codes(other)).values())
    assert not any(NO_TOPIC in found for found in (await topic_codes(own)).values())


async def test_the_number_of_rules_is_bounded(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "ACLS_PER_TENANT_MAX", 3)
    root = await house.root()
    rules = [rule(name=f"t{number}") for number in range(4)]
    full = ErrorCode.POLICY_VIOLATION
    assert await create(root, *rules) == [full] * 4  # all or none
    assert await create(root, *rules[:3]) == [0] * 3
    assert await create(root, rules[0]) == [0]  # exists
    assert await create(root, rules[3]) == [full]
    await delete(root, 2, "t0", 3, None, None, 1, 1)
    assert await create(root, rules[3]) == [0]
    assert await shown(root) == rules[1:]


async def test_rules_go_with_their_tenant(house: House) -> None:
    await house.user("ann", allow("*"), account=OTHER)
    other = await house.client("ann", account=OTHER)
    await create(other, *(rule(name=f"t{number}") for number in range(100)))
    await house.identities.delete_user(OTHER, "ann")
    assert len(house.identities.acls(OTHER) or ()) == 100
    await house.identities.delete_tenant(OTHER)
    assert house.identities.acls(OTHER) is None


# ── Rules of earlier versions ────────────────────────────────────────────────────────────────


def lower_level(house: House) -> None:
    house.context.level = lambda: ACLS_STORED - 1


async def test_below_the_level_a_rule_is_a_statement_of_its_users_policy(house: House) -> None:
    lower_level(house)
    root = await house.root()
    await house.user("ann")
    rules = [
        rule(),
        rule(name="*", operation=WRITE),
        rule(name="pre", pattern=int(PatternType.PREFIXED), permission=DENY),
        rule(name="odd*na$me?", host="10.0.0.1", operation=ALL),
        rule(resource_type=int(ResourceType.GROUP), name="g/", pattern=4, operation=8),
        rule(resource_type=int(ResourceType.CLUSTER), name="kafka-cluster", operation=12),
        rule(resource_type=int(ResourceType.TRANSACTIONAL_ID), name="x", operation=WRITE),
    ]
    assert await create(root, *rules) == [0] * len(rules)
    assert await create(root, rules[0], rules[0]) == [0, 0]
    assert await shown(root) == sorted(rules)
    assert house.identities.acls(OWN) is None
    user = house.identities.user(OWN, "ann")
    assert user is not None
    statements = json.loads(user.policies["kafka-acls"])["Statement"]
    assert len(statements) == len(rules)
    assert statements[0] == {
        "Effect": "Allow",
        "Action": "kafka:Read",
        "Resource": f"arn:aws:sqs:{REGION}:{OWN}:t",
    }
    assert statements[3]["Condition"] == {"IpAddress": {"aws:SourceIp": "10.0.0.1"}}


@pytest.mark.parametrize(
    "fields",
    [
        {"resource_type": 6},
        {"principal": "User:"},
        {"principal": "Group:ann"},
        {"principal": "User:*"},
        {"principal": "User:nobody"},
        {"host": "example.org"},
        {"operation": 12},
        {"operation": 13},
        {"resource_type": 4, "name": "kafka-cluster", "pattern": 4},
    ],
)
async def test_below_the_level_rules_that_older_nodes_do_not_know_are_refused(
    house: House, fields: dict[str, Any]
) -> None:
    lower_level(house)
    root = await house.root()
    await house.user("ann")
    request = CreateAclsRequest([AclCreation(*each) for each in (rule(**fields), rule())])
    refused, made = (await root.ask(CREATE, request)).results
    assert (refused.error_code, made.error_code) == (ErrorCode.INVALID_REQUEST, 0)
    assert "needs feature level 6" in refused.error_message
    assert await shown(root) == [rule()]


async def test_rules_of_policies_hold_and_are_shown_and_deleted_at_the_level(house: House) -> None:
    await house.topic()
    level = house.context.level
    lower_level(house)
    root = await house.root()
    await house.user("ann")
    client = await house.client("ann")
    old = [rule(), rule(operation=WRITE)]
    assert await create(root, *old) == [0, 0]
    house.context.level = level
    assert await create(root, rule(), rule(operation=8)) == [0, 0]  # one of them exists
    assert await shown(root) == sorted([*old, rule(operation=8)])
    assert not any(NO_TOPIC in found for found in (await topic_codes(client)).values())
    assert await delete(root, 1, None, 1, None, None, READ, 1) == [rule()]
    found = await topic_codes(client)
    assert {name for name, each in found.items() if NO_TOPIC in each} == {"Fetch by name"}
    assert await delete(root) == sorted([rule(operation=WRITE), rule(operation=8)])
    user = house.identities.user(OWN, "ann")
    assert user is not None
    assert user.policies == {}


async def test_statements_of_an_operator_are_for_operators_to_delete(house: House) -> None:
    lower_level(house)
    root = await house.root()
    await house.user("ann", allow("kafka:*"))
    client = await house.client("ann")
    about_root = rule(principal="User:root")
    assert await create(client, about_root) == [NO_CLUSTER]
    assert await create(root, about_root) == [0]
    request = DeleteAclsRequest([DeleteAclsFilter(*ANYTHING)])
    (found,) = (await client.ask(DELETE, request)).filter_results
    assert [each.error_code for each in found.matching_acls] == [NO_CLUSTER]
    assert await delete(root) == [about_root]


async def test_there_are_as_many_statements_as_a_policy_holds(house: House) -> None:
    lower_level(house)
    root = await house.root()
    await house.user("ann")
    rules = [rule(name=f"{number:0>200}") for number in range(500)]
    found = await create(root, *rules)
    assert set(found) == {ErrorCode.INVALID_REQUEST}  # all of a user's at once, or none
    assert await create(root, *rules[:300]) == [0] * 300


async def test_what_somebody_wrote_by_hand_is_left_alone(house: House) -> None:
    lower_level(house)
    root = await house.root()
    await house.user("ann")
    by_hand = allow("kafka:Read", "kafka:Write", resource="arn:aws:sqs:*:*:x-*-y")
    await house.identities.put_policy(OWN, "ann", "kafka-acls", policy(by_hand))
    assert await shown(root) == []
    await create(root, rule())
    await delete(root)
    user = house.identities.user(OWN, "ann")
    assert user is not None
    assert json.loads(user.policies["kafka-acls"])["Statement"] == [by_hand]


async def test_without_authentication_there_are_no_rules(tmp_path: Any) -> None:
    async with house_on(tmp_path, is_auth_on=False) as house:
        await house.user("ann")
        client = Client(house)
        disabled = ErrorCode.SECURITY_DISABLED
        assert await create(client, rule()) == [disabled]
        found = await client.ask(DESCRIBE, DescribeAclsRequest(*ANYTHING))
        assert found.error_code == disabled
        request = DeleteAclsRequest([DeleteAclsFilter(*ANYTHING)])
        assert [each.error_code for each in (await client.ask(DELETE, request)).filter_results] == [
            disabled
        ]


async def test_rules_are_for_those_who_may_alter_the_cluster(house: House) -> None:
    await house.user("ann", allow("kafka:Describe"))
    client = await house.client("ann")
    assert await create(client, rule()) == [NO_CLUSTER]
    assert await shown(client) == []


# ── As statements ────────────────────────────────────────────────────────────────────────────

NAMES = st.text(st.sampled_from("ab*?${}/:"), min_size=1, max_size=8)
RULES = st.builds(
    Acl,
    resource_type=st.sampled_from([2, 3, 5]),
    resource_name=NAMES,
    pattern_type=st.sampled_from([3, 4]),
    principal=st.just("User:ann"),
    host=st.sampled_from(["*", "10.0.0.1", "::1"]),
    operation=st.sampled_from([ALL, WRITE, 8]),
    permission_type=st.sampled_from([ALLOW, DENY]),
)


@given(rules=st.lists(RULES, max_size=6))
def test_rules_and_statements_are_two_spellings_of_the_same(rules: list[Acl]) -> None:
    policies = AclPolicies(OWN, REGION)
    user = policies.with_rules(User(OWN, "ann", 1), rules)
    found = policies.rules_of(user)
    assert set(found) == set(rules)
    assert len(found) == len(set(rules))
    if rules:
        compile_policy(user.policies[POLICY], Kind.IDENTITY)
    assert policies.without_rules(user, frozenset(rules)).policies == {}


@given(made=RULES, name=NAMES)
def test_a_statement_is_about_what_its_rule_is_about(made: Acl, name: str) -> None:
    policies = AclPolicies(OWN, REGION)
    user = policies.with_rules(User(OWN, "ann", 1), [made])
    (statement,) = compile_policy(user.policies[POLICY], Kind.IDENTITY).statements
    prefixes = {
        2: f"arn:aws:sqs:{REGION}:{OWN}:",
        3: f"arn:penstock:kafka:{REGION}:{OWN}:group/",
        5: f"arn:penstock:kafka:{REGION}:{OWN}:txn/",
    }
    wanted = msgspec.structs.replace(made, host="*")
    is_meant = (
        name.startswith(wanted.resource_name)
        if wanted.pattern_type == PatternType.PREFIXED
        else wanted.resource_name in (name, "*")
    )
    for resource_type, prefix in prefixes.items():
        expected = is_meant and resource_type == made.resource_type
        assert statement.resources.match(prefix + name) == expected
