"""Queues that come and go during a run. One that was deleted, and answered as deleted, must not be
there at the end (GHOST)."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from random import Random

from tests.harness.client import Fault, Refused, Unanswered
from tests.harness.patience import eventually
from tests.lab.boto_client import BotoClient, Endpoint
from tests.lab.rows import PASSING_PREFIX

PAUSE_SECONDS = 2.0
END_SECONDS_MAX = 60.0


class Churn:
    def __init__(self, urls: Sequence[str], *, seed: str) -> None:
        self._endpoints = [Endpoint(url) for url in urls]
        self._client = BotoClient(self._endpoints, chance=Random(f"{seed}-churn"))
        self.deleted: set[str] = set()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="churn", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def _run(self) -> None:
        number = 0
        while not self._ending.wait(PAUSE_SECONDS):
            number += 1
            name = f"{PASSING_PREFIX}{number}"
            try:
                url = self._client.call("CreateQueue", {"QueueName": name})["QueueUrl"]
                self._client.call("SendMessage", {"QueueUrl": url, "MessageBody": name})
                self._client.call("DeleteQueue", {"QueueUrl": url})
            except (Fault, Refused, Unanswered):
                continue  # it may be there or not: nothing follows from that
            self.deleted.add(name)

    def end(self) -> None:
        self._ending.set()
        if self._thread.ident is not None:
            self._thread.join(END_SECONDS_MAX)

    def close(self) -> None:
        self.end()
        for endpoint in self._endpoints:
            endpoint.close()

    def ghosts(self) -> list[str]:
        """Deleted queues that some node still, or again, knows. Asked of a cluster that is well."""
        found = eventually(self._listed, seconds=END_SECONDS_MAX, what="queues are listed")
        return [f"{name} was deleted and is there" for name in sorted(self.deleted & found[0])]

    def _listed(self) -> list[set[str]]:
        try:
            urls = self._client.call(
                "ListQueues", {"QueueNamePrefix": PASSING_PREFIX, "MaxResults": 1_000}
            )
        except (Fault, Refused, Unanswered):
            return []
        return [{str(url).rpartition("/")[2] for url in urls.get("QueueUrls", ())}]
