"""HTTP servers of ours log their own faults, not what others send them."""

import logging

from aiohttp.http_exceptions import HttpProcessingError


def http_logger(name: str) -> logging.Logger:
    """Returns a logger for aiohttp, which answers what is no HTTP request with 400 by itself, and logs it as a fault of
    ours."""
    logger = logging.getLogger(f"{name}.http")
    logger.addFilter(_is_worth_logging)
    return logger


def _is_worth_logging(record: logging.LogRecord) -> bool:
    return not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError))
