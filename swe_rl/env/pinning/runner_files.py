"""Names files that configure or start a test runner, or that Python runs at its start, wherever they lie."""

# No installation makes files of these names, so one that is new after it is the patch's.
NEVER_MADE = (
    "conftest.py",
    "sitecustomize.py",
    "usercustomize.py",
    "pytest.ini",
    ".pytest.ini",
    "pytest.toml",
    ".pytest.toml",
    "tox.ini",
    "setup.cfg",
    "GNUmakefile",
    ".npmrc",
)
# An installation makes these anew, and it may have to: a fix may add an entry point.
MADE_BY_INSTALLERS = ("*.pyc", "*.pth", "*.egg-info/**", "*.dist-info/**")
RUNNER_FILES = (
    *NEVER_MADE,
    *MADE_BY_INSTALLERS,
    "pyproject.toml",
    "setup.py",
    "noxfile.py",
    ".gitattributes",
    "package.json",
    "Makefile",
    "makefile",
)
