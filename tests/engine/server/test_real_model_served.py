"""A real model behind HTTP: its thread computes what the engine computes without a server, with and without the cache."""

from __future__ import annotations

import httpx
import pytest

from engine.config import EngineConfig
from engine.request import SamplingParams
from engine.server.open_engine import open_engine
from tests.engine.server.served import served

pytest.importorskip("torch")


def test_a_served_model_answers_as_the_engine_does():
    engine = open_engine(EngineConfig(model="synthetic:tiny", dtype="float32", device="cpu", num_gpu_blocks=64), "engine")
    prompts = [[(start * 37 + position) % 250 for position in range(50)] for start in range(6)]
    alone = [
        output.output_token_ids
        for output in engine.generate(prompts, SamplingParams(temperature=0, max_tokens=8, ignore_eos=True))
    ]
    assert engine.reset_prefix_cache()
    body = {"prompt": prompts, "max_tokens": 8, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
    with served(engine=engine) as url:
        cold, warm = (httpx.post(f"{url}/v1/completions", json=body, timeout=60).json() for _ in range(2))
        refused = httpx.post(f"{url}/v1/chat/completions", json={"messages": [{"role": "user", "content": "x"}]})
    for reply, cached in ((cold, 0), (warm, 48)):
        assert [choice["token_ids"] for choice in reply["choices"]] == alone
        assert reply["usage"]["prompt_tokens_details"]["cached_tokens"] == cached
    assert refused.status_code == 400 and "no chat template" in refused.json()["error"]["message"]
