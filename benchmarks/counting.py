"""``python benchmarks/counting.py [signed]``: Python calls and opcodes per SendMessage, as JSON.

Unlike processor time, these counts are the same on a busy machine. The server runs in a thread of
this process; ``PYTHONPATH`` says which revision of it. ``signed``: with signatures, policies,
limits and usage; otherwise with authentication off."""

import asyncio
import http.client
import json
import os
import socket
import sys
import tempfile
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any

import uvloop

from penstock.node.compose import make_node
from penstock.node.configuration import config as node_config
from penstock.wire.aws.signer import Credentials, Signer

WARM_UP, SENDS = 300, 500
ROOT_KEY = Credentials("PENSTOCKBENCHROOTKEY", "root-secret-of-the-benchmark-0123456789")
EVERYTHING = {
    "Version": "2012-10-17",
    "Statement": [{"Effect": "Allow", "Action": "*", "Resource": "*"}],
}
WIDE = {"per_s": 1e9, "burst": 1e9}


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


def serve(
    counter: Counter,
    folder: Path,
    ready: list[str],
    is_ready: threading.Event,
    *,
    admin_host: str,
    is_signed: bool,
) -> None:
    secret = folder / "secret"
    secret.write_text(ROOT_KEY.secret)
    secret.chmod(0o600)
    os.environ["PENSTOCK_ROOT_KEY_ID"] = ROOT_KEY.key_id
    os.environ["PENSTOCK_ROOT_SECRET_FILE"] = str(secret)

    async def run() -> None:
        settings = {
            "node.data": str(folder / "data"),
            "log.fsync": "never",
            "auth.mode": "on" if is_signed else "off",
            "http.listen": "127.0.0.1:0",
            "kafka.listen": "127.0.0.1:0",
            "admin.listen": admin_host,
        }
        node = make_node(node_config.load(settings, {}))
        await node.start(asyncio.Event())
        ready.append(node.http_url.partition("//")[2].strip("/"))
        is_ready.set()
        await asyncio.Event().wait()

    sys.settrace(counter.trace)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())


def tenant_key(host: str) -> Credentials:
    """The key of a user of a new tenant, who may do everything within limits nobody reaches."""
    connection = http.client.HTTPConnection(host)
    headers = {"content-type": "application/json"}

    def ask(method: str, path: str, **fields: Any) -> Any:
        connection.request(method, f"/api/v1/{path}", json.dumps(fields).encode(), headers)
        return json.loads(connection.getresponse().read() or b"null")

    login = ask("POST", "login", key_id=ROOT_KEY.key_id, secret=ROOT_KEY.secret)
    headers["authorization"] = f"Bearer {login['token']}"
    ask("POST", "tenants", name="acme")
    ask("POST", "users", name="ann", tenant="acme", policies={"all": json.dumps(EVERYTHING)})
    made = ask("POST", "keys", user="ann", tenant="acme")
    ask("PATCH", "quotas/acme", limits={"tenant_requests": WIDE, "tenant_bytes": WIDE})
    return Credentials(made["key_id"], made["secret"])


def main(*, is_signed: bool) -> None:
    counter, ready, is_ready = Counter(), list[str](), threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as free:
        admin_host = f"127.0.0.1:{free.getsockname()[1]}"
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        threading.Thread(
            target=serve,
            args=(counter, Path(folder), ready, is_ready),
            kwargs={"admin_host": admin_host, "is_signed": is_signed},
            daemon=True,
        ).start()
        assert is_ready.wait(120), "the server did not start"
        [host] = ready
        connection = http.client.HTTPConnection(host)
        signer = Signer(tenant_key(admin_host) if is_signed else ROOT_KEY, region="us-east-1")

        def call(operation: str, **fields: str) -> Any:
            body = json.dumps(fields).encode()
            headers = signer.sign(
                host=host,
                path="/",
                headers={
                    "content-type": "application/x-amz-json-1.0",
                    "x-amz-target": f"AmazonSQS.{operation}",
                },
                body=body,
                timestamp=time.strftime("%Y%m%dT%H%M%SZ", time.gmtime()),
            )
            connection.request("POST", "/", body, headers)
            return json.loads(connection.getresponse().read())

        url = call("CreateQueue", QueueName="q")["QueueUrl"]
        for number in range(WARM_UP + SENDS):
            counter.is_on = number >= WARM_UP
            call("SendMessage", QueueUrl=url, MessageBody="x" * 200)
        counter.is_on = False
    counts = {"calls": counter.calls / SENDS, "opcodes": counter.opcodes / SENDS}
    print(json.dumps(counts), flush=True)


if __name__ == "__main__":
    main(is_signed=sys.argv[1:] == ["signed"])
