"""docs/push.md, as somebody follows it who has never used webhooks: its programs and commands are
run as they stand, against a real server and the endpoint of the page."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.e2e.test_readme import ADDRESS, ROOT, blocks
from tests.harness.children import end_with_parent
from tests.harness.patience import eventually
from tests.harness.server import Server, penstock_command, stable_port

pytestmark = [pytest.mark.slow, pytest.mark.compat]

PAGE = (ROOT / "docs" / "push.md").read_text("utf-8")
SNS, ENDPOINT = blocks("python", PAGE)
HOST = "127.0.0.1:8000"
SECRET = re.compile(r"whsec_[A-Za-z0-9+/=]+")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("page") / "data", fsync="never") as running:
        yield running


def section(title: str) -> list[str]:
    """Return the shell blocks of a section."""
    found = re.search(rf"^### {title}\n(.*?)(?=^##)", PAGE, re.MULTILINE | re.DOTALL)
    assert found is not None
    return blocks("sh", found[1])


def test_the_program_with_topic_and_queue_runs(server: Server) -> None:
    program = SNS.replace(ADDRESS, server.url)
    assert program != SNS
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["Message"] == "apples: 2.10"


class Shell:
    def __init__(self, server: Server, host: str) -> None:
        programs = Path(penstock_command()).parent
        path = f"{programs}:{os.environ['PATH']}"
        self._env = {**os.environ, "PATH": path, "PENSTOCK_ENDPOINT": server.url}
        self._host = host
        self.hook = "ID"

    def run(self, lines: str) -> tuple[int, str]:
        """Return the exit code of the last line, and the output of all."""
        here = lines.replace(HOST, self._host).replace(" ID", f" {self.hook}")
        done = subprocess.run(["bash", "-c", here], capture_output=True, text=True, env=self._env)
        return done.returncode, done.stdout + done.stderr

    def rows(self) -> list[dict[str, object]]:
        _, text = self.run("penstock subscription deliveries ID -o ndjson")
        return [json.loads(line) for line in text.splitlines()]


@contextmanager
def started(program: Path, secret: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, str(program)],
        env={**os.environ, "SECRET": secret},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=end_with_parent(),
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def test_a_stranger_connects_an_endpoint_and_finds_a_failed_delivery(
    server: Server, tmp_path: Path
) -> None:
    create, use, _ = section("Connect and secure an endpoint")
    find, again = section("Find a failed delivery")
    port = stable_port()
    shell, program = Shell(server, f"127.0.0.1:{port}"), tmp_path / "endpoint.py"
    program.write_text(ENDPOINT.replace("8000", str(port)))
    code, text = shell.run(create)
    assert code == 0, text
    made = json.loads(text[text.rindex('{\n  "id"') : text.rindex("}") + 1])
    shell.hook, secret = made["id"], made["secret"]
    assert SECRET.fullmatch(secret)

    def is_tried(expected: int) -> bool:
        return shell.run("penstock subscription test ID --body hello")[0] == expected

    # A wrong secret: the endpoint rejects the requests, and the page says where to look.
    wrong = "whsec_" + "A" * 43 + "="
    with started(program, wrong):
        eventually(lambda: "401" in shell.run(use)[1], seconds=60, what="the endpoint replies")
        code, text = shell.run(find)
        assert code == 1, "the test of the last line fails"
        assert "HTTP status 401" in text
        assert "the endpoint did not accept the message" in text
    failed = next(row for row in shell.rows() if not row["is_test"])
    assert (failed["outcome"], failed["status"]) in (("retry", 401), ("retry", 0))
    with started(program, secret) as process:
        eventually(lambda: is_tried(0), seconds=60, what="the endpoint accepts the signature")
        code, text = shell.run(again.replace(" 17", f" {failed['offset']}"))
        assert code == 0, text
        assert '"is_delivered": true' in text
        assert process.stdout is not None
        for line in process.stdout:
            if "one order" in line:
                break
