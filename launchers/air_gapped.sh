#!/bin/bash
# A GPU host without internet. On a machine with it:   launchers/air_gapped.sh pack FOLDER model=qwen3_14b env=swe_gym
# then carry FOLDER over, and on the GPU host:          source launchers/air_gapped.sh use FOLDER
# after which the same command runs with hardware.internet=false. Edit: nothing, unless your wheels come from elsewhere.
_swe_rl_pack() {
  local folder=$1 python=${SWE_RL_PYTHON:-python}
  shift
  mkdir -p "$folder/wheels" "$folder/hub"
  # The interpreter, the platform and the project's own pins decide what is fetched.
  "$python" -m pip wheel --wheel-dir "$folder/wheels" "${SWE_RL_SOURCE:-.}[gpu,swe]" || return 1
  # The configuration names the model; its files go into a hub cache that can be carried.
  local model
  model=$("$python" -m swe_rl --cfg job --package model "$@" | sed -n 's/^path: *//p') || return 1
  case $model in
    builtin:* | /* | ./*) echo "model.path=$model needs no download" ;;
    *) HF_HOME="$folder/hub" "$python" -c 'import sys; from huggingface_hub import snapshot_download; snapshot_download(sys.argv[1])' "$model" || return 1 ;;
  esac
  HF_HOME="$folder/hub" "$python" -m swe_rl job=prepare "paths.cache=$folder/cache" "$@" || return 1
  echo "carry $folder over, then: source launchers/air_gapped.sh use $folder"
}

_swe_rl_use() {
  local folder
  folder=$(cd "$1" && pwd) || return 1
  [ -d .venv ] || { python3 -m venv .venv && PIP_NO_INDEX=1 PIP_FIND_LINKS="$folder/wheels" .venv/bin/pip install 'swe_rl[gpu,swe]'; } || return 1
  . .venv/bin/activate
  export HF_HOME="$folder/hub" HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1 HF_DATASETS_OFFLINE=1 WANDB_MODE=offline
  echo "offline: add hardware.internet=false paths.cache=$folder/cache"
}

case ${1:-} in
  pack) shift && _swe_rl_pack "$@" ;;
  use) _swe_rl_use "$2" ;;
  *) echo "usage: air_gapped.sh pack FOLDER [override...] | source air_gapped.sh use FOLDER" >&2; false ;;
esac
