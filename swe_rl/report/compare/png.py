"""The plot of a comparison as PNG, where something that makes one is installed.

Invariants:
- Nothing is installed for it: cairosvg turns the SVG, else matplotlib draws the same lines, else it is left out.
- An old PNG does not stay beside a new SVG.
"""

import io
from contextlib import suppress
from pathlib import Path

from swe_rl.logger.disk import write_bytes_atomic
from swe_rl.report.compare.compare import Comparison
from swe_rl.report.compare.marks import style

MISSING = "no PNG: neither cairosvg nor matplotlib is installed; the SVG opens in any browser"
_SCALE = 2


def write_png(made: Comparison, drawn: str, path: Path) -> str | None:
    """Why there is none, or None. Raises DiskError."""
    data = _of_svg(drawn) or _drawn_anew(made)
    if data is None:
        with suppress(OSError):
            path.unlink()
        return MISSING
    write_bytes_atomic(path, data)
    return None


def _of_svg(drawn: str) -> bytes | None:
    try:
        import cairosvg  # type: ignore[import-not-found, import-untyped, unused-ignore]
    except (ImportError, OSError):  # OSError: the cairo library itself is missing
        return None
    return bytes(cairosvg.svg2png(bytestring=drawn.encode(), scale=_SCALE))


def _drawn_anew(made: Comparison) -> bytes | None:
    try:
        from matplotlib.figure import Figure  # type: ignore[import-not-found, import-untyped, unused-ignore]
    except ImportError:
        return None
    figure = Figure(figsize=(9.2, 4.6), dpi=100 * _SCALE, layout="constrained")
    axes = figure.subplots()
    for index, arm in enumerate(made.arms):
        look = style(index)
        for name, run in arm.runs.items():
            steps = sorted(run.steps)
            rates = [run.steps[step].tokens_per_s for step in steps]
            axes.plot(steps, rates, color=look.color, marker="o", label=f"{arm.label} {name}".strip())
    axes.set(xlabel="step", ylabel="tokens/sec", title="Rollout tokens/sec by step", ylim=(0, None))
    axes.grid(alpha=0.3)
    axes.legend()
    written = io.BytesIO()
    figure.savefig(written, format="png")
    return written.getvalue()
