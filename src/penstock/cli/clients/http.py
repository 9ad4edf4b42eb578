"""Clients of the SQS endpoint and of the admin API. Each keeps one connection of ``http.client``,
because a full HTTP library would take longer to import than most commands take to run. If the reply
is lost, a request that is safe to repeat is sent once more."""

import base64
import http.client
import json
import os
import select
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode, urlsplit

from penstock.cli.clients.contexts import Settings, environment
from penstock.cli.clients.credentials import ca_file, credentials_from_environment
from penstock.cli.terminal.failure import ExitCode, Failure, Misuse, Refused, timed_out
from penstock.cli.terminal.output import Json
from penstock.model.names import arn_partition
from penstock.wire.aws.signer import Signer

if TYPE_CHECKING:
    import ssl

Query = Mapping[str, object]  # a value of None is left out

_JSON = "application/json"
_FORM = "application/x-www-form-urlencoded; charset=utf-8"
_SNS_HEADERS = {"content-type": _FORM, "accept": _JSON}
_SNS_VERSION = "2010-03-31"
# The server gives the same reply again to a repeated request with the same token.
_TOKEN_HEADER = "x-penstock-request-token"  # noqa: S105 - the name of a header
# Time added to the requested wait, before the request times out.
_WAIT_MARGIN_S = 5.0
_REPLY_BYTES_MAX = 64 * 1_048_576
_LOST = (http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError)
# Error codes of rejected signatures, and the reason.
_KEY_FAULTS = {
    "SignatureDoesNotMatch": "the secret does not match",
    "InvalidSignatureException": "the secret does not match",
    "InvalidClientTokenId": "the key is unknown or disabled",
    "UnrecognizedClientException": "the key is unknown or disabled",
}


def signed(signer: Signer, host: str, action: str, body: bytes) -> dict[str, str]:
    headers = {"content-type": "application/x-amz-json-1.0", "x-amz-target": f"AmazonSQS.{action}"}
    return _signed(signer, host, headers, body)


def _signed(signer: Signer, host: str, headers: Mapping[str, str], body: bytes) -> dict[str, str]:
    timestamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    return signer.sign(host=host, path="/", headers=headers, body=body, timestamp=timestamp)


def tls_context() -> "ssl.SSLContext":
    import ssl

    try:
        return ssl.create_default_context(cafile=ca_file())
    except OSError as error:
        raise Misuse(
            f"CA file '{ca_file()}' cannot be loaded",
            str(error),
            "set PENSTOCK_CA_FILE to the certificate file of the CA (ca.pem)",
        ) from error


def as_seen_from(endpoint: str, reported: str) -> str:
    """Return the reported address, with a loopback host replaced by the host of ``endpoint``."""
    host = _host_of(endpoint)
    if not is_loopback(reported) or is_loopback(endpoint) or not host:
        return reported
    scheme, mark, address = reported.rpartition("://")
    shown = f"[{host}]" if ":" in host else host
    return f"{scheme}{mark}{shown}:{address.rpartition(':')[2]}"


def is_loopback(address: str) -> bool:
    host = _host_of(address)
    return host in ("localhost", "::1") or host.startswith("127.")


def _host_of(address: str) -> str:
    return urlsplit(f"//{address.rpartition('://')[2]}").hostname or ""


def name_of(queue: str) -> str:
    """Return the name of a queue given by name, ARN or URL. The name may contain a colon."""
    if "://" in queue:
        return queue.rpartition("/")[2]
    return queue.split(":", 5)[-1] if queue.startswith("arn:") else queue


