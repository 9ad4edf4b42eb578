"""The AWS protocols, sans-io: bytes of a request become a typed value, a typed value becomes bytes.

Read in this order: shapes (what can be asked and answered), faults (how it is refused), json10 and
query (the two request styles), then the details they and the actions lean on: attributes,
queue_urls, policy, sigv4, sts. Who may do what: access, with conditions and glob below it.
"""
