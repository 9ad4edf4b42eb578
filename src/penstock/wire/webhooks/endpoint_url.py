"""The URL of an endpoint, parsed by strict rules: a URL that two programs could read in two ways is
rejected, so that the host that is checked is the host that is called. Pure."""

import base64
import ipaddress
import re
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import unquote_to_bytes

URL_CHARS_MAX: Final = 2_048
HOST_CHARS_MAX: Final = 253  # of a DNS name

_URL: Final = re.compile(r"(https?)://([^/?]*)(.*)", re.IGNORECASE | re.DOTALL)
_AUTHORITY: Final = re.compile(r"(?:([^@]*)@)?(\[[^]@]*\]|[^@:\[\]]*)(?::([0-9]+))?")
_TARGET: Final = re.compile(r"[!-~]*")  # visible ASCII
_PORT: Final = re.compile(r"[1-9][0-9]{0,4}")
# Underscores are not valid in host names, but names of services in containers have them.
_LABEL: Final = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")
# A name that ends like this is read as an address by some programs: 127.1, 0x7f.1, 2130706433.
_NUMBER: Final = re.compile(r"[0-9]+|0x[0-9a-f]*")
# Two versions of IDNA disagree about these characters, so they name two different hosts.
_AMBIGUOUS: Final = frozenset("ßς\u200c\u200d")


class UrlInvalid(ValueError):
    """The text says why, in words for the user; it contains no part of the URL."""


@dataclass(frozen=True, slots=True)
class EndpointUrl:
    scheme: str  # http or https
    host: str  # a DNS name in ASCII, or an address in canonical form without brackets
    port: int
    target: str  # path and query
    is_address: bool
    user: str = ""
    authorization: str = field(default="", repr=False)  # value of the Authorization header

    @property
    def is_tls(self) -> bool:
        return self.scheme == "https"

    @property
    def shown(self) -> str:
        """Return the URL without its password."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        port = "" if self.port == (443 if self.is_tls else 80) else f":{self.port}"
        login = f"{self.user}:****@" if self.authorization else ""
        return f"{self.scheme}://{login}{host}{port}{self.target}"


def parse_endpoint_url(text: str) -> EndpointUrl:
    """Parse the URL of an endpoint. Raises UrlInvalid."""
    if len(text) > URL_CHARS_MAX:
        raise UrlInvalid(f"The URL has more than {URL_CHARS_MAX:,} characters.")
    found = _URL.fullmatch(text)
    if found is None:
        raise UrlInvalid("The URL must begin with http:// or https://.")
    scheme, authority, target = found[1].lower(), found[2], found[3]
    if "#" in text or "\\" in text:
        raise UrlInvalid("The URL must not have a fragment (#) or a backslash.")
    if _TARGET.fullmatch(target) is None:
        raise UrlInvalid(
            "Path and query of the URL must be visible ASCII characters; encode others as %XX."
        )
    parts = _AUTHORITY.fullmatch(authority)
    if parts is None:
        raise UrlInvalid("The URL must have the form http://user:password@host:port/path.")
    host, is_address = _parse_host(parts[2])
    port = 443 if scheme == "https" else 80
    if parts[3] is not None:
        if _PORT.fullmatch(parts[3]) is None or int(parts[3]) > 65_535:
            raise UrlInvalid("The port of the URL must be a number from 1 to 65535.")
        port = int(parts[3])
    if target.startswith("?") or not target:
        target = f"/{target}"
    user, authorization = ("", "") if parts[1] is None else _parse_login(parts[1])
    return EndpointUrl(scheme, host, port, target, is_address, user, authorization)


def _parse_login(text: str) -> tuple[str, str]:
    user, _, password = text.partition(":")
    if not (text.isascii() and text.isprintable()) or ":" in password or not user:
        raise UrlInvalid(
            "The login in the URL must be user:password, with others than ASCII as %XX."
        )
    decoded = unquote_to_bytes(user), unquote_to_bytes(password)
    if b":" in decoded[0] or any(byte < 32 or byte == 127 for byte in b"".join(decoded)):
        raise UrlInvalid("User and password in the URL must not have control characters.")
    return user, "Basic " + base64.b64encode(b":".join(decoded)).decode("ascii")


def _parse_host(text: str) -> tuple[str, bool]:
    """Return the host and whether it is an address."""
    if text.startswith("["):
        try:
            address = ipaddress.IPv6Address(text[1:-1])
        except ValueError:
            raise UrlInvalid("The host of the URL is not an IPv6 address.") from None
        if address.scope_id is not None:
            raise UrlInvalid("The host of the URL must not have a zone (%).")
        return str(address), True
    name = text.lower() if text.isascii() else _to_ascii(text)
    labels = name.split(".")
    if _NUMBER.fullmatch(labels[-1]) is not None:
        try:
            return str(ipaddress.IPv4Address(name)), True
        except ValueError:
            raise UrlInvalid(
                "An IPv4 address in the URL must be four decimal numbers without leading zeros."
            ) from None
    if len(name) > HOST_CHARS_MAX or not all(map(_LABEL.fullmatch, labels)):
        raise UrlInvalid("The host of the URL is neither a DNS name nor an address.")
    return name, False


def _to_ascii(text: str) -> str:
    if len(text) > HOST_CHARS_MAX or not _AMBIGUOUS.isdisjoint(text.lower()):
        raise UrlInvalid("The host of the URL has characters that are not allowed in a DNS name.")
    try:
        return text.encode("idna").decode("ascii").lower()
    except UnicodeError:
        raise UrlInvalid("The host of the URL is not a valid international name.") from None
