"""What every `__main__` is: run a service until SIGTERM, drain, exit with a telling code.

Exit codes: 0 done or drained; 1 a fault a restart may cure; 2 an error in the input that no restart
cures.
"""

from __future__ import annotations

import logging
import signal
import sys
import threading
from collections.abc import Callable

from services.kit import errors

log = logging.getLogger(__name__)

EXIT_OK, EXIT_FAULT, EXIT_PERMANENT = 0, 1, 2


def run(body: Callable[[threading.Event], None]) -> int:
    """Runs `body(stop)` on the main thread; SIGTERM and SIGINT set `stop`. The exit code."""
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    try:
        body(stop)
    except errors.EmbermeshError as error:
        log.error("%s: %s", type(error).__name__, error)
        return EXIT_PERMANENT if error.permanent else EXIT_FAULT
    except Exception:
        log.exception("unexpected failure")
        return EXIT_FAULT
    return EXIT_OK


def main(body: Callable[[threading.Event], None]) -> None:
    """`sys.exit(run(body))`, after flushing the log."""
    code = run(body)
    logging.shutdown()
    sys.exit(code)
