"""One vLLM server on Modal, for `engine=external`: scales to zero when nobody asks, and stops when it is told.

    modal secret create swe-rl VLLM_API_KEY=... HF_TOKEN=...
    SWE_RL_MODEL=Qwen/Qwen3-14B SWE_RL_GPU=H100 modal deploy launchers/modal/serve_vllm.py
    export VLLM_URL=https://...   # what the deployment prints
    export VLLM_API_KEY=...       # the secret's
    python -m swe_rl job=eval engine=external model=qwen3_14b env=swebench_verified
    modal app stop swe-rl-engine

New weights reach such a server only through a folder that both sides see, which Modal does not share with a cluster:
it is for job=eval, job=rollout and job=serve.
"""

import os
import subprocess

import modal

MODEL = os.environ.get("SWE_RL_MODEL", "Qwen/Qwen3-14B")
GPU = os.environ.get("SWE_RL_GPU", "H100")  # "H100:2" takes two, which become the tensor-parallel width
LENGTH = os.environ.get("SWE_RL_MAX_MODEL_LEN", "32768")
VLLM = os.environ.get("SWE_RL_VLLM", "vllm==0.32.0")
PORT = 8000
IDLE_S = 15 * 60  # without a request for so long, nothing runs and nothing costs
START_S = 30 * 60

app = modal.App("swe-rl-engine")
image = (
    modal.Image.debian_slim(python_version="3.12")
    .pip_install(VLLM)
    .env({"SWE_RL_MODEL": MODEL, "SWE_RL_GPU": GPU, "SWE_RL_MAX_MODEL_LEN": LENGTH, "VLLM_NO_USAGE_STATS": "1"})
)
weights = modal.Volume.from_name("swe-rl-hub", create_if_missing=True)
kernels = modal.Volume.from_name("swe-rl-kernels", create_if_missing=True)


@app.function(
    image=image,
    gpu=GPU,
    max_containers=1,  # one address, one cache of prefixes
    scaledown_window=IDLE_S,
    timeout=24 * 3600,
    volumes={"/root/.cache/huggingface": weights, "/root/.cache/vllm": kernels},
    secrets=[modal.Secret.from_name("swe-rl", required_keys=["VLLM_API_KEY"])],
)
@modal.concurrent(max_inputs=256)
@modal.web_server(PORT, startup_timeout=START_S)
def serve() -> None:
    """The key comes from the secret, by the environment: it is no argument."""
    subprocess.Popen(command())


def command() -> list[str]:
    width = GPU.partition(":")[2] or "1"
    return [
        *("vllm", "serve", MODEL, "--served-model-name", MODEL),
        *("--host", "0.0.0.0", "--port", str(PORT)),
        *("--tensor-parallel-size", width, "--max-model-len", LENGTH),
        *("--logprobs-mode", "processed_logprobs", "--generation-config", "vllm"),
        *("--enable-prefix-caching", "--enable-prompt-tokens-details"),
    ]
