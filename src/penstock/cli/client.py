"""Clients of the two APIs that commands use: the SQS endpoint and the admin API.

Each is one kept-alive ``http.client`` connection, because a full HTTP library would take longer to
import than most commands take to run. A connection that the server closed while it was idle is
opened again once; a second failure is reported to the user. Nothing here prints: replies are plain
dicts as the server sent them, and errors are ``Failure``."""

import base64
import http.client
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode, urlsplit

from penstock.cli.contexts import environment
from penstock.cli.credentials import ca_file, credentials_from_environment
from penstock.cli.failure import ExitCode, Failure, Refused, timed_out
from penstock.wire.aws.signer import Credentials, Signer

if TYPE_CHECKING:
    import ssl

Json = dict[str, Any]
Query = Mapping[str, object]  # a value of None is left out

_CONTENT_TYPE = "application/x-amz-json-1.0"
_JSON = "application/json"
# Time that a server has beyond the requested wait, before the request times out.
_WAIT_MARGIN_S = 5.0
_REPLY_BYTES_MAX = 64 * 1_048_576
# Errors of a signature, and what is wrong with the key.
_KEY_FAULTS = {
    "SignatureDoesNotMatch": "the secret does not match",
    "InvalidSignatureException": "the secret does not match",
    "InvalidClientTokenId": "there is no such key, or it is disabled",
    "UnrecognizedClientException": "there is no such key, or it is disabled",
}


def timestamp_now() -> str:
    return time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())


def tls_context() -> "ssl.SSLContext":
    import ssl

    try:
        return ssl.create_default_context(cafile=ca_file())
    except OSError as error:
        raise Failure(
            f"'{ca_file()}' cannot be used to check the server's certificate",
            str(error),
            "name the authority's certificate, ca.pem, in PENSTOCK_CA_FILE",
            exit_code=ExitCode.USAGE,
        ) from error


def as_seen_from(endpoint: str, told: str) -> str:
    """Return an address that a server reports of itself, as this machine reaches it: a loopback
    address becomes the host of ``endpoint``, by which the server was reached. ``told`` may have a
    scheme or none."""
    scheme, mark, rest = told.rpartition("://")
    host = urlsplit(f"//{rest}").hostname or ""
    away = urlsplit(endpoint if "://" in endpoint else f"//{endpoint}").hostname or ""
    if not is_loopback(host) or is_loopback(away) or not away:
        return told
    shown = f"[{away}]" if ":" in away else away
    return f"{scheme}{mark}{shown}:{rest.rpartition(':')[2]}"


def is_loopback(host: str) -> bool:
    return host in ("localhost", "::1") or host.startswith("127.")


def name_of(queue: str) -> str:
    """Return the name of a queue given by its name, its ARN or its URL. The name of a share
    contains a colon."""
    if "://" in queue:
        return queue.rpartition("/")[2]
    return queue.split(":", 5)[-1] if queue.startswith("arn:") else queue


