"""Runs that only begin and end."""

import os
import signal
import time

import pytest

from swe_rl.hardware.slurm.requeue import Requeued
from swe_rl.logger.folder import RunFolder
from swe_rl.run.session import open_session


def status(path):
    return RunFolder(path).status()


def leave(config, path, error=None, **more):
    """A whole run that ends with `error`."""
    with open_session(config, path, total_steps=1, **more) as one:
        if error:
            raise error
    return one


def warn(config, path):
    with pytest.raises(Requeued), open_session(config, path, total_steps=1) as one:
        one.status.heartbeat(3)
        os.kill(os.getpid(), signal.SIGUSR2)
        time.sleep(1.0)
