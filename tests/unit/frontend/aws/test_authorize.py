"""May they: permissions of each action, and what those without them get to know."""

import json
from typing import Any

import pytest
from tests.unit.frontend.memory import MemoryIdentities, Rig
from tests.unit.frontend.signing import (
    OTHER,
    OWN,
    REGION,
    SECRET,
    Client,
    allow,
    arn,
    deny,
    locked,
    policy,
    url,
)

from penstock.access import decisions
from penstock.access.evaluation import Decision
from penstock.frontend.aws.sqs.actions import ACTIONS
from penstock.frontend.aws.sqs.actions.move_tasks import encode_handle
from penstock.model.identity import Caller, Circumstances

NO_QUEUE = "AWS.SimpleQueueService.NonExistentQueue"
EVERYTHING = allow("sqs:*")
OWN_ONLY = {"AWS": OWN}


class House:
    """Two accounts with a queue each, and a user alice of the first with the policies given."""

    def __init__(self, rig: Rig, identities: MemoryIdentities) -> None:
        self.rig = rig
        self.identities = identities
        self.root = Client(rig)
        self.stranger = Client(rig, "AKOTHER")
        self.alice = Client(rig, "AKALICE", "hers")

    def let(self, *blocks: dict[str, Any]) -> Client:
        texts = [policy(*blocks)] if blocks else []
        self.identities.put(OWN, "alice", "AKALICE", "hers", *texts)
        return self.alice

    async def attach(self, *blocks: dict[str, Any], name: str = "q") -> None:
        attributes = {"Policy": policy(*blocks) if blocks else ""}
        answer = await self.root.call(
            "SetQueueAttributes", QueueUrl=url(name), Attributes=attributes
        )
        assert answer == {}, answer


