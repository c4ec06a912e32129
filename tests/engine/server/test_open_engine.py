"""open_engine: what a server serves."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from engine.config import EngineConfig
from engine.errors import ConfigError, RequestRefused
from engine.request import FinishReason, SamplingParams
from engine.server.open_engine import open_engine

ROOT = Path(__file__).resolve().parents[3]


def open_sim(**fields):
    return open_engine(EngineConfig(model="llama-3-8b", **fields), "sim", pace=0.0)


def greedy(max_tokens=8, **fields):
    return SamplingParams(temperature=0, max_tokens=max_tokens, **fields)


def test_a_simulated_engine_takes_texts_and_gives_texts():
    engine = open_sim()
    (output,) = engine.generate(["Hello"], greedy())
    assert engine.tokenizer.encode(output.text) == output.output_token_ids
    assert output.prompt_token_ids == list(b"Hello")


def test_an_answer_sent_back_as_text_is_found_in_the_cache():
    engine = open_sim(prefix_cache="radix")
    prompt = "A prompt of some length, " * 10
    (first,) = engine.generate([prompt], greedy(max_tokens=20))
    (second,) = engine.generate([prompt + first.text + " and on"], greedy())
    assert second.num_cached_tokens == len(prompt) + 19  # the last token's K/V was never computed


def test_a_stop_text_ends_a_simulated_answer():
    engine = open_sim()
    (whole,) = engine.generate(["Hello"], greedy())
    stop = whole.text[10:16]
    (output,) = engine.generate(["Hello"], greedy(stop=(stop,)))
    assert output.finish_reason is FinishReason.STOP
    assert output.text == whole.text[: whole.text.index(stop)]


def test_an_id_outside_the_vocabulary_is_refused():
    with pytest.raises(RequestRefused, match="accepted: 0 to 128255"):
        open_sim().generate([[128_256]], greedy())


@pytest.mark.parametrize(
    ("config", "target", "settings", "named"),
    [
        ({}, "cloud", {}, "target is 'cloud'; accepted: engine, sim"),
        ({"model": "llama-9"}, "sim", {}, "model is 'llama-9'; accepted: "),
        ({"model": "llama-3-8b"}, "sim", {"gpu": "Z80"}, "gpu is 'Z80'; accepted: "),
        ({"model": "llama-3-8b"}, "sim", {"pace": -1.0}, "pace is -1.0; accepted: "),
    ],
)
def test_a_wrong_choice_is_refused_by_name(config, target, settings, named):
    with pytest.raises(ConfigError, match=named):
        open_engine(EngineConfig(**config), target, **settings)


@pytest.mark.parametrize("flavor", ["vllm", "sglang"])
def test_a_simulated_server_loads_no_torch(flavor):
    code = (
        "import sys\n"
        "from engine.config import EngineConfig\n"
        "from engine.server.open_engine import open_engine\n"
        "from engine.server.options import ServerOptions\n"
        "from engine.server.metrics.prometheus import open_metrics\n"
        "from engine.server.server_info import models_body, server_info\n"
        "engine = open_engine(EngineConfig(model='llama-3-8b'), 'sim', pace=0.0)\n"
        f"options = ServerOptions(flavor={flavor!r})\n"
        "open_metrics(options, engine).render(); models_body(options, engine, 0); server_info(options, engine)\n"
        "engine.generate(['Hello'])\n"
        "print(sorted({'torch', 'transformers', 'numpy'} & set(sys.modules)))"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert done.stdout.strip() == "[]"
