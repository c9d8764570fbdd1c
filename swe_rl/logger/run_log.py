"""Writes `run.log`: everything that the process logs, and its warnings on the console once each.

Invariants:
- Secrets of the environment appear neither in the file nor on the console, tracebacks included.
- The same warning of the same logger is shown once; the file has them all.
- Closing gives the root logger back as it was.
- A disk that takes no line of the file ends nothing: the console says so once.
"""

import logging
import sys
from contextlib import suppress
from pathlib import Path
from typing import Self, TextIO

from swe_rl.files.disk import disk_error
from swe_rl.files.redactor import Redactor

_FILE_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_CONSOLE_FORMAT = "%(levelname)s: %(message)s"
# They write one line a request.
_NOISY = ("aiohttp.access", "asyncio", "httpx", "urllib3", "git", "filelock")
_MAX_REMEMBERED = 1000


class RunLog:
    """A context manager around a run. `console` defaults to the stderr of the moment. Raises DiskError."""

    def __init__(self, path: Path, *, console: TextIO | None = None, redactor: Redactor | None = None) -> None:
        redactor = redactor or Redactor.from_environ()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file: logging.Handler = _FileHandler(path, encoding="utf-8", errors="replace")
        except OSError as error:
            raise disk_error(path, error) from error
        self._file.setFormatter(_RedactingFormatter(_FILE_FORMAT, redactor))
        self._console = _ConsoleHandler(console)
        self._console.setFormatter(_RedactingFormatter(_CONSOLE_FORMAT, redactor))
        self._levels: dict[logging.Logger, int] = {}
        self._replaced: list[logging.Handler] = []

    def __enter__(self) -> Self:
        root = logging.getLogger()
        self._levels = {root: root.level} | {logging.getLogger(name): logging.getLogger(name).level for name in _NOISY}
        root.setLevel(logging.INFO)
        for name in _NOISY:
            logging.getLogger(name).setLevel(logging.WARNING)
        self._replaced = [handler for handler in root.handlers if type(handler) is logging.StreamHandler]
        # Otherwise every warning would be shown twice.
        for handler in self._replaced:
            root.removeHandler(handler)
        root.addHandler(self._file)
        root.addHandler(self._console)
        logging.captureWarnings(True)
        return self

    def __exit__(self, *_: object) -> None:
        logging.captureWarnings(False)
        root = logging.getLogger()
        for handler in (self._file, self._console):
            root.removeHandler(handler)
            handler.close()
        for handler in self._replaced:
            root.addHandler(handler)
        for logger, level in self._levels.items():
            logger.setLevel(level)


class _RedactingFormatter(logging.Formatter):
    def __init__(self, pattern: str, redactor: Redactor) -> None:
        super().__init__(pattern)
        self._redactor = redactor

    def format(self, record: logging.LogRecord) -> str:
        return self._redactor.text(super().format(record))


class _FileHandler(logging.FileHandler):
    """A handler that says once why it cannot write: these lines only show, and what needs the disk says more."""

    _said = False

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - a name of the standard library
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            super().handleError(record)
        elif not self._said:
            self._said = True
            print(f"WARNING: {disk_error(Path(self.baseFilename), error)}", file=sys.stderr, flush=True)

    def close(self) -> None:
        # It may still hold lines.
        with suppress(OSError):
            super().close()


class _ConsoleHandler(logging.Handler):
    """Looks stderr up at each line: a live progress display puts its own in place to print above itself."""

    def __init__(self, stream: TextIO | None) -> None:
        super().__init__(logging.WARNING)
        self._stream = stream
        self._shown: set[tuple[str, int, str]] = set()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            key = (record.name, record.levelno, record.getMessage())
            if key in self._shown:
                return
            if len(self._shown) < _MAX_REMEMBERED:
                self._shown.add(key)
            print(self.format(record), file=self._stream or sys.stderr, flush=True)
        # The standard library does so, too: logging never raises into the program.
        except Exception:
            self.handleError(record)
