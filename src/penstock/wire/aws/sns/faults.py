"""The errors (faults) of SNS with their HTTP statuses, the texts that several operations share, and
a table that maps Penstock's errors to them. Clients compare these texts: they are those of SNS.

Faults that all AWS services have in common, such as those of signatures and malformed forms, are in
``wire/aws/faults.py``."""

from collections.abc import Mapping
from types import MappingProxyType

from penstock.model import errors
from penstock.wire.aws.faults import (
    ErrorTable,
    Fault,
    FaultSpec,
    Mapped,
    nearest,
    retry_after_s,
)

# What precedes the text of a bad attribute: SetTopicAttributes and SetSubscriptionAttributes have
# one attribute, CreateTopic and Subscribe have many.
ON_SET = "Invalid parameter: "
ON_CREATE = "Invalid parameter: Attributes Reason: "

_NO_VALUE = "no value for required parameter"
_ECHO_CHARS_MAX = 1_024  # of a rejected value; the longest ARN has about 400

# All codes, with the text for callers without a more precise one.
_TEXTS: Mapping[str, str] = {
    "AuthorizationError": "The caller is not allowed to do this.",
    "BatchEntryIdsNotDistinct": "Two or more batch entries in the request have the same Id.",
    "BatchRequestTooLong": "The length of all the messages put together is more than the limit.",
    "ConcurrentAccess": "Another request is changing the tags of the resource.",
    "EmptyBatchRequest": "The batch request doesn't contain any entries.",
    "EndpointDisabled": "Endpoint is disabled",
    "FilterPolicyLimitExceeded": "There are too many filter policies.",
    "InternalError": "The request failed because of an unknown error or failure.",
    "InvalidAction": "The action is not valid for this endpoint.",
    "InvalidBatchEntryId": "The Id of a batch entry in the batch request is invalid.",
    "InvalidParameter": "Invalid parameter",
    "InvalidSecurity": "The request was not made over HTTPS or did not use SigV4 for signing.",
    "InvalidState": "The state of the topic does not allow this request.",
    "KMSAccessDenied": "The caller may not use the key.",
    "KMSDisabled": "The key is disabled.",
    "KMSInvalidState": "The state of the key does not allow this request.",
    "KMSNotFound": "The key does not exist.",
    "KMSOptInRequired": "The key needs a subscription to its service.",
    "KMSThrottling": "The key service throttled the request.",
    "NotFound": "The resource does not exist.",
    "OptedOut": "The phone number does not accept messages.",
    "ParameterValueInvalid": "The value of a parameter is invalid.",
    "PlatformApplicationDisabled": "PlatformApplication is disabled",
    "ReplayLimitExceeded": "There are too many replays.",
    "ResourceNotFound": "Resource does not exist",
    "ServiceUnavailable": "The request failed due to a temporary failure of the server.",
    "StaleTag": "The tag has been changed by another request.",
    "SubscriptionLimitExceeded": "There are too many subscriptions.",
    "TagLimitExceeded": "Could not complete request: tag quota of per resource exceeded",
    "TagPolicy": "The tags do not conform to the tag policy.",
    "Throttled": "The request was denied due to request throttling.",
    "TooManyEntriesInBatchRequest": "The batch request contains more entries than permissible.",
    "TopicLimitExceeded": "There are too many topics.",
    "UserError": "A parameter of the request is invalid.",
    "ValidationError": "A parameter of the request is invalid.",
    "ValidationException": "A parameter of the request is invalid.",
    "VerificationException": "The one-time password is wrong or has expired.",
}
# HTTP statuses other than 400.
_STATUSES: Mapping[str, int] = {
    **dict.fromkeys(("AuthorizationError", "InvalidSecurity", "KMSOptInRequired"), 403),
    **dict.fromkeys(("FilterPolicyLimitExceeded", "ReplayLimitExceeded"), 403),
    **dict.fromkeys(("SubscriptionLimitExceeded", "TopicLimitExceeded"), 403),
    **dict.fromkeys(("NotFound", "ResourceNotFound"), 404),
    "Throttled": 429,
    "InternalError": 500,
    "ServiceUnavailable": 503,
}
FAULTS: Mapping[str, FaultSpec] = MappingProxyType(
    {code: FaultSpec(code, code, _STATUSES.get(code, 400), text) for code, text in _TEXTS.items()}
)


def fault(code: str, message: str | None = None, *, retry_after_s: int | None = None) -> Fault:
    spec = FAULTS[code]
    return Fault(spec, spec.message if message is None else message, retry_after_s)


def invalid(what: str, reason: str | None = None) -> Fault:
    """Return the usual SNS error. ``what`` names a parameter or is a text."""
    text = f"Invalid parameter: {cut(what)}"
    return fault("InvalidParameter", text if reason is None else f"{text} Reason: {cut(reason)}")


def no_value(parameter: str) -> Fault:
    return invalid(parameter, _NO_VALUE)


def null_value(path: str) -> Fault:
    """Return the error for a missing parameter that every request of the operation must have.
    ``path`` begins with a small letter: 'attributes', 'messageAttributes.a.member.dataType'."""
    return fault(
        "ValidationError",
        f"1 validation error detected: Value null at '{cut(path)}' failed to satisfy constraint: "
        "Member must not be null",
    )


def topic_not_found() -> Fault:
    return fault("NotFound", "Topic does not exist")


def subscription_not_found() -> Fault:
    return fault("NotFound", "Subscription does not exist")


def duplicate_tags() -> Fault:
    return invalid("Duplicated keys are not allowed.")


def no_gateway(action: str) -> Fault:
    return fault(
        "InvalidAction",
        f"{action} is not served here: phones and mobile push need a gateway (push.gateways).",
    )


def cut(text: str) -> str:
    """Return a value of the client for an error text, shortened if it is long."""
    return text if len(text) <= _ECHO_CHARS_MAX else text[:_ECHO_CHARS_MAX] + "…"


_TABLE: ErrorTable = {
    errors.QuotaExceeded: Mapped("TopicLimitExceeded"),
    errors.InvalidRequest: Mapped("InvalidParameter"),
    errors.TopicNotFound: Mapped("NotFound", "Topic does not exist"),
    errors.NotFound: Mapped("NotFound"),
    errors.VersionConflict: Mapped(
        "ServiceUnavailable", "The resource is being changed by another request.", 1
    ),
    errors.Conflict: Mapped("InvalidParameter"),
    errors.AccessDenied: Mapped("AuthorizationError"),
    errors.DiskFull: Mapped("ServiceUnavailable", None, 5),
    errors.Draining: Mapped("ServiceUnavailable", "The server is stopping.", 1),
    errors.Overloaded: Mapped("ServiceUnavailable", None, 1),
    errors.Damaged: Mapped("ServiceUnavailable", "The topic's storage is damaged."),
    errors.PenstockError: Mapped("InternalError", FAULTS["InternalError"].message),
}


def fault_of(error: errors.PenstockError) -> Fault:
    if isinstance(error, errors.Throttled):
        return fault("Throttled", str(error) or None, retry_after_s=retry_after_s(error))
    if isinstance(error, errors.MissingParameter):
        return no_value(error.name)
    row = nearest(_TABLE, error)
    message = row.message if row.message is not None else errors.client_text(error)
    return fault(row.name, message or None, retry_after_s=row.retry_after_s)
