"""The only way from a subscription to the network: every request to an endpoint, also one that
confirms or tests a subscription, is resolved, judged and sent here."""

import asyncio
import logging
from functools import partial
from typing import Final

from penstock.flow.verdicts import Failure
from penstock.net.http.client import HttpClient
from penstock.net.http.client_messages import (
    ClientReply,
    ClientRequest,
    FailureReason,
    Origin,
    RequestFailed,
)
from penstock.net.http.client_sockets import Proxy
from penstock.net.http.client_tls import TlsContexts, TlsIdentity, TlsInvalid
from penstock.push.address_guard import AddressGuard, parse_rules
from penstock.push.resolver import LOOKUP_SECONDS_MAX, Lookup, Resolver, system_lookup
from penstock.wire.webhooks.endpoint_url import EndpointUrl, UrlInvalid, parse_endpoint_url

_PLAIN: Final = "http is not allowed, only https"
_NO_IDENTITY: Final = TlsIdentity()
# The operator chooses the proxy and the gateways, so they may be anywhere.
_ANYWHERE: Final = AddressGuard(allow=parse_rules(("0.0.0.0/0", "::/0")), ports=((1, 65_535),))


log_ = logging.getLogger(__name__)


def operator_resolver(*, lookup: Lookup = system_lookup) -> Resolver:
    """Return a resolver for URLs in the configuration. It must never get the URL of a tenant."""
    return Resolver(_ANYWHERE, lookup=lookup)


# What a failed request means for its message, if the operator has chosen the URL.
FAILURES: Final = {
    FailureReason.DNS: Failure.NOT_RESOLVED,
    FailureReason.REFUSED_ADDRESS: Failure.UNUSABLE,
    FailureReason.CONNECT: Failure.NOT_CONNECTED,
    FailureReason.TLS: Failure.TLS,
    FailureReason.TIMEOUT: Failure.TIMEOUT,
    FailureReason.PROTOCOL: Failure.BAD_REPLY,
    FailureReason.RESET: Failure.CONNECTION_LOST,
    FailureReason.HEAD_TOO_LARGE: Failure.BAD_REPLY,
}
# The same, if a tenant has chosen the URL.
TENANT_FAILURES: Final = {**FAILURES, FailureReason.DNS: Failure.UNUSABLE}


def make_proxy(text: str, *, lookup: Lookup = system_lookup) -> Proxy:
    """Return the proxy of ``push.proxy_url``. Raises UrlInvalid."""
    url = parse_endpoint_url(text)
    if url.is_tls or url.target != "/":
        raise UrlInvalid("The URL of the proxy must have the form http://user:password@host:port.")
    resolver = operator_resolver(lookup=lookup)
    find = partial(resolver.find, url, tenant="", timeout_s=LOOKUP_SECONDS_MAX)
    return Proxy(find, url.port, url.authorization)


class Outbound:
    def __init__(
        self,
        client: HttpClient,
        resolver: Resolver,
        contexts: TlsContexts,
        *,
        allows_plain: bool = True,  # requests without TLS
    ) -> None:
        self._client = client
        self._resolver = resolver
        self._contexts = contexts
        self._allows_plain = allows_plain
        self._loop = asyncio.get_running_loop()

    def is_usable(self, url: EndpointUrl, *, tenant: str) -> bool:
        """Return False, and log the reason, if a URL is refused whatever its name leads to. Names
        are judged when they are called: here, a refusal would tell the tenant that a name is one of
        this cluster, or is in ``push.deny``."""
        guard, host, port = self._resolver.guard, url.host, url.port
        if not url.is_tls and not self._allows_plain:
            reason: str | None = _PLAIN
        elif url.is_address:
            reason = guard.refusal(host, port, (host,))
        else:
            reason = guard.port_refusal(port)
        if reason is not None:
            log_.warning("endpoint refused", extra={"tenant": tenant, "reason": reason})
        return reason is None

    async def send(
        self,
        url: EndpointUrl,
        *,
        tenant: str,
        timeout_s: float,
        method: str = "POST",
        headers: tuple[tuple[str, str], ...] = (),
        body: bytes = b"",
        identity: TlsIdentity = _NO_IDENTITY,
        may_resend: bool = True,
    ) -> ClientReply:
        """Send a request and return the reply. One timeout covers all, including the lookup of the
        name. Raises RequestFailed, or RequestInvalid for a header that must not be sent."""
        if not url.is_tls and not self._allows_plain:
            raise RequestFailed(FailureReason.REFUSED_ADDRESS, _PLAIN)
        ends_at = self._loop.time() + timeout_s
        addresses = await self._resolver.find(url, tenant=tenant, timeout_s=timeout_s)
        tls = None
        if url.is_tls:
            try:
                tls = await self._contexts.get(identity)
            except TlsInvalid as error:
                raise RequestFailed(FailureReason.TLS, str(error)) from None
        if url.authorization:
            headers = (*headers, ("Authorization", url.authorization))
        request = ClientRequest(
            origin=Origin(url.host, url.port, tls),
            method=method,
            target=url.target,
            headers=headers,
            body=body,
            may_resend=may_resend,
        )
        timeout_s = ends_at - self._loop.time()
        return await self._client.send(request, addresses=addresses, timeout_s=timeout_s)
