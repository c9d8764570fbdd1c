"""pytest as a repository's own environment has it: without the plugins of ours, which take two seconds to import.

What a patch or an installation adds is still found: nothing else is switched off.
"""

from importlib.metadata import entry_points

OPTIONS = " ".join(f"-p no:{plugin.name}" for plugin in entry_points(group="pytest11"))
EXPORTED = f"export PYTEST_ADDOPTS='{OPTIONS}'\n"  # a line of a script
