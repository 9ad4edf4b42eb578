"""boto3 as a client of a cluster: it stays with one node until that one fails it, then turns to
the next. Retries of the SDK are off, because whoever writes a ledger must know of every call; the
SDK's exceptions become the three ends of a call that a load tells apart (``harness.client``).

One instance per thread; the SDK's clients below are shared, which boto3 allows."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

import boto3
import botocore.config
import botocore.exceptions
from botocore import xform_name
from tests.harness.client import Fault, Hanging, Refused, Unanswered

CONNECT_SECONDS_MAX = 2.0
CALL_SECONDS_MAX = 20.0
TURN_SHARE = 0.01  # of calls after which another node is tried: those that came back get work too
BACK_OFF_SECONDS = 0.1
THREADS_MAX = 32


class Endpoint:
    """One node, by way of one boto3 client for all threads of a process."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.where = url.partition("://")[2]
        self.client: Any = boto3.client(
            "sqs",
            endpoint_url=url,
            region_name="us-east-1",
            aws_access_key_id="test",
            aws_secret_access_key="test",
            config=botocore.config.Config(
                retries={"total_max_attempts": 1, "mode": "standard"},
                connect_timeout=CONNECT_SECONDS_MAX,
                read_timeout=CALL_SECONDS_MAX,
                max_pool_connections=THREADS_MAX,
            ),
        )

    def close(self) -> None:
        self.client.close()


class BotoClient:
    """Implements ``harness.client.SqsClient``. ``pace_seconds`` is the least time between the
    begins of two calls: a lab on a small machine must leave its cluster something to run on."""

    seconds = CALL_SECONDS_MAX

    def __init__(
        self, endpoints: Sequence[Endpoint], *, chance: Random, pace_seconds: float = 0.0
    ) -> None:
        self.is_calling = False
        self._endpoints = endpoints
        self._chance = chance
        self._at = chance.randrange(len(endpoints))
        self._pace_seconds = pace_seconds
        self._next_at = 0.0
        self._pause = threading.Event()  # never set

    def call(
        self, operation: str, request: Mapping[str, object], *, wait_seconds: float = 0.0
    ) -> dict[str, Any]:
        assert wait_seconds < self.seconds, "a long poll ends before the deadline of a call"
        self._keep_pace()
        if self._chance.random() < TURN_SHARE:
            self._turn()
        endpoint = self._endpoints[self._at]
        given = dict(request)
        if "QueueUrl" in given:
            path = str(given["QueueUrl"]).partition("://")[2].partition("/")[2]
            given["QueueUrl"] = f"{endpoint.url}/{path}"
        self.is_calling = True
        try:
            return self._call(endpoint, operation, given)
        except (Refused, Unanswered):
            self._turn()
            raise
        except Fault as fault:
            if not fault.is_definite:
                self._turn()
                self._pause.wait(BACK_OFF_SECONDS)
            raise
        finally:
            self.is_calling = False

    def _call(self, endpoint: Endpoint, operation: str, request: dict[str, Any]) -> dict[str, Any]:
        try:
            reply: dict[str, Any] = getattr(endpoint.client, xform_name(operation))(**request)
        except (
            botocore.exceptions.EndpointConnectionError,
            botocore.exceptions.ConnectTimeoutError,
        ) as error:
            self._pause.wait(BACK_OFF_SECONDS)
            raise Refused(f"{endpoint.where}: {error}") from error
        except botocore.exceptions.ReadTimeoutError as error:
            raise Hanging(f"{endpoint.where}: {error}", where=endpoint.where) from error
        except botocore.exceptions.ClientError as error:
            raise _fault(error) from error
        except (
            botocore.exceptions.HTTPClientError,
            botocore.exceptions.ResponseStreamingError,
            OSError,
        ) as error:
            raise Unanswered(f"{endpoint.where}: {error!r}") from error
        return reply

    def _turn(self) -> None:
        self._at = (self._at + 1) % len(self._endpoints)

    def _keep_pace(self) -> None:
        now = time.monotonic()
        if now < self._next_at:
            self._pause.wait(self._next_at - now)
        self._next_at = max(now, self._next_at) + self._pace_seconds

    def close(self) -> None:
        """The connections belong to all threads."""


def _fault(error: Any) -> Fault:
    told = error.response.get("Error", {})
    status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 500))
    return Fault(status, str(told.get("Code", "")), str(told.get("Message", "")))
