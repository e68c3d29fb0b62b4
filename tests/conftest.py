"""For all tests."""

from __future__ import annotations

import signal

# A shell that starts a job in the background lets it ignore Ctrl-C, and so would all processes that the tests start:
# then nothing that is tested with Ctrl-C would ever stop.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
