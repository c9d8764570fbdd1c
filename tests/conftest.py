"""Settings of the whole suite."""

import signal

from hypothesis import settings

# A busy machine is no failure of a property.
settings.register_profile("busy_machine", deadline=None)
settings.load_profile("busy_machine")

# A shell that starts the suite in the background has it ignored, and a process cannot undo that for a shell's commands.
signal.signal(signal.SIGQUIT, signal.SIG_DFL)
