"""What a tool changes of its own process, put right again when its call is over."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from collections.abc import Iterator

_TIMERS = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)
_SIGNALS = signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}


@contextlib.contextmanager
def restored() -> Iterator[None]:
    """Afterwards the process is as it was: timers, signals, environment, umask, folder, sockets.

    Around the tool alone: what the import of its module sets, it sets only once.
    """
    environment, mask = dict(os.environb), _umask()
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    handlers = {number: signal.getsignal(number) for number in _SIGNALS}
    socket_timeout = socket.getdefaulttimeout()
    folder = os.open(".", os.O_RDONLY)
    try:
        yield
    finally:
        # First: one that went off later would end the process, or the next call.
        for timer in _TIMERS:
            signal.setitimer(timer, 0)
        for number, handler in handlers.items():
            # None: not set from Python, so nobody here can have changed it.
            if handler is not None and signal.getsignal(number) is not handler:
                signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        if os.environb != environment:
            os.environb.clear()
            os.environb.update(environment)
        os.umask(mask)
        socket.setdefaulttimeout(socket_timeout)
        # By descriptor: it may be gone by now.
        os.fchdir(folder)
        os.close(folder)


def _umask() -> int:
    # It can be read only by being set.
    now = os.umask(0o077)
    os.umask(now)
    return now
