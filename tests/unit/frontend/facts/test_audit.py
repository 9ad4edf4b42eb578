"""The audit trail: the chain, what stands in it, that nothing is left out and no secret let in."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.broker.stage import Stage, on_stage
from tests.unit.frontend.aws.test_pipeline import json_call, make_queue, signed
from tests.unit.frontend.counted import ACCOUNT, REGION, CountedRig, Ids, fact_log, records
from tests.unit.frontend.facts.test_usage_writer import Unreliable

from penstock.frontend.aws.context import FrontendConfig
from penstock.frontend.facts import audit as audit_module
from penstock.frontend.facts.audit import TOPIC, AuditTrail, Denials
from penstock.frontend.facts.fact_log import Fact
from penstock.model.errors import Draining
from penstock.model.identity import Caller
from penstock.model.limits import MINUTE_MS
from penstock.wire.facts.audit import (
    FIRST_HASH,
    HIDDEN,
    AuditEntry,
    AuditRecord,
    AuditUnreadable,
    Link,
    append,
    breaks,
    decode,
    link_of,
    redacted,
)

ANN = Caller("111111111111", "ann", key_id="AKIA1")


@asynccontextmanager
async def trail_on(
    stage: Stage, *, ids: Ids | None = None, broker: Any = None, node: str = "n1"
) -> AsyncIterator[AuditTrail]:
    log = fact_log(stage, TOPIC, ids or Ids(), broker=broker)
    trail = AuditTrail(log, node=node, clock=stage.clock)
    trail.start(version="1.2.3")
    try:
        yield trail
    finally:
        await trail.stop()


async def values(stage: Stage) -> list[bytes]:
    return [record.value or b"" for record in await records(stage, TOPIC)]


async def noted(stage: Stage) -> list[AuditRecord]:
    return [decode(value) for value in await values(stage)]


def actions(found: Sequence[AuditRecord]) -> list[str]:
    return [record.action for record in found]


# ── The chain ────────────────────────────────────────────────────────────────────────────────


def entry(number: int) -> AuditEntry:
    return AuditEntry(at_ms=number, principal=ANN.arn, action=f"test:{number}")


def chain(count: int, *, node: str = "n1") -> list[bytes]:
    link, made = Link(), []
    for number in range(count):
        value, link = append(link, entry(number), node=node)
        made.append(value)
    return made


def test_a_whole_chain_has_no_break_wherever_retention_let_it_begin() -> None:
    made = chain(5)
    assert decode(made[0]).prev_hash == FIRST_HASH.hex()
    for start in range(5):
        assert not list(breaks(made[start:]))


def test_the_chain_can_be_gone_on_with_from_its_last_record() -> None:
    made = chain(3)
    value, _ = append(link_of(made[-1]), entry(3), node="n1")
    assert not list(breaks([*made, value]))
    assert decode(value).seq == 4


def node_of(value: bytes) -> str:
    """Empty: it cannot be read."""
    try:
        return decode(value).node
    except AuditUnreadable:
        return ""


@settings(max_examples=100, deadline=None)
@given(
    place=st.integers(0, 4), byte=st.integers(0, 10_000), other=st.integers(1, 255), data=st.data()
)
def test_a_changed_removed_repeated_or_moved_record_breaks_the_chain(
    place: int, byte: int, other: int, data: st.DataObject
) -> None:
    made = chain(6)
    changed = bytearray(made[place])
    changed[byte % len(changed)] ^= other
    cases = [
        [*made[:place], bytes(changed), *made[place + 1 :]],
        [*made[: place + 1], made[place], *made[place + 1 :]],
    ]
    if place > 0:  # what is missing in front was let go by retention
        cases.append([*made[:place], *made[place + 1 :]])
    swapped = data.draw(st.integers(0, 5).filter(lambda n: n != place))
    moved = list(made)
    moved[place], moved[swapped] = moved[swapped], moved[place]
    cases.append(moved)
    if place == 0 and node_of(bytes(changed)) not in ("", node_of(made[0])):
        # Under another node's name it begins that one's chain, and is missing in front of its own.
        del cases[0]
    for case in cases:
        assert list(breaks(case))


@settings(max_examples=60, deadline=None)
@given(order=st.lists(st.sampled_from(["n1", "n2", "n3"]), max_size=30), data=st.data())
def test_chains_of_several_nodes_are_whole_in_any_order_and_each_breaks_by_itself(
    order: list[str], data: st.DataObject
) -> None:
    made = {node: iter(chain(len(order), node=node)) for node in ("n1", "n2", "n3")}
    told = [next(made[node]) for node in order]
    assert not list(breaks(told))
    inner = [
        place
        for place, node in enumerate(order)
        if node in order[:place] and node in order[place + 1 :]
    ]
    if inner:
        lost = data.draw(st.sampled_from(inner))
        follower = order.index(order[lost], lost + 1)
        [(place, why)] = breaks([*told[:lost], *told[lost + 1 :]])
        assert place == follower - 1
        assert f"of {order[lost]} follows" in why


def test_halves_of_characters_do_not_stop_the_trail() -> None:
    half = AuditEntry(at_ms=1, principal="\ud800", action="a", params={"\udc00": ["x\ud800"]})
    value, _ = append(Link(), half, node="n1")
    record = decode(value)
    assert (record.principal, record.params) == ("?", {"?": ["x?"]})


@pytest.mark.parametrize("value", [b"", b"[]", b'{"v":1}', b'{"v":2}', b"\xff"])
def test_what_is_no_audit_record_is_refused(value: bytes) -> None:
    with pytest.raises(AuditUnreadable):
        decode(value)


# ── The trail ────────────────────────────────────────────────────────────────────────────────


async def test_the_chain_goes_on_over_restarts_and_crashes(tmp_path: Path) -> None:
    ids = Ids()
    for number in range(4):
        async with (
            on_stage(tmp_path, is_crash=number % 2 == 1) as stage,
            trail_on(stage, ids=ids) as trail,
        ):
            await trail.note("iam:CreateUser", caller=ANN, resource=f"user/{number}")
    async with on_stage(tmp_path) as stage:
        found = await noted(stage)
        assert not list(breaks(await values(stage)))
        assert [record.seq for record in found] == list(range(1, 13))
        assert actions(found) == ["penstock:Started", "iam:CreateUser", "penstock:Stopped"] * 4
        assert found[0].params == {"version": "1.2.3"}
        assert (found[1].principal, found[1].tenant) == (ANN.arn, "111111111111")


async def test_nodes_that_write_to_one_partition_each_go_on_with_their_own_chain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.frontend.facts.fact_log.LOOK_RECORDS", 3)
    monkeypatch.setattr("penstock.frontend.facts.fact_log.LOOK_BYTES", 1)
    ids = Ids()
    async with on_stage(tmp_path) as stage:
        async with trail_on(stage, ids=ids, node="n1") as steady:
            for number in range(3):  # n2 is stopped and started, with many of the other in between
                async with trail_on(stage, ids=ids, node="n2") as restarted:
                    await restarted.note("test:Restarted", caller=ANN, resource=str(number))
                for each in range(10):
                    await steady.note("test:Steady", caller=ANN, resource=f"{number}/{each}")
                    await asyncio.sleep(0.001)
        async with trail_on(stage, ids=ids, node="n3"):
            pass
        found = await noted(stage)
        assert not list(breaks(await values(stage)))
        for node, count in (("n1", 32), ("n2", 9), ("n3", 2)):
            numbers = [record.seq for record in found if record.node == node]
            assert numbers == list(range(1, count + 1))


async def test_what_an_earlier_version_wrote_alone_is_gone_on_with(tmp_path: Path) -> None:
    async with on_stage(tmp_path) as stage:
        ids = Ids()
        log = fact_log(stage, TOPIC, ids)
        log.offer([Fact(b"n1", value) for value in chain(5)])
        await log.settle()
        async with trail_on(stage, ids=ids):
            pass
        assert not list(breaks(await values(stage)))
        assert [record.seq for record in await noted(stage)] == list(range(1, 8))


async def test_lost_answers_do_not_note_anything_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.frontend.facts.fact_log.RETRY_SECONDS", 0.0001)
    monkeypatch.setattr("penstock.frontend.facts.fact_log.RETRY_SECONDS_MAX", 0.0002)
    async with on_stage(tmp_path) as stage:
        broker = Unreliable(stage.broker, Random(5))
        async with trail_on(stage, broker=broker) as trail:
            for number in range(60):
                await trail.note("test:Note", caller=ANN, resource=str(number))
                while number % 4 == 0 and trail._queue:  # fifteen writes at least
                    await asyncio.sleep(0.001)
        found = await noted(stage)
        assert not list(breaks(await values(stage)))
        shown = [record.resource for record in found if record.action == "test:Note"]
        assert shown == [str(number) for number in range(60)]
        assert broker.lost_back > 0


async def test_when_it_is_full_actions_wait_and_none_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_module, "QUEUE_MAX", 3)
    monkeypatch.setattr("penstock.frontend.facts.fact_log.RETRY_SECONDS", 0.001)
    async with on_stage(tmp_path) as stage:
        broker = Unreliable(stage.broker, Random(0), lost=1.0)
        async with trail_on(stage, broker=broker) as trail:
            notes = [
                asyncio.create_task(trail.note("test:Note", caller=ANN, resource=str(number)))
                for number in range(20)
            ]
            while trail.trouble is None:
                await asyncio.sleep(0.001)
            assert len(trail._queue) == 3
            assert sum(note.done() for note in notes) == 2  # and the node's own start
            broker._lost = 0.0
            await asyncio.gather(*notes)
        found = await noted(stage)
        shown = {record.resource for record in found if record.action == "test:Note"}
        assert shown == {str(number) for number in range(20)}
        assert not list(breaks(await values(stage)))


async def test_after_the_end_of_the_trail_nothing_is_done_that_would_be_noted(
    tmp_path: Path,
) -> None:
    async with on_stage(tmp_path) as stage:
        async with trail_on(stage) as trail:
            rig = CountedRig(audit=trail)
        reply = await json_call(rig, "CreateQueue", QueueName="late")
        assert reply.status == 503
        assert not rig.catalog.all_topics()
        with pytest.raises(Draining):
            await trail.note("test:Note", caller=ANN)


async def test_a_trail_whose_end_cannot_be_read_begins_anew_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    async with on_stage(tmp_path) as stage:
        log = fact_log(stage, TOPIC, Ids())
        log.offer([Fact(b"n1", b"not ours")])
        await log.settle()
        async with trail_on(stage):
            pass
        _, *values_after = await values(stage)
        assert actions([decode(value) for value in values_after]) == [
            "penstock:ChainBegunAnew",
            "penstock:Started",
            "penstock:Stopped",
        ]
        assert "audit hash chain restarted" in caplog.messages


def denial(
    principal: str, at_ms: int = 5, *, tenant: str = "", source_ip: str = "", action: str = "send"
) -> AuditEntry:
    return AuditEntry(
        at_ms=at_ms, principal=principal, tenant=tenant, source_ip=source_ip, action=action
    )


def test_of_each_sort_of_denial_a_few_are_noted_and_the_rest_counted() -> None:
    denials = Denials()
    noted_count = sum(denials.is_recorded(denial("ann")) for _ in range(100))
    assert noted_count == audit_module.DENIED_PER_KIND_MAX
    assert denials.is_recorded(denial("bob", 6))
    assert denials.left_out(now_ms=MINUTE_MS - 1) == {}
    assert denials.left_out(now_ms=MINUTE_MS) == {"": 100 - noted_count}
    assert denials.left_out(now_ms=MINUTE_MS) == {}
    assert denials.is_recorded(denial("ann", MINUTE_MS))


def test_many_sorts_of_denials_are_bounded_together() -> None:
    denials = Denials()
    noted_count = sum(denials.is_recorded(denial(str(n))) for n in range(5_000))
    assert noted_count == audit_module.DENIED_MAX
    assert len(denials._recorded) == audit_module.DENIED_MAX
    assert denials.left_out(now_ms=MINUTE_MS) == {"": 5_000 - noted_count}


def test_a_tenant_and_an_address_have_a_share_of_the_denials_and_the_nodes_own_has_all() -> None:
    def noted(count: int, tenant: str, address: str = "") -> int:
        made = (
            denial(str(number), tenant=tenant, source_ip=address, action=tenant)
            for number in range(count)
        )
        return sum(map(denials.is_recorded, made))

    own = "000000000000"
    denials = Denials(own_account=own)
    assert noted(200, tenant="1", address="10.0.0.1") == 30
    assert noted(200, tenant="", address="10.0.0.1") == 30, "of a caller that nobody knows"
    assert noted(10, tenant="2", address="10.0.0.1") == 10
    assert noted(500, tenant=own) == audit_module.DENIED_MAX - 70
    assert denials.left_out(now_ms=MINUTE_MS) == {"1": 170, "": 170, own: 270}
    for number in range(200):
        noted(31, tenant=f"t{number}")
    assert len(denials.left_out(now_ms=2 * MINUTE_MS)) <= audit_module.LEFT_OUT_ROWS_MAX + 1


# ── Requests ─────────────────────────────────────────────────────────────────────────────────


async def test_what_changes_a_queue_is_recorded_and_messages_are_not(tmp_path: Path) -> None:
    async with on_stage(tmp_path) as stage:
        async with trail_on(stage) as trail:
            rig = CountedRig(audit=trail)
            url = await make_queue(rig, "jobs", VisibilityTimeout="10")
            await json_call(rig, "SendMessage", QueueUrl=url, MessageBody="a secret")
            await json_call(rig, "ReceiveMessage", QueueUrl=url)
            await json_call(rig, "GetQueueAttributes", QueueUrl=url)
            await json_call(
                rig, "SetQueueAttributes", QueueUrl=url, Attributes={"DelaySeconds": "3"}
            )
            await json_call(rig, "TagQueue", QueueUrl=url, Tags={"team": "hidden value"})
            await json_call(rig, "UntagQueue", QueueUrl=url, TagKeys=["team"])
            await json_call(
                rig,
                "AddPermission",
                QueueUrl=url,
                Label="l",
                AWSAccountIds=["222222222222"],
                Actions=["SendMessage"],
            )
            await json_call(rig, "RemovePermission", QueueUrl=url, Label="l")
            await json_call(rig, "PurgeQueue", QueueUrl=url)
            await json_call(rig, "DeleteQueue", QueueUrl=url, headers=signed(REGION, key="AKIA7"))
            await json_call(rig, "DeleteQueue", QueueUrl=url)
        found = (await noted(stage))[1:-1]
    assert actions(found) == [
        "sqs:CreateQueue",
        "sqs:SetQueueAttributes",
        "sqs:TagQueue",
        "sqs:UntagQueue",
        "sqs:AddPermission",
        "sqs:RemovePermission",
        "sqs:PurgeQueue",
        "sqs:DeleteQueue",
        "sqs:DeleteQueue",
    ]
    assert {record.resource for record in found} == {f"arn:aws:sqs:{REGION}:{ACCOUNT}:jobs"}
    assert [record.outcome for record in found] == ["ok"] * 8 + ["failed"]
    assert found[-1].error_code == "AWS.SimpleQueueService.NonExistentQueue"
    assert found[0].params == {"attributes": {"VisibilityTimeout": "10"}}
    assert found[1].params == {"attributes": {"DelaySeconds": "3"}}
    assert found[2].params == {"tags": ["team"]}
    assert found[4].params == {
        "label": "l",
        "accounts": ["222222222222"],
        "actions": ["SendMessage"],
    }
    assert found[7].principal == f"arn:aws:iam::{ACCOUNT}:user/AKIA7"
    assert {record.source_ip for record in found} == {"127.0.0.1"}
    assert {record.request_id for record in found} == {"request-1"}
    everything = json.dumps([record.params for record in found])
    assert "secret" not in everything
    assert "hidden value" not in everything


async def test_moving_dead_letters_is_recorded_under_their_queue(tmp_path: Path) -> None:
    async with on_stage(tmp_path) as stage:
        async with trail_on(stage) as trail:
            rig = CountedRig(audit=trail)
            await make_queue(rig, "dead")
            arn = f"arn:aws:sqs:{REGION}:{ACCOUNT}:dead"
            policy = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 3})
            await make_queue(rig, "jobs", RedrivePolicy=policy)
            reply = await json_call(rig, "StartMessageMoveTask", SourceArn=arn)
            assert reply.status == 200, reply.body
            handle = json.loads(reply.body)["TaskHandle"]
            await json_call(rig, "CancelMessageMoveTask", TaskHandle=handle)
            await json_call(rig, "CancelMessageMoveTask", TaskHandle="nonsense")
        found = (await noted(stage))[3:-1]
    assert actions(found) == ["sqs:StartMessageMoveTask"] + ["sqs:CancelMessageMoveTask"] * 2
    assert [record.resource for record in found] == [arn, arn, ""]


async def test_a_client_that_leaves_in_the_middle_leaves_a_note(tmp_path: Path) -> None:
    async with on_stage(tmp_path) as stage:
        async with trail_on(stage) as trail:
            rig = CountedRig(audit=trail)
            url = await make_queue(rig, "jobs")
            under_way = asyncio.Event()

            async def forever(*_args: Any, **_fields: Any) -> None:
                under_way.set()
                await asyncio.Event().wait()

            rig.backend.purge = forever  # type: ignore[method-assign]
            purging = asyncio.create_task(json_call(rig, "PurgeQueue", QueueUrl=url))
            await under_way.wait()
            purging.cancel()
            with pytest.raises(asyncio.CancelledError):
                await purging
        last = (await noted(stage))[-2]
    assert (last.action, last.outcome, last.error_code) == (
        "sqs:PurgeQueue",
        "unknown",
        "ClientGone",
    )


async def test_those_who_are_not_let_in_are_noted_with_the_key_they_claimed(
    tmp_path: Path,
) -> None:
    async with on_stage(tmp_path) as stage:
        async with trail_on(stage) as trail:
            rig = CountedRig(config=FrontendConfig(is_auth_on=True), audit=trail)
            for _ in range(20):
                await json_call(rig, "SendMessage", QueueUrl="/1/q", MessageBody="x")
            headers = {**signed(REGION, key="AKIAUNKNOWN"), "x-amz-date": "20231114T221320Z"}
            headers["authorization"] = headers["authorization"].replace("20260101", "20231114")
            await json_call(rig, "CreateQueue", QueueName="q", headers=headers)
            used = rig.used()
        found = (await noted(stage))[1:-1]
    anonymous = [record for record in found if record.action == "sqs:SendMessage"]
    assert len(anonymous) == audit_module.DENIED_PER_KIND_MAX
    assert {record.outcome for record in anonymous} == {"denied"}
    assert {record.error_code for record in anonymous} == {"MissingAuthenticationToken"}
    [claimed] = [record for record in found if record.action == "sqs:CreateQueue"]
    assert (claimed.principal, claimed.tenant) == ("", "")
    assert claimed.params == {"access_key": "AKIAUNKNOWN"}
    [left_out] = [record for record in found if record.action == "penstock:DenialsLeftOut"]
    assert left_out.params == {"count": 20 - audit_module.DENIED_PER_KIND_MAX}
    # The bill has all of them, and no name that they made up.
    assert used["", "sqs:SendMessage"].denied == 20
    assert used["", "sqs:CreateQueue"].tenant == ""


async def test_a_reset_is_recorded(tmp_path: Path) -> None:
    async with on_stage(tmp_path) as stage:
        async with trail_on(stage) as trail:
            rig = CountedRig(audit=trail)
            await rig.ask("POST", "/_penstock/reset")
            await rig.ask("POST", "/_penstock/nothing")
        assert actions(await noted(stage))[1:-1] == ["penstock:Reset"]


def test_what_looks_like_a_secret_is_hidden_and_what_is_long_cut() -> None:
    shown = redacted(
        {
            "sasl.jaas.config": "x",
            "Password": "y",
            "deep": {"client_secret": "z", "kept": 5},
            "long": "x" * 1_000,
            "nothing": None,
            "list": ["a" * 1_000] * 100,
        }
    )
    assert shown["sasl.jaas.config"] == shown["Password"] == HIDDEN
    assert shown["deep"] == {"client_secret": HIDDEN, "kept": 5}
    assert len(str(shown["long"])) == 256
    assert "nothing" not in shown
    deepest = redacted({"a": {"b": {"c": {"d": 1}}}})
    assert deepest == {"a": {"b": "(more)"}}
    assert isinstance(shown["list"], list)
    assert len(shown["list"]) == 50
