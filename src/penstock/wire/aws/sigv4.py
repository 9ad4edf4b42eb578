"""Who says they signed a request: the SigV4 credential scope, from a header or a presigned URL.

Only reading, no checking: the scope also names the region, which chooses the namespace of queue
names, so it is needed whether or not signatures are enforced. That is also why an implausible
signature is let through here: whoever verifies it will refuse it with the better error.
"""

import re
from collections.abc import Mapping

import msgspec

from penstock.model.names import is_region
from penstock.wire.aws.faults import Fault, fault

ALGORITHM = "AWS4-HMAC-SHA256"
_DATE = re.compile(r"[0-9]{8}\Z")
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")
_ACCESS_KEY_MAX = 128  # what AWS allows for its own
_SIGNED_HEADERS_MAX = 100


class CredentialScope(msgspec.Struct, frozen=True, gc=False):
    access_key: str
    date: str  # YYYYMMDD
    region: str
    service: str
    signed_headers: tuple[str, ...]
    signature: str
    is_presigned: bool = False


def parse(authorization: str | None, fields: Mapping[str, str]) -> CredentialScope | None:
    """The scope of a request; None when it is not signed this way at all. ``fields`` are those of
    the query string, where a presigned URL carries its signature."""
    if authorization is not None and authorization.startswith("AWS4-"):
        return _parse_header(authorization)
    if "X-Amz-Algorithm" in fields or "X-Amz-Credential" in fields:
        return _parse_presigned(fields)
    return None


def _parse_header(authorization: str) -> CredentialScope:
    algorithm, _, rest = authorization.partition(" ")
    parts: dict[str, str] = {}
    for part in rest.split(",", 8):
        name, _, value = part.partition("=")
        parts[name.strip()] = value.strip()
    return _scope(
        algorithm,
        credential=_required(parts, "Credential", "Authorization header"),
        signed_headers=_required(parts, "SignedHeaders", "Authorization header"),
        signature=_required(parts, "Signature", "Authorization header"),
        is_presigned=False,
    )


def _parse_presigned(fields: Mapping[str, str]) -> CredentialScope:
    return _scope(
        _required(fields, "X-Amz-Algorithm", "AWS query-string"),
        credential=_required(fields, "X-Amz-Credential", "AWS query-string"),
        signed_headers=_required(fields, "X-Amz-SignedHeaders", "AWS query-string"),
        signature=_required(fields, "X-Amz-Signature", "AWS query-string"),
        is_presigned=True,
    )


def _required(parts: Mapping[str, str], name: str, where: str) -> str:
    value = parts.get(name)
    if value is None:
        raise _incomplete(f"{where} requires '{name}' parameter.")
    return value


def _scope(
    algorithm: str, *, credential: str, signed_headers: str, signature: str, is_presigned: bool
) -> CredentialScope:
    if algorithm != ALGORITHM:
        raise _incomplete(f"Unsupported signing algorithm; use {ALGORITHM}.")
    parts = credential.rsplit("/", 4)  # from the right: an access key may itself contain a slash
    if len(parts) != 5:
        raise _incomplete("Credential must have exactly 5 slash-delimited elements.")
    access_key, date, region, service, terminator = parts
    if not 0 < len(access_key) <= _ACCESS_KEY_MAX:
        raise _incomplete("Credential must begin with an access key.")
    if _DATE.match(date) is None:
        raise _incomplete("Date in Credential scope must be in the form YYYYMMDD.")
    if not is_region(region) or _NAME.match(service) is None:
        raise _incomplete("Credential should be scoped to a region and a service.")
    if terminator != "aws4_request":
        raise _incomplete("Credential should be scoped with a valid terminator: 'aws4_request'.")
    headers = tuple(signed_headers.split(";", _SIGNED_HEADERS_MAX))
    if len(headers) > _SIGNED_HEADERS_MAX:
        raise _incomplete("Too many signed headers.")
    return CredentialScope(
        access_key, date, region, service, headers, signature, is_presigned=is_presigned
    )


def _incomplete(message: str) -> Fault:
    return fault("IncompleteSignature", message)
