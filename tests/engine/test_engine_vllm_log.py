"""Why a server ended, from logs as vLLM writes them."""
# ruff: noqa: E501

import pytest

from swe_rl.engine.vllm.log import Cause, diagnose_start, last_line, read_tail

OOM = """\
(APIServer pid=1) INFO 11-21 11:38:50 [kernel.py:467] Final IR op priority
(EngineCore pid=2) ERROR 11-21 11:39:00 [core.py:890] EngineCore failed to start.
(EngineCore pid=2) ERROR 11-21 11:39:00 [core.py:890] Traceback (most recent call last):
(EngineCore pid=2) ERROR 11-21 11:39:00 [core.py:890]   File "gpu_worker.py", line 1, in load_model
(EngineCore pid=2) ERROR 11-21 11:39:00 [core.py:890] torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 136.00 MiB. GPU 0 has a total capacity of 19.50 GiB
(APIServer pid=1) Traceback (most recent call last):
(APIServer pid=1) RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}
"""
TRITON = """\
(EngineCore pid=2) ERROR 11-21 11:39:00 [core.py:890] RuntimeError: Failed to find C compiler. Please specify via CC environment variable or set triton.knobs.build.impl.
RuntimeError: Engine core initialization failed. See root cause above.
"""
INDUCTOR = """\
torch._inductor.exc.InductorError: InvalidCxxCompiler: No working C++ compiler found in torch._inductor.config.cpp.cxx: (None, 'g++')
"""
HEADERS = "/tmp/tmpx/main.c:3:10: fatal error: Python.h: No such file or directory\nsubprocess.CalledProcessError: Command 'gcc'"
CPU = """\
ValueError: Available memory on node 0 (9.03/23.49 GiB) on startup is less than desired CPU memory utilization (0.92, 21.6 GiB).
"""
KV = """\
ValueError: To serve at least one request with the models's max seq len (40960), (5.62 GiB KV cache is needed, which is larger than the available KV cache memory (3.4 GiB).
"""
REFUSED = """\
(APIServer pid=1)   File "vllm/engine/arg_utils.py", line 2846, in create_engine_config
(APIServer pid=1) pydantic_core._pydantic_core.ValidationError: 1 validation error for VllmConfig
(APIServer pid=1)   Value error, AuxOutput Connector requires Model Runner V2; set VLLM_USE_V2_MODEL_RUNNER=1. [type=value_error, input_value=ArgsKwargs(())]
(APIServer pid=1)     For further information visit https://errors.pydantic.dev/2.14/v/value_error
"""


@pytest.mark.parametrize(
    ("text", "cause", "words"),
    [
        (OOM, Cause.out_of_memory, "CUDA out of memory. Tried to allocate 136.00 MiB"),
        (CPU, Cause.out_of_memory, "Available memory on node 0"),
        (KV, Cause.out_of_memory, "KV cache is needed"),
        (TRITON, Cause.no_compiler, "Failed to find C compiler"),
        (INDUCTOR, Cause.no_compiler, "InvalidCxxCompiler"),
        (HEADERS, Cause.no_compiler, "Python.h"),
        ("FileNotFoundError: [Errno 2] No such file or directory: '/usr/bin/nvcc'", Cause.no_compiler, "nvcc"),
        ("OSError: [Errno 98] Address already in use", Cause.port_in_use, "Errno 98"),
        ("ValueError: Unknown quantization", Cause.unknown, "Unknown quantization"),
        (
            "(EngineCore pid=9) ERROR 11-21 12:26:37 [multiproc_executor.py:315] Worker proc VllmWorker-0 died "
            "unexpectedly (exit code: -9), shutting down executor.\nRuntimeError: cancelled\nINFO:     Shutting down",
            Cause.unknown,
            "Worker proc VllmWorker-0 died unexpectedly (exit code: -9)",
        ),
        (REFUSED, Cause.unknown, "Value error, AuxOutput Connector requires Model Runner V2"),
        ("nothing\nof note", Cause.unknown, "nothing | of note"),
        ("", Cause.unknown, "its log says nothing"),
    ],
)
def test_causes(text, cause, words):
    found = diagnose_start(text)
    assert found.cause is cause and words in str(found)
    assert not any(noise in str(found) for noise in ("root cause above", "pid=", "input_value", "ValidationError"))


def test_plain_reasons_of_pydantic_are_shown_and_errors_with_a_like_name_are_no_wrappers():
    plain = REFUSED.replace("Value error, AuxOutput Connector", "Input should be a valid integer")
    assert (
        str(diagnose_start(plain))
        == "Input should be a valid integer requires Model Runner V2; set VLLM_USE_V2_MODEL_RUNNER=1."
    )
    hub = "huggingface_hub.errors.HFValidationError: Repo id must be in the form 'repo_name': '/no/such/model'.\n"
    assert "Repo id must be" in str(
        diagnose_start(hub + "RuntimeError: Engine core initialization failed.\nnothing\nmore")
    )


def test_ways_out():
    assert "engine.gpu_memory_utilization" in str(diagnose_start(OOM))
    assert "engine.enforce_eager=true" in str(diagnose_start(TRITON))


def test_a_log_of_one_endless_line_is_shortened():
    assert len(str(diagnose_start("RuntimeError: " + "x" * 100_000))) < 400


def test_progress():
    assert last_line("INFO 11-21 11:38:50 [a.py:1] Loading weights\n\n") == "Loading weights"
    assert last_line("Loading shards:  25%\rLoading shards:  50%\n") == "Loading shards:  50%"
    assert last_line("") == "no output"
    assert last_line(f"with config: {'x' * 500}") == f"with config: {'x' * 87}..."  # a terminal has no room for it


def test_only_the_last_start_is_read(tmp_path):
    log = tmp_path / "log"
    assert read_tail(log) == ""
    log.write_text(TRITON)
    start = log.stat().st_size
    with log.open("a") as file:
        file.write("second start\n")
    assert read_tail(log, start) == "second start\n"
    log.write_text("x" * 1_000_000 + "\nend")
    assert read_tail(log).endswith("end") and len(read_tail(log)) == 256 * 1024
