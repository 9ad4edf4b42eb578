"""What configs belong to, as the protocol numbers it, and which of it can be changed: topics."""

from enum import IntEnum
from typing import Final

from penstock.frontend.kafka.refusal import Refusal
from penstock.wire.kafka.faults import ErrorCode


class ResourceType(IntEnum):
    TOPIC = 2
    NODE = 4
    GROUP = 32


_FIXED: Final = {
    ResourceType.NODE: "The configs of a node are read when it starts and fixed from then on.",
    ResourceType.GROUP: "The configs of groups are those of the node, fixed while it runs.",
}


def unknown_resource(resource_type: int) -> Refusal:
    return Refusal(
        ErrorCode.INVALID_REQUEST, f"There are no configs of resources of type {resource_type}."
    )


def check_alterable(resource_type: int) -> None:
    """Only a topic's configs are kept anywhere. Raises Refusal."""
    if resource_type == ResourceType.TOPIC:
        return
    for known, reason in _FIXED.items():
        if resource_type == known:
            raise Refusal(ErrorCode.INVALID_REQUEST, reason)
    raise unknown_resource(resource_type)
