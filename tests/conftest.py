"""Settings of a test run: signals, the spread of files over workers, examples of properties.

Properties are tried with the same examples every time, so that a failure tells of the change that
was made and not of luck. ``EXPLORE=1`` (``make explore``) draws new ones.
"""

import os
import signal

from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers

# A shell starts background commands with SIGINT ignored (`nohup make test &`), and every process
# below inherits that. Tests send SIGINT to servers and commands, so the default is restored here,
# before the first of them starts.
signal.signal(signal.SIGINT, signal.default_int_handler)

# They judge how examples come about, by the clock or by chance, and not whether a property holds.
UNJUDGED = (HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large)

settings.register_profile("steady", derandomize=True, deadline=None, suppress_health_check=UNJUDGED)
settings.register_profile(
    "exploring", deadline=None, print_blob=True, suppress_health_check=UNJUDGED
)
if os.environ.get("EXPLORE"):
    settings.load_profile("exploring")
else:
    settings.load_profile("steady")
    # Numbers and strings of whatever is loaded are tried as well: with several processes that would
    # depend on which files each of them has been given before.
    providers._get_local_constants = lambda: providers._local_constants
