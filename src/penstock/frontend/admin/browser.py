"""What keeps browsers from being used against the admin API: headers that allow an answer to be
nothing but data, and a look at the name that was dialled.

Where authentication is off, whoever reaches the loopback address is believed. A page from anywhere
can point a name of its own at that address after it was loaded, and then asks as if it came from
here. What it cannot change is the name in ``Host``: on loopback, only names that nobody outside can
own are answered.
"""

import ipaddress
from typing import Final

from penstock.net.exchange import HttpRequest

HEADERS: Final = (
    ("content-security-policy", "default-src 'none'; frame-ancestors 'none'"),
    ("x-content-type-options", "nosniff"),
    ("x-frame-options", "DENY"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-resource-policy", "same-origin"),
)

# Ends of names that no registry gives away.
_OURS: Final = (".localhost", ".localdomain", ".internal", ".local", ".lan", ".test", ".home.arpa")


def is_misdialled(request: HttpRequest) -> bool:
    """A request over loopback, by a name that may belong to anybody."""
    host = request.headers.get("host", "")
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    name = name.lower().rstrip(".")
    if "." not in name or name.endswith(_OURS) or _is_address(name):
        return False
    try:
        return ipaddress.ip_address(request.peer).is_loopback
    except ValueError:
        return False


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
