"""The errors (faults) that AWS clients know, and a table that maps Penstock's errors to them.

A fault has two names. JSON clients read the shape (``__type``); query clients, and programs that
use the SDKs' compatibility layer, read the code. Both are in one row, so they always belong
together. Where clients or their tests check an error message, it is the message of SQS."""

from collections.abc import Mapping
from types import MappingProxyType

import msgspec

from penstock.model import errors

QUEUE_DOES_NOT_EXIST = "The specified queue does not exist."
Headers = tuple[tuple[str, str], ...]


class FaultSpec(msgspec.Struct, frozen=True):
    shape: str  # JSON __type, without its namespace
    code: str  # query code; also the Code of a batch entry
    status: int
    message: str


class Fault(Exception):
    def __init__(self, spec: FaultSpec, message: str, retry_after_s: int | None = None) -> None:
        super().__init__(message)
        self.shape = spec.shape
        self.code = spec.code
        self.status = spec.status
        self.message = message
        # True if the client caused the error, so that a retry will fail again.
        self.is_sender = spec.status < 500
        self.blame = "Sender" if self.is_sender else "Receiver"
        self.retry_after_s = retry_after_s
        self.headers: Headers = ()
        if retry_after_s is not None:
            self.headers = (("retry-after", str(retry_after_s)),)

    def __repr__(self) -> str:
        return f"Fault({self.shape!r}, {self.status}, {self.message!r})"


_ECHO_MAX = 1_024  # the longest receipt handle

