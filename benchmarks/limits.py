"""``python -m benchmarks.limits``: what it costs to know who asks, to count it and to seal it, and
what one tenant feels of another. Prints a table with bars; some five minutes.

* Who may, how fast, how much: sends on a server that checks signatures, policies and limits and
  counts what is used, against the same program with all of that off.
* Encryption: sends of 1 KiB to a queue that is sealed, against one that is not.
* Long polls: memory with ten thousand of them parked, and the rate of sends meanwhile.
* A flood: one tenant asks at ten times its limit; what that does to another's sends.
* Scrubbing: what sends feel of a server that reads over its logs all the time.

Each pair takes turns on the same machine, so that whatever changes meanwhile falls on both; figures
are medians of the rounds. The load is ``load.py``'s, with requests that are signed beforehand."""

import argparse
import http.client
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec

from benchmarks import machine, proc
from benchmarks.crowd import Answered, Crowd
from benchmarks.load import Job, Result
from benchmarks.scenarios import ROOT, LoadFailed, Timing, job_for, run_load, settle_disk
from benchmarks.server import Server, free_port
from benchmarks.systems.penstock import PROGRAM
from penstock.wire.aws.signer import Credentials, Signer

HERE = Path(__file__).parent
ROOT_KEY: Final = Credentials("PENSTOCKBENCHROOTKEY", "root-secret-of-the-benchmark-0123456789")
ADMIN_POLICY: Final = {
    "Version": "2012-10-17",
    "Statement": [{"Effect": "Allow", "Action": "*", "Resource": "*"}],
}
REGION: Final = "us-east-1"
ACCOUNT: Final = "000000000000"
DISTINCT: Final = 3_000
CONNECTIONS: Final = 32
SEALED_BODY_BYTES: Final = 1_024
POLLS: Final = 10_000
POLLED_QUEUES: Final = 20
QUIET_RATE: Final = 500
NOISY_LIMIT: Final = 200
FLOOD_FACTOR: Final = 10
FLOOD_CLIENTS: Final = 32
CALL_S_MAX: Final = 30.0

COST_MAX, SEAL_COST_MAX = 0.25, 0.15
POLLS_RSS_MAX_MB, POLLS_RATE_MIN = 300.0, 0.8
FLOOD_P99_MAX = 0.20
SCRUB_P99_MAX = 0.20
SCRUBBED_MB_MIN = 16
CASES: Final = ("guard", "sealing", "polls", "flood", "scrubbing")


class Row(msgspec.Struct, frozen=True):
    title: str
    value: str
    bar: str
    is_met: bool


class Options(msgspec.Struct, frozen=True):
    rounds: int
    window_s: float
    tail_rounds: int  # where a p99 is compared: it is some twenty requests of a round
    polls: int


