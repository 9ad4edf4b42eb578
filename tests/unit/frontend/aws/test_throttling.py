"""The stage between who may and what is done: how fast, seen from outside of the frontend."""

import asyncio
import json
from typing import Any

import pytest
from tests.unit.frontend import signing
from tests.unit.frontend.aws.test_pipeline import (
    headers_of,
    json_call,
    make_queue,
    query_call,
    signed,
)
from tests.unit.frontend.memory import MemoryIdentities, Rig
from tests.unit.frontend.signing import OTHER, OWN, SECRET, allow, locked, policy, url

from penstock.frontend.limits.throttler import HELD_MS, REFUSED_AT_ONCE_MAX
from penstock.model.identity import Limits, Quotas, Rate, Tenant
from penstock.net.http.exchange import HttpReply
from penstock.net.listener import Peer
from penstock.telemetry import families

NODE = "000000000000"


class Client(signing.Client):
    """Shows the whole reply."""

    connection: Peer | None = None

    async def ask(self, action: str, **fields: Any) -> HttpReply:
        request = self.signed(action, fields)
        request.connection = self.connection
        return await self.send(request)


def tenant(account: str = OWN, *, quotas: Quotas | None = None, **limits: Any) -> Tenant:
    return Tenant(account, f"t{account}", 0, limits=Limits(**limits), quotas=quotas or Quotas())


def code_of(reply: HttpReply) -> str:
    return str(json.loads(reply.body)["__type"].rpartition("#")[2])


def throttled_of(rig: Rig) -> dict[tuple[str, ...], float]:
    return {
        tuple(labels): value
        for family, (labels, value) in rig.frontend.samples()
        if family is families.FRONTEND_THROTTLED
    }


async def test_above_the_limit_requests_are_refused_as_sdks_know_it_and_told_when_to_ask() -> None:
    rig, identities = locked()
    client = Client(rig)
    await client.ask("CreateQueue", QueueName="q")
    identities.enter(tenant(tenant_requests=Rate(2, 4)))
    replies = [await client.ask("SendMessage", QueueUrl=url("q"), MessageBody="m") for _ in "12345"]
    assert [reply.status for reply in replies] == [200, 200, 200, 200, 403]
    refused = replies[-1]
    assert code_of(refused) == "RequestThrottled"
    headers = headers_of(refused)
    assert headers["retry-after"] == "1"
    assert headers["x-amz-retry-after"] == "501"
    rig.clock.now_ms += 501
    assert (await client.ask("SendMessage", QueueUrl=url("q"), MessageBody="m")).status == 200
    assert throttled_of(rig) == {("other", "tenant"): 1}


async def test_what_is_denied_costs_the_limits_nothing() -> None:
    rig, identities = locked()
    identities.put(OWN, "bob", "AKBOB", SECRET, policy(allow("sqs:SendMessage")))
    await Client(rig).ask("CreateQueue", QueueName="q")
    identities.enter(tenant(tenant_requests=Rate(1, 2), queue_requests=Rate(1, 2)))
    bob = Client(rig, "AKBOB")
    for _ in range(10):
        denied = await bob.ask("PurgeQueue", QueueUrl=url("q"))
        assert code_of(denied) == "AccessDeniedException"
    for status in (200, 200, 403):
        sent = await bob.ask("SendMessage", QueueUrl=url("q"), MessageBody="m")
        assert sent.status == status


async def test_one_tenant_above_its_limit_leaves_the_other_alone() -> None:
    rig, identities = locked()
    own, other = Client(rig, "AKOWN"), Client(rig, "AKOTHER")
    identities.enter(tenant(OWN, tenant_requests=Rate(1, 1)))
    identities.enter(tenant(OTHER, tenant_requests=Rate(100, 100)))
    assert [(await own.ask("ListQueues")).status for _ in "123"] == [200, 403, 403]
    assert [(await other.ask("ListQueues")).status for _ in "123"] == [200, 200, 200]


async def test_operations_are_named_as_policies_name_them_and_a_batch_is_its_single_form() -> None:
    rig, identities = locked()
    client = Client(rig)
    await client.ask("CreateQueue", QueueName="q")
    identities.enter(tenant(operations={"sqs:SendMessage": Rate(1, 2)}))
    entries = [{"Id": "a", "MessageBody": "m"}]
    assert (await client.ask("SendMessageBatch", QueueUrl=url("q"), Entries=entries)).status == 200
    assert (await client.ask("SendMessage", QueueUrl=url("q"), MessageBody="m")).status == 200
    refused = await client.ask("SendMessageBatch", QueueUrl=url("q"), Entries=entries)
    assert code_of(refused) == "RequestThrottled"
    assert (await client.ask("ReceiveMessage", QueueUrl=url("q"))).status == 200


@pytest.mark.parametrize("is_out", [False, True])
async def test_bytes_are_those_of_messages_and_hold_back_the_next_request(is_out: bool) -> None:
    rig, identities = locked()
    client = Client(rig)
    await client.ask("CreateQueue", QueueName="q")
    if is_out:
        await client.ask("SendMessage", QueueUrl=url("q"), MessageBody="m" * 5_000)
    identities.enter(tenant(tenant_bytes=Rate(1_000, 1_000)))
    if is_out:
        moving = await client.ask("ReceiveMessage", QueueUrl=url("q"))
    else:
        moving = await client.ask("SendMessage", QueueUrl=url("q"), MessageBody="m" * 5_000)
    assert moving.status == 200
    refused = await client.ask("ListQueues")
    assert code_of(refused) == "RequestThrottled"
    assert headers_of(refused)["retry-after"] == "5"
    rig.clock.now_ms += 4_001
    assert (await client.ask("ListQueues")).status == 200


