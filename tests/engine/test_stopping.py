"""When a request ends, and what of its text is shown."""

from __future__ import annotations

import pytest

from engine.config import EngineConfig
from engine.errors import RequestRefused
from engine.kvcache.open_kv_cache import open_kv_cache
from engine.llm_engine import LLMEngine
from engine.model.simulated_runner import SimulatedRunner
from engine.request import FinishReason, Request, SamplingParams
from engine.scheduler import Scheduler

PROMPT = [1, 2, 3]
LONG = list(range(100))


class LetterTokenizer:
    """Each id is a letter, so that a stop text spans tokens."""

    def encode(self, text: str) -> list[int]:
        return [ord(letter) for letter in text]

    def decode(self, token_ids) -> str:
        return "".join(chr(ord("a") + token_id % 26) for token_id in token_ids)


def open_engine(**fields) -> LLMEngine:
    return LLMEngine(EngineConfig(model="llama-3-8b", **fields), SimulatedRunner(), LetterTokenizer())


def generate(engine: LLMEngine, **fields):
    return engine.generate([PROMPT], SamplingParams(**{"temperature": 0, "max_tokens": 12, **fields}))[0]


@pytest.fixture(scope="module")
def free():
    """Twelve tokens without any stop, and their text."""
    output = generate(open_engine())
    return output.output_token_ids, output.text


def test_without_a_stop_the_length_ends_it(free):
    tokens, text = free
    assert len(tokens) == len(text) == 12


@pytest.mark.parametrize("length", [1, 3])
def test_a_stop_text_ends_the_request_and_is_not_shown(free, length):
    tokens, text = free
    stop = text[4 : 4 + length]
    first = text.index(stop)
    output = generate(open_engine(), stop=stop)
    assert output.finish_reason is FinishReason.STOP
    assert output.text == text[:first]
    assert output.output_token_ids == tokens[: first + length]


def test_the_first_of_several_stop_texts_cuts(free):
    _, text = free
    output = generate(open_engine(), stop=(text[6:8], text[3:5]))
    assert output.text == text[: min(text.index(text[6:8]), text.index(text[3:5]))]


def test_a_stop_text_in_the_last_allowed_token_still_counts_as_a_stop(free):
    _, text = free
    stop = text[3:5]
    end = text.index(stop) + 2
    output = generate(open_engine(), stop=stop, max_tokens=end)
    assert output.finish_reason is FinishReason.STOP and output.text == text[: end - 2]


def test_a_stop_token_ends_the_request_and_is_not_shown(free):
    tokens, text = free
    end = tokens.index(tokens[5])
    output = generate(open_engine(), stop_token_ids=(tokens[5],))
    assert output.finish_reason is FinishReason.STOP
    assert output.output_token_ids == tokens[: end + 1] and output.text == text[:end]


def test_end_of_text_ends_the_request_unless_it_is_ignored(free):
    tokens, text = free
    engine = open_engine()
    engine.runner.eos_token_ids = frozenset({tokens[5]})
    end = tokens.index(tokens[5])
    assert generate(engine).output_token_ids == tokens[: end + 1]
    assert generate(engine).finish_reason is FinishReason.STOP
    ignoring = generate(engine, ignore_eos=True)
    assert ignoring.output_token_ids == tokens and ignoring.finish_reason is FinishReason.LENGTH
    assert ignoring.text == text


def test_a_stopped_request_gives_its_blocks_back(free):
    _, text = free
    engine = open_engine()
    generate(engine, stop=text[4:6])
    assert engine.manager.num_available == engine.manager.pool.num_usable and not engine.has_unfinished_requests


def test_a_prompt_that_leaves_no_room_for_a_token_is_refused_without_output_too():
    engine = open_engine(max_model_len=100)
    for max_tokens in (0, 1):
        with pytest.raises(RequestRefused, match="exceeds max_model_len 100"):
            engine.generate([LONG], SamplingParams(max_tokens=max_tokens))
    assert engine.generate([LONG[1:]], SamplingParams(max_tokens=0))[0].finished


def test_the_last_position_of_max_model_len_is_never_computed():
    config = EngineConfig(max_num_batched_tokens=8)
    manager, hasher = open_kv_cache(config, 10, max_model_len=16)
    scheduler = Scheduler(config, manager, max_model_len=16)
    scheduler.add_request(Request("r", list(range(20)), SamplingParams(max_tokens=1), block_hasher=hasher))
    shares = [[item.num_tokens for item in scheduler.schedule().scheduled] for _ in range(3)]
    assert shares == [[8], [7], []]


@pytest.mark.parametrize("prefix_cache", ["hash", "radix"])
def test_without_output_a_prompt_is_computed_cached_and_ended(prefix_cache):
    """Whatever the token after it would have been; in chunks too. What is found afterwards is what one output leaves."""
    found = {}
    for max_tokens in (0, 1):
        engine = open_engine(prefix_cache=prefix_cache, max_num_batched_tokens=32)
        engine.runner.eos_token_ids = frozenset(range(engine.runner.vocab_size)) if max_tokens == 0 else frozenset()
        output = engine.generate([LONG], SamplingParams(temperature=0, max_tokens=max_tokens, logprobs=0))[0]
        assert (output.finish_reason, len(output.output_token_ids)) == (FinishReason.LENGTH, max_tokens)
        assert len(output.new_token_ids) == len(output.logprobs) == max_tokens and (max_tokens or output.text == "")
        assert output.metrics.ttft_s == output.metrics.e2e_s > 0
        assert engine.manager.num_available == engine.manager.pool.num_usable and not engine.has_unfinished_requests
        again = engine.generate([[*LONG, 7, 8]], SamplingParams(temperature=0, max_tokens=1))[0]
        found[max_tokens] = again.num_cached_tokens
    assert found[0] == found[1] > 0


def test_an_empty_stop_text_ends_nothing_where_no_token_is_wanted(free):
    tokens, _ = free
    for stop in ("", ("", "zzz")):
        output = generate(open_engine(), stop=stop, max_tokens=0)
        assert (output.finish_reason, output.text, output.output_token_ids) == (FinishReason.LENGTH, "", [])
        output = generate(open_engine(), stop=stop)
        assert (output.finish_reason, output.text, output.output_token_ids) == (FinishReason.STOP, "", tokens[:1])


def test_many_stop_texts_are_looked_for_in_one_text(monkeypatch):
    decoded = []
    monkeypatch.setattr(LetterTokenizer, "decode", lambda self, token_ids: decoded.append(1) or "")
    counts = []
    for num_stops in (1, 9):
        decoded.clear()
        generate(open_engine(), stop=tuple(f"{one} never said" for one in range(num_stops)))
        counts.append(len(decoded))
    assert counts[0] == counts[1] > 0
