# Containers on a node's own disk, for `sandbox=docker` or `sandbox=podman` inside a SLURM job. To be sourced by the
# batch script before the run: hardware=h100x8_scratch, or with any other hardware
# 'hardware.setup=[source "$SWE_RL_LAUNCHERS/containers_on_scratch.sh"]', which names this folder in every batch script.
#
# Edit: SWE_RL_SCRATCH, the node's fast disk. Layers stay there for the next job of yours on the node; other jobs of
# yours at the same time get storage of their own, which goes when their job ends.
SWE_RL_SCRATCH=${SWE_RL_SCRATCH:-${SLURM_TMPDIR:-${TMPDIR:-/tmp}}}

_swe_rl_containers() {
  local base="$SWE_RL_SCRATCH/swe_rl-$(id -un)" job=${SLURM_JOB_ID:-$$} storage run own=0
  mkdir -p "$base" && chmod 700 "$base" && base=$(cd "$base" && pwd) || return 1
  storage="$base/containers"
  mkdir -p "$storage"
  exec {_swe_rl_lock}>"$base/containers.lock"
  if ! flock --nonblock "$_swe_rl_lock"; then  # another job of yours is using it
    storage="$base/containers-$job" own=1
    mkdir -p "$storage"
  fi
  run=$(mktemp -d "/tmp/swe_rl-$job-XXXX") || return 1  # sockets, no layers: a short path, as podman takes 50 characters
  export DOCKER_HOST="unix://$run/s"
  if command -v podman >/dev/null; then  # in $run: conmon leaves a file `oom` where the service began
    setsid env -C "$run" podman --root "$storage" --runroot "$run/runroot" system service --time=0 "$DOCKER_HOST" >"$run/log" 2>&1 </dev/null &
  elif [ "$(id -u)" = 0 ]; then
    setsid dockerd --host "$DOCKER_HOST" --data-root "$storage" --exec-root "$run/exec" --pidfile "$run/pid" >"$run/log" 2>&1 </dev/null &
  else
    XDG_RUNTIME_DIR="$run" setsid dockerd-rootless.sh --host "$DOCKER_HOST" --data-root "$storage" >"$run/log" 2>&1 </dev/null &
  fi
  local engine=$! shell=$$
  # The batch script's shell becomes srun; whatever ends it, the engine and the job's own storage go with it.
  (
    trap '' TERM INT USR1 USR2
    while kill -0 "$shell" 2>/dev/null && kill -0 "$engine" 2>/dev/null; do sleep 1; done
    kill -TERM "$engine" 2>/dev/null; sleep 2; kill -KILL "$engine" 2>/dev/null
    umount "$storage/overlay" 2>/dev/null  # podman's own mount, as root
    if [ "$own" = 1 ]; then
      podman unshare rm -rf "$storage" 2>/dev/null || rm -rf "$storage"
    fi
    rm -rf "$run"
  ) </dev/null >/dev/null 2>&1 &
  for _ in $(seq 300); do
    [ -S "$run/s" ] && { echo "containers: $DOCKER_HOST, storage in $storage"; return 0; }
    kill -0 "$engine" 2>/dev/null || break
    sleep 0.1
  done
  echo "containers: the engine did not come up; the end of its log:" >&2
  tail -n 5 "$run/log" >&2
  return 1
}
_swe_rl_containers || exit 1
