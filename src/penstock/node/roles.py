"""Which parts of Penstock one process runs.

Today a process is one of three: everything, the metadata service, or everything else against a
metadata service. A frontend without a broker needs a broker that can be called, which there is not
yet.
"""

from enum import StrEnum


class Role(StrEnum):
    FRONTEND = "frontend"
    BROKER = "broker"
    METADATA = "metadata"


ALL = ",".join(Role)
EVERYTHING = frozenset(Role)
SERVICE = frozenset({Role.METADATA})
ATTACHED = frozenset({Role.FRONTEND, Role.BROKER})


def parse_roles(text: str) -> frozenset[Role]:
    """Raises ValueError with the reason."""
    names = [part.strip() for part in text.split(",") if part.strip()]
    unknown = [name for name in names if name not in set(Role)]
    if unknown or not names:
        raise ValueError(f"expected some of {', '.join(Role)}")
    roles = frozenset(Role(name) for name in names)
    if roles not in (EVERYTHING, SERVICE, ATTACHED):
        raise ValueError("expected frontend,broker,metadata together, metadata, or frontend,broker")
    return roles


def check_roles(text: str) -> str | None:
    try:
        parse_roles(text)
    except ValueError as error:
        return str(error)
    return None