class Connection:
    def __init__(self, url: str, *, timeout_s: float) -> None:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise Misuse(
                f"'{url}' is not a valid URL",
                "it has no host, or its scheme is not http or https",
                "write a URL like http://127.0.0.1:9324",
            )
        try:
            port = parts.port
        except ValueError:
            raise Misuse(f"the port in URL '{url}' is invalid") from None
        self.url = f"{parts.scheme}://{parts.netloc}"
        self.host = parts.netloc.rpartition("@")[2]
        self._timeout_s = timeout_s
        host = parts.hostname
        self._http = http.client.HTTPConnection(host, port, timeout=timeout_s)
        if parts.scheme == "https":
            tls = tls_context()
            self._http = http.client.HTTPSConnection(host, port, timeout=timeout_s, context=tls)

    def call(
        self,
        method: str,
        path: str,
        *,
        body: bytes | None = None,
        headers: Mapping[str, str] = {},
        wait_s: float = 0.0,
    ) -> tuple[int, Mapping[str, str], bytes]:
        """Send a request and return the status, headers and body of the reply. For a long poll,
        ``wait_s`` is the time that the server may wait; the timeout is extended accordingly."""
        limit_s = max(self._timeout_s, wait_s + _WAIT_MARGIN_S) if wait_s else self._timeout_s
        if self._http.sock is not None:
            # An idle connection that is readable without a request was closed by the server.
            poll = select.poll()
            poll.register(self._http.sock, select.POLLIN)
            if poll.poll(0):
                self._http.close()
        was_open = self._http.sock is not None
        try:
            return self._exchange(method, path, body, headers, limit_s)
        except TimeoutError as error:
            raise timed_out(self.url, limit_s) from error
        except (OSError, http.client.HTTPException) as error:
            # The server may have closed the idle connection, or the reply may be lost.
            is_repeatable = method != "POST" or _TOKEN_HEADER in headers
            if not (was_open and is_repeatable and isinstance(error, _LOST)):
                from penstock.cli.clients.unreachable import explained  # slow to import

                raise explained(self.url, error) from error
        return self.call(method, path, body=body, headers=headers, wait_s=wait_s)

    def _exchange(
        self, method: str, path: str, body: bytes | None, headers: Mapping[str, str], limit_s: float
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
            raise Failure(
                f"{self.url} sent a reply that is too large",
                f"it has more than {_REPLY_BYTES_MAX} bytes",
            )
        return reply.status, {k.lower(): v for k, v in reply.getheaders()}, data

    def close(self) -> None:
        self._http.close()


def _object(data: bytes) -> Json | None:
    try:
        value = json.loads(data)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _decode(data: bytes, url: str) -> Json:
    value = _object(data) if data.strip() else {}
    if value is None:
        raise Failure(
            f"{url} is not a Penstock server",
            f"its reply is not a JSON object: {data[:60]!r}",
            "check the address in --endpoint or --admin",
            exit_code=ExitCode.UNREACHABLE,
        )
    return value


class _Client:
    def __init__(self, url: str, settings: Settings) -> None:
        self._connection = Connection(url, timeout_s=settings.timeout_s)
        self._account = settings.account
        self._region = settings.region
        self.url = self._connection.url

    def close(self) -> None:
        self._connection.close()


class _AwsClient(_Client):
    SERVICE = ""

    def __init__(self, url: str, settings: Settings) -> None:
        super().__init__(url, settings)
        credentials = credentials_from_environment()
        self._signer = Signer(credentials, region=self._region, service=self.SERVICE)

    def _post(self, body: bytes, headers: dict[str, str], what: str, wait_s: float = 0.0) -> Json:
        headers[_TOKEN_HEADER] = os.urandom(16).hex()
        status, _, data = self._connection.call(
            "POST", "/", body=body, headers=headers, wait_s=wait_s
        )
        if status == 200:
            return _decode(data, self.url)
        refusal = _refused(what, status, data)
        why = _KEY_FAULTS.get(refusal.fault)
        if why is None or "expired" in refusal.why or "skew" in refusal.why:
            raise refusal
        raise Failure(
            f"access key {self._signer.key_id} was rejected",
            why,
            "check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or PENSTOCK_KEY_ID and"
            " PENSTOCK_SECRET",
            exit_code=ExitCode.DENIED,
        )


class Sns(_AwsClient):
    """A client of the SNS API, which accepts forms only. Replies are requested as JSON."""

    SERVICE = "sns"

    def call(self, action: str, fields: Mapping[str, str], *, what: str) -> Json:
        pairs = {"Action": action, "Version": _SNS_VERSION, **fields}
        body = urlencode(pairs).encode()
        headers = _signed(self._signer, self._connection.host, _SNS_HEADERS, body)
        reply = self._post(body, headers, what)
        found: Json = reply.get(f"{action}Response", {}).get(f"{action}Result") or {}
        return found

    def arn(self, name: str) -> str:
        """Return the ARN of a topic. Without an account in it, the server adds the caller's."""
        if name.startswith("arn:"):
            return name
        partition = arn_partition(self._region)
        return f"arn:{partition}:sns:{self._region}:{self._account or ''}:{name}"


class Sqs(_AwsClient):
    SERVICE = "sqs"

    def __init__(self, url: str, settings: Settings) -> None:
        super().__init__(url, settings)
        self._urls: dict[str, str] = {}

    def call(self, action: str, request: Json, *, what: str = "", wait_s: float = 0.0) -> Json:
        body = json.dumps(request, separators=(",", ":")).encode()
        headers = signed(self._signer, self._connection.host, action, body)
        return self._post(body, headers, what or f"{action} failed", wait_s)

    def call_queue(self, queue: str, action: str, *, what: str = "", **request: Any) -> Json:
        return self.call(action, {"QueueUrl": self.queue_url(queue), **request}, what=what)

    def queue_url(self, name: str) -> str:
        """Return the URL of a queue. The server is asked only if the account is unknown."""
        if "://" in name:
            return name
        name = name_of(name)
        if self._account is not None:
            return f"{self.url}/{self._account}/{quote(name)}"
        if name not in self._urls:
            try:
                reply = self.call("GetQueueUrl", {"QueueName": name})
            except Refused as refusal:
                is_absent = refusal.exit_code is ExitCode.NOT_FOUND
                refusal.what = (
                    f"queue '{name}' does not exist" if is_absent else f"cannot find queue '{name}'"
                )
                raise
            self._urls[name] = str(reply["QueueUrl"])
        return self._urls[name]

    def attributes(self, name: str, names: Sequence[str] = ("All",)) -> dict[str, str]:
        what = f"cannot show queue '{name}'"
        reply = self.call_queue(name, "GetQueueAttributes", what=what, AttributeNames=list(names))
        return dict(reply.get("Attributes", {}))

    def tags(self, name: str, *, what: str) -> dict[str, str]:
        return dict(self.call_queue(name, "ListQueueTags", what=what).get("Tags", {}))

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
        status, _, data = self._connection.call("GET", "/_penstock/info")
        info = _decode(data, self.url) if status == 200 else {}
        if not info.get("admin"):
            raise Failure(
                f"{self.url} did not report the address of its admin API",
                f"GET /_penstock/info returned HTTP status {status}",
                "set the address with --admin URL or PENSTOCK_ADMIN",
                exit_code=ExitCode.UNREACHABLE,
            )
        return info


class Admin(_Client):
    """A client of the admin API. It sends the token in PENSTOCK_TOKEN or PENSTOCK_ADMIN_TOKEN, or
    logs in with PENSTOCK_KEY_ID and PENSTOCK_SECRET. No option sets these secrets, because other
    users of the machine can see options. AWS_* keys are not used: they may be for AWS itself."""

    def __init__(self, url: str, settings: Settings, *, account_default: str | None = None) -> None:
        super().__init__(url, settings)
        self._account_default = account_default
        self._refusal: Refused | None = None  # the rejected log-in; raised on status 401
        self._is_logged_in = False
        self._headers: dict[str, str] = {}

    @property
    def _scope(self) -> dict[str, str]:
        self._log_in()
        account = self._account or self._account_default
        return {"region": self._region, **({"account": account} if account else {})}

    def _log_in(self) -> None:
        if self._is_logged_in:
            return
        self._is_logged_in = True
        env = environment()
        token = env.get("PENSTOCK_TOKEN") or env.get("PENSTOCK_ADMIN_TOKEN")
        key_id, secret = env.get("PENSTOCK_KEY_ID"), env.get("PENSTOCK_SECRET")
        if not token and key_id and secret:
            body = json.dumps({"key_id": key_id, "secret": secret}).encode()
            place, headers = "/api/v1/login", {"content-type": _JSON}
            status, _, data = self._connection.call("POST", place, body=body, headers=headers)
            if status == 200:
                token = str(_decode(data, self.url)["token"])
            else:
                # A server with authentication off has no keys and needs no log-in.
                self._refusal = _refused("cannot log in", status, data)
        if token:
            self._headers["authorization"] = f"Bearer {token}"
            self._account_default = _account_in(token) or self._account_default

    def get(
        self, path: str, query: Mapping[str, object] = {}, *, what: str = "", wait_s: float = 0.0
    ) -> Json:
        return self.call("GET", path, query, what=what or f"cannot read {path}", wait_s=wait_s)

    def call(
        self,
        method: str,
        path: str,
        query: Mapping[str, object] = {},
        *,
        body: Json | bytes | None = None,
        what: str,
        wait_s: float = 0.0,
    ) -> Json:
        """Send a request and return its JSON reply. A ``body`` of bytes is sent unchanged."""
        data = json.dumps(body).encode() if isinstance(body, dict) else body
        return _decode(self.exchange(method, path, query, data, what, wait_s)[1], self.url)

    def exchange(
        self, method: str, path: str, query: Query, body: bytes | None, what: str, wait_s: float
    ) -> tuple[Mapping[str, str], bytes]:
        self._log_in()
        pairs = {key: str(value) for key, value in query.items() if value is not None}
        target = f"/api/v1/{path}" + (f"?{urlencode(pairs)}" if pairs else "")
        headers = self._headers if body is None else {**self._headers, "content-type": _JSON}
        status, reply_headers, data = self._connection.call(
            method, target, body=body, headers=headers, wait_s=wait_s
        )
        if status in (200, 201):
            return reply_headers, data
        if status == 401 and self._refusal is not None:
            raise self._refusal
        raise _refused(what, status, data)

    def page(self, path: str) -> bytes:
        self._log_in()
        return self._connection.call("GET", path, headers=self._headers)[2]

    def pages(self, path: str, query: Query, *, what: str) -> Iterator[Json]:
        after = None
        while True:
            reply = self.get(path, {**query, "after": after}, what=what)
            yield from reply[path.rpartition("/")[2]]
            after = reply.get("next")
            if after is None:
                return

    def info(self) -> Json:
        return self.get("info")

    def readyz(self) -> Json:
        return _decode(self._connection.call("GET", "/readyz")[2], self.url)

    def queues(self, prefix: str = "") -> Iterator[Json]:
        query = {**self._scope, "prefix": prefix or None}
        return self.pages("queues", query, what="cannot list queues")

    def subscriptions(self, source: str | None = None, **more: object) -> Iterator[Json]:
        query = {**self._scope, "source": source, **more}
        return self.pages("subscriptions", query, what="cannot list subscriptions")

    def explanation(self, name: str, user: str | None = None) -> Json:
        path, query = f"queues/{quote(name, safe='')}/explain", {**self._scope, "user": user}
        return self.get(path, query, what=f"cannot explain queue '{name}'")

    def create_subscription(self, body: Json, *, what: str) -> Json:
        return self.call("POST", "subscriptions", self._scope, body=body, what=what)

    def messages(
        self, name: str, *, start: str, partition: int | None, count: int, wait_ms: int = 0
    ) -> Json:
        query = {**self._scope, "partition": partition, "start": start, "count": count}
        return self.get(
            f"queues/{quote(name, safe='')}/messages",
            {**query, "wait_ms": wait_ms or None},
            what=f"cannot read queue '{name}'",
            wait_s=wait_ms / 1_000,
        )


def _account_in(token: str) -> str | None:
    """Return the account id in a token, without verifying the token."""
    parts = token.split(".")
    if len(parts) != 3:
        return None
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
        return str(claims["account"])
    except (ValueError, KeyError, TypeError):
        return None


def _refused(what: str, status: int, data: bytes) -> Refused:
    value = _object(data)
    if value is None:
        text = data[:200].decode("utf-8", "replace").strip()
        return Refused(what, status=status, fault="", message=text)
    error = value.get("error") or value.get("Error")  # of the admin API, of SNS
    if isinstance(error, dict):
        value = error
    code = value.get("__type") or value.get("code") or value.get("Code")
    fault = str(code or "").rpartition("#")[2]
    message = str(value.get("message") or value.get("Message") or "")
    return Refused(what, status=status, fault=fault, message=message)
