"""The rule of all numbers: each lies in the range that the schema's type gives it.

Invariants:
- No number is listed here; a key that the job does not read may be anything.
"""

from collections.abc import Iterator

from swe_rl.check.findings import Finding, Host, about, error
from swe_rl.config.documentation import comment_of
from swe_rl.config.parts import reads
from swe_rl.config.ranges import Range, wrong_numbers
from swe_rl.config.schema import Config


@about()
def numbers(config: Config, _: Host) -> Iterator[Finding]:
    for key, value, allowed in wrong_numbers(config):
        if reads(config, key):
            comment = comment_of(key)
            meaning = f" ({comment})" if comment else ""
            yield error("range", key, value, f"must be {allowed.said(value)}{meaning}", _way_out(key, value, allowed))


def _way_out(key: str, value: float, allowed: Range) -> str:
    nearest = allowed.nearest(value)
    if nearest is None:
        return f"leave {key} out"
    return f"{key}={int(nearest) if nearest == int(nearest) else nearest}, or leave it out"


RULES = (numbers,)