@pytest.fixture(params=["at-once", "in-a-thread"])
async def house(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> House:
    """Everything holds for policies of any size, so also when all count as large."""
    if request.param == "in-a-thread":
        monkeypatch.setattr(decisions, "AT_ONCE_CHARS_MAX", -1)
    rig, identities = locked()
    house = House(rig, identities)
    house.let()
    assert await house.root.code("CreateQueue", QueueName="q") == "OK"
    assert await house.stranger.code("CreateQueue", QueueName="theirs") == "OK"
    return house


def granted(action: str | list[str], principal: Any = "*", **more: Any) -> dict[str, Any]:
    return allow(action, Principal=principal, **more)


# ── In the caller's own account ──────────────────────────────────────────────────────────────

# Every action with what it is asked, and the permission it needs.
CALLS: dict[str, tuple[dict[str, Any], str]] = {
    "AddPermission": (
        {"Label": "l", "AWSAccountIds": [OTHER], "Actions": ["SendMessage"]},
        "sqs:AddPermission",
    ),
    "CancelMessageMoveTask": ({}, "sqs:CancelMessageMoveTask"),
    "ChangeMessageVisibility": (
        {"ReceiptHandle": "x", "VisibilityTimeout": 5},
        "sqs:ChangeMessageVisibility",
    ),
    "ChangeMessageVisibilityBatch": ({"Entries": []}, "sqs:ChangeMessageVisibility"),
    "CreateQueue": ({"QueueName": "new"}, "sqs:CreateQueue"),
    "DeleteMessage": ({"ReceiptHandle": "x"}, "sqs:DeleteMessage"),
    "DeleteMessageBatch": ({"Entries": []}, "sqs:DeleteMessage"),
    "DeleteQueue": ({}, "sqs:DeleteQueue"),
    "GetQueueAttributes": ({}, "sqs:GetQueueAttributes"),
    "GetQueueUrl": ({"QueueName": "q"}, "sqs:GetQueueUrl"),
    "ListDeadLetterSourceQueues": ({}, "sqs:ListDeadLetterSourceQueues"),
    "ListMessageMoveTasks": ({"SourceArn": arn("q")}, "sqs:ListMessageMoveTasks"),
    "ListQueueTags": ({}, "sqs:ListQueueTags"),
    "ListQueues": ({}, "sqs:ListQueues"),
    "PurgeQueue": ({}, "sqs:PurgeQueue"),
    "ReceiveMessage": ({}, "sqs:ReceiveMessage"),
    "RemovePermission": ({"Label": "l"}, "sqs:RemovePermission"),
    "SendMessage": ({"MessageBody": "x"}, "sqs:SendMessage"),
    "SendMessageBatch": ({"Entries": []}, "sqs:SendMessage"),
    "SetQueueAttributes": ({"Attributes": {"DelaySeconds": "1"}}, "sqs:SetQueueAttributes"),
    "StartMessageMoveTask": ({"SourceArn": arn("q")}, "sqs:StartMessageMoveTask"),
    "TagQueue": ({"Tags": {"a": "b"}}, "sqs:TagQueue"),
    "UntagQueue": ({"TagKeys": ["a"]}, "sqs:UntagQueue"),
}
NAMELESS = ("CreateQueue", "GetQueueUrl", "ListQueues")


def fields_of(action: str) -> dict[str, Any]:
    fields = dict(CALLS[action][0])
    if action == "CancelMessageMoveTask":
        fields["TaskHandle"] = encode_handle("some-task", arn("q"))
    elif action not in NAMELESS and "SourceArn" not in fields:
        fields["QueueUrl"] = url("q")
    return fields


def test_every_action_is_looked_at() -> None:
    assert set(CALLS) == set(ACTIONS)


@pytest.mark.parametrize("action", CALLS)
async def test_each_action_needs_its_permission_and_no_other(house: House, action: str) -> None:
    needed = CALLS[action][1]
    fields = fields_of(action)
    assert await house.let().code(action, **fields) == "AccessDenied"
    others = {"Effect": "Allow", "NotAction": needed, "Resource": "*"}
    refused = await house.let(others).call(action, **fields)
    assert (refused["code"], refused["status"]) == ("AccessDenied", 403)
    assert (
        f"is not authorized to perform: {needed.lower()} on resource: arn:aws:sqs:"
        in (refused["message"])
    )
    extra = ["sqs:ReceiveMessage", "sqs:DeleteMessage", "sqs:GetQueueAttributes"]
    needs = [needed, *extra] if action == "StartMessageMoveTask" else needed
    assert await house.let(allow(needs)).code(action, **fields) != "AccessDenied"
    assert await house.let(EVERYTHING, deny(needed)).code(action, **fields) == "AccessDenied"


async def test_a_permission_counts_for_the_queues_it_names(house: House) -> None:
    alice = house.let(allow("sqs:*", arn("q")))
    await house.root.code("CreateQueue", QueueName="q2")
    assert await alice.code("SendMessage", QueueUrl=url("q"), MessageBody="x") == "OK"
    assert await alice.code("SendMessage", QueueUrl=url("q2"), MessageBody="x") == "AccessDenied"
    assert await alice.code("GetQueueUrl", QueueName="q2") == "AccessDenied"
    assert await alice.code("CreateQueue", QueueName="q3") == "AccessDenied"
    assert await alice.code("ListQueues") == "AccessDenied"


async def test_a_queue_that_is_not_there_is_told_to_those_who_might_use_it(house: House) -> None:
    gone = url("gone")
    assert await house.let(EVERYTHING).code("PurgeQueue", QueueUrl=gone) == NO_QUEUE
    assert await house.let().code("PurgeQueue", QueueUrl=gone) == "AccessDenied"


async def test_the_queues_own_policy_can_give_and_take(house: House) -> None:
    send = {"QueueUrl": url("q"), "MessageBody": "x"}
    alice = house.let()
    await house.attach(granted("sqs:SendMessage", {"AWS": f"arn:aws:iam::{OWN}:user/alice"}))
    assert await alice.code("SendMessage", **send) == "OK"
    assert await alice.code("ReceiveMessage", QueueUrl=url("q")) == "AccessDenied"
    await house.attach(deny("sqs:SendMessage", Principal={"AWS": OWN}))
    refused = await house.let(EVERYTHING).call("SendMessage", **send)
    assert "with an explicit deny in a resource-based policy" in refused["message"]
    await house.attach()
    assert await alice.code("SendMessage", **send) == "OK"


async def test_conditions_look_at_the_connection(house: House) -> None:
    near = {"IpAddress": {"aws:SourceIp": "10.0.0.0/8"}}
    safe = {"Bool": {"aws:SecureTransport": "true"}}
    alice = house.let(allow("sqs:*", Condition=near | safe))
    send = {"QueueUrl": url("q"), "MessageBody": "x"}
    found = []
    for alice.peer, alice.is_tls in (("10.1.1.1", True), ("10.1.1.1", False), ("192.0.2.1", True)):
        found += [await alice.code("SendMessage", **send) for _ in range(2)]
    assert found == ["OK", "OK", "AccessDenied", "AccessDenied", "AccessDenied", "AccessDenied"]


async def test_conditions_on_time_are_never_remembered(house: House) -> None:
    soon = house.rig.clock.now_ms // 1_000 + 60
    alice = house.let(allow("sqs:*", Condition={"NumericLessThan": {"aws:EpochTime": soon}}))
    assert await alice.code("ListQueues") == "OK"
    house.rig.clock.now_ms += 61_000
    assert await alice.code("ListQueues") == "AccessDenied"


async def test_a_right_that_is_taken_back_ends_with_the_next_request(house: House) -> None:
    assert await house.let(EVERYTHING).code("ListQueues") == "OK"
    assert await house.let().code("ListQueues") == "AccessDenied"


# ── Of another account ───────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("action", sorted(set(CALLS) - {"CreateQueue", "ListQueues"}))
async def test_somebody_elses_queue_looks_like_one_that_is_not_there(
    house: House, action: str
) -> None:
    answers = []
    for name in ("q", "gone"):
        fields = fields_of(action)
        for field, value in (
            ("QueueUrl", url(name)),
            ("QueueName", name),
            ("SourceArn", arn(name)),
            ("TaskHandle", encode_handle("some-task", arn(name))),
        ):
            if field in fields:
                fields[field] = value
        if action == "GetQueueUrl":
            fields["QueueOwnerAWSAccountId"] = OWN
        answers.append(await house.stranger.call(action, **fields))
    assert answers[0] == answers[1]
    assert answers[0]["code"] in (NO_QUEUE, "ResourceNotFoundException")
    assert house.rig.catalog.find(OWN, REGION, "q") is not None


async def test_without_a_right_of_ones_own_the_answer_is_the_same_for_both(house: House) -> None:
    house.identities.put(OTHER, "bob", "AKBOB", "his")
    bob = Client(house.rig, "AKBOB", "his")
    await house.attach(deny("sqs:*", Principal="*"), granted("sqs:GetQueueUrl", OWN_ONLY))
    codes = {await bob.code("PurgeQueue", QueueUrl=url(name)) for name in ("q", "gone")}
    assert codes == {"AccessDenied"}


async def test_both_accounts_must_agree(house: House) -> None:
    send = {"QueueUrl": url("q"), "MessageBody": "x"}
    await house.attach(granted("sqs:SendMessage", {"AWS": OTHER}))
    assert await house.stranger.code("SendMessage", **send) == "OK"
    entry = {"Id": "1", "MessageBody": "x"}
    batch = {"QueueUrl": url("q"), "Entries": [entry]}
    assert await house.stranger.code("SendMessageBatch", **batch) == "OK"
    # Now it is no secret that the queue is there.
    refused = await house.stranger.call("ReceiveMessage", QueueUrl=url("q"))
    assert refused["code"] == "AccessDenied"
    assert "no resource-based policy allows the sqs:receivemessage action" in refused["message"]
    house.identities.put(OTHER, "bob", "AKBOB", "his")
    assert await Client(house.rig, "AKBOB", "his").code("SendMessage", **send) == "AccessDenied"


async def test_a_grant_for_everybody_does_not_tell_those_whom_its_condition_shuts_out(
    house: House,
) -> None:
    near = {"IpAddress": {"aws:SourceIp": "192.0.2.0/24"}}
    await house.attach(granted("sqs:SendMessage", Condition=near))
    send = {"QueueUrl": url("q"), "MessageBody": "x"}
    assert await house.stranger.code("SendMessage", **send) == NO_QUEUE
    house.stranger.peer = "192.0.2.7"
    assert await house.stranger.code("SendMessage", **send) == "OK"


@pytest.mark.parametrize("action", ["DeleteQueue", "SetQueueAttributes", "AddPermission"])
async def test_what_is_the_owners_cannot_be_given_away(house: House, action: str) -> None:
    await house.attach(granted("sqs:*"))
    assert await house.stranger.code(action, **fields_of(action)) == "AccessDenied"
    assert house.rig.catalog.find(OWN, REGION, "q") is not None


async def test_a_list_shows_the_callers_own_account(house: House) -> None:
    await house.attach(granted("sqs:*"))
    assert await house.stranger.call("ListQueues") == {"QueueUrls": [url("theirs", OTHER)]}


async def test_a_new_queue_is_the_callers_own(house: House) -> None:
    assert await house.stranger.call("CreateQueue", QueueName="q") == {"QueueUrl": url("q", OTHER)}


# ── From queue to queue ──────────────────────────────────────────────────────────────────────


def redrive(target: str) -> dict[str, str]:
    return {"RedrivePolicy": json.dumps({"deadLetterTargetArn": target, "maxReceiveCount": 3})}


async def test_dead_letters_may_be_sent_only_where_the_caller_may_send(house: House) -> None:
    await house.root.code("CreateQueue", QueueName="dead")
    alice = house.let(allow("sqs:*", arn("q")), allow("sqs:*", arn("new")))
    to_dead = {"QueueUrl": url("q"), "Attributes": redrive(arn("dead"))}
    assert await alice.code("SetQueueAttributes", **to_dead) == "AccessDenied"
    new = {"QueueName": "new", "Attributes": redrive(arn("dead"))}
    assert await alice.code("CreateQueue", **new) == "AccessDenied"
    alice = house.let(
        allow("sqs:*", arn("q")), allow("sqs:*", arn("new")), allow("sqs:SendMessage", arn("dead"))
    )
    assert await alice.code("SetQueueAttributes", **to_dead) == "OK"
    assert await alice.code("CreateQueue", **new) == "OK"


async def test_a_dead_letter_target_of_somebody_else_is_not_told_from_none(house: House) -> None:
    told = [
        (
            await house.root.call(
                "SetQueueAttributes",
                QueueUrl=url("q"),
                Attributes=redrive(arn(name, OTHER)),
            )
        )["message"].replace(name, "…")
        for name in ("theirs", "nothing")
    ]
    assert told[0] == told[1]
    assert "does not exist" in told[0]


async def test_moving_letters_back_needs_rights_on_both_ends(house: House) -> None:
    await house.root.code("CreateQueue", QueueName="dead")
    await house.root.code("CreateQueue", QueueName="away")
    await house.root.code("SetQueueAttributes", QueueUrl=url("q"), Attributes=redrive(arn("dead")))
    source = allow(
        [
            "sqs:StartMessageMoveTask",
            "sqs:ReceiveMessage",
            "sqs:DeleteMessage",
            "sqs:GetQueueAttributes",
        ],
        arn("dead"),
    )
    back = {"SourceArn": arn("dead")}
    away = {"SourceArn": arn("dead"), "DestinationArn": arn("away")}
    alice = house.let(source)
    assert await alice.code("StartMessageMoveTask", **back) == "AccessDenied"
    assert await alice.code("StartMessageMoveTask", **away) == "AccessDenied"
    for missing in source["Action"]:
        alice = house.let(source, allow("sqs:SendMessage"), deny(missing, arn("dead")))
        assert await alice.code("StartMessageMoveTask", **back) == "AccessDenied"
    alice = house.let(source, allow("sqs:SendMessage", arn("away")))
    assert await alice.code("StartMessageMoveTask", **back) == "AccessDenied"
    assert await alice.code("StartMessageMoveTask", **away) == "OK"


async def test_letters_are_not_moved_into_another_account_unasked(house: House) -> None:
    await house.root.code("CreateQueue", QueueName="dead")
    await house.root.code("SetQueueAttributes", QueueUrl=url("q"), Attributes=redrive(arn("dead")))
    for name in ("theirs", "nothing"):
        there = {"SourceArn": arn("dead"), "DestinationArn": arn(name, OTHER)}
        refused = await house.root.call("StartMessageMoveTask", **there)
        assert refused["code"] == "ResourceNotFoundException"
    assert house.rig.backend.tasks == []


async def test_a_new_reader_of_a_topic_must_be_allowed_to_read_it(house: House) -> None:
    alice = house.let(allow("sqs:CreateQueue"), allow("sqs:*", arn("q:*")))
    assert await alice.code("CreateQueue", QueueName="q:mine") == "AccessDenied"


async def test_tags_at_birth_are_tags(house: House) -> None:
    alice = house.let(allow("sqs:CreateQueue"))
    tagged = {"QueueName": "new", "tags": {"a": "b"}}
    assert await alice.code("CreateQueue", **tagged) == "AccessDenied"
    assert (
        await house.let(allow(["sqs:CreateQueue", "sqs:TagQueue"])).code("CreateQueue", **tagged)
        == "OK"
    )


# ── Names that are none ──────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("action", "fields"),
    [
        ("SendMessage", {"MessageBody": "x"}),
        ("GetQueueUrl", {}),
        ("StartMessageMoveTask", {}),
        ("ListMessageMoveTasks", {}),
        ("CancelMessageMoveTask", {}),
    ],
)
async def test_a_call_that_names_nothing_is_told_what_is_missing(
    house: House, action: str, fields: dict[str, Any]
) -> None:
    assert await house.let().code(action, **fields) == "MissingParameter"


