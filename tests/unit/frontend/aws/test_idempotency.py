"""Requests that come again: they do no harm and get the answer of the first."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.frontend.aws.test_pipeline import json_call, make_queue, query_call, signed
from tests.unit.frontend.memory import MemoryBackend, Rig

from penstock.frontend.aws import idempotency
from penstock.frontend.aws.context import Action, Call, Context
from penstock.frontend.aws.idempotency import WINDOW_SECONDS, Replies, outlives, token_of
from penstock.frontend.aws.protocols import JSON
from penstock.model.calls import Append
from penstock.model.errors import Overloaded
from penstock.model.message import Appended
from penstock.net.http.browsers import BrowserGuard
from penstock.net.http.exchange import HttpReply, HttpRequest
from penstock.net.http.listener import HttpConfig, HttpListener
from penstock.telemetry import families
from penstock.wire.aws.shapes import (
    SendMessageBatchReply,
    SendMessageBatchResultEntry,
    SendMessageReply,
)

OWN = "x-penstock-request-token"
WINDOW_MS = int(WINDOW_SECONDS * 1_000)


def attempt(number: int, invocation: str = "2f0e4c1a") -> dict[str, str]:
    """As SDKs write it: a date in front from the second on, the most behind it in some modes."""
    text = f"attempt={number}" if number == 1 else f"ttl=20260101T000000Z; attempt={number}; max=5"
    return {"amz-sdk-invocation-id": invocation, "amz-sdk-request": text}


async def send(
    rig: Rig, url: str, text: str = "m", *, headers: dict[str, str] | None = None
) -> dict[str, Any]:
    reply = await json_call(rig, "SendMessage", QueueUrl=url, MessageBody=text, headers=headers)
    assert reply.status == 200, reply.body
    answer: dict[str, Any] = json.loads(reply.body)
    return answer


def stored(rig: Rig) -> int:
    return sum(map(len, rig.backend.records.values()))


def repeated(rig: Rig) -> float:
    [count] = [v for f, (_, v) in rig.frontend.samples() if f is families.FRONTEND_REPEATED]
    return count


async def test_the_second_attempt_of_an_sdk_gets_the_first_answer() -> None:
    rig = Rig()
    url = await make_queue(rig)
    first = await send(rig, url, headers=attempt(1))
    assert await send(rig, url, headers=attempt(2)) == first
    assert await send(rig, url, headers=attempt(3)) == first
    assert stored(rig) == 1
    assert repeated(rig) == 2


async def test_each_first_attempt_is_a_request_of_its_own_whatever_it_is_called() -> None:
    rig = Rig()
    url = await make_queue(rig)
    answers = [await send(rig, url, headers=attempt(1)) for _ in range(3)]
    assert len({answer["MessageId"] for answer in answers}) == 3
    assert stored(rig) == 3
    assert await send(rig, url, headers=attempt(2)) == answers[-1]


async def test_another_caller_queue_action_or_content_is_another_request() -> None:
    rig = Rig()
    url, other = await make_queue(rig), await make_queue(rig, "other")
    await send(rig, url, headers={OWN: "t"})
    await send(rig, url, "n", headers={OWN: "t"})
    await send(rig, url, headers={OWN: "t2"})
    await send(rig, url, headers={OWN: "t", **signed("us-east-1", key="AKOTHER")})
    await send(rig, other, headers={OWN: "t"})
    assert stored(rig) == 5
    path = "/000000000000/"
    for name in ("q", "other"):  # the same words at the address of another queue
        headers = {"x-amz-target": "AmazonSQS.SendMessage", OWN: "u"}
        body = b'{"MessageBody":"m"}'
        assert (await rig.ask(path=path + name, body=body, headers=headers)).status == 200
    assert stored(rig) == 7
    assert repeated(rig) == 0


async def test_a_token_of_ones_own_needs_no_count_and_works_in_every_protocol() -> None:
    rig = Rig()
    url = await make_queue(rig)
    first = await query_call(rig, "SendMessage", QueueUrl=url, MessageBody="m", headers={OWN: "t"})
    again = await query_call(rig, "SendMessage", QueueUrl=url, MessageBody="m", headers={OWN: "t"})
    assert (first.status, again.body) == (200, first.body)
    assert stored(rig) == 1
    form = f"Action=SendMessage&QueueUrl={url}&MessageBody="
    for text in ("a", "b", "a"):
        reply = await rig.ask("GET", query=form + text, headers={OWN: "t"})
        assert reply.status == 200
    assert stored(rig) == 3


@pytest.mark.parametrize("token", ["", "x" * 129])
async def test_a_token_of_a_wrong_length_is_refused_and_an_sdks_ignored(token: str) -> None:
    rig = Rig()
    url = await make_queue(rig)
    refused = await json_call(
        rig, "SendMessage", QueueUrl=url, MessageBody="m", headers={OWN: token}
    )
    assert refused.status == 400
    assert b"x-penstock-request-token" in refused.body
    if token:
        for _ in range(2):
            await send(rig, url, headers=attempt(2, token))
        assert stored(rig) == 2


async def test_batches_are_remembered_as_a_whole() -> None:
    rig = Rig()
    url = await make_queue(rig)
    entries = [{"Id": str(i), "MessageBody": str(i)} for i in range(10)]
    replies = [
        await json_call(
            rig, "SendMessageBatch", QueueUrl=url, Entries=entries, headers=attempt(number)
        )
        for number in (1, 2)
    ]
    assert replies[0].body == replies[1].body
    assert stored(rig) == 10


async def test_fifo_queues_look_after_themselves() -> None:
    rig = Rig()
    url = await make_queue(rig, "q.fifo", FifoQueue="true")
    for number in (1, 2):
        reply = await json_call(
            rig,
            "SendMessage",
            QueueUrl=url,
            MessageBody="m",
            MessageGroupId="g",
            MessageDeduplicationId="d",
            headers=attempt(number),
        )
        assert reply.status == 200
    assert repeated(rig) == 0


async def test_a_queue_that_was_deleted_by_the_first_attempt_is_not_missing_to_the_second() -> None:
    rig = Rig()
    url = await make_queue(rig)
    for number in (1, 2):
        reply = await json_call(rig, "DeleteQueue", QueueUrl=url, headers=attempt(number))
        assert reply.status == 200
    fresh = await json_call(rig, "DeleteQueue", QueueUrl=url, headers=attempt(1, "another"))
    assert fresh.status == 400


async def test_what_failed_is_tried_again() -> None:
    rig = Rig()
    url = await make_queue(rig)
    rig.backend.broken = Overloaded("not now")
    refused = await json_call(rig, "SendMessage", QueueUrl=url, MessageBody="m", headers=attempt(1))
    assert refused.status == 503
    rig.backend.broken = None
    await send(rig, url, headers=attempt(2))
    assert stored(rig) == 1


class SlowBackend(MemoryBackend):
    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()
        self.begun = asyncio.Semaphore(0)

    async def append(self, call: Append) -> Sequence[Appended]:
        self.begun.release()
        await self.gate.wait()
        return await super().append(call)


def slow_rig() -> tuple[Rig, SlowBackend]:
    backend = SlowBackend()
    return Rig(backend=backend), backend


async def test_who_comes_again_while_the_first_is_under_way_waits_for_its_answer() -> None:
    rig, backend = slow_rig()
    url = await make_queue(rig)
    tasks = [asyncio.create_task(send(rig, url, headers=attempt(1)))]
    await backend.begun.acquire()
    tasks += [asyncio.create_task(send(rig, url, headers=attempt(n))) for n in (2, 3)]
    gone = asyncio.create_task(send(rig, url, headers=attempt(4)))
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    backend.gate.set()
    first, *others = await asyncio.gather(*tasks)
    assert others == [first, first]
    assert stored(rig) == 1


async def test_when_the_first_fails_one_of_those_who_waited_does_it() -> None:
    rig, backend = slow_rig()
    url = await make_queue(rig)

    async def ask(number: int) -> HttpReply:
        return await json_call(
            rig, "SendMessage", QueueUrl=url, MessageBody="m", headers=attempt(number)
        )

    first = asyncio.create_task(ask(1))
    await backend.begun.acquire()
    others = [asyncio.create_task(ask(n)) for n in (2, 3)]
    await asyncio.sleep(0)
    backend.broken = Overloaded("not now")
    backend.gate.set()
    assert (await first).status == 503
    backend.broken = None
    replies = await asyncio.gather(*others)
    assert [reply.status for reply in replies] == [200, 200]
    assert replies[0].body == replies[1].body
    assert stored(rig) == 1


async def test_the_answer_is_there_although_the_client_went_away_before_it() -> None:
    rig, backend = slow_rig()
    url = await make_queue(rig)
    listener = HttpListener(
        rig.frontend.handle,
        config=HttpConfig(),
        name="test",
        seed=bytes(10),
        guard=BrowserGuard(is_open=True),
        outlives=rig.frontend.outlives,
    )
    host, _, port = (await listener.start("127.0.0.1", 0)).partition(":")
    body = json.dumps({"QueueUrl": url, "MessageBody": "m"}).encode()
    headers = {"host": "h", "x-amz-target": "AmazonSQS.SendMessage", "connection": "close"}

    async def open_with(number: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection(host, int(port))
        lines = {**headers, **attempt(number), "content-length": str(len(body))}
        head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        writer.write(f"POST / HTTP/1.1\r\n{head}\r\n".encode() + body)
        return reader, writer

    _, gone = await open_with(1)
    await backend.begun.acquire()
    gone.transport.abort()
    async with asyncio.timeout(5):
        while listener.connections:
            await asyncio.sleep(0)
    reader, writer = await open_with(2)
    async with asyncio.timeout(5):
        while not listener.connections:
            await asyncio.sleep(0)
        backend.gate.set()
        reply = await reader.read()
    writer.close()
    assert reply.startswith(b"HTTP/1.1 200"), reply
    assert b"MessageId" in reply
    assert stored(rig) == 1
    await listener.drain(seconds_max=1.0)


async def test_answers_are_forgotten_after_five_minutes() -> None:
    rig = Rig()
    url = await make_queue(rig)
    await send(rig, url, headers={OWN: "t"})
    rig.clock.now_ms += WINDOW_MS - 1
    await send(rig, url, headers={OWN: "t"})
    assert stored(rig) == 1
    rig.clock.now_ms += 1
    await send(rig, url, headers={OWN: "t"})
    assert stored(rig) == 2


async def test_memory_is_bounded_by_messages_and_old_answers_go_sheet_by_sheet() -> None:
    rig = Rig()
    rig.frontend._replies = answers = Replies(messages_max=20)
    url = await make_queue(rig)
    for number in range(50):
        await send(rig, url, headers={OWN: str(number)})
    assert kept(answers) == 19, "and room for the next"
    entries = [{"Id": str(i), "MessageBody": str(i)} for i in range(10)]
    for token in "ab":
        await json_call(
            rig, "SendMessageBatch", QueueUrl=url, Entries=entries, headers={OWN: token}
        )
    assert kept(answers) == 1, "a batch counts as its messages and itself"
    rig.clock.now_ms += WINDOW_MS
    await send(rig, url, headers={OWN: "last"})
    assert kept(answers) == 1


@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from("abcdef"),  # the token
            st.sampled_from((0, 0, 0, 3, 10)),  # messages of a batch
            st.integers(1, 3),  # the attempt
            st.booleans(),  # it fails
            st.sampled_from((0, 1, 200)),  # seconds until the next
        ),
        max_size=60,
    )
)
def test_whatever_comes_the_memory_stays_bounded_and_only_the_same_is_answered_again(
    steps: list[tuple[str, int, int, bool, int]],
) -> None:
    async def play() -> None:
        answers = Replies(messages_max=12)
        last: dict[tuple[str, int], tuple[object, int]] = {}  # what would be answered again
        now_s = 1_000
        for token, batch, number, is_failing, pause_s in steps:
            given_answer = _answer(batch)

            async def run(
                *_: object, answer: object = given_answer, fails: bool = is_failing
            ) -> Any:
                if fails:
                    raise Overloaded("not now")
                return answer

            request = HttpRequest("POST", "/", "", attempt(number, token), b"%d" % batch, "", "r")
            call = Call(cast(Context, None), request, JSON)
            call.action = Action("SendMessageBatch" if batch else "SendMessage", run, "")
            found = token_of(call, call.action.name)
            assert found is not None
            try:
                got = await answers.once(call, found, now_s)
            except Overloaded:
                got = None
            known = last.get((token, batch))
            if got is given_answer:
                last = {key: each for key, each in last.items() if key[0] != token}
                last[token, batch] = (got, now_s)
            elif got is not None:
                assert number > 1
                assert known is not None
                assert got is known[0]
                assert now_s - known[1] < WINDOW_SECONDS
            _check(answers)
            now_s += pause_s

    asyncio.run(play())


def kept(answers: Replies) -> int:
    return sum(len(page.replies) for page in (answers._page, *answers._filled))


def _answer(batch: int) -> SendMessageReply | SendMessageBatchReply:
    if not batch:
        return SendMessageReply(md5_of_message_body="", message_id="")
    entries = [SendMessageBatchResultEntry(str(n), "", "") for n in range(batch)]
    return SendMessageBatchReply(successful=entries)


def _check(answers: Replies) -> None:
    sheets = [*answers._filled, answers._page]
    for sheet in sheets:
        counted = len(sheet.replies) + sum(
            len(each.reply.successful or ())
            for each in sheet.replies.values()
            if isinstance(each.reply, SendMessageBatchReply)
        )
        assert counted <= sheet.messages, "what was written over counts until its sheet goes"
    assert answers._filled_messages == sum(sheet.messages for sheet in answers._filled)
    assert answers._filled_messages <= 12 - answers._page_max
    assert answers._page.messages < answers._page_max
    assert not answers._under_way


def test_the_attempt_is_read_as_every_sdk_writes_it() -> None:
    firsts = ("attempt=1", "attempt=1; max=3", "ttl=20260101T000000Z; attempt=1; max=3")
    for text in firsts:
        assert idempotency._is_first(text), text
    for text in ("", "attempt=2", "attempt=10", "attempt=1x", "max=1", "ttl=x; attempt=12; max=3"):
        assert not idempotency._is_first(text), text


def test_only_what_would_do_harm_twice_outlives_its_client() -> None:
    def request(headers: dict[str, str], body: bytes = b"", query: str = "") -> HttpRequest:
        return HttpRequest("POST", "/", query, headers, body, "", "r")

    def target(action: str) -> HttpRequest:
        return request({"x-amz-target": f"AmazonSQS.{action}"})

    assert outlives(target("SendMessage"))
    assert outlives(request({}, b"Action=SendMessageBatch&QueueUrl=q"))
    assert outlives(request({}, query="Action=DeleteQueue"))
    assert not outlives(target("ReceiveMessage"))
    assert not outlives(request({}, b"Action=ReceiveMessage"))
    assert not outlives(request({}, b"\xff%zz=&&&"))
