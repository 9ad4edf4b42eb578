"""Sends every call to the node that leads the partition or topic of the call.

``router`` chooses the node of a call, ``leaders`` sends and retries calls, and ``leasing`` receives
messages from several nodes."""
