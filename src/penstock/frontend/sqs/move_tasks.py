"""How a task that moves dead letters is named to clients: base64 of a small JSON object, the form
they have been seen to take apart."""

import base64
import binascii
import json

from penstock.wire.aws.faults import Fault, fault

ACTIVE = ("RUNNING", "CANCELLING")
HANDLE_CHARS_MAX = 1_024


def seal_handle(task_id: str, source_arn: str) -> str:
    text = json.dumps({"taskId": task_id, "sourceArn": source_arn}, separators=(",", ":"))
    return base64.b64encode(text.encode()).decode()


def open_handle(handle: str) -> tuple[str, str]:
    """Task id and source ARN, or an InvalidParameterValue fault."""
    try:
        given = json.loads(base64.b64decode(handle[:HANDLE_CHARS_MAX], validate=True))
        task_id, source_arn = given["taskId"], given["sourceArn"]
    except (binascii.Error, ValueError, KeyError, TypeError, RecursionError):
        raise _bad_handle() from None
    if not (isinstance(task_id, str) and isinstance(source_arn, str)):
        raise _bad_handle()
    return task_id, source_arn


def _bad_handle() -> Fault:
    return fault("InvalidParameterValue", "Value for parameter TaskHandle is invalid.")


def no_such(parameter: str) -> Fault:
    return fault(
        "ResourceNotFoundException",
        f"The resource that you specified for the {parameter} parameter doesn't exist.",
    )
