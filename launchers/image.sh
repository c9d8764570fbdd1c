#!/bin/bash
# What an image holds: system packages, swe_rl in /opt/swe_rl, and a user without rights, at home in /data.
# Dockerfile and apptainer.def run it as root in a copy of the checkout. Edit: nothing; these variables decide.
set -euo pipefail
extras=${EXTRAS:-cpu,swe}             # of pyproject.toml
packages=${PACKAGES-bubblewrap ca-certificates gcc git libc6-dev} # of Debian or Ubuntu; gcc is for trainer.compile
backend=${TORCH_BACKEND-cpu}          # which build of torch uv takes; empty: the one that the package index has first
pip_args=${PIP_ARGS:-}                # pip with these arguments in place of uv: --no-index -f /wheels

if [ -n "$packages" ]; then
  apt-get update -qq
  # shellcheck disable=SC2086  # a list of words
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $packages
  rm -rf /var/lib/apt/lists/*
fi
python3 -m venv /opt/swe_rl
# shellcheck disable=SC2086
if [ -n "$pip_args" ]; then
  /opt/swe_rl/bin/python -m pip install --no-cache-dir $pip_args ".[$extras]"
else
  /opt/swe_rl/bin/python -m pip install --no-cache-dir uv
  /opt/swe_rl/bin/uv pip install --no-cache --python /opt/swe_rl ${backend:+--torch-backend "$backend"} ".[$extras]"
fi
mkdir -p /data /models
chown 10001:10001 /data /models
echo 'swe_rl:x:10001:10001::/data:/bin/bash' >>/etc/passwd
