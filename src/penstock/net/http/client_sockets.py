"""Connected sockets for the HTTP client: to an address, or through a proxy to that address.

A tunnel (CONNECT) names the address that the caller has checked and not the host name, so that the
proxy does not look up the name again and get another address."""

import asyncio
import re
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import msgspec

from penstock.net.http.client_messages import FailureReason, RequestFailed

_PROXY_HEAD_BYTES_MAX: Final = 16_384
_ESTABLISHED: Final = re.compile(rb"HTTP/1\.[01] 2[0-9][0-9][ \r]")


async def connect_socket(address: str, port: int) -> socket.socket:
    """Return a socket connected to an address, which is never looked up. Raises RequestFailed."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    connected = socket.socket(family, socket.SOCK_STREAM)
    try:
        connected.setblocking(False)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await asyncio.get_running_loop().sock_connect(connected, (address, port))
    except OSError as error:
        connected.close()
        detail = f"{address} port {port}: {error.strerror or error}"
        raise RequestFailed(FailureReason.CONNECT, detail) from None
    except BaseException:
        connected.close()
        raise
    return connected


class Proxy(msgspec.Struct, frozen=True):
    find: Callable[[], Awaitable[Sequence[str]]]  # returns the addresses of the proxy
    port: int
    authorization: str = ""  # value of Proxy-Authorization

    def __repr__(self) -> str:
        return f"Proxy(port={self.port})"  # without the password

    async def open_tunnel(self, address: str, port: int) -> socket.socket:
        """Return a socket whose other end is the given address. Raises RequestFailed."""
        loop = asyncio.get_running_loop()
        proxy_address = (await self.find())[0]
        connected = await connect_socket(proxy_address, self.port)
        try:
            await loop.sock_sendall(connected, self._request(address, port))
            head = b""
            while b"\r\n\r\n" not in head:
                data = await loop.sock_recv(connected, 4_096)
                head += data
                if not data or len(head) > _PROXY_HEAD_BYTES_MAX:
                    detail = "the proxy did not reply to CONNECT with an HTTP head"
                    raise RequestFailed(FailureReason.CONNECT, detail)
            # Bytes after the head would be a reply to a request that was not sent.
            is_alone = head.find(b"\r\n\r\n") == len(head) - 4
            if _ESTABLISHED.match(head) is None or not is_alone:
                line = head[:64].partition(b"\r\n")[0].decode("ascii", "replace")
                detail = f"the proxy rejected the connection: {line}"
                raise RequestFailed(FailureReason.CONNECT, detail)
        except OSError as error:
            connected.close()
            detail = f"proxy {proxy_address}: {error.strerror or error}"
            raise RequestFailed(FailureReason.CONNECT, detail) from None
        except BaseException:
            connected.close()
            raise
        return connected

    def _request(self, address: str, port: int) -> bytes:
        authority = f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
        head = f"CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n"
        if self.authorization:
            head += f"Proxy-Authorization: {self.authorization}\r\n"
        return f"{head}\r\n".encode("ascii")
