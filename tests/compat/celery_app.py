"""A small Celery application: what the worker in ``test_celery`` loads and the test calls.

Run as a module it is the calling side, one scenario per process, with its result as JSON on
stdout. Both sides take the server and the folder of results from the environment."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

from celery import Celery, group

RESULTS = Path(os.environ["CELERY_RESULTS"])
RESULT_SECONDS_MAX = 240

app = Celery(
    "celery_app",
    broker=f"sqs://testing:testing@127.0.0.1:{os.environ['PENSTOCK_PORT']}",
    backend=f"file://{RESULTS}",
)
app.conf.update(
    broker_transport_options={
        "region": "us-east-1",
        "is_secure": False,
        "wait_time_seconds": 2,
        "polling_interval": 0.1,
        "visibility_timeout": int(os.environ["CELERY_LEASE_SECONDS"]),
        "queue_name_prefix": os.environ["CELERY_PREFIX"],
    },
    task_acks_late=True,
    worker_prefetch_multiplier=1,
    worker_enable_remote_control=False,
    worker_send_task_events=False,
    broker_connection_retry_on_startup=True,
    # By file name, so that worker and caller agree although one of them is __main__.
    task_default_queue="tasks",
)


@app.task(name="add")
def add(x: int, y: int) -> int:
    return x + y


@app.task(name="flaky", bind=True, max_retries=5)
def flaky(self: Any, failures: int) -> int:
    """Fails so many times, each time asking for another try."""
    if self.request.retries < failures:
        raise self.retry(countdown=0.2, exc=RuntimeError("not yet"))
    retries: int = self.request.retries
    return retries


@app.task(name="when")
def when() -> float:
    return time.time()


@app.task(name="fail")
def fail() -> None:
    raise ValueError("as asked")


@app.task(name="hold")
def hold(marker: str) -> str:
    """The first run never ends by itself; any later one does at once."""
    path = RESULTS / marker
    try:
        path.touch(exist_ok=False)
    except FileExistsError:
        return "second run"
    threading.Event().wait()
    return "first run"


def scenario(name: str, argument: str) -> object:
    match name:
        case "add":
            results = group(add.s(n, n) for n in range(int(argument))).apply_async()
            return sorted(results.get(timeout=RESULT_SECONDS_MAX))
        case "flaky":
            return flaky.delay(int(argument)).get(timeout=RESULT_SECONDS_MAX)
        case "countdown":
            asked_at = time.time()
            ran_at: float = when.apply_async(countdown=float(argument)).get(
                timeout=RESULT_SECONDS_MAX
            )
            return ran_at - asked_at
        case "fail":
            result = fail.delay()
            result.get(timeout=RESULT_SECONDS_MAX, propagate=False)
            return [result.state, str(result.result)]
        case "hold":
            return hold.delay(argument).get(timeout=RESULT_SECONDS_MAX)
    raise SystemExit(f"no scenario {name}")


if __name__ == "__main__":
    print(json.dumps(scenario(sys.argv[1], sys.argv[2])))
