from botocore.loaders import Loader
from botocore.model import ServiceModel
from botocore.parsers import create_parser

from penstock.wire.aws.query_replies import STS_NAMESPACE, encode_reply
from penstock.wire.aws.shapes import CallerIdentity

IDENTITY = {
    "Account": "000000000000",
    "UserId": "000000000000",
    "Arn": "arn:aws:iam::000000000000:root",
}
CALLER = CallerIdentity(
    account="000000000000", user_id="000000000000", arn="arn:aws:iam::000000000000:root"
)


def test_the_sdk_reads_who_it_is() -> None:
    body = encode_reply("GetCallerIdentity", CALLER, request_id="r-1", namespace=STS_NAMESPACE)
    model = ServiceModel(Loader().load_service_model("sts", "service-2"), "sts")
    response = {"status_code": 200, "headers": {}, "body": body}
    output = model.operation_model("GetCallerIdentity").output_shape
    parsed = create_parser("query").parse(response, output)
    assert parsed.pop("ResponseMetadata")["RequestId"] == "r-1"
    assert parsed == IDENTITY