@pytest.mark.parametrize(
    ("action", "fields", "code"),
    [
        ("CreateQueue", {"QueueName": "a" * 100_000}, "InvalidParameterValue"),
        ("CreateQueue", {"QueueName": "a b"}, "InvalidParameterValue"),
        ("GetQueueUrl", {"QueueName": "../x"}, NO_QUEUE),
        ("GetQueueUrl", {"QueueName": "q", "QueueOwnerAWSAccountId": "me"}, NO_QUEUE),
        ("ListMessageMoveTasks", {"SourceArn": "x" * 9_999}, "ResourceNotFoundException"),
        ("CancelMessageMoveTask", {"TaskHandle": "x"}, "InvalidParameterValue"),
        ("PurgeQueue", {"QueueUrl": "http://x/y/z/a"}, "InvalidAddress"),
    ],
)
async def test_names_that_no_queue_can_have_are_refused_as_ever(
    house: House, action: str, fields: dict[str, Any], code: str
) -> None:
    assert await house.let(EVERYTHING).code(action, **fields) == code


# ── What is remembered ───────────────────────────────────────────────────────────────────────


async def test_decisions_are_remembered_within_a_bound(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decisions, "DECISIONS_MAX", 5)
    alice = house.let(EVERYTHING)
    kept = house.rig.frontend.decisions
    for number in range(12):
        await alice.code("CreateQueue", QueueName=f"n{number}")
        assert len(kept._decisions) <= 5


