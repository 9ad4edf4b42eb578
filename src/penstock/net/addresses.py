"""Addresses of this machine, and addresses in texts."""

import socket
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

_IPV4 = Path("/proc/net/fib_trie")
_IPV6 = Path("/proc/net/if_inet6")


def split_address(text: str) -> tuple[str, int] | None:
    """Return host and port of ``host:port`` or of a URL, or None if the text has no port."""
    is_url = "://" in text
    try:
        found = urlsplit(text if is_url else f"//{text}")
        port = found.port or (443 if found.scheme == "https" else 80 if is_url else None)
    except ValueError:
        return None
    return None if not found.hostname or port is None else (found.hostname, port)


def machine_addresses() -> set[str]:
    """Return the addresses of this machine, as far as the system tells them."""
    addresses: set[str] = set()
    try:
        last = ""
        for line in _IPV4.read_text().splitlines():
            if "|--" in line:
                last = line.rpartition(" ")[2]
            elif "/32 host LOCAL" in line:
                addresses.add(last)
        for line in _IPV6.read_text().splitlines():
            addresses.add(socket.inet_ntop(socket.AF_INET6, bytes.fromhex(line.split()[0])))
    except (OSError, ValueError):  # not Linux
        with suppress(OSError):
            for found in socket.getaddrinfo(socket.gethostname(), None):
                addresses.add(str(found[4][0]).partition("%")[0])
    return addresses
