"""STS GetCallerIdentity: account, ARN and id of the caller."""

from penstock.frontend.sqs.call import Action, Call
from penstock.frontend.sqs.context import Context
from penstock.wire.aws.sts import CallerIdentity


async def run(_context: Context, call: Call, _request: None) -> CallerIdentity:
    caller, account = call.caller, call.account
    if caller.is_trusted:  # authentication is off: the account itself
        return CallerIdentity(arn=f"arn:aws:iam::{account}:root", user_id=account, account=account)
    return CallerIdentity(arn=caller.arn, user_id=call.sender, account=account)


ACTION = Action("GetCallerIdentity", run, service="sts")
