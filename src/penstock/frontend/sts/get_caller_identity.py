"""GetCallerIdentity: which account the caller is."""

from penstock.frontend.call import Action, Call
from penstock.frontend.context import Context
from penstock.wire.aws.sts import ACTION as NAME
from penstock.wire.aws.sts import CallerIdentity, root_identity


async def run(context: Context, call: Call, asked: None) -> CallerIdentity:  # noqa: ARG001
    return root_identity(call.account)


ACTION = Action(NAME, run)
