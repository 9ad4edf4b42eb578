"""A server that asks everybody who they are, and its admin API as root uses it: tenants, users,
keys and passwords for the tests of Kafka clients."""

from __future__ import annotations

import base64
import http.client
import json
import ssl
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from scramp import ScramMechanism  # type: ignore[import-untyped]
from tests.compat.test_tls import arguments, make_certificates
from tests.harness.server import Server

ROOT_KEY = "PENSTOCKTESTROOTKEY1"
ROOT_SECRET = "root-secret/with+signs=0123456789abcdef"
MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512")


def locked_server(folder: Path, *more: str) -> Server:
    """Not started yet."""
    folder.mkdir(parents=True, exist_ok=True)
    secret = folder / "secret"
    secret.write_text(ROOT_SECRET)
    secret.chmod(0o600)
    return Server(
        folder / "data",
        fsync="never",
        kafka_port=0,
        arguments=["--auth", "on", *more],
        env={"PENSTOCK_ROOT_KEY_ID": ROOT_KEY, "PENSTOCK_ROOT_SECRET_FILE": str(secret)},
    )


@contextmanager
def running_site(folder: Path, *, is_tls: bool) -> Iterator[tuple[Server, Path | None]]:
    """A server, and the authority to believe if it speaks TLS; ended without a word of what it must
    not say."""
    ca = None
    more: list[str] = []
    if is_tls:
        make_certificates(folder / "tls")
        ca, more = folder / "tls" / "ca.pem", arguments(folder / "tls")
    with locked_server(folder, *more) as running:
        yield running, ca
        assert running.stop() == 0, running.stderr_tail()
        running.assert_no_traceback()
        assert ROOT_SECRET not in running.stderr


def allow(*actions: str, resource: str = "*") -> dict[str, Any]:
    return {"Effect": "Allow", "Action": list(actions), "Resource": resource}


class Operator:
    def __init__(self, server: Server, ca: Path | None = None) -> None:
        parts = urlsplit(server.admin_url)
        self._host = parts.netloc
        self._tls = None if ca is None else ssl.create_default_context(cafile=str(ca))
        self._token = ""
        self._token = self.ask("POST", "login", {"key_id": ROOT_KEY, "secret": ROOT_SECRET})[
            "token"
        ]

    def ask(self, method: str, path: str, body: object = None) -> Any:
        connection = (
            http.client.HTTPConnection(self._host, timeout=10)
            if self._tls is None
            else http.client.HTTPSConnection(self._host, timeout=10, context=self._tls)
        )
        headers = {"content-type": "application/json"}
        if self._token:
            headers["authorization"] = f"Bearer {self._token}"
        try:
            text = None if body is None else json.dumps(body)
            connection.request(method, f"/api/v1/{path}", text, headers)
            reply = connection.getresponse()
            data = reply.read()
            assert reply.status < 300, f"{method} {path}: {reply.status} {data!r}"
            return json.loads(data)
        finally:
            connection.close()

    def tenant(self) -> str:
        made = self.ask("POST", "tenants", {"name": f"t-{uuid.uuid4().hex[:12]}"})
        return str(made["account"])

    def user(self, *statements: dict[str, Any], tenant: str = "", password: str = "") -> str:
        name = f"u-{uuid.uuid4().hex[:12]}"
        document = {"Version": "2012-10-17", "Statement": list(statements)}
        policies = {"p": json.dumps(document)} if statements else {}
        where = {"tenant": tenant} if tenant else {}
        self.ask("POST", "users", {"name": name, "policies": policies, **where})
        if password:
            self.set_password(name, password, tenant=tenant)
        return name

    def set_password(self, name: str, password: str, *, tenant: str = "") -> None:
        credentials = []
        for mechanism in MECHANISMS:
            salt, stored, server, count = ScramMechanism(mechanism).make_auth_info(password, 4_096)
            fields = {"salt": salt, "stored_key": stored, "server_key": server}
            encoded = {key: base64.b64encode(value).decode() for key, value in fields.items()}
            credentials.append({"mechanism": mechanism, "iterations": count, **encoded})
        query = f"?tenant={tenant}" if tenant else ""
        self.ask("PUT", f"users/{name}/password{query}", {"credentials": credentials})

    def key(self, user: str, *, tenant: str = "") -> tuple[str, str]:
        where = {"tenant": tenant} if tenant else {}
        made = self.ask("POST", "keys", {"user": user, **where})
        return made["key_id"], made["secret"]

    def disable(self, key_id: str) -> None:
        self.ask("PATCH", f"keys/{key_id}", {"status": "disabled"})
