"""What HTTP servers of ours log: their own faults, not what others send them."""

import logging

from aiohttp.http_exceptions import HttpProcessingError


def http_logger(name: str) -> logging.Logger:
    """For aiohttp, which answers what is no HTTP request with 400 by itself, and logs it as a fault of ours."""
    logger = logging.getLogger(f"{name}.http")
    logger.addFilter(_calm)
    return logger


def _calm(record: logging.LogRecord) -> bool:
    return not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError))
