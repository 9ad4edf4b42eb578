"""The reports of ``penstock pipeline report``; ``registry`` lists them."""
