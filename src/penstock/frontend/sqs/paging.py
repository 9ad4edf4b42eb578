"""Pages of queues: sorted by name, continued behind the last name seen. The token holds that name,
so a page can be asked for again, by any frontend, and queues made meanwhile do not shift it."""

import base64
import binascii
from bisect import bisect_right
from collections.abc import Sequence

from penstock.model.names import is_queue_name
from penstock.model.topic import Topic
from penstock.wire.aws.faults import fault, invalid_value

PAGE_MAX = 1_000
_VERSION = "1:"


def _token(name: str) -> str:
    return base64.urlsafe_b64encode((_VERSION + name).encode()).decode()


def _name_in(token: str) -> str:
    try:
        text = base64.b64decode(token.encode(), altchars=b"-_", validate=True).decode()
    except (binascii.Error, ValueError):
        text = ""
    name = text.removeprefix(_VERSION)
    if not text.startswith(_VERSION) or not is_queue_name(name):
        raise fault("InvalidParameterValue", "Invalid or expired next token.")
    return name


def page(
    topics: Sequence[Topic], *, next_token: str | None, max_results: int | None
) -> tuple[Sequence[Topic], str | None]:
    """One page of topics (sorted by name) and the token of the next; a token is given only to
    clients that asked for pages by naming a size."""
    if max_results is not None and not 1 <= max_results <= PAGE_MAX:
        raise invalid_value(
            max_results, "MaxResults", f"MaxResults must be between 1 and {PAGE_MAX}, if provided."
        )
    if next_token:
        name = _name_in(next_token)
        topics = topics[bisect_right(topics, name, key=lambda topic: topic.name) :]
    size = PAGE_MAX if max_results is None else max_results
    shown = topics[:size]
    if max_results is None or len(topics) <= size:
        return shown, None
    return shown, _token(shown[-1].name)
