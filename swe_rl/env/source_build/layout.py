"""Says where things are in a container or sandbox that was built here. The places are those of SWE-bench's images.

Invariants:
- The official evaluation scripts run unmodified: `source /opt/miniconda3/bin/activate; conda activate testbed`.
- Nothing is downloaded inside: installing again, as those scripts do, uses what is there.
"""

from collections.abc import Mapping

TESTBED = "/testbed"
CONDA = "/opt/miniconda3"
ENVIRONMENT = f"{CONDA}/envs/testbed"
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def command_variables(version: str) -> Mapping[str, str]:
    """Returns the environment variables of every command.

    `version` is what the tree calls itself, for build tools that would ask git's tags.
    """
    return {
        "PATH": f"{ENVIRONMENT}/bin:{CONDA}/bin:{SYSTEM_PATH}",
        "CONDA_DEFAULT_ENV": "testbed",
        "CONDA_PREFIX": ENVIRONMENT,
        "PIP_NO_INDEX": "1",
        "PIP_NO_DEPS": "1",
        "PIP_NO_BUILD_ISOLATION": "0",  # Pip reads the 0 as "no isolation".
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_ROOT_USER_ACTION": "ignore",
        "SETUPTOOLS_SCM_PRETEND_VERSION": version,
        "LANG": "C.UTF-8",
        "LC_ALL": "C.UTF-8",
    }


def activate_script(version: str) -> str:
    """Returns the file `activate`, which puts the environment first and defines a `conda` that only activates."""
    exports = "".join(
        f'export {name}="{value}"\n' for name, value in command_variables(version).items() if name != "PATH"
    )
    return (
        "# Sourced by bash. There is one environment, and it is always the active one.\n"
        f'case ":$PATH:" in *":{ENVIRONMENT}/bin:"*) ;; *) export PATH="{ENVIRONMENT}/bin:{CONDA}/bin:$PATH" ;; esac\n'
        f"{exports}"
        "conda() { return 0; }\n"
    )
