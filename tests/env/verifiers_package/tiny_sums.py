"""A taskset of the package verifiers (its module v1): sums, whose reward can be asked to fail."""

import asyncio
import importlib

vf = importlib.import_module("verifiers.v1")

__all__ = ["SumsTaskset"]


class SumsData(vf.TaskData):
    answer: str = ""


class SumsConfig(vf.TaskConfig):
    mode: str = "plain"


class SumsTask(vf.Task[SumsData, vf.State, SumsConfig]):
    @vf.reward(weight=2.0)
    async def right(self, trace) -> float:
        if self.config.mode == "raises":
            raise ValueError("no verdict")
        if self.config.mode == "hangs":
            await asyncio.sleep(600)
        said = trace.branches[0].messages[-1].content
        return float(self.data.answer in said)


class Config(vf.TasksetConfig):
    task: SumsConfig = SumsConfig()
    infinite: bool = False


class SumsTaskset(vf.Taskset[SumsTask, Config]):
    def load(self):
        for number in range(3):
            data = SumsData(prompt=f"What is {number} + {number}?", system_prompt="Be brief.", answer=str(2 * number))
            yield SumsTask(data, self.config.task)
