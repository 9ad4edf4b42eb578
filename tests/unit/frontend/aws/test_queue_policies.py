import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.frontend.aws.sqs.rules import queue_policies
from penstock.frontend.aws.sqs.rules.queue_policies import RedriveAllow
from penstock.model.topic import Redrive
from penstock.wire.aws.faults import Fault

ARN = "arn:aws:sqs:us-east-1:000000000000:q"
SOURCE = "arn:aws:sqs:us-east-1:000000000000:source"
BAD_COUNTS: list[Any] = [0, 1_001, -1, "0", "x", "", True, 1.5, None, [], "9" * 99, "٣"]
FRIEND, OTHER = "111111111111", "222222222222"


def grant(text: str | None = None, **changes: Any) -> str:
    settings_of = {"label": "l", "accounts": [FRIEND], "actions": ["SendMessage"]} | changes
    return queue_policies.add_permission(text, arn=ARN, **settings_of)


def refusal_of(call: Any, *arguments: Any, **keywords: Any) -> Fault:
    with pytest.raises(Fault) as caught:
        call(*arguments, **keywords)
    return caught.value


# ── Permissions ──────────────────────────────────────────────────────────────────────────────


def test_a_first_permission_makes_the_policy_sqs_makes() -> None:
    assert json.loads(grant()) == {
        "Version": "2008-10-17",
        "Id": f"{ARN}/SQSDefaultPolicy",
        "Statement": [
            {
                "Sid": "l",
                "Effect": "Allow",
                "Principal": {"AWS": f"arn:aws:iam::{FRIEND}:root"},
                "Action": "SQS:SendMessage",
                "Resource": ARN,
            }
        ],
    }


def test_several_accounts_and_actions_become_lists() -> None:
    statement = json.loads(grant(accounts=[FRIEND, OTHER], actions=["SendMessage", "*"]))[
        "Statement"
    ][0]
    assert statement["Action"] == ["SQS:SendMessage", "SQS:*"]
    assert statement["Principal"]["AWS"] == [
        f"arn:aws:iam::{FRIEND}:root",
        f"arn:aws:iam::{OTHER}:root",
    ]


def test_permissions_are_added_to_what_is_there_and_taken_away_one_by_one() -> None:
    deny = {"Sid": "own", "Effect": "Deny", "Principal": "*", "Action": "*", "Resource": "*"}
    own = json.dumps({"Version": "2012-10-17", "Statement": deny})
    both = grant(own)
    assert [one["Sid"] for one in json.loads(both)["Statement"]] == ["own", "l"]
    assert json.loads(both)["Version"] == "2012-10-17"
    left = queue_policies.remove_permission(both, label="own")
    assert left is not None
    assert [one["Sid"] for one in json.loads(left)["Statement"]] == ["l"]
    assert queue_policies.remove_permission(left, label="l") is None


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"label": "no blanks"}, "InvalidParameterValue"),
        ({"label": ""}, "InvalidParameterValue"),
        ({"accounts": []}, "InvalidParameterValue"),
        ({"actions": []}, "MissingParameter"),
        ({"accounts": ["123"]}, "InvalidParameterValue"),
        ({"actions": ["Fly"]}, "InvalidParameterValue"),
        ({"actions": ["CreateQueue"]}, "InvalidParameterValue"),
        ({"actions": ["SendMessage"] * 8}, "OverLimit"),
    ],
)
def test_a_permission_that_cannot_be_given_is_refused(changes: dict[str, Any], code: str) -> None:
    assert refusal_of(grant, None, **changes).code == code


def test_a_label_is_used_once_and_must_exist_to_be_removed() -> None:
    refusal = refusal_of(grant, grant())
    assert refusal.message == "Value l for parameter Label is invalid. Reason: Already exists."
    for text in (None, "", grant(), "not json"):
        gone = refusal_of(queue_policies.remove_permission, text, label="x")
        assert gone.code == "InvalidParameterValue"


def test_a_policy_does_not_grow_without_end() -> None:
    text: str | None = None
    for i in range(queue_policies.STATEMENTS_MAX):
        text = grant(text, label=f"l{i}")
    assert refusal_of(grant, text, label="more").code == "OverLimit"


def test_a_policy_must_be_an_object_with_statements() -> None:
    queue_policies.check_policy(grant())
    for text in ("", "x", "[]", "{}", '{"Statement": []}', '{"Statement": [{"Effect": "May"}]}'):
        refusal = refusal_of(queue_policies.check_policy, text)
        assert refusal.code == "InvalidAttributeValue"
        assert "Invalid value for the parameter Policy. Reason: " in refusal.message


def test_permissions_for_too_many_accounts_are_refused_before_they_are_stored() -> None:
    accounts = [f"{number:012}" for number in range(201)]
    assert refusal_of(grant, accounts=accounts).code == "InvalidAttributeValue"


