"""Tags of a queue: how many, how long."""

from collections.abc import Mapping

from penstock.model.limits import TAGS_MAX
from penstock.wire.aws.faults import fault, invalid_value

KEY_CHARS_MAX = 128
VALUE_CHARS_MAX = 256


def check_tags(tags: Mapping[str, str]) -> None:
    for key, value in tags.items():
        if not 1 <= len(key) <= KEY_CHARS_MAX:
            raise invalid_value(key, "Tag.Key", f"must be 1 to {KEY_CHARS_MAX} characters long.")
        if len(value) > VALUE_CHARS_MAX:
            raise invalid_value(
                value, "Tag.Value", f"must be at most {VALUE_CHARS_MAX} characters long."
            )


def merged(
    current: Mapping[str, str], given: Mapping[str, str], *, queue_name: str
) -> dict[str, str]:
    tags = {**current, **given}
    if len(tags) > TAGS_MAX:
        raise fault("InvalidParameterValue", f"Too many tags added for queue {queue_name}.")
    return tags
