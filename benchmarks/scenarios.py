"""What is measured on a running server, one scenario after another, each on a queue of its own."""

import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from benchmarks.load import Job, Result
from benchmarks.requests import RequestMaker
from benchmarks.server import Server

ROOT = Path(__file__).parents[1]
SPARE_S = 60.0  # a load process that takes so much longer than its window is ended
CALL_S_MAX = 30.0
PREFILL_SHARE = 0.4  # of the time that will be read; batches fill faster than single reads drain
PREFILL_MAX = 400_000
PACED_RATE = 1_000
# Longer than any run, so that no message comes back while it is measured.
VISIBILITY_S = 3_600


class LoadFailed(Exception):
    """The load process, or the server under it, did not do its part."""


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    title: str
    fill: str = ""  # the script that fills the queue beforehand
    is_fifo: bool = False
    on_bare: bool = False  # the bare listener can be asked this too
    headline: str  # the latency shown for it


SCENARIOS: Mapping[str, Scenario] = {
    scenario.name: scenario
    for scenario in (
        Scenario(name="send", title="send", on_bare=True, headline="send"),
        Scenario(
            name="receive_delete",
            title="receive + delete, one message",
            fill="send_batch",
            headline="receive",
        ),
        Scenario(
            name="send_batch", title="send, batches of 10", on_bare=True, headline="send batch"
        ),
        Scenario(
            name="receive_delete_batch",
            title="receive + delete, batches of 10",
            fill="send_batch",
            headline="receive batch",
        ),
        Scenario(name="fifo_send", title="FIFO send", is_fifo=True, headline="fifo send"),
        Scenario(
            name="fifo_receive_delete",
            title="FIFO receive + delete",
            fill="fifo_send_batch",
            is_fifo=True,
            headline="receive",
        ),
        Scenario(name="end_to_end", title="end to end at 1,000 msg/s", headline="end to end"),
    )
}
SCRIPT_OF = {"fifo_receive_delete": "receive_delete"}


class Timing(msgspec.Struct, frozen=True):
    warm_up_s: float = 1.0
    window_s: float = 4.0
    connections: int = 32
    body_bytes: int = 256


def call(server: Server, action: str, body: Mapping[str, object]) -> dict[str, object]:
    """One request outside of any measurement."""
    maker = RequestMaker(server.host, server.port, stamp="20260101T000000Z")
    head, _, data = maker.make(action, msgspec.json.encode(body)).partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")[1:]
    headers = dict(line.split(": ", 1) for line in lines)
    request = urllib.request.Request(f"http://{server.host}:{server.port}/", data, headers)
    try:
        with urllib.request.urlopen(request, timeout=CALL_S_MAX) as reply:
            text: bytes = reply.read()
    except urllib.error.HTTPError as error:
        raise LoadFailed(f"{action}: {error.code} {error.read(300)!r}") from error
    except OSError as error:
        raise LoadFailed(f"{action}: {error}") from error
    answer: dict[str, object] = msgspec.json.decode(text) if text else {}
    return answer


def create_queue(server: Server, name: str, *, is_fifo: bool = False) -> str:
    attributes = {"VisibilityTimeout": str(VISIBILITY_S)}
    if is_fifo:
        attributes["FifoQueue"] = "true"
        name += ".fifo"
    answer = call(server, "CreateQueue", {"QueueName": name, "Attributes": attributes})
    return str(answer["QueueUrl"])


def delete_queue(server: Server, queue_url: str) -> None:
    call(server, "DeleteQueue", {"QueueUrl": queue_url})


def run_load(job: Job) -> Result:
    """Run the load generator as a process of its own."""
    seconds_max = job.warm_up_s + job.window_s + SPARE_S
    try:
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.load"],
            input=msgspec.json.encode(job),
            capture_output=True,
            timeout=seconds_max,
            cwd=ROOT,
        )
    except subprocess.TimeoutExpired as error:
        raise LoadFailed(f"the load took more than {seconds_max:.0f} s") from error
    if done.returncode != 0:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        raise LoadFailed(lines[-1] if lines else f"the load ended with {done.returncode}")
    return msgspec.json.decode(done.stdout, type=Result)


def settle_disk() -> None:
    """Write back what earlier work has left behind, of whichever system: on ext4 a sync of one file
    waits for the dirty pages and discarded blocks of all the others."""
    os.sync()


def job_for(server: Server, timing: Timing, cores: set[int], **more: object) -> Job:
    job = Job(
        host=server.host,
        port=server.port,
        queue_url="",
        scenario="",
        connections=timing.connections,
        warm_up_s=timing.warm_up_s,
        window_s=timing.window_s,
        body_bytes=timing.body_bytes,
        server_pid=server.pid,
        cores=sorted(cores),
    )
    return msgspec.structs.replace(job, **more)


def fill(
    server: Server,
    queue_url: str,
    *,
    script: str,
    timing: Timing,
    cores: set[int],
    seconds_max: float,
    messages_max: int = PREFILL_MAX,
) -> Result:
    job = job_for(
        server,
        timing,
        cores,
        queue_url=queue_url,
        scenario=script,
        warm_up_s=0.0,
        window_s=seconds_max,
        messages_max=messages_max,
    )
    result = run_load(job)
    if result.messages == 0:
        raise LoadFailed(f"nothing could be sent: {result.first_fault}")
    return result


def run(
    scenario: Scenario,
    server: Server,
    *,
    is_queue: bool,
    timing: Timing,
    cores: set[int],
    serial: int,
    before_load: Callable[[], None] | None = None,
) -> Result:
    """Measure one scenario once. ``serial`` makes the queue's name unique on this server;
    ``before_load`` is called when the queue is filled and the load is about to begin."""
    if not is_queue:
        if before_load is not None:
            before_load()
        job = job_for(server, timing, cores, queue_url="http://127.0.0.1/q", scenario=scenario.name)
        return run_load(job)
    queue_url = create_queue(server, f"bench-{scenario.name}-{serial}", is_fifo=scenario.is_fifo)
    if scenario.fill:
        seconds = PREFILL_SHARE * (timing.warm_up_s + timing.window_s)
        fill(
            server, queue_url, script=scenario.fill, timing=timing, cores=cores, seconds_max=seconds
        )
    job = job_for(
        server,
        timing,
        cores,
        queue_url=queue_url,
        scenario=SCRIPT_OF.get(scenario.name, scenario.name),
        rate=PACED_RATE if scenario.name == "end_to_end" else 0,
    )
    settle_disk()
    if before_load is not None:
        before_load()
    result = run_load(job)
    delete_queue(server, queue_url)
    if result.messages == 0:
        raise LoadFailed(result.first_fault or "no message went through")
    return msgspec.structs.replace(result, scenario=scenario.name)
