"""Producers and consumers that keep a server busy and write down all they saw.

Threads, each with a connection and a ledger of its own. Producers send singly and in batches; on a
FIFO queue each owns its groups and repeats an unanswered send with the same deduplication id, on a
standard queue it never does. Consumers delete most of what they get, release some, extend some,
and drop some on the floor so that leases run out. While the server is down everyone waits for the
event that says it is back. Judgement is left to ``checker``."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from tests.harness import ledger as L  # noqa: N812  (every event class is used)
from tests.harness.client import Fault, Hanging, RawClient, Refused, SqsClient, Unanswered
from tests.harness.ledger import Body, Key, Ledger, now_ns

WAIT_SECONDS = 1  # of every long poll
LEASE_SECONDS = (2, 4)
DRAIN_LEASE_SECONDS = 30
DRAIN_SECONDS_MAX = 600.0  # a drainer that gets nothing more ends by itself, long before
NO_PROGRESS_SECONDS_MAX = 15.0  # the STUCK bound
END_SECONDS_MAX = 60.0
UNKNOWN_COUNTS = (-1, -1, -1)


@dataclass(frozen=True, slots=True)
class Queue:
    name: str
    url: str
    is_fifo: bool


class Gate:
    """Open while the server is up; threads that were refused wait here instead of spinning."""

    def __init__(self) -> None:
        self._up = threading.Event()
        self._up.set()
        self.stop_producing = threading.Event()
        self.stop_consuming = threading.Event()
        self._progress = threading.Condition()
        self._done_count = 0

    def close(self) -> None:
        self._up.clear()

    def open(self) -> None:
        self._up.set()

    def wait_up(self) -> None:
        self._up.wait(1.0)

    @property
    def done_count(self) -> int:
        return self._done_count

    def count(self, calls: int = 1) -> None:
        with self._progress:
            self._done_count += calls
            self._progress.notify_all()

    def wait_progress(self, calls: int, *, seconds: float) -> bool:
        """Whether this many more calls were answered in time."""
        with self._progress:
            goal = self._done_count + calls
            return self._progress.wait_for(lambda: self._done_count >= goal, seconds)


class Worker:
    """What producer and consumer share: a thread, a client, a ledger, a source of chance."""

    def __init__(self, name: str, client: SqsClient, folder: Path, gate: Gate, seed: str) -> None:
        self.name = name
        self.gate = gate
        self.chance = Random(f"{seed}-{name}")
        self.client = client
        self.ledger = Ledger(folder / f"{name}.jsonl")
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._guard, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def join(self, seconds: float) -> bool:
        if self._thread.ident is not None:  # else driven by the test itself, never started
            self._thread.join(seconds)
        return not self._thread.is_alive()

    def _guard(self) -> None:
        try:
            self.run()
        except BaseException as error:  # shown by Load.end: a dead worker is a failed test
            self.error = error
        finally:
            self.client.close()

    def run(self) -> None:
        raise AssertionError("a worker is a producer or a consumer")

    def attempt(
        self,
        operation: str,
        request: dict[str, object],
        *,
        on_ok: Callable[[dict[str, Any]], None],
        on_fail: Callable[[str], None],
        on_info: Callable[[str], None],
        wait_seconds: float = 0.0,
    ) -> bool:
        """One call and exactly one of the three ends; True when it was answered well."""
        invoked_at = now_ns()
        try:
            reply = self.client.call(operation, request, wait_seconds=wait_seconds)
        except Refused as error:
            on_fail(str(error))
            self.gate.wait_up()
            return False
        except Hanging as error:
            seconds = self.client.seconds + wait_seconds
            self.ledger.write(L.Hung(now_ns(), operation, seconds, invoked_at, error.where))
            on_info(str(error))
            return False
        except Unanswered as error:
            on_info(str(error))
            self.gate.wait_up()
            return False
        except Fault as error:
            (on_fail if error.is_definite else on_info)(str(error))
            if not error.is_definite:
                self.gate.wait_up()
            return False
        on_ok(reply)
        self.gate.count()
        return True


class Producer(Worker):
    def __init__(
        self,
        name: str,
        client: SqsClient,
        folder: Path,
        gate: Gate,
        seed: str,
        *,
        queue: Queue,
        run: str,
        groups: int = 0,
        payload_bytes: int | None = None,
    ) -> None:
        super().__init__(name, client, folder, gate, seed)
        self.queue = queue
        self.run_id = run
        self.payload_bytes = payload_bytes  # None: by chance
        self.groups = [f"{name}-g{number}" for number in range(groups)]
        self._seq = 0
        self._group_seqs = dict.fromkeys(self.groups, 0)

    def run(self) -> None:
        while not self.gate.stop_producing.is_set():
            self.send(self.chance.choice((1, 1, 1, 3, 10)))

    def send(self, count: int) -> None:
        """One call, repeated until answered where the queue knows a repeat when it sees one."""
        bodies = self.bodies(count)
        deadline = time.monotonic() + END_SECONDS_MAX
        while not self.call(bodies) and self.queue.is_fifo and time.monotonic() < deadline:
            pass

    def bodies(self, count: int) -> list[Body]:
        """New messages, all of one group."""
        group = self.chance.choice(self.groups) if self.groups else ""
        return [self._body(group) for _ in range(count)]

    def _body(self, group: str) -> Body:
        self._seq += 1
        group_seq = 0
        if group:
            group_seq = self._group_seqs[group] = self._group_seqs[group] + 1
        size = self.payload_bytes
        if size is None:
            size = min(int(self.chance.lognormvariate(5.0, 1.2)), 60_000)  # a median of 150 bytes
        payload = self.chance.randbytes(size // 2).hex()
        return Body(self.run_id, Key(self.name, self._seq), group, group_seq, payload)

    def call(self, bodies: Sequence[Body]) -> bool:
        """Send these once, and write down how it ended; True when all were taken."""
        at = now_ns()
        self.ledger.write(*(self._invoke(at, body) for body in bodies))
        if len(bodies) == 1:
            body = bodies[0]
            return self.attempt(
                "SendMessage",
                {"QueueUrl": self.queue.url, **self._entry(body)},
                on_ok=lambda reply: self.ledger.write(_ok(now_ns(), body.key, reply)),
                on_fail=lambda why: self.ledger.write(L.Fail(now_ns(), body.key, why)),
                on_info=lambda why: self.ledger.write(L.Info(now_ns(), body.key, why)),
            )
        entries = [{"Id": str(place), **self._entry(body)} for place, body in enumerate(bodies)]
        is_whole = True

        def note(reply: dict[str, Any]) -> None:
            nonlocal is_whole
            done_at = now_ns()
            for entry in reply.get("Successful", []):
                key = bodies[int(entry["Id"])].key
                self.ledger.write(_ok(done_at, key, entry))
            for entry in reply.get("Failed", []):
                is_whole = False
                key = bodies[int(entry["Id"])].key
                why = f"{entry.get('Code')}: {entry.get('Message')}"
                end = L.Fail if entry.get("SenderFault") else L.Info
                self.ledger.write(end(done_at, key, why))

        def note_all(end: type[L.Fail] | type[L.Info]) -> Callable[[str], None]:
            def write(why: str) -> None:
                self.ledger.write(*(end(now_ns(), body.key, why) for body in bodies))

            return write

        request: dict[str, object] = {"QueueUrl": self.queue.url, "Entries": entries}
        is_answered = self.attempt(
            "SendMessageBatch",
            request,
            on_ok=note,
            on_fail=note_all(L.Fail),
            on_info=note_all(L.Info),
        )
        return is_answered and is_whole

    def _invoke(self, at: int, body: Body) -> L.Invoke:
        dedup_id = f"{body.key.producer}-{body.key.seq}" if self.queue.is_fifo else ""
        return L.Invoke(at, body.key, self.queue.name, body.group, body.group_seq, dedup_id)

    def _entry(self, body: Body) -> dict[str, str]:
        entry = {"MessageBody": body.text()}
        if self.queue.is_fifo:
            entry["MessageGroupId"] = body.group
            entry["MessageDeduplicationId"] = f"{body.key.producer}-{body.key.seq}"
        return entry


class Consumer(Worker):
    def __init__(
        self,
        name: str,
        client: SqsClient,
        folder: Path,
        gate: Gate,
        seed: str,
        *,
        queue: Queue,
        run: str,
        drop_share: float = 0.03,
    ) -> None:
        super().__init__(name, client, folder, gate, seed)
        self.queue = queue
        self.run_id = run
        self.drop_share = drop_share
        self._calls = 0

    def run(self) -> None:
        while not self.gate.stop_consuming.is_set():
            lease_seconds = self.chance.choice(LEASE_SECONDS)
            got = self.receive(self.chance.choice((1, 10, 10)), lease_seconds)
            done = [each for each in got if self._is_done_with(each, lease_seconds)]
            if len(done) > 1 and self.chance.random() < 0.8:
                self.delete_batch(done)
            else:
                for each in done:
                    self.delete(each)

    def receive(self, count: int, lease_seconds: int) -> list[L.Recv]:
        """One long poll; what it gave is in the ledger before anything is done with it."""
        invoked_at = now_ns()
        self._calls += 1
        call = f"{self.name}-{self._calls}"
        got: list[L.Recv] = []
        self.ledger.write(L.RecvInvoke(invoked_at, call, self.queue.name, count))

        def note(reply: dict[str, Any]) -> None:
            at = now_ns()
            for place, message in enumerate(reply.get("Messages", [])):
                got.append(self._recv(at, invoked_at, call, place, message, lease_seconds * 1_000))
            if got:
                self.ledger.write(*got)
            else:
                self.ledger.write(L.RecvNone(at, invoked_at, self.queue.name, call))

        self.attempt(
            "ReceiveMessage",
            {
                "QueueUrl": self.queue.url,
                "MaxNumberOfMessages": count,
                "VisibilityTimeout": lease_seconds,
                "WaitTimeSeconds": WAIT_SECONDS,
                "AttributeNames": ["ApproximateReceiveCount", "SequenceNumber"],
            },
            on_ok=note,
            on_fail=lambda _: self.ledger.write(L.RecvFail(now_ns(), call)),
            on_info=lambda _: self.ledger.write(
                L.RecvInfo(now_ns(), invoked_at, self.queue.name, count, call)
            ),
            wait_seconds=WAIT_SECONDS,
        )
        return got

    def _recv(
        self,
        at: int,
        invoked_at: int,
        call: str,
        place: int,
        message: dict[str, Any],
        lease_ms: int,
    ) -> L.Recv:
        body = Body.parse(message["Body"])
        is_ours = body is not None and body.run == self.run_id
        return L.Recv(
            at,
            invoked_at,
            call,
            place,
            self.queue.name,
            message["MessageId"],
            message["ReceiptHandle"],
            int(message["Attributes"]["ApproximateReceiveCount"]),
            lease_ms,
            body.key if is_ours and body is not None else None,
            body.group if is_ours and body is not None else "",
            body.group_seq if is_ours and body is not None else 0,
            int(message["Attributes"].get("SequenceNumber", -1)),
        )

    def _is_done_with(self, got: L.Recv, lease_seconds: int) -> bool:
        """Most messages are; some are dropped, released, or kept for longer first."""
        dice = self.chance.random()
        if dice < self.drop_share:
            return False
        if dice < self.drop_share + 0.03:
            self.extend(got, 0)
            return False
        if dice < self.drop_share + 0.08:
            self.extend(got, lease_seconds + 1)
        return True

    def delete(self, got: L.Recv) -> bool:
        receipt = got.receipt
        self.ledger.write(L.DelInvoke(now_ns(), receipt, got.message_id))
        return self.attempt(
            "DeleteMessage",
            {"QueueUrl": self.queue.url, "ReceiptHandle": receipt},
            on_ok=lambda _: self.ledger.write(L.DelOk(now_ns(), receipt)),
            on_fail=lambda why: self.ledger.write(L.DelFail(now_ns(), receipt, why)),
            on_info=lambda why: self.ledger.write(L.DelInfo(now_ns(), receipt, why)),
        )

    def delete_batch(self, got: Sequence[L.Recv]) -> None:
        at = now_ns()
        self.ledger.write(*(L.DelInvoke(at, each.receipt, each.message_id) for each in got))

        def note(reply: dict[str, Any]) -> None:
            done_at = now_ns()
            for entry in reply.get("Successful", []):
                self.ledger.write(L.DelOk(done_at, got[int(entry["Id"])].receipt))
            for entry in reply.get("Failed", []):
                end = L.DelFail if entry.get("SenderFault") else L.DelInfo
                why = f"{entry.get('Code')}: {entry.get('Message')}"
                self.ledger.write(end(done_at, got[int(entry["Id"])].receipt, why))

        def note_all(end: type[L.DelFail] | type[L.DelInfo]) -> Callable[[str], None]:
            def write(why: str) -> None:
                self.ledger.write(*(end(now_ns(), each.receipt, why) for each in got))

            return write

        entries = [{"Id": str(n), "ReceiptHandle": each.receipt} for n, each in enumerate(got)]
        self.attempt(
            "DeleteMessageBatch",
            {"QueueUrl": self.queue.url, "Entries": entries},
            on_ok=note,
            on_fail=note_all(L.DelFail),
            on_info=note_all(L.DelInfo),
        )

    def extend(self, got: L.Recv, lease_seconds: int) -> bool:
        receipt = got.receipt
        self.ledger.write(L.ExtInvoke(now_ns(), receipt, got.message_id, lease_seconds * 1_000))
        return self.attempt(
            "ChangeMessageVisibility",
            {
                "QueueUrl": self.queue.url,
                "ReceiptHandle": receipt,
                "VisibilityTimeout": lease_seconds,
            },
            on_ok=lambda _: self.ledger.write(L.ExtOk(now_ns(), receipt)),
            on_fail=lambda why: self.ledger.write(L.ExtFail(now_ns(), receipt, why)),
            on_info=lambda why: self.ledger.write(L.ExtInfo(now_ns(), receipt, why)),
        )

    def counts(self) -> tuple[int, int, int]:
        """Visible, leased and delayed messages, as the queue itself counts them."""
        names = (
            "ApproximateNumberOfMessages",
            "ApproximateNumberOfMessagesNotVisible",
            "ApproximateNumberOfMessagesDelayed",
        )
        try:
            attributes = self.client.call(
                "GetQueueAttributes", {"QueueUrl": self.queue.url, "AttributeNames": list(names)}
            )["Attributes"]
        except (Fault, Refused, Unanswered):
            return UNKNOWN_COUNTS  # a queue that cannot say is not drained
        visible, in_flight, delayed = (int(attributes[name]) for name in names)
        return visible, in_flight, delayed


class Drainer(Consumer):
    """Takes and deletes until the queue is empty by its own word and by three empty polls, or
    nothing has moved for so long that it counts as stuck."""

    no_progress_seconds = NO_PROGRESS_SECONDS_MAX

    def run(self) -> None:
        empty_polls = 0
        progress_at = time.monotonic()
        counts = UNKNOWN_COUNTS
        while time.monotonic() - progress_at < self.no_progress_seconds:
            got = self.receive(10, DRAIN_LEASE_SECONDS)
            if got:
                self.delete_batch(got)
            empty_polls = 0 if got else empty_polls + 1
            if got:
                progress_at = time.monotonic()
            if empty_polls >= 3:
                counts = self.counts()
                if counts == (0, 0, 0):
                    break
        self.ledger.write(L.Drained(now_ns(), self.queue.name, *counts, empty_polls))


def _ok(at: int, key: Key, told: dict[str, Any]) -> L.Ok:
    """The answer to one send, or one entry of a batch's."""
    return L.Ok(at, key, told["MessageId"], int(told.get("SequenceNumber", -1)))


