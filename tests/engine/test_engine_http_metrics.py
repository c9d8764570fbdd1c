"""The metrics of a server, from its text."""

import pytest

from swe_rl.engine.server.monitor import ServerMetrics, parse_metrics

# Lines of vLLM 0.32.0.
TEXT = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="policy"} 3.0
vllm:num_requests_waiting{engine="0",model_name="policy"} 2.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="policy",reason="capacity"} 2.0
vllm:kv_cache_usage_perc{engine="0",model_name="policy"} 0.25
vllm:num_preemptions_total{engine="0",model_name="policy"} 7.0
vllm:num_preemptions_created{engine="0",model_name="policy"} 1.795261145540159e+09
vllm:prefix_cache_queries_total{engine="0",model_name="policy"} 72.0
vllm:prefix_cache_hits_total{engine="0",model_name="policy"} 32.0
vllm:prompt_tokens_total{engine="0",model_name="policy"} 72.0
vllm:generation_tokens_total{engine="0",model_name="policy"} 10.0
vllm:cache_config_info{_block_size_resolved="True",block_size="32",engine="0",kv_cache_size_tokens="5440",\
num_gpu_blocks="170",num_gpu_blocks_override="None",sliding_window="None"} 1.0
process_start_time_seconds 1.79526111367e+09
"""


def test_what_routing_needs():
    assert parse_metrics(TEXT) == ServerMetrics(
        running=3,
        waiting=2,
        kv_usage=0.25,
        kv_capacity_tokens=5440,
        preemptions_total=7,
        prefix_queries_tokens_total=72,
        prefix_hits_tokens_total=32,
        sampled_tokens_total=10,
        prompt_tokens_total=72,
        started_s=1.79526111367e9,
    )


def test_older_servers_tell_blocks_only():
    found = parse_metrics(TEXT.replace('kv_cache_size_tokens="5440",', ""))
    assert found is not None and found.kv_capacity_tokens == 170 * 32


def test_servers_tell_the_size_of_their_tier_in_the_hosts_memory():
    label = 'kv_offloading_size="{}",kv_cache_size_tokens='
    tier = TEXT.replace("kv_cache_size_tokens=", label.format("1.5"))
    found = parse_metrics(tier + 'vllm:external_prefix_cache_hits_total{engine="0"} 48.0\n')
    assert found is not None
    assert (found.host_cache_bytes, found.host_hits_tokens_total) == (3 * 2**29, 48)
    assert found.host_tokens(2**20) == 1536 and found.host_tokens(0) == 0
    for text in ("None", "x", "1e999"):
        none = parse_metrics(TEXT.replace("kv_cache_size_tokens=", label.format(text)))
        assert none is not None and none.host_cache_bytes == 0


def test_data_parallel_engines_are_added_up():
    second = "".join(
        line.replace('engine="0"', 'engine="1"').replace("0.25", "0.75") + "\n"
        for line in TEXT.splitlines()
        if line.startswith("vllm:")
    )
    found = parse_metrics(TEXT + second)
    assert found is not None
    assert (found.running, found.kv_capacity_tokens, found.kv_usage) == (6, 10880, 0.5)


@pytest.mark.parametrize("text", ["", "<html></html>", "process_start_time_seconds 3\n", "python_info 1.0\n"])
def test_what_is_not_of_vllm(text):
    assert parse_metrics(text) is None


def test_unreadable_numbers_count_as_absent():
    found = parse_metrics(TEXT.replace("} 3.0", "} many").replace('num_gpu_blocks="170"', 'num_gpu_blocks="None"'))
    assert found is not None and found.running == 0 and found.waiting == 2