class Node:
    """A server, asked as its operator."""

    def __init__(
        self,
        folder: Path,
        cores: set[int],
        *,
        is_guarded: bool,
        settings: Mapping[str, str] | None = None,
        program: Sequence[str] = (str(PROGRAM),),
    ) -> None:
        folder.mkdir(parents=True)
        self._admin_port = free_port()
        secret = folder / "secret"
        secret.write_text(ROOT_KEY.secret)
        secret.chmod(0o600)
        command = [*program, "serve", "--data", str(folder / "data"), "--fsync", "never"]
        command += ["--http", "127.0.0.1:0", "--admin", f"127.0.0.1:{self._admin_port}"]
        command += ["--auth", "on" if is_guarded else "off"]
        env = {"PENSTOCK_KAFKA__LISTEN": "off", **(settings or {})}
        if is_guarded:
            env |= {
                "PENSTOCK_ROOT_KEY_ID": ROOT_KEY.key_id,
                "PENSTOCK_ROOT_SECRET_FILE": str(secret),
            }
        else:
            env["PENSTOCK_USAGE__ENABLED"] = "false"
        self.server = Server(command, env=env, cores=cores, folder=folder)
        self.server.wait_for_line()
        self._token = ""
        if is_guarded:
            login = {"key_id": ROOT_KEY.key_id, "secret": ROOT_KEY.secret}
            self._token = str(self.admin("POST", "login", login)["token"])

    def admin(self, method: str, path: str, body: object) -> Any:
        headers = {"content-type": "application/json"}
        if self._token:
            headers["authorization"] = f"Bearer {self._token}"
        data = json.dumps(body).encode()
        return _exchange(self._admin_port, method, f"/api/v1/{path}", data, headers)

    def metric(self, name: str) -> float:
        connection = http.client.HTTPConnection("127.0.0.1", self._admin_port, timeout=CALL_S_MAX)
        try:
            connection.request("GET", "/metrics")
            lines = connection.getresponse().read().decode().splitlines()
        finally:
            connection.close()
        return next(float(line.split()[1]) for line in lines if line.startswith(f"{name} "))

    def tenant(self, name: str, **limits: Mapping[str, float]) -> Credentials:
        """A tenant with one user who may do everything."""
        self.admin("POST", "tenants", {"name": name})
        user = {"name": "ann", "tenant": name, "policies": {"all": json.dumps(ADMIN_POLICY)}}
        self.admin("POST", "users", user)
        made = self.admin("POST", "keys", {"user": "ann", "tenant": name})
        if limits:
            self.admin("PATCH", f"quotas/{name}", {"limits": limits})
        return Credentials(made["key_id"], made["secret"])

    def queue(self, name: str, key: Credentials = ROOT_KEY, **attributes: str) -> str:
        body = json.dumps({"QueueName": name, "Attributes": attributes}).encode()
        headers = Signer(key, region=REGION).sign(
            host=f"{self.server.host}:{self.server.port}",
            path="/",
            headers={
                "content-type": "application/x-amz-json-1.0",
                "x-amz-target": "AmazonSQS.CreateQueue",
            },
            body=body,
            timestamp=time.strftime("%Y%m%dT%H%M%SZ", time.gmtime()),
        )
        del headers["host"]
        return str(_exchange(self.server.port, "POST", "/", body, headers)["QueueUrl"])


def _exchange(port: int, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> Any:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=CALL_S_MAX)
    try:
        connection.request(method, path, body, dict(headers))
        reply = connection.getresponse()
        text = reply.read()
    finally:
        connection.close()
    if reply.status >= 300:
        raise LoadFailed(f"{method} {path}: {reply.status} {text[:300]!r}")
    return json.loads(text) if text else {}


