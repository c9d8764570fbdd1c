"""Settings of the whole suite."""

import signal

from hypothesis import settings

# A busy machine is no failure of a property.
settings.register_profile("busy_machine", deadline=None)
settings.load_profile("busy_machine")


def hear_signals():
    """Undoes what a starter in the background, nohup or a scheduler leaves behind: signals that are ignored or blocked.

    Every process that a test starts would inherit that, and a shell cannot undo it for its commands.
    """
    python_ignores = {signal.SIGPIPE, signal.SIGXFSZ}
    # The suite outlives its terminal where it was asked to; what it starts need not.
    handlers = {signal.SIGINT: signal.default_int_handler, signal.SIGHUP: lambda *_: None}
    for number in signal.valid_signals() - python_ignores:
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, handlers.get(number, signal.SIG_DFL))
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


hear_signals()
