"""What a submitted job prints, where SLURM put it.

Invariants:
- Reading only; a file that is not there yet is empty.
"""

from pathlib import Path

from swe_rl.submission.record import LOGS

_TAIL_BYTES = 1 << 16
_ERRORS = ("error", "run failed", "unexpected", "slurmstepd: error", "srun: error")
_LONGEST = 300  # characters


def outputs(folder: Path, slurm_id: str) -> list[Path]:
    """Standard output, then standard error, where it has a file of its own."""
    paths = [folder / LOGS / f"slurm-{slurm_id}.{kind}" for kind in ("out", "err")]
    return [path for path in paths if path.is_file()]


def tail(path: Path, lines: int, end: int | None = None) -> list[str]:
    """The last `lines` lines before the byte `end` (None: the file's), of the last _TAIL_BYTES bytes there."""
    try:
        with path.open("rb") as file:
            end = file.seek(0, 2) if end is None else end
            start = max(0, end - _TAIL_BYTES)
            file.seek(start)
            text = file.read(end - start).decode(errors="replace")
    except OSError:
        return []
    found = text.splitlines()[1 if start else 0 :]
    return found[-lines:] if lines > 0 else []


def whole_lines(path: Path, start: int) -> tuple[list[str], int]:
    """Those from the byte `start` on, and where they end; half a line at the end of the file is none yet."""
    try:
        with path.open("rb") as file:
            file.seek(start)
            text = file.read()
    except OSError:
        return [], start
    whole = text.rfind(b"\n") + 1
    return text[:whole].decode(errors="replace").splitlines(), start + whole


def last_words(folder: Path, slurm_id: str) -> str:
    """The last error that the job printed, or else its last line; empty where it printed nothing."""
    for path in reversed(outputs(folder, slurm_id)):
        lines = [line.strip() for line in tail(path, 200) if line.strip()]
        errors = [number for number, line in enumerate(lines) if line.startswith(_ERRORS)]
        if errors:
            return " ".join(lines[errors[-1] :])[:_LONGEST]
        if lines:
            return lines[-1][:_LONGEST]
    return ""
