"""The vendor's own SDK as the judge of SNS wire formats, offline: model, serializer, parser."""

from typing import Any
from urllib.parse import urlencode

from botocore.awsrequest import HeadersDict
from botocore.loaders import Loader
from botocore.model import ServiceModel
from botocore.parsers import create_parser
from botocore.serialize import create_serializer

MODEL = ServiceModel(Loader().load_service_model("sns", "service-2"), "sns")
_SERIALIZER = create_serializer("query", include_validation=False)


def form_body(name: str, parameters: dict[str, Any]) -> bytes:
    request = _SERIALIZER.serialize_to_request(parameters, MODEL.operation_model(name))
    return urlencode(request["body"]).encode()


def parse_reply(name: str, body: bytes, *, status: int = 200) -> dict[str, Any]:
    response = {"status_code": status, "headers": HeadersDict({}), "body": body}
    output = MODEL.operation_model(name).output_shape
    parsed: dict[str, Any] = create_parser("query").parse(response, output)
    return parsed
