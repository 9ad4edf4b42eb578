"""Policies: what they say, what is wrong with them, and how several are weighed."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.access import evaluation
from penstock.access.conditions import Asks, Facts, MalformedPolicy
from penstock.access.evaluation import Decision, Kind
from penstock.model.identity import ADMIN_POLICY, Caller, Circumstances

OWN, OTHER = "111111111111", "222222222222"
ARN = f"arn:aws:sqs:eu-west-1:{OWN}:orders"
ALICE = Caller(OWN, "alice")
MALLORY = Caller(OTHER, "mallory")
NOON = Circumstances(
    source_ip="10.1.2.3", is_tls=True, now_ms=1_772_366_400_000
)  # 2026-03-01 12:00
SEND = "sqs:SendMessage"


def statement(effect: str = "Allow", **changes: Any) -> dict[str, Any]:
    block = {"Effect": effect, "Action": SEND, "Resource": ARN} | changes
    return {name: value for name, value in block.items() if value is not None}


def document(*blocks: dict[str, Any], version: str = "2012-10-17") -> str:
    return json.dumps({"Version": version, "Statement": list(blocks)})


def weigh(
    *identity: dict[str, Any],
    resource: list[dict[str, Any]] | None = None,
    caller: Caller = ALICE,
    owner: str = OWN,
    action: str = SEND,
    arn: str = ARN,
    circumstances: Circumstances = NOON,
) -> Decision:
    policies = [evaluation.compile_policy(document(*identity), Kind.IDENTITY)] if identity else []
    attached = (
        None if resource is None else evaluation.compile_policy(document(*resource), Kind.RESOURCE)
    )
    facts = Facts(caller, circumstances, owner)
    return evaluation.decide(policies, attached, facts, action, arn)


def granted(**changes: Any) -> dict[str, Any]:
    return statement(Principal="*") | changes


# ── Weighing ─────────────────────────────────────────────────────────────────────────────────


def test_nothing_is_allowed_that_no_statement_allows() -> None:
    assert weigh() == Decision(False, source="identity")
    assert not weigh(statement(Action="sqs:ReceiveMessage")).is_allowed


def test_a_user_may_what_its_policy_allows() -> None:
    assert weigh(statement(Sid="send")) == Decision(True, True, "send", "identity")


def test_in_its_own_account_a_user_needs_only_one_of_the_two() -> None:
    assert weigh(resource=[granted(Sid="all")]) == Decision(True, True, "all", "resource")
    assert weigh(statement(), resource=[granted(Action="sqs:DeleteQueue")]).is_allowed


def test_another_account_needs_both() -> None:
    mine = statement(Resource="*")
    ours: dict[str, Any] = {"caller": MALLORY}
    assert not weigh(mine, **ours).is_allowed
    assert weigh(mine, resource=[granted(Action="sqs:DeleteQueue")], **ours).source == "resource"
    assert weigh(resource=[granted()], **ours).source == "identity"
    assert weigh(mine, resource=[granted()], **ours).is_allowed


@pytest.mark.parametrize("text", ["$queue", f"/{OWN}/orders", "orders", "*orders", "*:*"])
def test_a_text_in_place_of_an_arn_matches_nothing(text: str) -> None:
    assert weigh(resource=[granted()]).is_allowed
    assert not weigh(resource=[granted(Resource=text)]).is_allowed
    assert weigh(resource=[granted(Resource=[text, ARN])]).is_allowed
    deny = granted(Effect="Deny", Resource=text)
    assert weigh(resource=[granted(), deny]).is_allowed
    others = {name: value for name, value in granted().items() if name != "Resource"}
    assert weigh(resource=[others | {"NotResource": text}]).is_allowed
    for operator, is_allowed in (("ArnLike", False), ("ArnEquals", False), ("ArnNotLike", True)):
        condition = {operator: {"aws:PrincipalArn": text}}
        assert weigh(resource=[granted(Condition=condition)]).is_allowed is is_allowed, operator


def test_a_denial_outweighs_everything() -> None:
    deny = statement("Deny", Sid="no", Action="*", Resource="*")
    assert weigh(statement(), deny) == Decision(False, True, "no", "identity")
    assert weigh(deny, resource=[granted()]).source == "identity"
    refused = weigh(statement(), resource=[granted(), granted(Effect="Deny", Sid="never")])
    assert refused == Decision(False, True, "never", "resource")


def test_a_believed_caller_may_everything() -> None:
    trusted = Caller(OWN, "anonymous", is_trusted=True)
    assert weigh(statement("Deny", Action="*"), caller=trusted).is_allowed


def test_the_administrators_policy_allows_everything() -> None:
    compiled = evaluation.compile_policy(ADMIN_POLICY, Kind.IDENTITY)
    for action in ("sqs:DeleteQueue", "kafka:ClusterAction"):
        facts, arn = (
            Facts(ALICE, Circumstances(), OWN),
            f"arn:penstock:kafka:eu-west-1:{OWN}:cluster",
        )
        decision = evaluation.decide([compiled], None, facts, action, arn)
        assert decision.is_allowed


@pytest.mark.parametrize(
    ("principal", "is_alice", "is_mallory"),
    [
        ("*", True, True),
        ({"AWS": "*"}, True, True),
        ({"AWS": OWN}, True, False),
        ({"AWS": [f"arn:aws:iam::{OWN}:root", f"arn:aws:iam::{OTHER}:user/bob"]}, True, False),
        ({"AWS": f"arn:aws:iam::{OTHER}:user/mallory"}, False, True),
        ({"AWS": f"arn:aws:iam::{OWN}:user/mallory"}, False, False),
        ({"AWS": f"arn:aws:iam::{OWN}:role/alice"}, False, False),
        ({"Service": "sns.amazonaws.com"}, False, False),
        ({"Service": "sns.amazonaws.com", "AWS": OWN}, True, False),
    ],
)
def test_a_resource_says_who(principal: Any, is_alice: bool, is_mallory: bool) -> None:
    # In another account the caller's own policy has to agree as well.
    needed = {ALICE.user: [], MALLORY.user: [statement(Resource="*")]}
    for caller, expected in ((ALICE, is_alice), (MALLORY, is_mallory)):
        own = needed[caller.user]
        one = weigh(*own, resource=[granted(Principal=principal)], caller=caller)
        assert one.is_allowed is expected
        denied = granted(Effect="Deny", Principal=principal)
        assert weigh(*own, resource=[granted(), denied], caller=caller).is_allowed is not expected
        spared = statement("Deny", NotPrincipal=principal)
        assert weigh(*own, resource=[granted(), spared], caller=caller).is_allowed is expected


@pytest.mark.parametrize(
    ("pattern", "is_match"),
    [
        ("sqs:SendMessage", True),
        ("SQS:sendmessage", True),
        ("sqs:*", True),
        ("sqs:Send*", True),
        ("s?s:SendMessag?", True),
        ("*", True),
        ("sqs:SendMessageBatch", False),
        ("kafka:*", False),
    ],
)
def test_actions_are_matched_whatever_their_case(pattern: str, is_match: bool) -> None:
    assert weigh(statement(Action=["sqs:ListQueues", pattern])).is_allowed is is_match
    assert weigh(statement(Action=None, NotAction=pattern)).is_allowed is not is_match


@pytest.mark.parametrize(
    ("pattern", "is_match"),
    [
        (ARN, True),
        ("*", True),
        ("arn:aws:sqs:*", True),
        (f"arn:aws:sqs:eu-west-?:{OWN}:ord*", True),
        (ARN.upper().replace("ARN:", "arn:"), False),
        (f"{ARN}-more", False),
    ],
)
def test_resources_are_matched_as_they_are_written(pattern: str, is_match: bool) -> None:
    assert weigh(statement(Resource=["arn:aws:sqs:::x", pattern])).is_allowed is is_match
    assert weigh(statement(Resource=None, NotResource=pattern)).is_allowed is not is_match


def test_a_statement_may_stand_alone_and_a_queues_may_leave_out_the_queue() -> None:
    text = json.dumps({"Statement": {"Effect": "Allow", "Principal": "*", "Action": "sqs:*"}})
    compiled = evaluation.compile_policy(text, Kind.RESOURCE)
    assert evaluation.grants_anything(compiled, Facts(MALLORY, NOON, OWN), ARN)


def test_a_right_to_anything_is_a_right_that_holds_now() -> None:
    def knows(*blocks: dict[str, Any]) -> bool:
        compiled = evaluation.compile_policy(document(*blocks), Kind.RESOURCE)
        return evaluation.grants_anything(compiled, Facts(MALLORY, NOON, OWN), ARN)

    assert knows(granted(Action="sqs:ListQueueTags"))
    assert not knows(granted(Principal={"AWS": OWN}))
    assert not knows(granted(Effect="Deny"))
    assert not knows(granted(Resource="arn:aws:sqs:::x"))
    elsewhere = {"IpAddress": {"aws:SourceIp": "192.0.2.0/24"}}
    assert not knows(granted(Condition=elsewhere))


# ── Conditions ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        ({"IpAddress": {"aws:SourceIp": "10.0.0.0/8"}}, True),
        ({"IpAddress": {"aws:SourceIp": ["192.0.2.1", "10.1.2.3"]}}, True),
        ({"IpAddress": {"aws:SourceIp": "2001:db8::/32"}}, False),
        ({"NotIpAddress": {"aws:SourceIp": "10.0.0.0/8"}}, False),
        ({"NotIpAddress": {"aws:SourceIp": ["192.0.2.0/24"]}}, True),
        ({"Bool": {"aws:SecureTransport": "true"}}, True),
        ({"Bool": {"aws:SecureTransport": False}}, False),
        ({"Bool": {"AWS:securetransport": "TRUE"}}, True),
        ({"StringEquals": {"aws:username": ["bob", "alice"]}}, True),
        ({"StringEquals": {"aws:username": "Alice"}}, False),
        ({"StringEqualsIgnoreCase": {"aws:username": "Alice"}}, True),
        ({"StringNotEquals": {"aws:username": ["bob", "alice"]}}, False),
        ({"StringNotEqualsIgnoreCase": {"aws:username": "ALICE"}}, False),
        ({"StringLike": {"aws:username": "al*"}}, True),
        ({"StringNotLike": {"aws:username": "al*"}}, False),
        ({"StringEquals": {"aws:PrincipalAccount": OWN, "aws:userid": f"{OWN}:alice"}}, True),
        ({"StringEquals": {"aws:PrincipalAccount": OWN, "aws:userid": "bob"}}, False),
        ({"StringEquals": {"aws:PrincipalType": "User", "aws:ResourceAccount": OWN}}, True),
        ({"ArnEquals": {"aws:PrincipalArn": f"arn:aws:iam::{OWN}:user/alice"}}, True),
        ({"ArnLike": {"aws:PrincipalArn": f"arn:aws:iam::{OWN}:user/*"}}, True),
        ({"ArnLike": {"aws:PrincipalArn": "arn:aws:iam::*:*"}}, True),
        ({"ArnLike": {"aws:PrincipalArn": "*"}}, True),
        ({"ArnLike": {"aws:PrincipalArn": "arn:aws:*:x:y:alice"}}, False),
        ({"ArnNotLike": {"aws:PrincipalArn": "arn:aws:iam::*:user/bob"}}, True),
        ({"ArnEquals": {"aws:SourceArn": "arn:aws:sns:*:*:*"}}, False),
        ({"ArnNotEquals": {"aws:SourceArn": "arn:aws:sns:*:*:*"}}, True),
        ({"ArnEqualsIfExists": {"aws:SourceArn": "arn:aws:sns:*:*:*"}}, True),
        ({"Null": {"aws:SourceArn": "true"}}, True),
        ({"Null": {"aws:SourceArn": "false"}}, False),
        ({"Null": {"aws:SourceIp": False}}, True),
        ({"DateLessThan": {"aws:CurrentTime": "2026-03-01T12:00:01Z"}}, True),
        ({"DateLessThan": {"aws:CurrentTime": "2026-03-01T13:00:00+02:00"}}, False),
        ({"DateGreaterThan": {"aws:CurrentTime": "2026-03-01"}}, True),
        ({"DateGreaterThanEquals": {"aws:CurrentTime": "1772366400"}}, True),
        ({"DateLessThanEquals": {"aws:CurrentTime": 1772366399}}, False),
        ({"DateEquals": {"aws:CurrentTime": "2026-03-01T12:00:00Z"}}, True),
        ({"DateNotEquals": {"aws:CurrentTime": "2026-03-01T12:00:00Z"}}, False),
        ({"NumericLessThan": {"aws:EpochTime": 1772366401}}, True),
        ({"NumericGreaterThanEquals": {"aws:EpochTime": "1772366401"}}, False),
        ({"NumericEquals": {"aws:EpochTime": [1, 1772366400.0]}}, True),
        ({"NumericNotEquals": {"aws:EpochTime": 1772366400}}, False),
        (
            {
                "Bool": {"aws:SecureTransport": "true"},
                "IpAddress": {"aws:SourceIp": "192.0.2.0/24"},
            },
            False,
        ),
    ],
)
def test_a_statement_counts_only_when_its_conditions_hold(
    condition: dict[str, Any], holds: bool
) -> None:
    assert weigh(statement(Condition=condition)).is_allowed is holds
    denied = weigh(statement(), statement("Deny", Condition=condition))
    assert denied.is_allowed is not holds


@pytest.mark.parametrize(
    "condition",
    [
        {"StringEquals": {"aws:RequestTag/team": "a"}},
        {"StringNotEquals": {"aws:RequestTag/team": "a"}},
        {"StringEqualsIfExists": {"sqs:Unheard": "a"}},
        {"Null": {"aws:MultiFactorAuthPresent": "true"}},
        {"NullIfExists": {"aws:SourceIp": "true"}},
        {"ForAllValues:StringEquals": {"aws:username": "alice"}},
        {"BinaryEquals": {"aws:username": "YQ=="}},
        {"NumericLessThan": {"aws:username": 5}},
        {"IpAddress": {"aws:username": "10.0.0.0/8"}},
        {"NotIpAddress": {"aws:username": "10.0.0.0/8"}},
        {"Bool": {"aws:username": "true"}},
    ],
)
def test_what_cannot_be_judged_neither_gives_a_right_nor_lifts_a_ban(
    condition: dict[str, Any],
) -> None:
    assert not weigh(statement(Condition=condition)).is_allowed
    assert not weigh(statement(), statement("Deny", Condition=condition)).is_allowed
    known_false = condition | {"DateLessThan": {"aws:CurrentTime": "2000-01-01"}}
    assert weigh(
        statement(), statement("Deny", Action="*", Resource="*", Condition=known_false)
    ).is_allowed


def test_a_request_without_an_address_fits_no_range() -> None:
    nowhere = Circumstances(now_ms=NOON.now_ms)
    inside = {"IpAddress": {"aws:SourceIp": "0.0.0.0/0"}}
    outside = {"NotIpAddress": {"aws:SourceIp": "10.0.0.0/8"}}
    assert not weigh(statement(Condition=inside), circumstances=nowhere).is_allowed
    denied = weigh(statement(), statement("Deny", Condition=outside), circumstances=nowhere)
    assert not denied.is_allowed


def test_an_address_mapped_into_the_new_family_is_the_old_one() -> None:
    mapped = Circumstances(source_ip="::ffff:10.1.2.3")
    inside = {"IpAddress": {"aws:SourceIp": "10.0.0.0/8"}}
    assert weigh(statement(Condition=inside), circumstances=mapped).is_allowed


@pytest.mark.parametrize(
    ("condition", "asks"),
    [
        ({"IpAddress": {"aws:SourceIp": "10.0.0.0/8"}}, Asks.ADDRESS),
        ({"Bool": {"aws:SecureTransport": "true"}}, Asks.TRANSPORT),
        ({"NumericLessThan": {"aws:EpochTime": 1}}, Asks.TIME),
        ({"StringEquals": {"aws:username": "alice"}}, Asks.NOTHING),
    ],
)
def test_a_policy_knows_what_it_looks_at(condition: dict[str, Any], asks: Asks) -> None:
    text = document(statement(), statement(Condition=condition))
    assert evaluation.compile_policy(text, Kind.IDENTITY).asks == asks


# ── Reading ──────────────────────────────────────────────────────────────────────────────────


def complaint(text: str, kind: Kind = Kind.IDENTITY) -> str:
    with pytest.raises(MalformedPolicy) as caught:
        evaluation.compile_policy(text, kind)
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "JSON object"),
        ("[]", "JSON object"),
        ("[" * 100_000, "JSON object"),
        ('{"Version": "2012-10-17"}', "at least one Statement"),
        ('{"Statement": []}', "at least one Statement"),
        ('{"Statement": [5]}', "Statement 1 must be a JSON object"),
        ('{"Statement": null}', "at least one Statement"),
        ('{"Version": "2020-01-01", "Statement": {}}', "Version must be one of"),
        ('{"Id": 5, "Statement": {}}', "Id must be"),
        ('{"Statements": {}}', "Unknown element of a policy: Statements"),
        (document(*[statement()] * 1_001), "at most 1000 statements"),
        (" " * 200_000, "at most 131072 characters"),
    ],
)
def test_a_document_that_is_no_policy_is_refused_in_words(text: str, words: str) -> None:
    assert words in complaint(text)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"Effect": "May"}, "Effect must be Allow or Deny"),
        ({"Effect": None}, "Effect must be Allow or Deny"),
        ({"Sid": 5}, "Sid must be a string"),
        ({"Actions": "sqs:*"}, "unknown element Actions"),
        ({"Action": None}, "either Action or NotAction"),
        ({"NotAction": "sqs:*"}, "either Action or NotAction"),
        ({"Action": "SendMessage"}, "must name a service"),
        ({"Action": "sqs:${aws:username}"}, "must name a service"),
        ({"Action": []}, "1 to 200 values"),
        ({"Action": [5]}, "string or a list of strings"),
        ({"Action": "sqs:" + "x" * 3_000}, "string or a list of strings"),
        ({"Resource": None}, "either Resource or NotResource"),
        ({"Resource": "orders"}, "neither an ARN nor *"),
        ({"Resource": "arn:aws:sqs:*:*:${aws:username}"}, "variables are not supported"),
        ({"Principal": "*"}, "a user's policy must not have Principal"),
        ({"Condition": []}, "Condition must be a JSON object"),
        ({"Condition": {"Bool": "true"}}, "must be a JSON object of keys"),
        ({"Condition": {"Bool": {"aws:SecureTransport": []}}}, "1 to 200 values"),
        ({"Condition": {"Bool": {"aws:SecureTransport": {}}}}, "strings, numbers or booleans"),
        ({"Condition": {"Bool": {"aws:SecureTransport": "maybe"}}}, "neither true nor false"),
        ({"Condition": {"Null": {"aws:SourceIp": "maybe"}}}, "neither true nor false"),
        ({"Condition": {"IpAddress": {"aws:SourceIp": "10.0.0/8"}}}, "not an address range"),
        ({"Condition": {"DateLessThan": {"aws:CurrentTime": "soon"}}}, "not a date"),
        ({"Condition": {"NumericEquals": {"aws:EpochTime": "nan"}}}, "not a number"),
        ({"Condition": {"ArnLike": {"aws:SourceArn": "orders"}}}, "not an ARN"),
        ({"Condition": {"StringLike": {"aws:username": "${x}"}}}, "variables are not"),
        ({"Condition": {"StringEquals": {"aws:username": "${x}"}}}, "variables are not"),
        ({"Condition": {"StringLike": {f"k{i}": "x" for i in range(51)}}}, "more than 50"),
    ],
)
def test_a_statement_with_a_mistake_is_refused_with_its_place(
    changes: dict[str, Any], words: str
) -> None:
    told = complaint(document(statement(), statement(**changes)))
    assert told.startswith("Statement 2")
    assert words in told


@pytest.mark.parametrize(
    ("principal", "words"),
    [
        ("everyone", 'must be "*"'),
        ({}, 'must be "*"'),
        ({"AWS": "alice"}, "not an account, user or *"),
        ({"AWS": "123"}, "not an account, user or *"),
        ({"AWS": f"arn:aws:iam::{OWN}:user/*"}, "not an account, user or *"),
        ({"AWS": f"arn:aws:sqs::{OWN}:root"}, "not an account, user or *"),
        ({"AWS": f"arn:aws:iam::{OWN}:group/x"}, "not an account, user or *"),
        ({"GCP": "x"}, "unknown kind of principal GCP"),
        ({"AWS": []}, "1 to 200 values"),
    ],
)
def test_a_principal_that_is_none_is_refused(principal: Any, words: str) -> None:
    assert words in complaint(document(granted(Principal=principal)), Kind.RESOURCE)


def test_a_resources_policy_needs_principals_and_is_small() -> None:
    assert "Principal or NotPrincipal" in complaint(document(statement()), Kind.RESOURCE)
    both = granted(NotPrincipal="*")
    assert "Principal or NotPrincipal" in complaint(document(both), Kind.RESOURCE)
    assert "at most 20 statements" in complaint(document(*[granted()] * 21), Kind.RESOURCE)


def test_the_older_version_has_no_variables() -> None:
    resource = "arn:aws:sqs:*:*:${aws:username}"
    text = document(statement(Resource=resource), version="2008-10-17")
    assert evaluation.compile_policy(text, Kind.IDENTITY)


def test_a_star_in_a_name_can_be_meant() -> None:
    group = "arn:penstock:kafka:eu-west-1:111111111111:group/"
    only = statement(Action="kafka:Read", Resource=f"{group}${{*}}")
    assert weigh(only, action="kafka:Read", arn=f"{group}*").is_allowed
    assert not weigh(only, action="kafka:Read", arn=f"{group}other").is_allowed


def test_a_policy_is_compiled_once() -> None:
    text = document(statement())
    assert evaluation.compile_policy(text, Kind.IDENTITY) is evaluation.compile_policy(
        text, Kind.IDENTITY
    )


@settings(max_examples=200)
@given(
    text=st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    [
                        "Version",
                        "Statement",
                        "Effect",
                        "Action",
                        "Resource",
                        "Condition",
                        "Principal",
                        "AWS",
                        "Bool",
                        "x",
                    ]
                ),
                inner,
                max_size=4,
            )
        ),
        max_leaves=12,
    ).map(json.dumps)
)
def test_any_document_is_a_policy_or_told_why_not(text: str) -> None:
    for kind in Kind:
        try:
            found = len(evaluation.compile_policy(text, kind).statements)
        except MalformedPolicy as error:
            found = len(str(error))
        assert found > 0


# ── Laws ─────────────────────────────────────────────────────────────────────────────────────

actions = st.sampled_from(["sqs:SendMessage", "sqs:*", "sqs:ReceiveMessage", "kafka:*", "*"])
resources = st.sampled_from([ARN, "*", "arn:aws:sqs:*:*:ord*", "arn:aws:sqs:::x"])
principals = st.sampled_from(["*", {"AWS": OWN}, {"AWS": OTHER}])
conditions = st.sampled_from(
    [
        None,
        {"Bool": {"aws:SecureTransport": "true"}},
        {"Bool": {"aws:SecureTransport": "false"}},
        {"IpAddress": {"aws:SourceIp": "10.0.0.0/8"}},
        {"StringEquals": {"unheard:Of": "x"}},
    ]
)


def blocks(effects: st.SearchStrategy[str], *, is_plain: bool = False) -> Any:
    names = st.just("Action") if is_plain else st.sampled_from(["Action", "NotAction"])
    places = st.just("Resource") if is_plain else st.sampled_from(["Resource", "NotResource"])

    def made(row: tuple[str, str, str, str, str, Any]) -> dict[str, Any]:
        effect, name, action, place, resource, condition = row
        block = {"Effect": effect, name: action, place: resource, "Condition": condition}
        return {key: value for key, value in block.items() if value is not None}

    return st.tuples(effects, names, actions, places, resources, conditions).map(made)


either = st.sampled_from(["Allow", "Deny"])
attached = st.none() | st.lists(
    st.tuples(blocks(either), principals).map(lambda pair: pair[0] | {"Principal": pair[1]}),
    min_size=1,
    max_size=3,
)
callers = st.sampled_from([ALICE, MALLORY])


@settings(max_examples=150)
@given(st.lists(blocks(either), max_size=4), attached, callers)
def test_an_explicit_denial_always_wins(
    policies: list[dict[str, Any]], resource: list[dict[str, Any]] | None, caller: Caller
) -> None:
    denial = statement("Deny", Action="*", Resource="*")
    for place in range(len(policies) + 1):
        mixed = [*policies[:place], denial, *policies[place:]]
        assert weigh(*mixed, resource=resource, caller=caller).is_explicit
        assert not weigh(*mixed, resource=resource, caller=caller).is_allowed


@settings(max_examples=150)
@given(
    st.lists(blocks(either), min_size=1, max_size=4),
    blocks(st.just("Allow"), is_plain=True),
    attached,
    callers,
)
def test_one_more_permission_never_takes_a_right_away(
    policies: list[dict[str, Any]],
    more: dict[str, Any],
    resource: list[dict[str, Any]] | None,
    caller: Caller,
) -> None:
    before = weigh(*policies, resource=resource, caller=caller)
    after = weigh(*policies, more, resource=resource, caller=caller)
    assert after.is_allowed or not before.is_allowed


@settings(max_examples=150)
@given(st.lists(blocks(either), min_size=1, max_size=4), attached, callers)
def test_the_order_of_statements_does_not_matter(
    policies: list[dict[str, Any]], resource: list[dict[str, Any]] | None, caller: Caller
) -> None:
    one = weigh(*policies, resource=resource, caller=caller)
    other = weigh(*reversed(policies), resource=resource, caller=caller)
    assert (one.is_allowed, one.is_explicit) == (other.is_allowed, other.is_explicit)
