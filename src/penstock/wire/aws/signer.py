"""The client side of Signature Version 4, which signs the requests of commands and pipeline jobs.

It supports only POST requests with an empty query string and a body in memory. The signing key of a
day is cached, because deriving it costs four times as much as signing with it."""

import hashlib
import hmac
from collections.abc import Mapping
from typing import NamedTuple

_ALGORITHM = "AWS4-HMAC-SHA256"


class Credentials(NamedTuple):
    key_id: str
    secret: str
    session_token: str | None = None


class Signer:
    def __init__(self, credentials: Credentials, *, region: str, service: str = "sqs") -> None:
        self._credentials = credentials
        self._region = region
        self._service = service
        self._day = ""
        self._day_key = b""

    @property
    def key_id(self) -> str:
        return self._credentials.key_id

    def sign(
        self, *, host: str, path: str, headers: Mapping[str, str], body: bytes, timestamp: str
    ) -> dict[str, str]:
        """Return the signed request's headers. ``timestamp`` has the form ``20260102T030405Z``."""
        signed = {name.lower(): value for name, value in headers.items()}
        signed["host"] = host
        signed["x-amz-date"] = timestamp
        if self._credentials.session_token:
            signed["x-amz-security-token"] = self._credentials.session_token
        names = sorted(signed)
        canonical = "\n".join(
            (
                "POST",
                path,
                "",
                *(f"{name}:{signed[name].strip()}" for name in names),
                "",
                ";".join(names),
                hashlib.sha256(body).hexdigest(),
            )
        )
        day = timestamp[:8]
        scope = f"{day}/{self._region}/{self._service}/aws4_request"
        digest = hashlib.sha256(canonical.encode()).hexdigest()
        text = f"{_ALGORITHM}\n{timestamp}\n{scope}\n{digest}"
        signature = hmac.new(self._key_of(day), text.encode(), hashlib.sha256).hexdigest()
        signed["authorization"] = (
            f"{_ALGORITHM} Credential={self._credentials.key_id}/{scope}, "
            f"SignedHeaders={';'.join(names)}, Signature={signature}"
        )
        return signed

    def _key_of(self, day: str) -> bytes:
        if day != self._day:
            key = ("AWS4" + self._credentials.secret).encode()
            for part in (day, self._region, self._service, "aws4_request"):
                key = hmac.new(key, part.encode(), hashlib.sha256).digest()
            self._day, self._day_key = day, key
        return self._day_key