class Bench:
    def __init__(self, options: Options, folder: Path) -> None:
        self._options = options
        self._folder = folder
        self._server_cores, self._load_cores = proc.split_cores()
        self._timing = Timing(
            warm_up_s=0.5, window_s=options.window_s, connections=CONNECTIONS, body_bytes=256
        )

    @contextmanager
    def _node(self, name: str, *, is_guarded: bool, **settings: str) -> Iterator[Node]:
        node = Node(
            self._folder / name, self._server_cores, is_guarded=is_guarded, settings=settings
        )
        try:
            yield node
        finally:
            node.server.stop()

    def _load(self, node: Node, queue_url: str, key: Credentials, **more: object) -> Result:
        job: Job = job_for(
            node.server,
            self._timing,
            self._load_cores,
            queue_url=queue_url,
            scenario="send",
            key_id=key.key_id,
            secret=key.secret,
            distinct=DISTINCT,
        )
        settle_disk()
        result = run_load(msgspec.structs.replace(job, **more))
        if result.faults or not result.messages:
            raise LoadFailed(result.first_fault or "nothing was sent")
        return result

    @contextmanager
    def _crowd(self, node: Node, queue_urls: list[str], **more: object) -> Iterator[list[Answered]]:
        """Clients in the background; what they were answered is told when they have ended."""
        server = node.server
        job = Crowd(
            host=server.host,
            port=server.port,
            queue_urls=queue_urls,
            kind="",
            clients=0,
            cores=sorted(self._load_cores),
        )
        process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.crowd"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        told: list[Answered] = []
        try:
            process.stdin.write(msgspec.json.encode(msgspec.structs.replace(job, **more)) + b"\n")
            process.stdin.flush()
            if process.stdout.readline() != b"ready\n":
                raise LoadFailed("the crowd did not come")
            yield told
            process.stdin.close()
            told.append(msgspec.json.decode(process.stdout.readline(), type=Answered))
            process.wait(CALL_S_MAX)
        finally:
            process.kill()
            process.wait(CALL_S_MAX)
            process.stdout.close()

    # ── What is measured ─────────────────────────────────────────────────────────────────────

    def guard(self) -> list[Row]:
        """Signatures, policies, limits and usage, against none of them."""
        wide = {"per_s": 1e9, "burst": 1e9}
        with ExitStack() as nodes:
            free = nodes.enter_context(self._node("free", is_guarded=False))
            guarded = nodes.enter_context(self._node("guarded", is_guarded=True))
            key = guarded.tenant("acme", tenant_requests=wide, tenant_bytes=wide)
            free_url, guarded_url = free.queue("q"), guarded.queue("q", key)
            without, with_all = [], []
            for _ in range(self._options.rounds):
                without.append(self._load(free, free_url, ROOT_KEY))
                with_all.append(self._load(guarded, guarded_url, key))
        return [self._cost("signature + policy + limits + usage", without, with_all, COST_MAX)]

    def sealing(self) -> list[Row]:
        with self._node("sealing", is_guarded=False) as node:
            plain = node.queue("plain", SqsManagedSseEnabled="false")
            sealed = node.queue("sealed", SqsManagedSseEnabled="true")
            without: list[Result] = []
            with_all: list[Result] = []
            for _ in range(self._options.rounds):
                for url, results in ((plain, without), (sealed, with_all)):
                    results.append(self._load(node, url, ROOT_KEY, body_bytes=SEALED_BODY_BYTES))
        return [self._cost("encryption, 1 KiB", without, with_all, SEAL_COST_MAX)]

    def polls(self) -> list[Row]:
        count = self._options.polls
        with self._node("polls", is_guarded=False) as node:
            url = node.queue("sends")
            urls = [node.queue(f"polled-{number}") for number in range(POLLED_QUEUES)]
            alone = [self._load(node, url, ROOT_KEY) for _ in range(self._options.rounds)]
            with self._crowd(node, urls, kind="polls", clients=count) as told:
                together = [self._load(node, url, ROOT_KEY) for _ in range(self._options.rounds)]
                rss_mb = node.server.rss_bytes() / 1e6
        [answered] = told
        if answered.refused or answered.lost:
            raise LoadFailed(f"{answered.refused} polls were refused, {answered.lost} lost")
        ratio = rate_of(together) / rate_of(alone)
        return [
            Row(
                f"memory with {count:,} long polls",
                f"{rss_mb:.0f} MB",
                f"< {POLLS_RSS_MAX_MB:.0f} MB",
                rss_mb < POLLS_RSS_MAX_MB,
            ),
            Row(
                f"sends beside {count:,} long polls",
                f"{ratio:.2f} of {rate_of(alone):,.0f}/s",
                f"≥ {POLLS_RATE_MIN}",
                ratio >= POLLS_RATE_MIN,
            ),
        ]

    def flood(self) -> list[Row]:
        """The noisy tenant asks in both cases: at its limit, and at ten times of it."""
        limit = {"per_s": NOISY_LIMIT, "burst": NOISY_LIMIT}
        with self._node("flood", is_guarded=True) as node:
            quiet, noisy = node.tenant("quiet"), node.tenant("noisy", tenant_requests=limit)
            url, noisy_url = node.queue("q", quiet), node.queue("q", noisy)
            p99s: dict[int, list[int]] = {1: [], FLOOD_FACTOR: []}
            refused = 0
            for _ in range(self._options.tail_rounds):
                for factor, found in p99s.items():
                    with self._crowd(
                        node,
                        [noisy_url],
                        kind="flood",
                        clients=FLOOD_CLIENTS,
                        rate=NOISY_LIMIT * factor,
                        key_id=noisy.key_id,
                        secret=noisy.secret,
                    ) as told:
                        paced = {"scenario": "end_to_end", "rate": QUIET_RATE, "warm_up_s": 1.0}
                        found.append(self._load(node, url, quiet, **paced).latencies["send"].p99_us)
                    refused += told[0].refused if factor != 1 else 0
            if not refused:
                raise LoadFailed("the flood was not held back")
        title = f"p99 of a quiet tenant while another floods at {FLOOD_FACTOR}× its limit"
        return [self._tail(title, p99s[1], p99s[FLOOD_FACTOR], FLOOD_P99_MAX)]

    def scrubbing(self) -> list[Row]:
        """At the rate that is the default, but without an end; over small messages, which are most
        work to read over."""
        off = {"PENSTOCK_LOG__SCRUB_BYTES_PER_SECOND": "0"}
        on = {"PENSTOCK_LOG__SCRUB_INTERVAL_MS": "1000"}
        with ExitStack() as nodes:
            pair = [
                nodes.enter_context(self._node(name, is_guarded=False, **settings))
                for name, settings in (("resting", off), ("scrubbing", on))
            ]
            urls = [node.queue("q") for node in pair]
            for node in pair:
                url = node.queue("filled")
                while node.metric("penstock_log_size_bytes") < SCRUBBED_MB_MIN * 1e6:
                    self._load(node, url, ROOT_KEY)
            p99s: tuple[list[int], list[int]] = ([], [])
            paced = {"scenario": "end_to_end", "rate": QUIET_RATE, "warm_up_s": 1.0}
            before = pair[1].metric("penstock_scrubbed_bytes_total")
            for _ in range(self._options.tail_rounds):
                for node, url, found in zip(pair, urls, p99s, strict=True):
                    with stopped(*(other for other in pair if other is not node)):
                        result = self._load(node, url, ROOT_KEY, **paced)
                    found.append(result.latencies["send"].p99_us)
            if pair[1].metric("penstock_scrubbed_bytes_total") == before:
                raise LoadFailed("nothing was read over")
        return [self._tail("p99 of sends while logs are read over", *p99s, SCRUB_P99_MAX)]

    def _tail(self, title: str, without: list[int], with_it: list[int], most: float) -> Row:
        """What else takes the processor away only ever adds, and at a p99 a few milliseconds of it
        are all that is seen: so the quieter rounds of each are compared."""
        before, after = quieter(without), quieter(with_it)
        middle = [statistics.median(each) / 1e3 for each in (without, with_it)]
        change = after / before - 1
        return Row(
            title,
            f"{change:+.0%}: {before / 1e3:.2f} → {after / 1e3:.2f} ms in the quieter rounds"
            f" ({middle[0]:.2f} → {middle[1]:.2f} in the middle ones)",
            f"≤ +{most:.0%}",
            change <= most,
        )

    def _cost(self, title: str, without: list[Result], with_it: list[Result], most: float) -> Row:
        cost = 1 - rate_of(with_it) / rate_of(without)
        cpu = [statistics.median(r.server_cpu_us for r in each) for each in (without, with_it)]
        shown = f"{cost:.0%}: {rate_of(without):,.0f} → {rate_of(with_it):,.0f}/s"
        return Row(
            f"cost of {title}",
            f"{shown}, {cpu[0]:.1f} → {cpu[1]:.1f} µs of processor",
            f"≤ {most:.0%}",
            cost <= most,
        )


