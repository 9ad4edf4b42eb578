"""What requests count as, through the whole pipeline: for whom, under which name, how much."""

import ast
import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.unit.frontend.aws.test_pipeline import json_call, make_queue, query_call, signed
from tests.unit.frontend.counted import ACCOUNT, REGION, CountedRig
from tests.unit.frontend.memory import MemoryIdentities, Rig
from tests.unit.frontend.signing import OWN, SECRET, Client
from tests.unit.frontend.signing import url as url_of

from penstock.frontend.aws.accounting import refusal_of
from penstock.frontend.aws.context import FrontendConfig
from penstock.frontend.aws.sqs import actions
from penstock.frontend.facts.usage import Refusal
from penstock.model.calls import Append
from penstock.model.identity import ADMIN_POLICY
from penstock.model.limits import MINUTE_MS
from penstock.model.message import Appended


async def send(rig: Rig, url: str, body: str, **more: Any) -> None:
    reply = await json_call(rig, "SendMessage", QueueUrl=url, MessageBody=body, **more)
    assert reply.status == 200, reply.body


async def test_a_send_counts_its_message_and_its_bytes() -> None:
    rig = CountedRig()
    url = await make_queue(rig, "jobs")
    await send(rig, url, "hello")
    await send(rig, url, "ä" * 10)
    used = rig.used()
    row = used["jobs", "sqs:SendMessage"]
    assert (row.tenant, row.region) == (ACCOUNT, REGION)
    assert (row.requests, row.messages, row.bytes_in, row.bytes_out) == (2, 2, 25, 0)
    assert used["jobs", "sqs:CreateQueue"].requests == 1


async def test_batches_are_counted_as_their_single_form_and_partly_if_partly_done() -> None:
    rig = CountedRig()
    url = await make_queue(rig, "jobs")
    entries = [
        {"Id": "a", "MessageBody": "12345"},
        {"Id": "b", "MessageBody": "1234"},
        {"Id": "c", "MessageBody": "x", "DelaySeconds": 100_000},
    ]
    await json_call(rig, "SendMessageBatch", QueueUrl=url, Entries=entries)
    row = rig.used()["jobs", "sqs:SendMessage"]
    assert (row.requests, row.messages, row.bytes_in) == (1, 2, 9)


async def test_what_goes_by_a_pass_is_counted_in_the_minute_it_comes_in() -> None:
    identities = MemoryIdentities()
    identities.put(OWN, "root", "AKOWN", SECRET, ADMIN_POLICY)
    rig = CountedRig(config=FrontendConfig(is_auth_on=True), identities=identities)
    client = Client(rig)
    assert await client.code("CreateQueue", QueueName="q") == "OK"
    counted = []
    for _ in range(3):
        for _ in range(2):
            sent = await client.code("SendMessage", QueueUrl=url_of("q"), MessageBody="hello")
            assert sent == "OK"
        rig.clock.now_ms += MINUTE_MS
        row = rig.used()["q", "sqs:SendMessage"]
        counted.append((row.tenant, row.requests, row.messages, row.bytes_in))
    assert counted == [(OWN, 2, 2, 10)] * 3


async def test_receives_and_deletes_are_counted() -> None:
    rig = CountedRig()
    url = await make_queue(rig, "jobs")
    await send(rig, url, "hello")
    reply = await json_call(rig, "ReceiveMessage", QueueUrl=url)
    receipt = json.loads(reply.body)["Messages"][0]["ReceiptHandle"]
    await json_call(rig, "DeleteMessage", QueueUrl=url, ReceiptHandle=receipt)
    await json_call(rig, "ReceiveMessage", QueueUrl=url)
    used = rig.used()
    row = used["jobs", "sqs:ReceiveMessage"]
    assert (row.requests, row.messages, row.bytes_out) == (2, 1, 5)
    assert used["jobs", "sqs:DeleteMessage"].messages == 1


async def test_the_owner_of_a_queue_pays_and_regions_are_apart() -> None:
    rig = CountedRig()
    reply = await json_call(
        rig, "CreateQueue", QueueName="q", headers=signed("eu-west-1", key="111111111111")
    )
    url = json.loads(reply.body)["QueueUrl"]
    await json_call(
        rig,
        "SendMessage",
        QueueUrl=url,
        MessageBody="x",
        headers=signed("eu-west-1", key="222222222222"),
    )
    row = rig.used()["q", "sqs:SendMessage"]
    assert (row.tenant, row.region) == ("111111111111", "eu-west-1")