def test_a_decision_made_in_a_thread_counts_only_if_nothing_has_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(decisions, "AT_ONCE_CHARS_MAX", -1)
    _, identities = locked()
    kept = decisions.Decisions(identities, postpones=True)
    identities.put(OWN, "alice", "AKALICE", "hers", policy(EVERYTHING))

    def decide() -> Decision:
        return kept.decide(
            Caller(OWN, "alice"),
            "sqs:SendMessage",
            arn=arn("q"),
            owner=OWN,
            policy=None,
            circumstances=Circumstances,
        )

    with pytest.raises(decisions.Postponed) as caught:
        decide()
    asks, decision = caught.value.evaluate()
    assert decision.is_allowed
    identities.put(OWN, "alice", "AKALICE", "hers", policy(deny("sqs:*")))
    stale = caught.value
    with pytest.raises(decisions.Postponed) as caught:
        decide()
    kept.keep(stale, asks, decision)
    with pytest.raises(decisions.Postponed):
        decide()
    kept.keep(caught.value, *caught.value.evaluate())
    assert not decide().is_allowed
    with kept.at_once():
        assert not decide().is_allowed


def test_a_decision_is_remembered_for_its_owner_and_its_policy_only() -> None:
    _, identities = locked()
    kept = decisions.Decisions(identities)
    granting = policy(granted("sqs:SendMessage"))

    def may(owner: str, text: str | None) -> bool:
        return kept.decide(
            Caller(OWN, "root"),
            "sqs:SendMessage",
            arn=arn("q"),
            owner=owner,
            policy=text,
            circumstances=Circumstances,
        ).is_allowed

    for _ in range(2):
        assert may(OWN, None)
        assert not may(OTHER, None)
        assert may(OTHER, granting)
        assert not may(OTHER, policy(deny("sqs:*", Principal="*")))


