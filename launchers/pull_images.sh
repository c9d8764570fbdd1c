#!/bin/bash
# Pulls the images of a set-up before the GPUs are allocated: sbatch launchers/pull_images.sh env=swebench_verified
# Arguments are overrides, the same as the run's. Edit the options below: a CPU partition that reaches the registry.
#SBATCH --job-name=swe_rl-images
#SBATCH --cpus-per-task=8
#SBATCH --mem=16G
#SBATCH --time=04:00:00
#SBATCH --open-mode=append
set -euo pipefail
# `docker login` first, or export SWE_RL_REGISTRY_*: anonymous pulls are few. Where nodes share no image storage, pull on
# each node that is going to run sandboxes: sbatch --nodelist=NODE launchers/pull_images.sh ...
exec "${SWE_RL_PYTHON:-python}" -m swe_rl job=images job.images_action=pull "$@"
