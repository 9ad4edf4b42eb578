"""Sends requests that belong to no pusher, such as confirmations. Each of them waits for a slot, as
a pusher does, so the limits of the node, the tenant and the destination apply."""

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

from penstock.flow.slots import Slot, Slots
from penstock.flow.slots import Subscription as Lane
from penstock.flow.verdicts import Health
from penstock.model.ports import Clock
from penstock.net.http.client_messages import ClientReply
from penstock.net.http.client_tls import TlsIdentity
from penstock.push.outbound import Outbound
from penstock.wire.webhooks.endpoint_url import EndpointUrl

ATTEMPTS_MAX: Final = 3  # of one request, by the callers
RETRY_SECONDS: Final = 5.0
_NO_IDENTITY: Final = TlsIdentity()


class Granted(Protocol):
    def granted(self, slot: Slot) -> None: ...


class _Turn:
    """Waits for the slot of one request."""

    def __init__(self) -> None:
        self.slot: asyncio.Future[Slot] = asyncio.get_running_loop().create_future()

    def granted(self, slot: Slot) -> None:
        self.slot.set_result(slot)


class SingleRequests:
    def __init__(
        self,
        outbound: Outbound,
        slots: Slots,
        clock: Clock,
        *,
        lanes: dict[Lane, Granted],  # of all requests of this node
        kick: Callable[[], None],  # called when slots may be wanted or free
    ) -> None:
        self._outbound, self._slots, self._clock = outbound, slots, clock
        self._lanes, self._kick = lanes, kick

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
    ) -> ClientReply:
        """Send a request when there is a slot, and return the reply. Raises RequestFailed or
        RequestInvalid."""
        slots, clock = self._slots, self._clock
        destination = (url.scheme, url.host, url.port)
        lane = slots.add(tenant, destination, limit=1, request_bytes=len(body))
        turn = self._lanes[lane] = _Turn()
        health = Health.UNKNOWN
        try:
            slots.want(lane, 1, now_ms=clock.mono_ms())
            self._kick()
            slot = await turn.slot
            slots.send(slot, len(body), now_ms=clock.mono_ms())
            reply = await self._outbound.send(
                url,
                tenant=tenant,
                timeout_s=timeout_s,
                method=method,
                headers=headers,
                body=body,
                identity=identity,
            )
            if 200 <= reply.status < 300:
                health = Health.GOOD
            return reply
        finally:
            now_ms = clock.mono_ms()
            if turn.slot.done() and not turn.slot.cancelled():
                slots.end(turn.slot.result(), health, now_ms=now_ms)
            slots.remove(lane, now_ms=now_ms)
            del self._lanes[lane]
            self._kick()
