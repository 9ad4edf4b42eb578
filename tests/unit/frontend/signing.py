"""A client of the frontend in memory that signs as the SDK does, at the rig's own time."""

from __future__ import annotations

import datetime
import json
from typing import Any
from unittest.mock import patch

import botocore.auth
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from tests.unit.frontend.memory import MemoryIdentities, Rig

from penstock.frontend.aws.context import FrontendConfig
from penstock.model.identity import ADMIN_POLICY
from penstock.net.http.exchange import HttpReply, HttpRequest

OWN, OTHER = "111111111111", "222222222222"
REGION = "eu-west-1"
HOST = "queues.test:9324"
SECRET = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"


def locked(
    config: FrontendConfig | None = None, *, has_quotas: bool = False
) -> tuple[Rig, MemoryIdentities]:
    """A frontend with authentication on; each account has an administrator, root."""
    identities = MemoryIdentities()
    identities.put(OWN, "root", "AKOWN", SECRET, ADMIN_POLICY)
    identities.put(OTHER, "root", "AKOTHER", SECRET, ADMIN_POLICY)
    config = config or FrontendConfig(is_auth_on=True)
    rig = Rig(config, identities=identities, has_quotas=has_quotas)
    return rig, identities


def policy(*blocks: dict[str, Any]) -> str:
    return json.dumps({"Version": "2012-10-17", "Statement": list(blocks)})


def allow(action: str | list[str], resource: str = "*", **more: Any) -> dict[str, Any]:
    return {"Effect": "Allow", "Action": action, "Resource": resource, **more}


def deny(action: str | list[str], resource: str = "*", **more: Any) -> dict[str, Any]:
    return {"Effect": "Deny", "Action": action, "Resource": resource, **more}


def arn(name: str, account: str = OWN) -> str:
    return f"arn:aws:sqs:{REGION}:{account}:{name}"


def url(name: str, account: str = OWN) -> str:
    return f"http://{HOST}/{account}/{name}"


class Client:
    def __init__(self, rig: Rig, key_id: str = "AKOWN", secret: str = SECRET) -> None:
        self.rig = rig
        self.key_id = key_id
        self.secret = secret
        self.peer = "10.1.2.3"
        self.is_tls = False

    def signed(
        self, action: str, fields: dict[str, Any], *, service: str = "sqs", host: str = HOST
    ) -> HttpRequest:
        body = json.dumps(fields).encode()
        target = "AmazonSQS." if service == "sqs" else "AWSSecurityTokenServiceV20110615."
        headers = {"X-Amz-Target": target + action, "Host": host}
        request = AWSRequest("POST", f"http://{host}/", headers=headers, data=body)
        now = datetime.datetime.fromtimestamp(self.rig.clock.now_ms / 1_000, datetime.UTC)
        with patch.object(botocore.auth, "get_current_datetime", lambda: now):
            SigV4Auth(Credentials(self.key_id, self.secret), service, REGION).add_auth(request)
        sent = {name.lower(): value for name, value in request.headers.items()}
        return HttpRequest("POST", "/", "", sent, body, self.peer, "request-1", self.is_tls)

    async def send(self, request: HttpRequest) -> HttpReply:
        return await self.rig.frontend.handle(request)

    async def call(self, action: str, **fields: Any) -> dict[str, Any]:
        """The answer's fields, or ``{"code": …, "message": …, "status": …}`` of a refusal."""
        reply = await self.send(self.signed(action, fields))
        return read(reply)

    async def code(self, action: str, **fields: Any) -> str:
        answer = await self.call(action, **fields)
        return str(answer.get("code", "OK"))


def read(reply: HttpReply) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(reply.body or b"{}")
    if reply.status == 200:
        return answer
    code = dict(reply.headers)["x-amzn-query-error"].partition(";")[0]
    return {"code": code, "message": answer["message"], "status": reply.status}
