"""One member of a share group as a process of its own, so that a test can kill it.

    python share_member.py BOOTSTRAP GROUP TOPIC

Writes {"got": [[value, deliveries], ...]} as a JSON line on stdout when it gets records, and does
not acknowledge them."""

from __future__ import annotations

import json
import sys
from typing import Any

from confluent_kafka import ShareConsumer


def main(bootstrap: str, group: str, topic: str) -> None:
    made: Any = ShareConsumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "share.acknowledgement.mode": "explicit",
            "log_level": 3,
        }
    )
    made.subscribe([topic])
    while True:
        got = [[m.value().decode(), m.delivery_count()] for m in made.poll(0.2)]
        if got:
            print(json.dumps({"got": got}), flush=True)
            sys.stdin.read()  # until the test ends it


if __name__ == "__main__":
    main(*sys.argv[1:])