async def test_a_policy_that_cannot_be_read_denies_and_can_be_replaced(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    def spoil(topic: Any) -> Any:
        return topic.with_settings(now_ms=1, policy="{}")

    await house.rig.catalog.change(OWN, REGION, "q", spoil)
    send = {"QueueUrl": url("q"), "MessageBody": "x"}
    assert await house.root.code("SendMessage", **send) == "AccessDenied"
    assert "resource policy is invalid" in caplog.text
    await house.attach()
    assert await house.root.code("SendMessage", **send) == "OK"
    house.identities.put(OWN, "alice", "AKALICE", "hers", policy(EVERYTHING), "{}")
    assert await house.alice.code("ListQueues") == "AccessDenied"


async def test_a_user_that_is_gone_has_no_rights_even_where_everybody_has(house: House) -> None:
    await house.attach(granted("sqs:*"))
    context = house.rig.frontend
    topic = house.rig.catalog.find(OWN, REGION, "q")
    assert topic is not None

    def may(user: str) -> bool:
        def decide() -> bool:
            return context.decisions.decide(
                Caller(OWN, user),
                "sqs:SendMessage",
                arn=topic.arn,
                owner=OWN,
                policy=topic.settings.policy,
                circumstances=Circumstances,
            ).is_allowed

        try:
            return decide()
        except decisions.Postponed as postponed:
            context.decisions.keep(postponed, *postponed.evaluate())
            return decide()

    assert may("alice")
    house.identities.remove_user(OWN, "alice")
    assert not may("alice")
    house.identities.put(OWN, "alice", "AKALICE", "hers", is_suspended=True)
    assert not may("alice")


async def test_with_authentication_off_nothing_is_asked_of_policies() -> None:
    rig = Rig()
    anyone = Client(rig, OWN, SECRET)
    assert await anyone.code("CreateQueue", QueueName="q") == "OK"
    text = policy(deny("sqs:*", Principal="*"))
    attributes = {"Policy": text}
    assert await anyone.code("SetQueueAttributes", QueueUrl=url("q"), Attributes=attributes) == "OK"
    assert await anyone.code("SendMessage", QueueUrl=url("q"), MessageBody="x") == "OK"
    assert await Client(rig, OTHER).code("PurgeQueue", QueueUrl=url("q")) == "OK"
