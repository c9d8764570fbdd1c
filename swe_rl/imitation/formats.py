"""This module knows a record's format by its content, never by the name of its file."""

from collections.abc import Mapping
from typing import Any

from swe_rl.imitation.atif import is_atif, read_atif
from swe_rl.imitation.chat import COLUMNS, column_of, read_chat
from swe_rl.imitation.mini_swe import is_mini_swe, read_mini_swe
from swe_rl.imitation.record import KEY, DataError, RecordedConversation
from swe_rl.imitation.swe_agent import is_swe_agent, read_swe_agent

_MOST_SHOWN = 12


def is_trajectory(record: Mapping[str, Any]) -> bool:
    """Tells whether a record of a whole file is one trajectory, and not an object of several."""
    known = is_atif(record) or is_mini_swe(record) or is_swe_agent(record)
    return known or column_of(record) is not None


def read_record(record: Mapping[str, Any], where: str) -> RecordedConversation:
    """Returns the conversation of a record. Raises DataError naming the fields that it has."""
    if is_atif(record):
        return read_atif(record, where)
    if is_mini_swe(record):
        return read_mini_swe(record, where)
    if is_swe_agent(record):
        return read_swe_agent(record, where)
    if column_of(record) is not None:
        return read_chat(record, where)
    names = [str(name) for name in record]
    shown = ", ".join(names[:_MOST_SHOWN]) + (", ..." if len(names) > _MOST_SHOWN else "")
    raise DataError(
        f"{KEY}: {where}: this is no trajectory of a format that is known: it has the fields {shown or 'none'}. A row "
        f"has messages in {', '.join(COLUMNS[:-1])} or {COLUMNS[-1]}; files of ATIF, mini-swe-agent and SWE-agent are "
        "read as those programs write them."
    )
