"""What a server says of itself, against what the real ones said."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from engine.config import EngineConfig
from engine.server.open_engine import open_engine
from engine.server.options import ServerOptions
from engine.server.server_info import max_req_input_len, model_info, models_body, server_info

REPLIES = Path(__file__).resolve().parents[2] / "golden" / "servers" / "vllm-0.32.0-cpu" / "replies.txt"


def opened(**fields):
    return open_engine(EngineConfig(model="smollm2-135m", **fields), "sim", pace=0.0)


def test_the_models_of_vllm_have_the_captured_fields():
    lines = REPLIES.read_text(encoding="utf-8").splitlines()
    real = json.loads(lines[lines.index("## GET /v1/models -> 200 application/json") + 1])
    ours = models_body(ServerOptions(), opened(max_model_len=4096), created_s=1_795_989_050)
    assert list(ours["data"][0]) == list(real["data"][0])
    assert list(ours["data"][0]["permission"][0]) == list(real["data"][0]["permission"][0])
    for body in (ours, real):
        body["data"][0].pop("root")
        body["data"][0]["permission"][0].pop("id")
    assert ours == real


def test_the_models_of_sglang_say_so():
    options = ServerOptions(flavor="sglang", model_name="smollm2-hf")
    assert models_body(options, opened(), created_s=5) == {
        "object": "list",
        "data": [
            {
                "id": "smollm2-hf", "object": "model", "created": 5, "owned_by": "sglang", "root": "smollm2-hf", "parent": None,
                "max_model_len": 8192,
            }
        ],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "num_tokens"),
    [
        ({"prefix_cache": "radix", "num_gpu_blocks": 20_001}, 8186),  # as the real one with 20,000 tokens
        ({"prefix_cache": "radix", "page_size": 16, "num_gpu_blocks": 65}, 1018),  # as the real one with 1,024
        ({"prefix_cache": "radix", "num_gpu_blocks": 3}, 0),
    ],
)
def test_the_longest_prompt_is_what_the_real_server_takes(fields, num_tokens):
    assert max_req_input_len(opened(**fields)) == num_tokens


def test_server_info_tells_the_configuration_of_the_cache():
    options = ServerOptions(flavor="sglang", model_name="m", cache_report=False, api_key="key-not-to-be-told")
    cache = {"prefix_cache": "radix", "page_size": 16, "num_gpu_blocks": 65, "radix_eviction_policy": "lfu"}
    info = server_info(options, opened(policy="lpm", **cache))
    expected = {
        "page_size": 16, "version": "0.5.23", "max_total_num_tokens": 1024, "max_req_input_len": 1018,
        "disable_radix_cache": False, "enable_cache_report": False, "radix_eviction_policy": "lfu",
        "chunked_prefill_size": 4096, "schedule_policy": "lpm", "served_model_name": "m",
    }  # fmt: skip
    assert expected.items() <= info.items()
    assert "key-not-to-be-told" not in json.dumps([info, model_info(options, opened())])


def test_server_info_says_when_caching_or_chunks_are_off():
    info = server_info(ServerOptions(flavor="sglang"), opened(enable_prefix_caching=False, enable_chunked_prefill=False))
    assert info["disable_radix_cache"] is True
    assert info["chunked_prefill_size"] == -1
