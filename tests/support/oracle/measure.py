"""What the tests of an instance do without and with its gold patch, read by the official harness's own log reader.

Invariants:
- Measured in fresh containers of the instance's own image by its own evaluation script; nothing is guessed.
- A test counts only if two runs with the gold patch say the same.
"""

from dataclasses import replace
from typing import Any

from swe_rl.dataset.instance import Instance
from tests.support.oracle.container import Container, container
from tests.support.oracle.mutants import UnfitError

PARSER = "parse_log_pytest"
_PASSED = "PASSED"
EVALUATION_S = 300.0


def statuses(log: str) -> dict[str, str]:
    """Test -> PASSED, FAILED, ... as `swebench` reads them."""
    from swebench.harness.log_parsers import PARSER_REGISTRY

    return dict(PARSER_REGISTRY[PARSER](log, None))


def suite(box: Container, tests: str, timeout_s: float) -> dict[str, str]:
    """The whole suite as it is in a container now; empty when it did not end in time."""
    command = f"source /opt/miniconda3/bin/activate; pytest -rA --tb=no -p no:cacheprovider {tests}"
    return statuses(box.run(command, timeout_s) or "")


def measured(client: Any, instance: Instance) -> Instance:
    """`instance` with FAIL_TO_PASS and PASS_TO_PASS. Raises UnfitError."""
    [without] = _evaluated(client, instance, patch="", times=1)
    first, second = _evaluated(client, instance, patch=instance.patch, times=2)
    stable = {test: status for test, status in first.items() if second.get(test) == status}
    broken = sorted(test for test in first if stable.get(test) != _PASSED and without.get(test) == _PASSED)
    if broken:
        raise UnfitError(f"{broken[0]} fails with the gold patch, or at times")
    passing = [test for test, status in stable.items() if status == _PASSED]
    fail_to_pass = tuple(sorted(test for test in passing if without.get(test) != _PASSED))
    pass_to_pass = tuple(sorted(test for test in passing if without.get(test) == _PASSED))
    if not fail_to_pass or not pass_to_pass:
        raise UnfitError(f"{len(fail_to_pass)} tests fail to pass, {len(pass_to_pass)} pass to pass")
    return replace(instance, fail_to_pass=fail_to_pass, pass_to_pass=pass_to_pass)


def _evaluated(client: Any, instance: Instance, *, patch: str, times: int) -> list[dict[str, str]]:
    """The script leaves the tree as it found it, so that it can run again. Raises UnfitError."""
    with container(client, instance.image) as box:
        box.put({"/tmp/gold.patch": patch, "/tmp/eval.sh": instance.eval_script})
        if patch and "error" in (said := box.run("git apply -v /tmp/gold.patch 2>&1", 60.0) or "error"):
            raise UnfitError(f"the gold patch does not apply: {said[-300:]}")
        logs = [box.run("bash /tmp/eval.sh 2>&1", EVALUATION_S) for _ in range(times)]
    if None in logs:
        raise UnfitError(f"its tests take more than {EVALUATION_S:g} s")
    return [statuses(log or "") for log in logs]