class Connection:
    """A connection to one server, for one request at a time."""

    def __init__(self, url: str, *, timeout_s: float) -> None:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise Failure(
                f"'{url}' is not an address to talk to",
                "it has no host, or a scheme other than http and https",
                "write it like http://127.0.0.1:9324",
                exit_code=ExitCode.USAGE,
            )
        try:
            port = parts.port
        except ValueError:
            raise Failure(f"'{url}' has no usable port", exit_code=ExitCode.USAGE) from None
        self.url = f"{parts.scheme}://{parts.netloc}"
        self.host = parts.netloc.rpartition("@")[2]
        self._timeout_s = timeout_s
        is_tls = parts.scheme == "https"
        self._http: http.client.HTTPConnection
        if is_tls:
            self._http = http.client.HTTPSConnection(
                parts.hostname, port, timeout=timeout_s, context=tls_context()
            )
        else:
            self._http = http.client.HTTPConnection(parts.hostname, port, timeout=timeout_s)

    def call(
        self,
        method: str,
        path: str,
        *,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        wait_s: float = 0.0,
    ) -> tuple[int, Mapping[str, str], bytes]:
        """Send a request and read the whole reply. ``wait_s`` is how long the server may hold the
        request; the timeout is at least that plus a margin."""
        limit_s = max(self._timeout_s, wait_s + _WAIT_MARGIN_S) if wait_s else self._timeout_s
        was_open = self._http.sock is not None
        try:
            return self._exchange(method, path, body, headers or {}, limit_s)
        except (http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError) as error:
            self.close()
            if not was_open:
                raise _unreachable(self.url, error) from error
        except TimeoutError as error:
            self.close()
            raise timed_out(self.url, limit_s) from error
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise _unreachable(self.url, error) from error
        # The server had closed an idle connection: try once more on a new one.
        return self.call(method, path, body=body, headers=headers, wait_s=wait_s)

    def _exchange(
        self,
        method: str,
        path: str,
        body: bytes | None,
        headers: Mapping[str, str],
        limit_s: float,
    ) -> tuple[int, Mapping[str, str], bytes]:
        self._http.timeout = limit_s
        if self._http.sock is not None:
            self._http.sock.settimeout(limit_s)
        try:
            self._http.request(method, path, body=body, headers=dict(headers))
            reply = self._http.getresponse()
            data = reply.read(_REPLY_BYTES_MAX)
        except BaseException:
            # Also on Ctrl-C: the rest of this reply must not become the next request's reply.
            self._http.close()
            raise
        if not reply.isclosed():
            self._http.close()
            raise Failure(f"the answer of {self.url} is too long", f"over {_REPLY_BYTES_MAX} bytes")
        return reply.status, {k.lower(): v for k, v in reply.getheaders()}, data

    def close(self) -> None:
        self._http.close()


def _unreachable(url: str, error: BaseException) -> Failure:
    from penstock.cli.unreachable import explained  # imported late, because it is slow to import

    return explained(url, error)


def _decode(data: bytes, url: str) -> Json:
    if not data.strip():
        return {}
    try:
        value = json.loads(data)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise Failure(
            f"{url} did not answer like a Penstock server",
            f"expected a JSON object, got {data[:60]!r}",
            "check the address: --endpoint, --admin",
            exit_code=ExitCode.UNREACHABLE,
        )
    return value


class Sqs:
    """A client of the SQS API in JSON, which finds the URLs of queues by their names."""

    def __init__(
        self,
        endpoint: str,
        *,
        region: str,
        account: str | None,
        timeout_s: float,
        credentials: Credentials | None = None,
    ) -> None:
        self._connection = Connection(endpoint, timeout_s=timeout_s)
        self._account = account
        self._signer = Signer(credentials or credentials_from_environment(), region=region)
        self._urls: dict[str, str] = {}

    @property
    def url(self) -> str:
        return self._connection.url

    def call(self, action: str, request: Json, *, what: str = "", wait_s: float = 0.0) -> Json:
        body = json.dumps(request, separators=(",", ":")).encode()
        headers = self._signer.sign(
            host=self._connection.host,
            path="/",
            headers={"content-type": _CONTENT_TYPE, "x-amz-target": f"AmazonSQS.{action}"},
            body=body,
            timestamp=timestamp_now(),
        )
        status, _, data = self._connection.call(
            "POST", "/", body=body, headers=headers, wait_s=wait_s
        )
        if status == 200:
            return _decode(data, self.url)
        refusal = _refused(what or f"{action} failed", status, data)
        raise _rejected_key(refusal, self._signer.key_id) or refusal

    def queue_url(self, name: str) -> str:
        """Return the URL of a queue given by its name, its ARN or its URL. With an account the URL
        is computed; without one the server looks it up, in its default account."""
        if "://" in name:
            return name
        name = name_of(name)
        url = self._urls.get(name)
        if url is None:
            if self._account is not None:
                url = f"{self.url}/{self._account}/{quote(name)}"
            else:
                url = self._found_url(name)
            self._urls[name] = url
        return url

    def _found_url(self, name: str) -> str:
        try:
            return str(self.call("GetQueueUrl", {"QueueName": name})["QueueUrl"])
        except Refused as refusal:
            is_absent = refusal.exit_code is ExitCode.NOT_FOUND
            refusal.what = f"no queue '{name}'" if is_absent else f"cannot find queue '{name}'"
            raise

    def attributes(self, name: str, names: Sequence[str] = ("All",)) -> dict[str, str]:
        request = {"QueueUrl": self.queue_url(name), "AttributeNames": list(names)}
        reply = self.call("GetQueueAttributes", request, what=f"cannot show queue '{name}'")
        attributes: dict[str, str] = reply.get("Attributes", {})
        return attributes

    def arn(self, name: str) -> str:
        if name.startswith("arn:"):
            return name
        return self.attributes(name, ("QueueArn",))["QueueArn"]

    def queue_names(self, prefix: str = "") -> Iterator[str]:
        request: Json = {"MaxResults": 1_000}
        if prefix:
            request["QueueNamePrefix"] = prefix
        while True:
            reply = self.call("ListQueues", request, what="cannot list queues")
            for url in reply.get("QueueUrls", ()):
                yield url.rpartition("/")[2]
            if "NextToken" not in reply:
                return
            request["NextToken"] = reply["NextToken"]

    def info(self) -> Json:
        """Return what the endpoint reports about itself, mainly the address of its admin API."""
        status, _, data = self._connection.call("GET", "/_penstock/info")
        info = _decode(data, self.url) if status == 200 else {}
        if not info.get("admin"):
            raise Failure(
                f"{self.url} does not say where its admin API is",
                f"GET /_penstock/info answered with status {status}",
                "name it with --admin URL or PENSTOCK_ADMIN",
                exit_code=ExitCode.UNREACHABLE,
            )
        return info

    def close(self) -> None:
        self._connection.close()


