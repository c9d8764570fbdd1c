"""Many jobs of one sweep: an array with a limit; one that fails takes no other along, and is named."""

import shutil
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.slurm.sweep import SLURM, TINY

pytestmark = pytest.mark.slurm


def data_sets(sweep, count, bad):
    """`count` copies of the small data set; in `bad` the reference solution of the first instance is gone."""
    [source] = [override.partition("=")[2] for override in sweep.few]
    folders = [sweep.root / f"data{number}" for number in range(count)]
    for folder in folders:
        shutil.copytree(source, folder)
    for name in ("train", "heldout"):
        path = folders[bad] / f"{name}.jsonl"
        path.write_text(path.read_text().splitlines()[0][:-20] + "\n")
    sweep.few = ()
    return ",".join(map(str, folders))


@pytest.mark.parametrize(
    ("count", "bad", "at_once"),
    [(4, 2, 2), pytest.param(64, 37, 3, marks=[pytest.mark.timeout(900), pytest.mark.long])],
)
def test_one_job_fails_the_others_finish(sweep, cluster, count, bad, at_once):
    found = data_sets(sweep, count, bad)
    more = (f"env.dataset={found}", f"hydra.launcher.array_parallelism={at_once}")
    seen = []
    process = sweep.start(*SLURM, *TINY, *more)
    ids = set(sweep.wait_for_ids(process))
    with ThreadPoolExecutor(1) as pool:
        output = pool.submit(process.communicate, timeout=800)
        while not output.done():
            seen.append(sum(job["state"] == "RUNNING" for job in cluster.jobs() if job["id"] in ids))
            time.sleep(0.5)
        stdout, stderr = output.result()
    assert process.returncode == 1, stdout + stderr
    assert max(seen) == at_once
    assert [sweep.folder.joinpath(str(number), "summary.json").is_file() for number in range(count)].count(False) <= 1
    assert {sweep.status(number)["status"] for number in range(count) if number != bad} == {"done"}
    assert f"{count - 1} of {count} jobs done" in stdout
    [line] = [line for line in stdout.splitlines() if line.startswith(f"job {bad} (")]
    assert f"env.dataset={sweep.root}/data{bad}" in line and f"SLURM {sorted(ids)[0].partition('_')[0]}_{bad}" in line
    assert "train.jsonl" in line, "the reason is named"
    assert "compare/compare." in stdout, "the others are compared all the same"
