"""Why one part of a request is not done: a code for the client, a text for the people behind it.

Most administrative requests carry several topics or resources, and one that is refused must not
stop the others; so a refusal is raised where it is found and caught where the part ends."""

from penstock.model.errors import PenstockError, client_text
from penstock.wire.kafka.faults import ErrorCode, code_of


class Refusal(Exception):
    def __init__(self, code: ErrorCode, message: str | None = None) -> None:
        self.code = code
        self.message = code.message if message is None else message
        super().__init__(self.message)


# What ends one part of a request. Anything else is a fault of ours and ends the connection.
REFUSALS = (Refusal, PenstockError)


def refusal_of(error: Refusal | PenstockError) -> Refusal:
    if isinstance(error, Refusal):
        # Whoever keeps it in a variable would otherwise make a circle with its own frame, and the
        # collector would free thousands of such circles of one request in a single turn.
        return error.with_traceback(None)
    code = code_of(error)
    # Texts of model errors speak of queues; those of the codes fit a Kafka client better.
    is_plain = code in (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.TOPIC_ALREADY_EXISTS)
    return Refusal(code, code.message if is_plain else client_text(error))
