"""STS GetCallerIdentity, the only call of another AWS service that SQS clients and their tests send
to the same endpoint, to learn their account."""

import msgspec

from penstock.wire.aws.query_xml import element

NAMESPACE = "https://sts.amazonaws.com/doc/2011-06-15/"
ACTION = "GetCallerIdentity"
TARGET = "AWSSecurityTokenServiceV20110615.GetCallerIdentity"


class CallerIdentity(msgspec.Struct, frozen=True, rename="pascal"):
    arn: str
    user_id: str
    account: str


def encode_xml(identity: CallerIdentity, *, request_id: str) -> bytes:
    return (
        f'<?xml version="1.0"?><GetCallerIdentityResponse xmlns="{NAMESPACE}">'
        f"<GetCallerIdentityResult>{element('Arn', identity.arn)}"
        f"{element('UserId', identity.user_id)}{element('Account', identity.account)}"
        f"</GetCallerIdentityResult><ResponseMetadata>{element('RequestId', request_id)}"
        "</ResponseMetadata></GetCallerIdentityResponse>"
    ).encode()