# Codes that differ from the shape.
_LEGACY = "AWS.SimpleQueueService."
_LEGACY_SHAPES = (
    "QueueDeletedRecently BatchEntryIdsNotDistinct BatchRequestTooLong EmptyBatchRequest"
    " InvalidBatchEntryId TooManyEntriesInBatchRequest MessageNotInflight UnsupportedOperation"
    " PurgeQueueInProgress"
)
_CODES: Mapping[str, str] = {
    "QueueDoesNotExist": _LEGACY + "NonExistentQueue",
    "QueueNameExists": "QueueAlreadyExists",
    "KmsDisabled": "KMS.DisabledException",
    "KmsInvalidState": "KMS.InvalidStateException",
    "KmsNotFound": "KMS.NotFoundException",
    "KmsThrottled": "KMS.ThrottlingException",
    "KmsAccessDenied": "KMS.AccessDeniedException",
    "KmsInvalidKeyUsage": "KMS.InvalidKeyUsageException",
    "KmsOptInRequired": "KMS.OptInRequired",
    "InvalidParameterValueException": "InvalidParameterValue",
    "MissingRequiredParameterException": "MissingParameter",
    "MalformedPolicyDocumentException": "MalformedPolicyDocument",
    "AccessDeniedException": "AccessDenied",
    "MissingAuthenticationTokenException": "MissingAuthenticationToken",
    "IncompleteSignatureException": "IncompleteSignature",
    "UnrecognizedClientException": "InvalidClientTokenId",
    "InvalidSignatureException": "SignatureDoesNotMatch",
} | {shape: _LEGACY + shape for shape in _LEGACY_SHAPES.split()}
# HTTP statuses other than 400.
_STATUSES: Mapping[str, int] = {
    **dict.fromkeys(("InvalidSecurity", "KmsOptInRequired", "AccessDeniedException"), 403),
    **dict.fromkeys(("PurgeQueueInProgress", "OverLimit", "RequestThrottled"), 403),
    **dict.fromkeys(("UnrecognizedClientException", "InvalidSignatureException"), 403),
    "MissingAuthenticationTokenException": 403,
    **dict.fromkeys(("ReceiptHandleIsInvalid", "InvalidAddress", "ResourceNotFoundException"), 404),
    "RequestEntityTooLarge": 413,
    "InternalFailure": 500,
    "ServiceUnavailable": 503,
}
# All shapes, with the text for callers without a more precise one.
_TEXTS: Mapping[str, str] = {
    "QueueDoesNotExist": QUEUE_DOES_NOT_EXIST,
    "QueueNameExists": (
        "A queue already exists with the same name and a different value for an attribute."
    ),
    "QueueDeletedRecently": (
        "You must wait 60 seconds after deleting a queue before you can create another with "
        "the same name."
    ),
    "BatchEntryIdsNotDistinct": "Two or more batch entries in the request have the same Id.",
    "BatchRequestTooLong": "Batch requests cannot be longer than 1048576 bytes.",
    "EmptyBatchRequest": "There should be at least one entry in the request.",
    "InvalidBatchEntryId": (
        "A batch entry id can only contain alphanumeric characters, hyphens and underscores. "
        "It can be at most 80 letters long."
    ),
    "TooManyEntriesInBatchRequest": "Maximum number of entries per request are 10.",
    "MessageNotInflight": "The message referred to is not in flight.",
    "UnsupportedOperation": "The operation is not supported.",
    "PurgeQueueInProgress": "Only one PurgeQueue operation is allowed every 60 seconds.",
    "OverLimit": "The request exceeds a limit of the queue.",
    "RequestThrottled": "The request was denied due to request throttling.",
    "InvalidSecurity": "The request was not made over HTTPS or did not use SigV4 for signing.",
    "ReceiptHandleIsInvalid": "The input receipt handle is invalid.",
    "InvalidAddress": "The address is not valid for this endpoint.",
    "ResourceNotFoundException": (
        "The resource that you specified for the SourceArn parameter doesn't exist."
    ),
    "InvalidAttributeName": "Unknown Attribute.",
    "InvalidAttributeValue": "Invalid value for the attribute.",
    "InvalidMessageContents": (
        "Invalid characters found. Valid unicode characters are #x9 | #xA | #xD | #x20 to "
        "#xD7FF | #xE000 to #xFFFD | #x10000 to #x10FFFF."
    ),
    "InvalidIdFormat": "The specified receipt handle isn't valid.",
    "KmsDisabled": "The key is disabled.",
    "KmsInvalidState": "The state of the key does not allow this request.",
    "KmsNotFound": "The key does not exist.",
    "KmsThrottled": "The key service throttled the request.",
    "KmsAccessDenied": "The caller may not use the key.",
    "KmsInvalidKeyUsage": "The key cannot be used this way.",
    "KmsOptInRequired": "The key needs a subscription to its service.",
    "InvalidParameterValueException": "The value of a parameter is invalid.",
    "MissingRequiredParameterException": "The request must contain a required parameter.",
    "MissingAction": "The request has no action.",
    "InvalidAction": "The action is not valid for this endpoint.",
    "UnknownOperationException": "The operation is not known to this endpoint.",
    "SerializationException": "The request body could not be read.",
    "MalformedInput": "The request could not be read.",
    "MalformedQueryString": "The query string could not be read.",
    "RequestEntityTooLarge": "The request is too large.",
    "MalformedPolicyDocumentException": "The policy document is not valid.",
    "AccessDeniedException": "Access to the resource is denied.",
    "MissingAuthenticationTokenException": "Request is missing Authentication Token",
    "IncompleteSignatureException": "The request signature does not conform to AWS standards.",
    "UnrecognizedClientException": "The security token included in the request is invalid.",
    "InvalidSignatureException": (
        "The request signature we calculated does not match the signature you provided. Check "
        "your AWS Secret Access Key and signing method."
    ),
    "RequestExpired": "The request has expired.",
    "InternalFailure": "The request failed because of an unknown error or failure.",
    "ServiceUnavailable": "The request failed due to a temporary failure of the server.",
}

_SPECS = tuple(
    FaultSpec(shape, _CODES.get(shape, shape), _STATUSES.get(shape, 400), text)
    for shape, text in _TEXTS.items()
)

# By shape, and for unmodelled faults also by the shorter query code.
FAULTS: Mapping[str, FaultSpec] = MappingProxyType(
    {spec.code: spec for spec in _SPECS} | {spec.shape: spec for spec in _SPECS}
)


def fault(name: str, message: str | None = None, *, retry_after_s: int | None = None) -> Fault:
    spec = FAULTS[name]
    return Fault(spec, spec.message if message is None else message, retry_after_s)


