"""gRPC's library, as the etcd store uses it: without a log of its own.

It writes to stderr by itself whenever a connection fails, which is where a node's log lines go, in
another form and with nothing in them that the errors here do not say. Whoever wants it all the same
sets GRPC_VERBOSITY.
"""

import os

os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # read when the library is first imported

import grpc
from grpc import aio

ChannelConnectivity = grpc.ChannelConnectivity
StatusCode = grpc.StatusCode
ssl_channel_credentials = grpc.ssl_channel_credentials

__all__ = ["ChannelConnectivity", "StatusCode", "aio", "ssl_channel_credentials"]
