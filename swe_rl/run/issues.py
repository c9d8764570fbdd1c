"""Asks an endpoint for the issues of instances whose data set has none, or only a poor one.

Invariants:
- A text is in the file `env.issues` before the next one is begun in its place, so an interrupted job goes on where it
  was. What it has paid for counts in the next start: the calls are in a file beside.
- A text that gives the fix or the tests away is asked for again, at most twice. Then the instance stays without one.
- An instance without a text ends nothing: it is named with the reason.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from swe_rl.config.schema import Config
from swe_rl.dataset.instance import Instance
from swe_rl.engine.endpoint.engine import EndpointEngine
from swe_rl.engine.endpoint.question import Question
from swe_rl.engine.endpoint.spending import Prices, Spending
from swe_rl.engine.engine import EngineError, SamplingParams
from swe_rl.env.issues.book import IssueBook, issue_record
from swe_rl.env.issues.writing import asked_again, clean_text, issue_messages, issue_problem
from swe_rl.errors import one_line
from swe_rl.logger.jsonl import JsonlWriter

# So many issues are asked for side by side. Endpoints with lower limits say so, and all calls pause.
_SIDE_BY_SIDE = 8
_TRIES = 3
_PARAMS = SamplingParams(max_tokens=2048, temperature=0.7)
_SHOWN = 10

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class WrittenIssues:
    """Counts the texts that were written, and says why other instances have none."""

    written: int
    refused: dict[str, str]


async def write_issues(config: Config, instances: Sequence[Instance], say: Say) -> WrittenIssues:
    """Writes the missing issues of instances into `env.issues`.

    Raises InstanceError for a file that cannot be read, EndpointError, EngineError where the endpoint is closed or its
    budget is spent, and DiskError.
    """
    path = _issues_file(config)
    book = IssueBook.read(path, config.env.issue_words)
    todo = [instance for instance in instances if book.needs_text(instance)]
    if not todo:
        return WrittenIssues(0, {})
    spending = Spending(
        path.with_name(f"{path.name}.calls.jsonl"),
        Prices.of(config.engine),
        budget=config.engine.budget,
        budget_tokens=config.engine.budget_tokens,
    )
    engine = EndpointEngine(config.engine, spending, say, params=_PARAMS, patience_s=config.rollout.max_wait_s)
    try:
        await engine.start()
        with JsonlWriter(path, ours=frozenset()) as writer:
            work = _Work(engine, writer, config.engine.model)
            try:
                await _write_until_closed(work, todo, engine)
            finally:
                _tell(work, len(todo), spending, path, say)
    finally:
        await engine.close()
    return WrittenIssues(work.written, work.refused)


async def _write_until_closed(work: "_Work", instances: Sequence[Instance], engine: EndpointEngine) -> None:
    """Raises EndpointClosedError once the endpoint is closed: calls that are held then would wait for ever."""
    writing = asyncio.ensure_future(work.write_all(instances))
    watching = asyncio.ensure_future(engine.watch(lambda: work.under_way))
    try:
        await asyncio.wait((writing, watching), return_when=asyncio.FIRST_COMPLETED)
        if writing.done():
            writing.result()
        else:
            watching.result()
    finally:
        writing.cancel()
        watching.cancel()
        await asyncio.gather(writing, watching, return_exceptions=True)


def _issues_file(config: Config) -> Path:
    return Path(str(config.env.issues)).absolute()


class _Work:
    """Writes issues side by side. `under_way` counts those that are asked for now."""

    def __init__(self, engine: EndpointEngine, writer: JsonlWriter, model: str) -> None:
        self.under_way = 0
        self.written = 0
        self.refused: dict[str, str] = {}
        self._engine = engine
        self._writer = writer
        self._model = model

    async def write_all(self, instances: Sequence[Instance]) -> None:
        room = asyncio.Semaphore(_SIDE_BY_SIDE)

        async def write_in_turn(instance: Instance) -> None:
            async with room:
                self.under_way += 1
                try:
                    await self._write(instance)
                finally:
                    self.under_way -= 1

        async with asyncio.TaskGroup() as group:
            for instance in instances:
                group.create_task(write_in_turn(instance))

    async def _write(self, instance: Instance) -> None:
        messages = issue_messages(instance)
        problem = ""
        for _ in range(_TRIES):
            try:
                reply, _ = await self._engine.ask(Question(messages, _PARAMS), instance.instance_id)
            except EngineError as error:
                self.refused[instance.instance_id] = one_line(error)
                return
            text = clean_text(reply.parsed.content)
            problem = "it was cut" if reply.was_cut else issue_problem(text, instance)
            if not problem:
                self._writer.append(issue_record(instance, text, model=self._model))
                self.written += 1
                return
            messages = [*messages, *asked_again(text, problem)]
        self.refused[instance.instance_id] = f"each of {_TRIES} texts was refused, the last because {problem}"


def _tell(work: _Work, wanted: int, spending: Spending, path: Path, say: Say) -> None:
    cost = f"{spending.calls} calls, {spending.prompt_tokens} + {spending.sampled_tokens} tokens"
    if spending.cost:
        cost += f", cost {spending.cost:.6g}"
    if spending.lost_calls:
        cost += f", and an estimate of {spending.lost_cost:.6g} for {spending.lost_calls} calls without a reply"
    say(f"issues: {work.written} of {wanted} written into {path} ({cost} in all starts)")
    for instance_id, reason in list(work.refused.items())[:_SHOWN]:
        say(f"  {instance_id}: {reason}")
    if len(work.refused) > _SHOWN:
        say(f"  and {len(work.refused) - _SHOWN} more have none")
