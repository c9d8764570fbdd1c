"""`python -m swe_rl` that gets stuck at a kill point: `python -m tests.support.stuck POINT WAY OVERRIDE...`.

WAY: `spin` keeps Python busy, `sleep` waits, in whatever thread the point is called.
"""

import sys
import time

import swe_rl.files.kill_point as kill_point

_point, _way = sys.argv[1:3]


def _stuck(name: str) -> None:
    if name == _point:
        print(f"stuck at {name}", flush=True)
        while True:
            if _way == "sleep":
                time.sleep(0.05)


kill_point.kill_point = _stuck  # before any other module takes it over

if __name__ == "__main__":
    from swe_rl.__main__ import main

    del sys.argv[1:3]
    sys.exit(main())