@contextmanager
def stopped(*nodes: Node) -> Iterator[None]:
    """They share a core with the one that is measured."""
    for node in nodes:
        os.kill(node.server.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for node in nodes:
            os.kill(node.server.pid, signal.SIGCONT)


def quieter(values: list[int]) -> int:
    return sorted(values)[len(values) // 4]


def rate_of(results: list[Result]) -> float:
    return statistics.median(result.messages_per_s for result in results)


def table(rows: list[Row]) -> str:
    lines = ["| what | measured | bar | |", "| --- | --- | --- | --- |"]
    lines += [
        f"| {row.title} | {row.value} | {row.bar} | {'met' if row.is_met else '**missed**'} |"
        for row in rows
    ]
    return "\n".join(lines)


def parse(arguments: list[str]) -> tuple[Options, list[str], Path]:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.limits", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one short round: does it all run?")
    parser.add_argument("--only", default="", help=f"of {', '.join(CASES)}; commas between")
    parser.add_argument("--data", type=Path, default=HERE / ".data", help="where servers write")
    given = parser.parse_args(arguments)
    options = Options(1, 1.0, 1, 1_000) if given.quick else Options(3, 3.5, 12, POLLS)
    only = [name for name in given.only.split(",") if name] or list(CASES)
    if strange := set(only) - set(CASES):
        parser.error(f"no such case: {', '.join(sorted(strange))}")
    return options, only, given.data


def main() -> int:
    options, only, data = parse(sys.argv[1:])
    data.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(dir=data, prefix="limits-"))
    print(machine.describe(folder).title, flush=True)
    bench = Bench(options, folder)
    rows: list[Row] = []
    try:
        for name in only:
            started = time.perf_counter()
            rows += getattr(bench, name)()
            print(f"{name}: {time.perf_counter() - started:.0f} s", file=sys.stderr, flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(table(rows))
    return 0 if all(row.is_met for row in rows) else 1


if __name__ == "__main__":
    os.chdir(ROOT)
    sys.exit(main())
