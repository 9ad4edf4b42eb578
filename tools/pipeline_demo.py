"""The pipeline against a running server, from messages to a page: ``make pipeline-demo``.

    make run                # in one terminal
    make pipeline-demo      # in another

Every step is a command of ``penstock`` that is printed before it runs, so that each can be tried
again by hand. Messages are sent only if the server has few. Nothing of what is there is changed or
deleted: queue and topic of the demo have names of their own, tables and pages go to one folder.
"""

import argparse
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

QUEUE, TOPIC = "demo-orders", "demo-clicks"
MESSAGES = 2_000
FEW = 500  # messages in all; with more there is enough to look at
WRITTEN_SECONDS_MAX = 60.0  # a server writes usage every five seconds, telemetry every ten
# For jobs of seconds a second compiler, more collectors and queries compiled to Java code
# cost more than they save.
SHORT = (
    "spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.codegen.wholeStage=false",
    "spark.sql.codegen.factoryMode=NO_CODEGEN",
)
RATES = """\
# Prices are millionths: of a million requests, of 10^9 bytes, of 10^9 bytes for a month.
currency = "EUR"

[[version]]
valid_from = 2020-01-01
requests_by = "units64k"
bills_refused = false
free_requests = 0
bytes_out_micros = 90_000
storage_micros = 23_000
[version.request_micros]
send = 400_000
other = 100_000
[version.classes]
send = ["sqs:SendMessage", "kafka:Write"]
"""


class DemoFailed(Exception):
    """The text is for people."""


class Demo:
    def __init__(self, folder: Path, penstock: str) -> None:
        self._folder = folder
        self._penstock = penstock
        self._lake = folder / "lake"

    def run(self) -> None:
        self._check_server()
        self._folder.mkdir(parents=True, exist_ok=True)
        self._send()
        rates = self._folder / "rates.toml"
        rates.write_text(RATES)
        lake = ("--lake", str(self._lake))
        for job, *options in (
            ("usage",),
            ("billing", "--rates", str(rates)),
            ("archive", "--topics", f"{QUEUE},{TOPIC}"),
            ("telemetry", "--grace", "0"),
        ):
            short = (word for setting in SHORT for word in ("--conf", setting))
            self._do("pipeline", "run", job, *lake, *options, *short)
        for name in ("usage", "billing", "hotspots", "invoice"):
            self._do("pipeline", "report", name, *lake, "--out", f"{self._folder}/")
        self._tell(sorted(self._folder.glob("penstock-*.html")), rates)

    # ── Steps ────────────────────────────────────────────────────────────────────────────────

    def _check_server(self) -> None:
        done = self._ask("queue", "list")
        if done.returncode:
            raise DemoFailed(f"{done.stderr.strip()}\n\nThe demo needs a server: `make run` first.")

    def _send(self) -> None:
        names = self._names()
        if QUEUE not in names:
            self._do("queue", "create", QUEUE)
        topics = [row["name"] for row in self._rows("topic", "list")]
        if TOPIC not in topics:
            self._do("topic", "create", TOPIC, "--partitions", "2")
        if self._sent() >= FEW:
            print(f"The server has more than {FEW} messages; none are sent.", flush=True)
            return
        before = self._used()
        lines = [
            json.dumps({"order": number, "item": f"item {number % 40}", "amount": number % 90})
            for number in range(MESSAGES)
        ]
        self._do("message", "send", QUEUE, "-", stdin="\n".join(lines))
        self._do("message", "send", "--topic", TOPIC, stdin="\n".join(lines))
        self._do("message", "receive", QUEUE, "-n", "200", "--delete", is_shown=False)
        self._wait_for_usage(before + 2 * MESSAGES)

    def _names(self) -> list[str]:
        return [row["name"] for row in self._rows("queue", "list")]

    def _sent(self) -> int:
        """Messages in queues; what was sent only to topics is not counted, and need not be."""
        return sum(
            row.get("visible", 0) + row.get("acked", 0) for row in self._rows("queue", "stats")
        )

    def _used(self) -> int:
        """Messages that the server has told of as sent."""
        done = self._ask("usage", "report")
        if done.returncode:
            return 0  # nothing was told yet
        rows = _objects(done.stdout)
        return sum(
            row["messages"] for row in rows if row["op"] in ("sqs:SendMessage", "kafka:Write")
        )

    def _wait_for_usage(self, messages: int) -> None:
        print("Waiting until the server has written down what was used …", flush=True)
        deadline = time.monotonic() + WRITTEN_SECONDS_MAX
        while self._used() < messages:
            if time.monotonic() > deadline:
                raise DemoFailed(
                    "the server has not told of these messages: is usage.enabled switched off?"
                )
            time.sleep(0.5)

    def _tell(self, pages: Sequence[Path], rates: Path) -> None:
        print("\nTables (Delta; any Delta reader opens them):")
        for log in sorted(self._lake.glob("**/_delta_log")):
            print(f"  {log.parent}")
        print(f"Prices:\n  {rates}")
        print("Pages, for a browser:")
        for page in pages:
            print(f"  {page.as_uri()}")

    # ── Commands ─────────────────────────────────────────────────────────────────────────────

    def _do(self, *arguments: str, stdin: str | None = None, is_shown: bool = True) -> None:
        """Print a command and run it where the user sees it."""
        print(f"\n$ penstock {shlex.join(arguments)}", flush=True)
        done = subprocess.run(
            [self._penstock, *arguments],
            input=stdin,
            text=True,
            check=False,
            stdout=None if is_shown else subprocess.DEVNULL,
            stdin=subprocess.DEVNULL if stdin is None else None,
        )
        if done.returncode:
            raise DemoFailed(f"`penstock {shlex.join(arguments)}` ended with {done.returncode}")

    def _ask(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [self._penstock, "-o", "ndjson", *arguments]
        return subprocess.run(
            command, text=True, check=False, capture_output=True, stdin=subprocess.DEVNULL
        )

    def _rows(self, *arguments: str) -> list[dict[str, Any]]:
        done = self._ask(*arguments)
        if done.returncode:
            raise DemoFailed(done.stderr.strip())
        return _objects(done.stdout)


def _objects(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines() if line.strip()]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--folder", type=Path, default=Path("penstock-demo"), help="of all results")
    parser.add_argument("--endpoint", help="of the server, if it is not the default")
    options = parser.parse_args()
    if options.endpoint:
        os.environ["PENSTOCK_ENDPOINT"] = options.endpoint
    penstock = Path(sys.executable).with_name("penstock")
    try:
        Demo(options.folder.absolute(), str(penstock)).run()
    except DemoFailed as error:
        print(f"\n{error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
