"""This module shows a trajectory's rows as they were trained, token by token, from `rows/` or from `traces.db`.

Invariants:
- The trace store is opened for reading only: nothing is made, brought up to a version or written to.
- Rows come from the same code as the trainer's. What the run did not keep is said, never guessed.
- The text of a token is its own; of bytes that make a character together, the last token has the character.
- Of a hub's model only what is in this machine's cache is used; nothing is fetched.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from swe_rl.algo.row import Logprobs, Row
from swe_rl.config.choices import FOUND_BY_TRAINER, KlPlace
from swe_rl.config.schema import ModelConfig
from swe_rl.files.tables import as_mapping
from swe_rl.gateway.store.schema import read_traces
from swe_rl.gateway.trace import Trace, TraceStoreError
from swe_rl.logger.folder import RunFolder
from swe_rl.model.load import ModelError, locate_model
from swe_rl.rollout.rows import RowError, traced_rows, with_current_advantages
from swe_rl.rollout.trajectory import Trajectory
from swe_rl.trainer.ranks.rows_file import RowsFile
from swe_rl.trainer.trainer import TrainerError
from swe_rl.view.files import ViewError, is_inside

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Record = Mapping[str, Any]
MOST_TOKENS = 4000  # A page has so many tokens at most.
_MOST_PROMPT_TOKENS = 20_000  # So many tokens of a prompt are shown, and the number of the others is said.
# Chat templates of the ChatML kind begin and end a message with these texts.
_TURN = "<|im_start|>"
_END = "<|im_end|>"
# UTF-8 has at most four bytes for a character, so a token that does not end one waits for three others at most.
_BYTES_OF_A_CHARACTER = 4
_BY_TRAINER = "The trainer computed the advantages; they are not kept. "


def token_page(
    folder: RunFolder, config: Record, record: Record, place: int, start: int, trained_in: int | None = None
) -> dict[str, Any]:
    """Returns at most `MOST_TOKENS` tokens of the row `place`, from `start` on, each with its values.

    A value is None where a token has none. Raises ViewError where the run kept no tokens, or there is no such row.
    """
    rows, source = rows_of(folder, record, trained_in)
    if not 0 <= place < len(rows):
        raise ViewError(f"The trajectory has {len(rows)} rows, numbered from 0.")
    row = rows[place]
    end = min(len(row.token_ids), max(0, start) + MOST_TOKENS)
    part = slice(max(0, start), end)
    mask = row.loss_mask[part].tolist()
    first = int(row.loss_mask[: part.start].sum())
    ids = row.token_ids[part].tolist()
    text = _Text.of(config)
    by_trainer = as_mapping(config.get("algo")).get("advantage") in FOUND_BY_TRAINER
    return {
        "rows": [_describe_row(each, config) for each in rows],
        "row": place,
        "start": part.start,
        "total": len(row.token_ids),
        "source": source,
        "note": f"{_BY_TRAINER if by_trainer else ''}{text.note}".strip(),
        "ids": ids,
        "texts": text.of_tokens(ids),
        "sampled": mask,
        "logprobs": _values_where_sampled(mask, row.rollout_logprobs, part),
        "advantages": _spread_sampled([] if by_trainer else row.advantage.tolist(), mask, first),
        "versions": _spread_sampled(row.weight_versions.tolist(), mask, first),
    }


def prompt_of(folder: RunFolder, config: Record, record: Record, trained_in: int | None = None) -> dict[str, Any]:
    """Returns what the model read before its first reply, as `messages` with `role` and `text`.

    Raises ViewError where the trajectory has no row, or the run kept no tokens.
    """
    rows, _ = rows_of(folder, record, trained_in)
    if not rows:
        raise ViewError("The trajectory has no row: the model sampled nothing that counts.")
    if rows[0].loss_mask.any():
        before = int(rows[0].loss_mask.argmax())
    else:
        before = len(rows[0].token_ids)
    text = _Text.of(config)
    whole = text.joined(rows[0].token_ids[: min(before, _MOST_PROMPT_TOKENS)].tolist())
    said = [_parse_message(part) for part in whole.split(_TURN)]
    # The last message is empty, because there the model's reply begins.
    messages = [message for message in said if message["text"]]
    return {"messages": messages, "tokens": before, "left_out": max(0, before - _MOST_PROMPT_TOKENS), "note": text.note}


def _parse_message(part: str) -> dict[str, str]:
    role, newline, said = part.partition("\n")
    if not newline or len(role) > 20:
        return {"role": "", "text": part.strip()}
    return {"role": role, "text": said.rstrip().removesuffix(_END).rstrip()}


def rows_of(folder: RunFolder, record: Record, trained_in: int | None = None) -> tuple[list[Row], str]:
    """Returns the rows of a trajectory's record, with the name of the file that they are from.

    `trained_in` is the step that trained it. None stands for the step in the trajectory's name, which is another one in
    `rollout.mode=stream`. Raises ViewError where the run has not kept the tokens.
    """
    trajectory = _parse_trajectory(record)
    kept = folder.rows(trajectory.step if trained_in is None else trained_in)
    if kept.is_file() and is_inside(kept, folder.path) and not trajectory.split.startswith("eval"):
        try:
            rows = [row for row in RowsFile(kept).rows() if row.trajectory_id == trajectory.trajectory_id]
        except TrainerError as error:
            raise ViewError(str(error)) from error
        if rows:
            return rows, f"rows/{kept.name}"
    traces = traces_of(folder, trajectory.trajectory_id)
    if not traces:
        raise ViewError(
            "The run has not kept the tokens of this trajectory: gateway.keep_traces=rows or none removes traces once "
            "two checkpoints cover their step, and an attempt that sampled nothing has none."
        )
    try:
        return with_current_advantages(traced_rows(trajectory, traces), [trajectory]), folder.traces_db.name
    except RowError as error:
        raise ViewError(f"The traces make no row: {error}.") from error


def traces_of(folder: RunFolder, session_id: str) -> list[Trace]:
    """Returns the committed traces of a session, and none without a file. Raises ViewError for an unreadable file."""
    if not folder.traces_db.is_file() or not is_inside(folder.traces_db, folder.path):
        return []
    try:
        return read_traces(folder.traces_db, session_id, in_use=folder.is_locked())
    except TraceStoreError as error:
        raise ViewError(str(error)) from error


def _parse_trajectory(record: Record) -> Trajectory:
    try:
        return Trajectory.from_record(record)
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise ViewError(f"The trajectory's record is of another version: {error}.") from error


def _describe_row(row: Row, config: Record) -> dict[str, Any]:
    return {"tokens": len(row.token_ids), "sampled": row.sampled_tokens, "in_loss": in_loss(row, config)}


def in_loss(row: Row, config: Record) -> bool:
    """Tells whether the loss counts a row.

    The row's advantages decide, unless the loss has a term that needs none, or the trainer itself finds the advantages.
    `trainer/minibatch` decides in the same way, but it needs torch.
    """
    algo = as_mapping(config.get("algo"))
    by_kl = bool(algo.get("kl_coef")) and algo.get("kl_in") == KlPlace.loss
    counts = by_kl or algo.get("entropy_coef") or algo.get("balance_coef") or algo.get("advantage") in FOUND_BY_TRAINER
    return row.trained and (row.teaches or bool(counts))


def _values_where_sampled(mask: Sequence[bool], values: Logprobs | None, part: slice) -> list[float | None]:
    if values is None:
        return [None] * len(mask)
    return [value if sampled else None for value, sampled in zip(values[part].tolist(), mask, strict=True)]


def _spread_sampled(values: Sequence[Any], mask: Sequence[bool], first: int) -> list[Any]:
    """Returns the values of sampled tokens at these tokens' places, and None at the places of all other tokens.

    `first` is the index in `values` of the first sampled token.
    """
    left = iter(values[first:])
    return [next(left, None) if sampled else None for sampled in mask]


class _Text:
    """This turns token ids into text; where it cannot, it shows the ids, and `note` says why."""

    def __init__(self, tokenizer: "Tokenizer | None", note: str = "") -> None:
        self._tokenizer = tokenizer
        self.note = note

    @classmethod
    def of(cls, config: Record) -> "_Text":
        """Returns the text of the model that a run's configuration names."""
        model = config.get("model")
        facts = as_mapping(model)
        path = facts.get("path")
        revision = facts.get("revision")
        if not isinstance(path, str):
            return cls(None, "config.yaml names no model, so tokens are shown by their ids.")
        return _load_tokenizer(path, revision if isinstance(revision, str) else None)

    def joined(self, ids: Sequence[int]) -> str:
        """Returns the text of all tokens together."""
        if self._tokenizer is None:
            return " ".join(map(str, ids))
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=False))

    def of_tokens(self, ids: Sequence[int]) -> list[str]:
        """Returns a text for each token; where several make one character, the last one has the character."""
        texts: list[str] = []
        waiting: list[int] = []
        for token_id in ids:
            waiting.append(token_id)
            text = self.joined(waiting)
            if text.endswith("\ufffd") and len(waiting) < _BYTES_OF_A_CHARACTER:
                texts.append("")
                continue
            texts.append(text)
            waiting = []
        return texts


@lru_cache(8)
def _load_tokenizer(path: str, revision: str | None) -> _Text:
    try:
        place = Path(locate_model(ModelConfig(path=path))) / "tokenizer.json"
    except ModelError as error:
        return _Text(None, str(error))
    if not place.is_file():
        place = _find_cached(path, revision) or place
    try:
        from tokenizers import Tokenizer

        return _Text(Tokenizer.from_file(str(place)))
    except Exception as error:
        # The library tokenizers raises plain Exception for a file that it cannot read.
        return _Text(None, f"Tokens are shown by their ids: the tokenizer of {path} is not on this machine ({error}).")


def _find_cached(path: str, revision: str | None) -> Path | None:
    try:
        from huggingface_hub import try_to_load_from_cache

        found_path = try_to_load_from_cache(path, "tokenizer.json", revision=revision)
    except (ImportError, ValueError):
        # The package is not installed, or the path is no name that the hub could have.
        return None
    if isinstance(found_path, str):
        return Path(found_path)
    return None
