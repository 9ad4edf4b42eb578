"""A Celery application whose queues are bound to a fan-out exchange: every worker has a queue of
its own and runs every task. Run as a module, it sends one task."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import kombu as untyped
from celery import Celery

kombu: Any = untyped
EXCHANGE = kombu.Exchange(os.environ["FAN_OUT_EXCHANGE"], type="fanout")
QUEUE = os.environ["FAN_OUT_QUEUE"]

app = Celery("fan_out_app", broker=f"sqs://testing:testing@127.0.0.1:{os.environ['PENSTOCK_PORT']}")
app.conf.update(
    broker_transport_options={
        "region": "us-east-1",
        "is_secure": False,
        "wait_time_seconds": 2,
        "polling_interval": 0.1,
        "supports_fanout": True,
    },
    task_queues=[kombu.Queue(QUEUE, EXCHANGE, routing_key=QUEUE)],
    task_default_queue=QUEUE,
    task_ignore_result=True,
    worker_enable_remote_control=False,
    worker_send_task_events=False,
    broker_connection_retry_on_startup=True,
)


@app.task(name="mark")
def mark(text: str) -> None:
    (Path(os.environ["CELERY_RESULTS"]) / f"{QUEUE}-{text}").touch()


if __name__ == "__main__":
    mark.delay(sys.argv[1])