async def test_a_url_that_names_a_region_is_believed_only_without_a_signature() -> None:
    rig = CountedRig()
    for region in ("eu-west-1", "us-east-1"):
        await json_call(rig, "CreateQueue", QueueName="q", headers=signed(region))
    url = f"http://queues.test/queue/eu-west-1/{ACCOUNT}/q"
    for _ in range(2):
        await send(rig, url, "x")
        await json_call(
            rig, "SendMessage", QueueUrl=url, MessageBody="x", headers=signed("us-east-1")
        )
    columns = rig.table.take(now_ms=rig.clock.now_ms)[1]
    sends = {row.region: row.requests for row in columns.rows() if row.op == "sqs:SendMessage"}
    assert sends == {"eu-west-1": 2, "us-east-1": 2}


async def test_refused_requests_count_for_whoever_asked_and_make_up_no_names() -> None:
    rig = CountedRig()
    url = await make_queue(rig, "jobs")
    await json_call(rig, "SendMessage", QueueUrl=url)
    for name in ("gone", "lost"):
        await json_call(rig, "SendMessage", QueueUrl=url.replace("jobs", name), MessageBody="x")
    await json_call(rig, "SendMessage", QueueUrl="not a url", MessageBody="x")
    await query_call(rig, "NoSuchAction")
    used = rig.used()
    assert used["jobs", "sqs:SendMessage"].failed == 1
    assert used["", "sqs:SendMessage"].failed == 3
    assert used["", ""].failed == 1
    assert {resource for resource, _ in used} == {"jobs", ""}


async def test_what_names_no_queue_is_counted_without_one() -> None:
    rig = CountedRig()
    url = await make_queue(rig, "jobs")
    arn = f"arn:aws:sqs:{REGION}:{ACCOUNT}:jobs"
    await json_call(rig, "ListQueues")
    await json_call(rig, "GetQueueUrl", QueueName="jobs")
    await json_call(rig, "ListMessageMoveTasks", SourceArn=arn)
    await query_call(rig, "GetCallerIdentity", headers=signed(REGION, "sts"))
    used = rig.used()
    assert used["", "sqs:ListQueues"].requests == 1
    assert used["jobs", "sqs:GetQueueUrl"].requests == 1
    assert used["jobs", "sqs:ListMessageMoveTasks"].requests == 1
    assert used["", "sts:GetCallerIdentity"].requests == 1
    assert url


async def test_requests_under_way_at_once_are_each_counted_for_their_own_queue() -> None:
    """What an action tells the meter must not be taken for another's that ends beside it."""
    rig = CountedRig()
    urls = {name: await make_queue(rig, name) for name in ("a", "b", "c")}
    gate = asyncio.Event()
    append = rig.backend.append

    async def slow(call: Append) -> Sequence[Appended]:
        await gate.wait()
        return await append(call)

    rig.backend.append = slow  # type: ignore[method-assign]
    sizes = {"a": 3, "b": 50, "c": 700}
    async with asyncio.TaskGroup() as tasks:
        for _ in range(20):
            for name, url in urls.items():
                tasks.create_task(send(rig, url, "x" * sizes[name]))
        await asyncio.sleep(0)
        gate.set()
    used = rig.used()
    for name, size in sizes.items():
        row = used[name, "sqs:SendMessage"]
        assert (row.requests, row.messages, row.bytes_in) == (20, 20, 20 * size)


def test_no_action_awaits_anything_after_its_word_to_the_meter() -> None:
    """The rule that the test above relies on, held against every action there is."""
    folder = Path(str(actions.__file__)).parent
    told = 0
    for path in sorted(folder.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if not isinstance(node, ast.AsyncFunctionDef):
                continue
            words = [
                each.lineno
                for each in ast.walk(node)
                if isinstance(each, ast.Call) and "context.meter." in ast.unparse(each.func)
            ]
            awaits = [each.lineno for each in ast.walk(node) if isinstance(each, ast.Await)]
            told += len(words)
            assert all(line <= min(words) for line in awaits if words), path.name
    assert told >= 5


@pytest.mark.parametrize(
    ("code", "refusal"),
    [
        ("RequestThrottled", Refusal.THROTTLED),
        ("AccessDenied", Refusal.DENIED),
        ("SignatureDoesNotMatch", Refusal.DENIED),
        ("InvalidParameterValue", Refusal.FAILED),
        ("InternalFailure", Refusal.FAILED),
    ],
)
def test_codes_say_what_kind_of_refusal_it_was(code: str, refusal: Refusal) -> None:
    assert refusal_of(code) is refusal