class Load:
    """A run: queues, workers over them, and the folder of their ledgers."""

    def __init__(
        self,
        port: int,
        folder: Path,
        *,
        seed: str,
        connect: Callable[[], SqsClient] | None = None,
    ) -> None:
        """``connect`` makes each worker's client, if not for the one server at ``port``."""
        self._connect = connect or (lambda: RawClient(port))
        self.folder = folder
        self.seed = seed
        self.gate = Gate()
        self.queues: list[Queue] = []
        self.workers: list[Worker] = []
        self.run_id = f"run-{seed}"
        self._circumstances = Ledger(folder / "circumstances.jsonl")

    def create_queue(self, name: str, **attributes: str) -> Queue:
        is_fifo = name.endswith(".fifo")
        client = self._connect()
        if is_fifo:
            attributes["FifoQueue"] = "true"
        reply = client.call("CreateQueue", {"QueueName": name, "Attributes": attributes})
        client.close()
        queue = Queue(name, reply["QueueUrl"], is_fifo)
        self.queues.append(queue)
        return queue

    def producer(
        self, name: str, queue: Queue, *, groups: int = 0, payload_bytes: int | None = None
    ) -> Producer:
        producer = Producer(
            name, self._connect(), self.folder, self.gate, self.seed,
            queue=queue, run=self.run_id, groups=groups, payload_bytes=payload_bytes,
        )  # fmt: skip
        self.workers.append(producer)
        return producer

    def consumer(self, name: str, queue: Queue, *, drop_share: float = 0.03) -> Consumer:
        consumer = Consumer(
            name, self._connect(), self.folder, self.gate, self.seed,
            queue=queue, run=self.run_id, drop_share=drop_share,
        )  # fmt: skip
        self.workers.append(consumer)
        return consumer

    def start(self) -> None:
        for worker in self.workers:
            worker.start()

    def note(self, event: L.AnyEvent) -> None:
        self._circumstances.write(event)

    @property
    def calls_open(self) -> int:
        return sum(1 for worker in self.workers if worker.client.is_calling)

    def end(self) -> None:
        """Stop producers, then consumers, then drain every queue; a worker that died raises."""
        self.gate.open()
        self.gate.stop_producing.set()
        self._join([worker for worker in self.workers if isinstance(worker, Producer)])
        self.gate.stop_consuming.set()
        self._join(self.workers)
        self.drain()

    def drain(self, *, no_progress_seconds: float = NO_PROGRESS_SECONDS_MAX) -> None:
        drainers = [
            Drainer(
                f"drain-{queue.name}", self._connect(), self.folder, self.gate, self.seed,
                queue=queue, run=self.run_id,
            )
            for queue in self.queues
        ]  # fmt: skip
        self.workers += drainers
        for drainer in drainers:
            drainer.no_progress_seconds = no_progress_seconds
            drainer.start()
        self._join(drainers, seconds_max=DRAIN_SECONDS_MAX)

    def _join(
        self, workers: Sequence[Worker], *, seconds_max: float = END_SECONDS_MAX + 30
    ) -> None:
        for worker in workers:
            assert worker.join(seconds_max), f"{worker.name} did not end"
            if worker.error is not None:
                raise worker.error

    def events(self) -> list[L.AnyEvent]:
        return L.read_ledgers(sorted(self.folder.glob("*.jsonl")))

    def close(self) -> None:
        """Let every thread go, also after a failure in the middle of a run."""
        self.gate.open()
        self.gate.stop_producing.set()
        self.gate.stop_consuming.set()
        self._circumstances.close()
        for worker in self.workers:
            if worker.join(5.0):
                worker.client.close()
                worker.ledger.close()
