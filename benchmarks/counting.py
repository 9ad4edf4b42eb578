"""``python benchmarks/counting.py``: Python calls and opcodes per SendMessage, as JSON.

Unlike processor time, these counts are the same on a busy machine. The server runs in a thread of
this process, with authentication off; ``PYTHONPATH`` says which revision of it."""

import asyncio
import http.client
import json
import sys
import tempfile
import threading
from types import FrameType
from typing import Any

import uvloop

from penstock.node import config as node_config
from penstock.node.compose import make_node

WARM_UP, SENDS = 300, 500
AUTHORIZATION = (
    "AWS4-HMAC-SHA256 Credential=AK/20260101/us-east-1/sqs/aws4_request, SignedHeaders=host,"
    " Signature=x"
)


class Counter:
    def __init__(self) -> None:
        self.is_on = False
        self.calls = 0
        self.opcodes = 0

    def trace(self, frame: FrameType, event: str, _arg: Any) -> Any:
        """For ``sys.settrace``. A coroutine that goes on after an await is a call too."""
        frame.f_trace_lines = False
        frame.f_trace_opcodes = True
        if self.is_on:
            self.calls += event == "call"
            self.opcodes += event == "opcode"
        return self.trace


def serve(counter: Counter, folder: str, ready: "list[str]", is_ready: threading.Event) -> None:
    async def run() -> None:
        addresses = dict.fromkeys(("http.listen", "kafka.listen", "admin.listen"), "127.0.0.1:0")
        settings = {"node.data": folder, "log.fsync": "never", "auth.mode": "off", **addresses}
        node = make_node(node_config.load(settings, {}))
        await node.start(asyncio.Event())
        ready.append(node.http_url)
        is_ready.set()
        await asyncio.Event().wait()

    sys.settrace(counter.trace)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())


def main() -> None:
    counter, ready, is_ready = Counter(), list[str](), threading.Event()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        given = (counter, folder, ready, is_ready)
        threading.Thread(target=serve, args=given, daemon=True).start()
        assert is_ready.wait(120), "the server did not start"
        connection = http.client.HTTPConnection(ready[0].partition("//")[2].strip("/"))

        def call(operation: str, **fields: str) -> Any:
            headers = {
                "Content-Type": "application/x-amz-json-1.0",
                "X-Amz-Target": f"AmazonSQS.{operation}",
                "Authorization": AUTHORIZATION,
            }
            connection.request("POST", "/", json.dumps(fields).encode(), headers)
            return json.loads(connection.getresponse().read())

        url = call("CreateQueue", QueueName="q")["QueueUrl"]
        for number in range(WARM_UP + SENDS):
            counter.is_on = number >= WARM_UP
            call("SendMessage", QueueUrl=url, MessageBody="x" * 200)
        counter.is_on = False
    counts = {"calls": counter.calls / SENDS, "opcodes": counter.opcodes / SENDS}
    print(json.dumps(counts), flush=True)


if __name__ == "__main__":
    main()
