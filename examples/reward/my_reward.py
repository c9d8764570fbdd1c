"""A reward of your own: a reward model behind HTTP scores each change that was graded."""

import aiohttp

from swe_rl.api import Attempt


class MyReward:
    """Asks a server for a score from 0 to 1, and mixes it with the tests' verdict."""

    failure = 0.0  # of what was never graded: no change, a time-out

    def __init__(self, url: str, weight: float = 0.5) -> None:
        self._url = url
        self._weight = weight  # of the score; the rest is the tests'

    async def reward(self, attempt: Attempt) -> float:
        question = {"issue": attempt.instance.problem_statement, "patch": attempt.patch}
        async with (
            aiohttp.ClientSession(raise_for_status=True) as session,
            session.post(self._url, json=question) as said,
        ):
            score = float((await said.json())["score"])  # what raises is tried again, and never a reward of 0
        return self._weight * score + (1.0 - self._weight) * attempt.grade.resolved