class Admin:
    """A client of the admin API. Queues are changed through the SQS API; users, keys and rights are
    changed here.

    The client authenticates with PENSTOCK_TOKEN (or PENSTOCK_ADMIN_TOKEN), else by a log-in with
    PENSTOCK_KEY_ID and PENSTOCK_SECRET. These are not flags, because other users of the machine
    could read flags. Keys of AWS_* are never used: a log-in sends the secret, and those keys may
    belong to another service."""

    def __init__(
        self,
        url: str,
        *,
        region: str,
        account: str | None,
        timeout_s: float,
        account_default: str | None = None,
    ) -> None:
        """``account_default`` applies if neither ``account`` nor the token names an account."""
        self._connection = Connection(url, timeout_s=timeout_s)
        self._region = region
        self._account = account
        self._account_default = account_default
        self._refusal: Refused | None = None  # why the log-in was refused; raised on status 401
        self._is_known = False
        self._headers: dict[str, str] = {}

    @property
    def _scope(self) -> dict[str, str]:
        self._introduce()
        account = self._account or self._account_default
        return {"region": self._region, **({"account": account} if account else {})}

    def _introduce(self) -> None:
        """Log in if needed, once, before the first request."""
        if self._is_known:
            return
        self._is_known = True
        env = environment()
        token = env.get("PENSTOCK_TOKEN") or env.get("PENSTOCK_ADMIN_TOKEN")
        key_id, secret = env.get("PENSTOCK_KEY_ID"), env.get("PENSTOCK_SECRET")
        if not token and key_id and secret:
            body = json.dumps({"key_id": key_id, "secret": secret}).encode()
            headers = {"content-type": _JSON}
            status, _, data = self._connection.call(
                "POST", "/api/v1/login", body=body, headers=headers
            )
            if status == 200:
                token = str(_decode(data, self.url)["token"])
            else:
                # A server with authentication off has no keys and needs no log-in.
                self._refusal = _refused("cannot log in", status, data)
        if token:
            self._headers["authorization"] = f"Bearer {token}"
            self._account_default = _account_in(token) or self._account_default

    @property
    def url(self) -> str:
        return self._connection.url

    def get(
        self, path: str, query: Query | None = None, *, what: str = "", wait_s: float = 0.0
    ) -> Json:
        return self.call("GET", path, query, what=what or f"cannot read {path}", wait_s=wait_s)

    def call(
        self,
        method: str,
        path: str,
        query: Query | None = None,
        *,
        body: Json | bytes | None = None,
        what: str,
        wait_s: float = 0.0,
    ) -> Json:
        """Send a request and return its JSON reply. A ``body`` of bytes is sent unchanged."""
        data = json.dumps(body).encode() if isinstance(body, dict) else body
        _, answer = self._ask(method, path, query, data, what=what, wait_s=wait_s)
        return _decode(answer, self.url)

    def page(self, path: str) -> bytes:
        """Return a page outside the API, such as ``/metrics``, whatever its status."""
        self._introduce()
        return self._connection.call("GET", path, headers=dict(self._headers))[2]

    def get_bytes(self, path: str, query: Query, *, what: str) -> tuple[Mapping[str, str], bytes]:
        """Return the headers and the body of a reply that is not JSON."""
        return self._ask("GET", path, query, None, what=what)

    def _ask(
        self,
        method: str,
        path: str,
        query: Query | None,
        body: bytes | None,
        *,
        what: str,
        wait_s: float = 0.0,
    ) -> tuple[Mapping[str, str], bytes]:
        self._introduce()
        pairs = {key: str(value) for key, value in (query or {}).items() if value is not None}
        target = f"/api/v1/{path}" + (f"?{urlencode(pairs)}" if pairs else "")
        headers = dict(self._headers)
        if body is not None:
            headers["content-type"] = _JSON
        status, told, answer = self._connection.call(
            method, target, body=body, headers=headers, wait_s=wait_s
        )
        if status in (200, 201):
            return told, answer
        if status == 401 and self._refusal is not None:
            raise self._refusal
        raise _refused(what, status, answer)

    def info(self) -> Json:
        return self.get("info")

    def readyz(self) -> Json:
        """Return the health of the server, ready or not; this needs no authentication."""
        _, _, data = self._connection.call("GET", "/readyz")
        return _decode(data, self.url)

    def config(self) -> Json:
        return self.get("config")

    def queues(self, prefix: str = "") -> Iterator[Json]:
        after = None
        while True:
            query = {**self._scope, "prefix": prefix or None, "after": after}
            reply = self.get("queues", query, what="cannot list queues")
            yield from reply["queues"]
            after = reply.get("next")
            if after is None:
                return

    def explanation(self, name: str, user: str | None = None) -> Json:
        """Return the reasons why a receive from the queue gets nothing."""
        return self.get(
            f"queues/{quote(name, safe='')}/explain",
            {**self._scope, "user": user},
            what=f"cannot explain queue '{name}'",
        )

    def messages(
        self, name: str, *, start: str, partition: int | None, count: int, wait_ms: int = 0
    ) -> Json:
        query = {
            **self._scope,
            "partition": partition,
            "start": start,
            "count": count,
            "wait_ms": wait_ms or None,
        }
        return self.get(
            f"queues/{quote(name, safe='')}/messages",
            query,
            what=f"cannot look into queue '{name}'",
            wait_s=wait_ms / 1_000,
        )

    def close(self) -> None:
        self._connection.close()


def _account_in(token: str) -> str | None:
    """Return the account that a token claims; only the server can verify the claim."""
    parts = token.split(".")
    if len(parts) != 3:
        return None
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
        return str(claims["account"])
    except (ValueError, KeyError, TypeError):
        return None


def _rejected_key(refusal: Refused, key_id: str) -> Failure | None:
    why = _KEY_FAULTS.get(refusal.fault)
    if why is None or "expired" in refusal.why or "skew" in refusal.why:
        return None
    return Failure(
        f"access key {key_id} was rejected",
        why,
        "check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or PENSTOCK_KEY_ID and PENSTOCK_SECRET",
        exit_code=ExitCode.DENIED,
    )


def _refused(what: str, status: int, data: bytes) -> Refused:
    """Read an error in the form of AWS (``__type``, ``message``) or of the admin API."""
    try:
        value = json.loads(data)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        text = data[:200].decode("utf-8", "replace").strip()
        return Refused(what, status=status, fault="", message=text or f"HTTP status {status}")
    if isinstance(value.get("error"), dict):
        value = value["error"]
    fault = str(value.get("__type") or value.get("code") or "").rpartition("#")[2]
    message = str(value.get("message") or value.get("Message") or "")
    return Refused(what, status=status, fault=fault, message=message)
