"""The jobs of ``penstock pipeline run``, ``verify`` and ``cluster``; ``registry`` lists them."""