# ── Redrive policies ─────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("count", [1, "1", 1_000, "1000"])
def test_the_receive_count_may_be_a_number_or_a_string(count: int | str) -> None:
    text = json.dumps({"deadLetterTargetArn": ARN, "maxReceiveCount": count})
    redrive = queue_policies.parse_redrive(text)
    assert redrive == Redrive(target_arn=ARN, attempts_max=int(count))
    assert queue_policies.parse_redrive(queue_policies.redrive_text(redrive)) == redrive
    assert json.loads(queue_policies.redrive_text(redrive))["maxReceiveCount"] == int(count)


@pytest.mark.parametrize(
    "document",
    [
        "x",
        [],
        {},
        {"deadLetterTargetArn": ARN},
        {"maxReceiveCount": 3},
        *[{"deadLetterTargetArn": ARN, "maxReceiveCount": count} for count in BAD_COUNTS],
        *[{"deadLetterTargetArn": arn, "maxReceiveCount": 3} for arn in ("", "q", None, 7)],
        {"deadLetterTargetArn": ARN, "maxReceiveCount": 3, "color": "red"},
    ],
)
def test_a_bad_redrive_policy_is_refused(document: Any) -> None:
    text = document if isinstance(document, str) else json.dumps(document)
    refusal = refusal_of(queue_policies.parse_redrive, text)
    assert refusal.code == "InvalidParameterValue"
    assert "RedrivePolicy" in refusal.message


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ({"redrivePermission": "allowAll"}, RedriveAllow("allowAll")),
        ({"redrivePermission": "denyAll", "sourceQueueArns": []}, RedriveAllow("denyAll")),
        (
            {"redrivePermission": "byQueue", "sourceQueueArns": [SOURCE]},
            RedriveAllow("byQueue", (SOURCE,)),
        ),
    ],
)
def test_redrive_allow_policies_are_read(document: Any, expected: RedriveAllow) -> None:
    assert queue_policies.parse_redrive_allow(json.dumps(document)) == expected


def test_a_redrive_allow_policy_decides_by_queue() -> None:
    assert RedriveAllow("allowAll").allows(SOURCE)
    assert not RedriveAllow("denyAll").allows(SOURCE)
    assert RedriveAllow("byQueue", (SOURCE,)).allows(SOURCE)
    assert not RedriveAllow("byQueue", (SOURCE,)).allows(ARN)


@pytest.mark.parametrize(
    "document",
    [
        "x",
        [],
        {},
        {"redrivePermission": "maybe"},
        {"redrivePermission": ["allowAll"]},
        {"redrivePermission": "byQueue"},
        {"redrivePermission": "byQueue", "sourceQueueArns": []},
        {"redrivePermission": "byQueue", "sourceQueueArns": SOURCE},
        {"redrivePermission": "byQueue", "sourceQueueArns": [SOURCE] * 11},
        {"redrivePermission": "byQueue", "sourceQueueArns": ["q"]},
        {"redrivePermission": "byQueue", "sourceQueueArns": [1]},
        {"redrivePermission": "allowAll", "sourceQueueArns": [SOURCE]},
        {"redrivePermission": "allowAll", "color": "red"},
    ],
)
def test_a_bad_redrive_allow_policy_is_refused(document: Any) -> None:
    text = document if isinstance(document, str) else json.dumps(document)
    assert refusal_of(queue_policies.parse_redrive_allow, text).code == "InvalidParameterValue"


def test_the_empty_text_removes_either_policy() -> None:
    assert queue_policies.parse_redrive("") is None
    assert queue_policies.parse_redrive_allow("") is None


def test_a_deeply_nested_document_is_refused() -> None:
    text = '{"a":' * 100_000
    assert refusal_of(queue_policies.parse_redrive, text).code == "InvalidParameterValue"
    assert refusal_of(queue_policies.check_policy, text).code == "InvalidAttributeValue"


@settings(max_examples=100)
@given(
    text=st.text(max_size=40)
    | st.recursive(
        st.none() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["Statement", "Sid", "maxReceiveCount", "redrivePermission"]),
                inner,
                max_size=3,
            )
        ),
        max_leaves=6,
    ).map(json.dumps)
)
def test_arbitrary_documents_give_a_result_or_a_fault(text: str) -> None:
    calls: list[Callable[[], object]] = [
        lambda: queue_policies.parse_redrive(text),
        lambda: queue_policies.parse_redrive_allow(text),
        lambda: queue_policies.check_policy(text),
        lambda: grant(text),
        lambda: queue_policies.remove_permission(text, label="l"),
    ]
    for call in calls:
        try:
            call()
            status = 200
        except Fault as refusal:
            status = refusal.status
        assert status in (200, 400, 403)
