"""What push costs, each figure beside its bar: ``python -m benchmarks.push [--quick]``.

A server on one core; on the other core the client that publishes and an endpoint that replies to
every request without looking at it. Rates are ratios to the same work without push in the same run:
bare appends, SendMessage, a bare loop of an HTTP client that posts to the same endpoint."""
