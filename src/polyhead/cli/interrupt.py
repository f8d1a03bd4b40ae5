"""Control-C that comes where Python can raise nothing, inside a destructor or a callback of an import, is not lost."""

from __future__ import annotations

import _thread
import contextlib
import signal
import sys
import threading
from collections.abc import Iterator

AGAIN = 0.05  # seconds


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """An interrupt that Python would only print, and forget, comes again a moment later, where it can be raised."""
    before, waiting = sys.unraisablehook, list[threading.Timer]()

    def unraisable(raised: sys.UnraisableHookArgs) -> None:
        if not issubclass(raised.exc_type, KeyboardInterrupt):
            before(raised)
            return
        # By another thread: raised here and now it would only be printed again.
        timer = threading.Timer(AGAIN, _interrupt_main)
        timer.daemon = True
        waiting.append(timer)
        timer.start()

    sys.unraisablehook = unraisable
    try:
        yield
    finally:
        sys.unraisablehook = before
        for timer in waiting:
            timer.cancel()


def _interrupt_main() -> None:
    main = threading.main_thread().ident
    if main is not None and hasattr(signal, "pthread_kill"):
        signal.pthread_kill(main, signal.SIGINT)  # a true signal, which wakes it also where it waits
    else:
        _thread.interrupt_main()
