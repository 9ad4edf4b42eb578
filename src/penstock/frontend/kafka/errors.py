"""The errors that a handler replies with: a code for the client and a text for its users.

Most administrative requests name several resources, and an error in one must not stop the others. A
handler catches an ``ApiError`` about one resource and reports it for that resource. An ``ApiError``
about the whole request leaves the handler, and ``actions.py`` turns it into a reply."""

from typing import Any

from penstock.model.errors import OffsetOutOfRange, PenstockError, ProducerRefused, client_text
from penstock.wire.kafka.apis import Api
from penstock.wire.kafka.faults import ErrorCode, code_of


class ApiError(Exception):
    def __init__(self, code: ErrorCode, message: str | None = None) -> None:
        self.code = code
        self.message = code.message if message is None else message
        super().__init__(self.message)


def invalid_request(reason: str) -> ApiError:
    return ApiError(ErrorCode.INVALID_REQUEST, reason)


# Errors that end one part of a request. Any other exception is a bug and ends the connection.
API_ERRORS = (ApiError, PenstockError)


def api_error(error: ApiError | PenstockError) -> ApiError:
    if isinstance(error, ApiError):
        # With its traceback, an error kept in a variable refers to itself through its own frame;
        # the garbage collector would free thousands of such cycles of one request at once.
        return error.with_traceback(None)
    code = code_of(error)
    # Texts of model errors are about queues; the texts of the codes fit Kafka clients better.
    is_plain = code in (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.TOPIC_ALREADY_EXISTS)
    return ApiError(code, code.message if is_plain else client_text(error))


def error_fields(error: ApiError | PenstockError) -> dict[str, Any]:
    reported = api_error(error)
    return {"error_code": reported.code, "error_message": reported.message}


def error_response(api: Api, code: ErrorCode, message: str) -> Any:
    """Return a reply with only an error. The reply of the API must have a field ``error_code``."""
    kind = api.response_class()
    if "error_message" in kind.__struct_fields__:
        return kind(error_code=code, error_message=message)
    return kind(error_code=code)


def partition_code(error: PenstockError) -> ErrorCode:
    if isinstance(error, OffsetOutOfRange):
        return ErrorCode.OFFSET_OUT_OF_RANGE
    code = ErrorCode(error.code) if isinstance(error, ProducerRefused) else code_of(error)
    # Producers and consumers expect to be slowed down, not rejected: librdkafka drops a record
    # for good upon THROTTLING_QUOTA_EXCEEDED. All clients retry after REQUEST_TIMED_OUT.
    return ErrorCode.REQUEST_TIMED_OUT if code is ErrorCode.THROTTLING_QUOTA_EXCEEDED else code
