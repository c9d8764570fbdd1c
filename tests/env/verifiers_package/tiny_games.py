"""Three environments of the package `verifiers`: one turn, several turns, and a tool. Each row asks for a word."""

import asyncio
import importlib

vf = importlib.import_module("verifiers")  # optional: who uses this looks first
Dataset = importlib.import_module("datasets").Dataset

WORDS = ("add", "lib", "core", "bug")


def said(completion) -> str:
    return " ".join(str(message.content) for message in completion if message.role == "assistant")


def share(completion, answer) -> float:
    """0.75 for the word, a quarter for an answer without it."""
    return 0.75 if answer in said(completion) else 0.25


def broken(completion, answer) -> float:
    raise KeyError("no judge")


class Twice(vf.MultiTurnEnv):
    async def env_response(self, messages, state, **kwargs):
        if "hang" in self.mode:
            await asyncio.sleep(60)
        if "raise" in self.mode:
            raise RuntimeError("the game broke")
        return [{"role": "user", "content": f"Again, after {len(state['trajectory'])}."}]


async def look(place: str) -> str:
    """What lies at a place.

    Args:
        place: where to look
    """
    return f"At {place} lies lib."


def load_environment(kind: str = "single", mode: str = "", heldout: bool = True):
    rows = Dataset.from_list([{"question": f"Say {word}.", "answer": word} for word in WORDS])
    given = {"dataset": rows, "rubric": vf.Rubric(funcs=[broken if mode == "rubric" else share])}
    if heldout:
        given["eval_dataset"] = rows.select(range(1))
    if kind == "single":
        return vf.SingleTurnEnv(**given, system_prompt="You answer.")
    if kind == "tool":
        return vf.ToolEnv(tools=[look], max_turns=4, **given)
    return Twice(max_turns=3 if mode != "endless" else -1, mode=mode, **given)