def missing(parameter: str) -> Fault:
    return fault("MissingParameter", f"The request must contain the parameter {parameter}.")


def invalid_value(value: object, parameter: str, reason: str) -> Fault:
    """Return the usual SQS error for an invalid value. A long value is cut in the message."""
    return fault(
        "InvalidParameterValue",
        f"Value {_cut(str(value))} for parameter {parameter} is invalid. Reason: {reason}",
    )


def _cut(text: str) -> str:
    return text if len(text) <= _ECHO_MAX else text[:_ECHO_MAX] + "…"


class Mapped(msgspec.Struct, frozen=True):
    """The fault for one class of errors."""

    name: str
    message: str | None = None  # None: the text of the error
    retry_after_s: int | None = None


ErrorTable = Mapping[type[errors.PenstockError], Mapped]

# The nearest base class of an error applies. Texts of internal errors are never shown.
_TABLE: ErrorTable = {
    errors.MissingParameter: Mapped("MissingParameter"),
    errors.InvalidMessage: Mapped("InvalidMessageContents"),
    errors.InvalidReceipt: Mapped("ReceiptHandleIsInvalid"),
    errors.ExpiredReceipt: Mapped("InvalidParameterValue"),
    errors.NotLeased: Mapped("InvalidParameterValue"),
    errors.QuotaExceeded: Mapped("OverLimit"),
    errors.InvalidRequest: Mapped("InvalidParameterValue"),
    errors.TopicNotFound: Mapped("QueueDoesNotExist", QUEUE_DOES_NOT_EXIST),
    errors.NotFound: Mapped("ResourceNotFoundException"),
    errors.TopicExists: Mapped("QueueNameExists"),
    errors.TopicDeletedRecently: Mapped("QueueDeletedRecently"),
    errors.PurgeInProgress: Mapped("PurgeQueueInProgress"),
    errors.VersionConflict: Mapped(
        "ServiceUnavailable", "The resource is being changed by another request.", 1
    ),
    errors.Conflict: Mapped("InvalidParameterValue"),
    errors.AccessDenied: Mapped("AccessDeniedException"),
    errors.InFlightLimit: Mapped("OverLimit"),
    errors.DiskFull: Mapped("ServiceUnavailable", None, 5),
    errors.Draining: Mapped("ServiceUnavailable", "The server is stopping.", 1),
    errors.Overloaded: Mapped("ServiceUnavailable", None, 1),
    errors.Damaged: Mapped("ServiceUnavailable", "The queue's storage is damaged."),
    errors.PenstockError: Mapped("InternalFailure", FAULTS["InternalFailure"].message),
}

# Texts of AWS for a rejected receipt.
_RECEIPT_REASONS: Mapping[type[errors.PenstockError], str] = {
    errors.ExpiredReceipt: "The receipt handle has expired.",
    errors.NotLeased: "Message does not exist or is not available for visibility timeout change.",
}


def nearest(table: ErrorTable, error: errors.PenstockError) -> Mapped:
    """Return the row for the class of an error, or for its nearest base class that has a row."""
    return next(table[one] for one in type(error).__mro__ if one in table)


def retry_after_s(error: errors.Throttled) -> int:
    return max(1, -(-error.retry_after_ms // 1_000))


def fault_of(error: errors.PenstockError, *, receipt: str | None = None) -> Fault:
    """Return the fault for an error. ``receipt`` is the receipt handle that the client sent."""
    if isinstance(error, errors.Throttled):
        text = str(error) or None
        return fault("RequestThrottled", text, retry_after_s=retry_after_s(error))
    reason = _RECEIPT_REASONS.get(type(error))
    if reason is not None and receipt is not None:
        return invalid_value(receipt, "ReceiptHandle", reason)
    if isinstance(error, errors.InvalidReceipt) and receipt is not None:
        return fault(
            "ReceiptHandleIsInvalid",
            f'The input receipt handle "{_cut(receipt)}" is not a valid receipt handle.',
        )
    row = nearest(_TABLE, error)
    message = row.message if row.message is not None else (errors.client_text(error) or reason)
    return fault(row.name, message, retry_after_s=row.retry_after_s)