async def test_with_authentication_off_only_tenants_that_somebody_entered_have_limits() -> None:
    identities = MemoryIdentities()
    rig = Rig(identities=identities)
    queue = await make_queue(rig)
    for _ in range(200):
        assert (await json_call(rig, "SendMessage", QueueUrl=queue, MessageBody="m")).status == 200
    identities.enter(tenant(NODE, queue_requests=Rate(1, 1)))
    statuses = [
        (await json_call(rig, "SendMessage", QueueUrl=queue, MessageBody="m")).status for _ in "123"
    ]
    assert statuses == [200, 403, 403]
    other = await make_queue(rig, "other")
    assert (await json_call(rig, "SendMessage", QueueUrl=other, MessageBody="m")).status == 200
    other_account = signed("us-east-1", key="999999999999")
    assert (await json_call(rig, "ListQueues", headers=other_account)).status == 200
    refused = await query_call(rig, "SendMessage", QueueUrl=queue, MessageBody="m")
    assert b"<Code>RequestThrottled</Code>" in refused.body
    assert throttled_of(rig) == {("own", "queue"): 3}


class Line(Peer):
    """A connection, as far as quotas see it."""

    def __init__(self) -> None:
        self.is_closing = False

    def close_after_reply(self) -> None:
        self.is_closing = True

    def check_deadline(self, now: float) -> None:
        raise AssertionError("not a quota's business")

    def close_if_idle(self) -> None:
        raise AssertionError("not a quota's business")

    def abort(self) -> None:
        raise AssertionError("it gets an answer first")


async def test_connections_beyond_the_quota_are_refused_and_closed_until_others_go() -> None:
    rig, identities = locked(has_quotas=True)
    identities.enter(tenant(OWN, quotas=Quotas(connections_max=2)))
    lines = [Line() for _ in range(3)]
    client = Client(rig)

    async def ask(line: Line) -> int:
        client.connection = line
        return (await client.ask("ListQueues")).status

    assert [await ask(line) for line in (*lines, lines[0], lines[1])] == [200, 200, 403, 200, 200]
    assert [line.is_closing for line in lines] == [False, False, True]
    other = Client(rig, "AKOTHER")
    other.connection = lines[2]
    assert (await other.ask("ListQueues")).status == 200, "another tenant's"
    lines[0].notify_lost()
    assert await ask(Line()) == 200
    assert throttled_of(rig) == {("other", "connections"): 1}


async def test_who_floods_waits_for_each_refusal_and_holds_up_nobody() -> None:
    rig, identities = locked()
    client = Client(rig)
    await client.ask("CreateQueue", QueueName="q")
    identities.enter(tenant(tenant_requests=Rate(1, 1)))

    async def ask() -> HttpReply:
        return await client.ask("SendMessage", QueueUrl=url("q"), MessageBody="m")

    assert (await ask()).status == 200
    for _ in range(REFUSED_AT_ONCE_MAX):
        assert code_of(await ask()) == "RequestThrottled"
    late = asyncio.create_task(ask())
    done, _ = await asyncio.wait((late,), timeout=HELD_MS / 4_000)
    assert not done
    identities.enter(tenant(tenant_requests=Rate(1_000, 1_000)))
    assert (await ask()).status == 200, "whoever may is answered meanwhile"
    assert not late.done()
    assert code_of(await asyncio.wait_for(late, 5)) == "RequestThrottled"


async def test_a_tenant_has_a_share_of_the_refusals_that_are_held_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("penstock.frontend.aws.pipeline.HELD_MAX", 10)
    rig, identities = locked()
    client = Client(rig)
    identities.enter(tenant(tenant_requests=Rate(1, 1)))
    for _ in range(REFUSED_AT_ONCE_MAX + 1):
        await client.ask("ListQueues")
    late = asyncio.create_task(client.ask("ListQueues"))
    await asyncio.wait((late,), timeout=HELD_MS / 4_000)
    assert rig.frontend._held.of(OWN) == 1
    assert code_of(await asyncio.wait_for(client.ask("ListQueues"), 5)) == "RequestThrottled"
    assert not late.done(), "answered at once: its share is used up"
    assert not rig.frontend._held.is_used_up(OTHER)
    await asyncio.wait_for(late, 5)


async def test_a_client_that_leaves_while_its_refusal_is_held_back_leaves_nothing_behind() -> None:
    rig, identities = locked()
    client = Client(rig)
    await client.ask("CreateQueue", QueueName="q")
    identities.enter(tenant(tenant_requests=Rate(1, 1)))
    for _ in range(REFUSED_AT_ONCE_MAX + 1):
        await client.ask("ListQueues")
    late = asyncio.create_task(client.ask("ListQueues"))
    await asyncio.wait((late,), timeout=HELD_MS / 4_000)
    assert rig.frontend._held.total == 1
    late.cancel()
    await asyncio.wait((late,), timeout=5)
    assert rig.frontend._held.total == 0
