"""GetCallerIdentity: who the caller is. Nobody needs a permission to ask that."""

from penstock.frontend.call import Action, Call
from penstock.frontend.context import Context
from penstock.wire.aws.sts import ACTION as NAME
from penstock.wire.aws.sts import CallerIdentity, root_identity


async def run(context: Context, call: Call, asked: None) -> CallerIdentity:  # noqa: ARG001
    caller = call.caller
    if caller.is_trusted:
        return root_identity(call.account)
    return CallerIdentity(arn=caller.arn, user_id=call.sender, account=caller.account)


ACTION = Action(NAME, run)
