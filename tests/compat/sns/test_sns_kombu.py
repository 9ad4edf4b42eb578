"""Fan-out exchanges of kombu, which are SNS topics, and Celery tasks that every worker runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import kombu as untyped
import pytest
from tests.compat.sns.stage import Stage
from tests.compat.test_celery import ROOT, Worker
from tests.harness.patience import eventually

kombu: Any = untyped
OPTIONS = {
    "region": "us-east-1",
    "is_secure": False,
    "wait_time_seconds": 1,
    "polling_interval": 0.1,
    "supports_fanout": True,
}


def test_a_fan_out_exchange_copies_a_message_to_every_queue(stage: Stage) -> None:
    host = stage.url.removeprefix("http://")
    exchange = kombu.Exchange(stage.name("-exchange"), type="fanout")
    names = [stage.name(), stage.name()]
    found: list[tuple[str, Any]] = []

    def note(name: str) -> Any:
        def on_message(body: Any, message: Any) -> None:
            found.append((name, body))
            message.ack()

        return on_message

    with kombu.Connection(f"sqs://testing:testing@{host}", transport_options=OPTIONS) as connection:
        channel = connection.channel()
        consumers = []
        for name in names:
            queue = kombu.Queue(name, exchange, channel=channel)
            queue.declare()
            consumer = kombu.Consumer(channel, [queue], callbacks=[note(name)])
            consumer.consume()
            consumers.append(consumer)
        kombu.Producer(channel, exchange).publish({"n": 1})
        while len(found) < len(names):
            connection.drain_events(timeout=30)
        for consumer in consumers:
            consumer.cancel()
    assert sorted(found) == sorted((name, {"n": 1}) for name in names)
    topic = f"arn:aws:sns:us-east-1:000000000000:{exchange.name}"
    assert len(stage.ask("ListSubscriptionsByTopic", TopicArn=topic)["Subscriptions"]) == 2
    assert stage.ask("ListTagsForResource", ResourceArn=topic)["Tags"][0]["Key"] == "ManagedBy"


@pytest.mark.slow
def test_every_celery_worker_runs_a_task(stage: Stage, tmp_path: Path) -> None:
    exchange, queues = stage.name("-exchange"), [stage.name(), stage.name()]

    def env(queue: str) -> dict[str, str]:
        return {
            **os.environ,
            "PENSTOCK_PORT": stage.url.rpartition(":")[2],
            "CELERY_RESULTS": str(tmp_path),
            "FAN_OUT_EXCHANGE": exchange,
            "FAN_OUT_QUEUE": queue,
            "PYTHONWARNINGS": "ignore",
        }

    module = "tests.compat.sns.fan_out_app"
    workers: list[Worker] = []
    try:
        workers.append(Worker(env(queues[0]), module=module, concurrency=1))
        workers.append(Worker(env(queues[1]), module=module, concurrency=1))
        command = [sys.executable, "-m", module, "hello"]
        subprocess.run(command, cwd=ROOT, env=env(queues[0]), timeout=120, check=True)
        marks = [tmp_path / f"{queue}-hello" for queue in queues]
        eventually(lambda: all(one.exists() for one in marks), seconds=60, what="both tasks run")
    finally:
        for worker in workers:
            worker.kill()
