"""How progress is shown: plain lines, or two live lines at the bottom of a terminal.

Invariants:
- A console that goes away (`| head`, a closed terminal) ends the showing, never the run.
- rich is imported only where a live terminal is shown.
- While the live lines stand, whatever else the process prints appears above them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol, TextIO

if TYPE_CHECKING:
    from rich.console import RenderableType

    from swe_rl.logger.progress import ProgressState

PLAIN_EVERY_S = 2.0


class View(Protocol):
    def start(self) -> None: ...
    def line(self, message: str) -> None:
        """One lasting line."""
        ...

    def refresh(self) -> None:
        """The state has changed."""
        ...

    def stop(self) -> None: ...


class PlainView:
    """One lasting line each, and a line on the present state at most every PLAIN_EVERY_S."""

    def __init__(self, stream: TextIO, state: ProgressState, clock: Callable[[], float]) -> None:
        self._stream = stream
        self._state = state
        self._clock = clock
        self._shown_s = clock()
        self._broken = False

    def start(self) -> None:
        self._shown_s = self._clock()

    def line(self, message: str) -> None:
        if self._broken:
            return
        try:
            print(message, file=self._stream, flush=True)
        except (OSError, ValueError):
            self._broken = True

    def refresh(self) -> None:
        now_s = self._clock()
        if now_s - self._shown_s < PLAIN_EVERY_S:
            return
        self._shown_s = now_s
        collection = self._state.collection(now_s)
        self.line("  ".join(filter(None, (self._state.headline(now_s), collection))))

    def stop(self) -> None:
        pass


class LiveView:
    """Redraws four times a second by a thread of rich's; nothing but lasting lines is left behind."""

    def __init__(self, stream: TextIO, state: ProgressState, clock: Callable[[], float]) -> None:
        from rich.console import Console
        from rich.live import Live

        self._state = state
        self._clock = clock
        self._console = Console(file=stream, highlight=False)
        self._live = Live(
            console=self._console, get_renderable=self._render, refresh_per_second=4, transient=True, screen=False
        )

    def start(self) -> None:
        self._live.start()

    def line(self, message: str) -> None:
        with suppress(OSError, ValueError):
            self._console.print(message, markup=False, soft_wrap=True)

    def refresh(self) -> None:
        pass  # the redrawing thread reads the state

    def stop(self) -> None:
        with suppress(OSError, ValueError):
            self._live.stop()

    def _render(self) -> RenderableType:
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        now_s = self._clock()
        top = Table.grid(padding=(0, 2))
        top.add_row(
            Text(self._state.headline(now_s), style="bold", no_wrap=True),
            ProgressBar(total=max(self._state.total_steps, 1), completed=self._state.done_steps, width=24),
        )
        collection = self._state.collection(now_s)
        return Group(top, Text(f"  {collection}", no_wrap=True, overflow="ellipsis")) if collection else top


def is_live(stream: TextIO, environ: Mapping[str, str]) -> bool:
    """Live only on a terminal that nobody asked to be quiet: NO_COLOR, TERM=dumb and CI mean plain lines."""
    quiet = environ.get("NO_COLOR") or environ.get("CI") or environ.get("TERM", "") in ("", "dumb")
    return not quiet and stream.isatty()
