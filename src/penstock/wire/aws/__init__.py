"""The AWS protocols, without I/O: bytes of requests become typed values, replies become bytes.

Read in this order: shapes (requests and replies), faults (errors), json10 and query (the two
request styles), then the modules that these and the actions use: attributes, queue_urls, sigv4,
sts. Policies are evaluated by ``penstock.access``."""
