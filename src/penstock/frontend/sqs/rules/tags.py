"""Limits of queue tags: how many, and how long their keys and values."""

from collections.abc import Mapping, Sequence

from penstock.model.limits import TAGS_MAX
from penstock.wire.aws.faults import fault, invalid_value

KEY_CHARS_MAX = 128
VALUE_CHARS_MAX = 256


def merged(
    current: Mapping[str, str], given: Mapping[str, str], *, queue_name: str
) -> dict[str, str]:
    tags = {**current, **given}
    if len(tags) > TAGS_MAX:
        raise fault("InvalidParameterValue", f"Too many tags added for queue {queue_name}.")
    return tags


def checked_tags(given: Mapping[str, str | None]) -> dict[str, str]:
    tags: dict[str, str] = {}
    for key, value in given.items():
        if value is None:
            raise fault("InvalidParameterValue", "the parameter 'value' may not be null")
        if not 1 <= len(key) <= KEY_CHARS_MAX:
            raise invalid_value(key, "Tag.Key", f"must be 1 to {KEY_CHARS_MAX} characters long.")
        if len(value) > VALUE_CHARS_MAX:
            raise invalid_value(
                value, "Tag.Value", f"must be at most {VALUE_CHARS_MAX} characters long."
            )
        tags[key] = value
    return tags


def check_tag_keys(keys: Sequence[str]) -> None:
    """Raise InvalidParameterValue for a bad key; an empty list counts as one empty key."""
    if not all(1 <= len(key) <= KEY_CHARS_MAX for key in keys or ("",)):
        raise fault(
            "InvalidParameterValue",
            f"Tag keys must be between 1 and {KEY_CHARS_MAX} characters in length.",
        )
