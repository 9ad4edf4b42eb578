"""What configs belong to, as the protocol numbers it, and which of it can be changed."""

from enum import IntEnum
from typing import Final

from penstock.frontend.kafka.refusal import Refusal
from penstock.wire.kafka.faults import ErrorCode


class ResourceType(IntEnum):
    TOPIC = 2
    NODE = 4
    GROUP = 32


_NODE_FIXED: Final = "The configs of a node are read when it starts and fixed from then on."


def unknown_resource(resource_type: int) -> Refusal:
    return Refusal(
        ErrorCode.INVALID_REQUEST, f"There are no configs of resources of type {resource_type}."
    )


def check_alterable(resource_type: int) -> None:
    """The configs of topics and groups are kept; a group's are changed by group_configs.py. Raises
    Refusal."""
    if resource_type in (ResourceType.TOPIC, ResourceType.GROUP):
        return
    if resource_type == ResourceType.NODE:
        raise Refusal(ErrorCode.INVALID_REQUEST, _NODE_FIXED)
    raise unknown_resource(resource_type)
