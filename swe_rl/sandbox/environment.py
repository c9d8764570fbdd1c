"""The environment of a sandboxed command: built from nothing, so that no secret of this process can be in it."""

import math


def clean_environment(search_path: str, home: str, cpus: float) -> dict[str, str]:
    """What every command sees; `home` is also its temporary folder."""
    threads = str(max(1, math.ceil(cpus)))
    return {
        "PATH": search_path,
        "HOME": home,
        "TMPDIR": home,
        "USER": "agent",
        "LOGNAME": "agent",
        "LANG": "C.UTF-8",
        "TERM": "dumb",
        "PAGER": "cat",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONHASHSEED": "0",
        "PYTHONNOUSERSITE": "1",
        "OMP_NUM_THREADS": threads,
        "OPENBLAS_NUM_THREADS": threads,
        **_GIT,
    }


# No system or user configuration, no prompt, no pager; the copy's owner may differ from the command's user.
_GIT = {
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_PAGER": "cat",
    "GIT_EDITOR": "true",
    "GIT_CONFIG_COUNT": "1",
    "GIT_CONFIG_KEY_0": "safe.directory",
    "GIT_CONFIG_VALUE_0": "*",
    "GIT_AUTHOR_NAME": "agent",
    "GIT_AUTHOR_EMAIL": "agent@localhost",
    "GIT_COMMITTER_NAME": "agent",
    "GIT_COMMITTER_EMAIL": "agent@localhost",
}
