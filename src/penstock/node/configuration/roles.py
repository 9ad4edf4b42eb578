"""The roles of one process: all of them, only the metadata service, or all others with a metadata
service elsewhere. A frontend without a broker is not supported yet."""

from enum import StrEnum

from penstock.node.configuration.addresses import check_of


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


check_roles = check_of(parse_roles)
