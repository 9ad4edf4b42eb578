"""The SQS actions by name. Modules of this package do not import one another."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from penstock.frontend.sqs.actions import (
    attributes,
    move_tasks,
    permissions,
    queues,
    receipts,
    receive,
    send,
    tags,
)
from penstock.frontend.sqs.call import Action

_MODULES = (attributes, move_tasks, permissions, queues, receipts, receive, send, tags)
ACTIONS: Final[Mapping[str, Action]] = MappingProxyType(
    {action.name: action for module in _MODULES for action in module.ACTIONS}
)
