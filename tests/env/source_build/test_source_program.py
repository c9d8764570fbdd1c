"""Programs of a build: what they say when they fail, and that none outlives its job."""

import asyncio
import time

import pytest

from swe_rl.env.source_build.program import BuildError, ended_with_the_job, run_program


def test_output_is_returned_and_a_failure_has_the_last_words():
    assert run_program(["bash", "-c", "echo one"], what="a", timeout_s=10.0) == "one\n"
    with pytest.raises(BuildError, match=r"a: `bash -c .*` ended with status 3: no way"):
        run_program(["bash", "-c", "echo no way >&2; exit 3"], what="a", timeout_s=10.0)
    with pytest.raises(BuildError, match="a: `/no/program` cannot be run"):
        run_program(["/no/program"], what="a", timeout_s=10.0)


def test_a_program_that_takes_too_long_is_killed():
    started_s = time.monotonic()
    with pytest.raises(BuildError, match="did not end within 0 s"):
        run_program(["sleep", "60"], what="a", timeout_s=0.2)
    assert time.monotonic() - started_s < 30


def test_ctrl_c_ends_the_programs_of_threads_and_starts_no_more():
    async def build():
        with ended_with_the_job():
            await asyncio.to_thread(run_program, ["sleep", "60"], what="a", timeout_s=60.0)

    async def interrupted():
        task = asyncio.create_task(build())
        await asyncio.sleep(0.3)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    started_s = time.monotonic()
    asyncio.run(interrupted())  # waits for its threads
    assert time.monotonic() - started_s < 30
    with pytest.raises(BuildError, match="the job is at its end"):
        run_program(["true"], what="a", timeout_s=10.0)
    with ended_with_the_job():
        assert run_program(["true"], what="a", timeout_s=10.0) == ""
