"""Rejects requests that a web page made a browser send to this server.

If authentication is off, the server trusts every request, and a page of any web site can make a
developer's browser send requests: with forms, images, or ``fetch`` without CORS. Three request
headers identify such requests, because a page cannot change them:

- ``Sec-Fetch-Site`` says whether the page belongs to another site. Browsers send this header only
  to trustworthy addresses: HTTPS, ``localhost`` and loopback addresses.
- ``Origin`` names the page. Browsers send this header with every POST and with every request whose
  reply the page may read; the origin must be the host of the request.
- ``Host`` is the name in the address bar or in the link. A page can have its own name resolve to a
  loopback address (DNS rebinding); for the browser the server is then the page's own site. So only
  addresses, and names that no attacker can own, are served. ``0.0.0.0`` and ``[::]`` reach this
  machine as well, but browsers do not treat them as trustworthy, so they are rejected.

These headers do not identify a GET (which has no ``Origin``) to a name that browsers do not treat
as trustworthy, such as ``localhost.localstack.cloud``. So on a port where a GET can change
something, a GET with a query string is rejected if a browser sent it without ``Sec-Fetch-Site``.

With authentication on, a page cannot sign a request, and only ``Sec-Fetch-Site`` is checked.

A link that contains its own proof, such as the token that confirms a subscription, is meant to be
clicked anywhere, for example in a web mail program. It may be followed from every page.
"""

import ipaddress
import re
from collections.abc import Callable, Mapping
from typing import Final
from urllib.parse import urlsplit

from httptools import HttpRequestParser as Parser

HOSTS_MAX: Final = 1_024  # accepted Host values remembered by one guard, about 100 bytes each

# Name suffixes that no public registry assigns.
_PRIVATE = (".localhost", ".localdomain", ".internal", ".local", ".lan", ".test", ".home.arpa")
# Names of AWS and LocalStack that SDK test setups resolve to this machine.
_REGION: Final = r"[a-z]{2,4}(?:-[a-z]+)+-[0-9]{1,2}"
_SDK: Final = re.compile(
    rf"(?:(?:sqs|sns)\.{_REGION}|(?:{_REGION}\.)?queue)\.amazonaws\.com|(?:.+\.)?localhost\.localstack\.cloud"
)
_FOREIGN_SITES: Final = ("cross-site", "same-site")
_BROWSER: Final = "mozilla/"  # how the User-Agent of every browser begins


class BrowserGuard:
    def __init__(
        self,
        *,
        is_open: bool,
        external_url: str = "",
        acts_on_get: bool = False,
        is_proven: Callable[[bytes], bool] = lambda _query: False,
    ) -> None:
        """Create a guard. ``is_open`` says that authentication is off, ``acts_on_get`` that a GET
        request can change something, and ``is_proven`` that a query string contains the proof that
        a person may do what it says."""
        self._is_open = is_open
        self._is_proven = is_proven
        self._acts_on_get = acts_on_get
        self._external = urlsplit(external_url).hostname or ""
        # Accepted Host values. HTTP/1.0 has no Host, and no browser speaks HTTP/1.0.
        self.served: set[str | None] = {None}

    def refusal(self, headers: Mapping[str, str], url: bytes, parser: Parser) -> str | None:
        """Return the reason why a request is rejected, or None if it is allowed."""
        if "sec-fetch-site" in headers:
            if self._is_foreign(headers, url, parser):
                return "Requests by web pages of other sites are rejected."
        elif (
            b"?" in url
            and self._is_open
            and self._acts_on_get
            and headers.get("user-agent", "").lstrip().lower().startswith(_BROWSER)
            and not self._is_link(url, parser)
        ):
            return (
                "Actions in the query string are rejected when a browser does not say which page "
                "sent them: use localhost or an SQS client."
            )
        host = headers.get("host")
        if host not in self.served:
            if self._is_open and not self._serves(host or ""):
                return (
                    f"Host {host} is not served while authentication is off: use localhost or an IP"
                    " address, set http.external_url, or turn authentication on."
                )
            if len(self.served) < HOSTS_MAX:
                self.served.add(host)
        if self._is_open and "origin" in headers and not _is_own(headers["origin"], host or ""):
            return "Requests by web pages are rejected while authentication is off."
        return None

    def _is_foreign(self, headers: Mapping[str, str], url: bytes, parser: Parser) -> bool:
        """Return whether a page of another site sent the request. A link to this server does not
        count."""
        if headers["sec-fetch-site"].strip().lower() not in _FOREIGN_SITES:
            return False
        is_click = headers.get("sec-fetch-mode", "").strip().lower() == "navigate"
        return not (is_click and self._is_link(url, parser))

    def _is_link(self, url: bytes, parser: Parser) -> bool:
        """Return whether a request does nothing, or nothing without a proof."""
        _, mark, query = url.partition(b"?")
        return parser.get_method() == b"GET" and (not mark or self._is_proven(query))

    def _serves(self, host: str) -> bool:
        host = host.strip().lower()
        if host.startswith("["):
            name = host[1:].partition("]")[0]
        else:
            name = host.partition(":")[0].rstrip(".")
        try:
            return _is_dialled(ipaddress.ip_address(name))
        except ValueError:
            return (
                ("." not in name and "%" not in name)
                or name.endswith(_PRIVATE)
                or name == self._external
                or _SDK.fullmatch(name) is not None
            )


def _is_dialled(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return not address.ipv4_mapped.is_unspecified
    return not address.is_unspecified


def _is_own(origin: str, host: str) -> bool:
    scheme, _, place = origin.strip().lower().partition("://")
    return scheme in ("http", "https") and place == host.strip().lower()
