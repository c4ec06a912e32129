"""Lab 06: generated tokens are reused, all but the last, as far as the same ids come back; other engines are noticed."""

from __future__ import annotations

import pytest

from engine.config import EngineConfig
from engine.errors import ConfigError
from engine.kvcache.kv_cache_manager import KVCacheManager
from engine.kvcache.prefix_cache import NO_MATCH
from labs.lab_06_multi_turn import LAB, Config
from labs.protocol import LabReport
from labs.targets.in_process import InProcessTarget
from labs.targets.open_target import open_target_factory
from tests.labs.fake_session import FakeSession

HASH, PAGE_1, PAGE_16 = "hash cache, block 16", "radix cache, page 1", "radix cache, page 16"


@pytest.fixture(scope="module")
def report() -> LabReport:
    return LAB.run(FakeSession(), Config())


def turns(report: LabReport, cache: str, row: str) -> list[float]:
    mine = [one for one in report.measurements if (one.group, one.row) == (cache, row)]
    return [one.value for one in mine if one.name.startswith("turn")]


def lost(report: LabReport, cache: str, row: str) -> float:
    return next(one.value for one in report.measurements if (one.group, one.row, one.name) == (cache, row, "lost"))


@pytest.mark.parametrize(("cache", "four", "five"), [(HASH, 0, 16), (PAGE_1, 15, 16), (PAGE_16, 0, 16)])
def test_twelve_tokens_and_four_outputs_offer_nothing_to_the_next_turn_and_five_a_block(report, cache, four, five):
    assert turns(report, cache, "12 + 4 tokens") == [0, four]
    assert turns(report, cache, "12 + 5 tokens") == [0, five]


@pytest.mark.parametrize(
    ("row", "block", "page_1"),
    [
        ("ids echoed", [0, 128, 176, 224], [0, 143, 191, 239]),
        ("two tokens merged", [0, 112, 160, 208], [0, 125, 172, 219]),
        ("think block dropped", [0, 112, 160, 208], [0, 120, 168, 216]),
        ("date in system text", [0, 16, 16, 16], [0, 20, 20, 20]),
    ],
)
def test_every_turn_reuses_what_came_back_as_it_was(report, row, block, page_1):
    assert turns(report, HASH, row) == turns(report, PAGE_16, row) == block
    assert turns(report, PAGE_1, row) == page_1


def test_what_other_ids_lose_is_counted_against_echoed_ids(report):
    assert [lost(report, HASH, row) for row in ("ids echoed", "two tokens merged", "date in system text")] == [0, 48, 480]
    assert lost(report, PAGE_1, "think block dropped") == (143 - 120) + (195 - 168) + (247 - 216)
    found = "\n".join(report.findings)
    assert "two tokens merged: 3 of 3 histories part from what was said, the first at token 5 of the answer" in found
    assert "date in system text: 3 of 3 histories part from what was said, the first 100 token(s) before the prompt's end" in found


def test_every_prediction_is_met_from_a_cold_cache_and_the_turns_are_drawn(report):
    assert report.agrees and report.cache_state == "cold"
    (chart,) = report.charts
    offered, reused = ({row: value for row, (value,) in zip(one.rows, one.values)} for one in chart.series)
    assert (offered["12 + 4 tokens, turn 2"], reused["12 + 4 tokens, turn 2"]) == (15, 0)
    assert (offered["ids echoed, turn 4"], reused["ids echoed, turn 4"]) == (239, 224)


original_publish, original_free = KVCacheManager._publish, KVCacheManager.free


def publish_prompts_only(self, request, num_tokens):
    original_publish(self, request, min(num_tokens, request.num_prompt_tokens))


def publish_the_last_token_too(self, request):
    if request.request_id in self._tables:
        self._publish(request, request.num_tokens)
    original_free(self, request)


def test_a_cache_that_leaves_answers_out_is_noticed_and_named(monkeypatch):
    monkeypatch.setattr(KVCacheManager, "_publish", publish_prompts_only)
    report = LAB.run(FakeSession(), LAB.quick)
    assert not report.agrees and turns(report, HASH, "12 + 5 tokens") == [0, 0]
    assert any(line.startswith(HASH) and "NOT reused are generated tokens" in line for line in report.findings)


@pytest.mark.parametrize("num_kept", [0, 16])
def test_a_cache_that_keeps_less_than_the_prompt_is_not_said_to_end_with_it(monkeypatch, num_kept):
    def keep_little(self, request):
        return self.prefix_cache.match(request, num_kept) if num_kept else NO_MATCH

    monkeypatch.setattr(KVCacheManager, "get_computed_blocks", keep_little)
    report = LAB.run(FakeSession(), LAB.quick)
    told = f"NOT as predicted: turn 2 of the echoed ids found {num_kept}, where the last prompt alone would give 48"
    assert any(line.startswith(HASH) and told in line for line in report.findings)
    assert not any("hits end with the last prompt" in line for line in report.findings)


def test_a_cache_that_offers_a_token_nobody_computed_is_noticed(monkeypatch):
    monkeypatch.setattr(KVCacheManager, "free", publish_the_last_token_too)
    report = LAB.run(FakeSession(), Config(page_sizes=(16,)))
    assert not report.agrees and turns(report, HASH, "12 + 4 tokens") == [0, 16]


class NumberTokenizer:
    """Ids are written as numbers; multiples of 3 are special tokens, of which a text keeps nothing."""

    has_chat_template = True

    def encode(self, text):
        return [int(word) if word.isdecimal() else 100_000 + sum(map(ord, word)) for word in text.split()]

    def decode(self, token_ids):
        return " ".join(str(token_id) for token_id in token_ids if token_id % 3)

    def render_chat(self, messages, add_generation_prompt=True):
        return " ".join(f"<{message['role']}> {message['content']}" for message in messages) + " <assistant>"


def test_text_that_reads_back_as_other_ids_loses_what_the_ids_say(monkeypatch):
    monkeypatch.setattr(InProcessTarget, "tokenizer", lambda self: NumberTokenizer())
    session = FakeSession()
    report = LAB.run(session, Config())
    assert report.agrees and session.done == session.expected
    assert lost(report, PAGE_1, "text tokenised again") > 0 and turns(report, PAGE_1, "text tokenised again")[1] > 0


def test_every_prediction_is_met_on_real_keys_and_values():
    config = EngineConfig(model="synthetic:tiny", dtype="float32", device="cpu")
    report = LAB.run(FakeSession(open_target_factory("engine", config)), LAB.quick)
    assert report.agrees and report.cache_state == "cold"
    assert turns(report, PAGE_1, "12 + 4 tokens") == [0, 15]


@pytest.mark.parametrize(
    "fields", [{"block_size": 7}, {"block_size": 784}, {"page_sizes": (3,)}, {"num_turns": 2}, {"date_at": 0}, {"seed": 3}]
)
def test_other_sizes_follow_the_laws_too(fields):
    report = LAB.run(FakeSession(), Config(**fields))
    assert report.agrees and report.cache_state == "cold"


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"num_turns": 1}, "num_turns is 1"), ({"answer_tokens": 1}, "answer_tokens is 1"), ({"merge_at": 23}, "merge_at is 23"),
        ({"date_at": 96}, "date_at is 96"), ({"output_tokens": ()}, "output_tokens is"),
        ({"output_tokens": (4, 4)}, "output_tokens is"), ({"page_sizes": (0,)}, "page_sizes is"),
        ({"prompt_tokens": 0}, "prompt_tokens is 0"), ({"num_turns": 64}, "num_turns is 64"),
    ],
)  # fmt: skip
def test_an_impossible_configuration_is_named(fields, named):
    with pytest.raises(ValueError, match=f"{named}.*accepted"):
        Config(**fields)


@pytest.mark.parametrize(
    "fields",
    [
        {"prompt_tokens": 8190}, {"num_turns": 32, "user_tokens": 190, "answer_tokens": 190}, {"user_tokens": 1_000_003},
        {"system_tokens": 1_000_003}, {"answer_tokens": 1_000_003}, {"output_tokens": (4, 1_000_003)},
    ],
    ids=lambda fields: next(iter(fields)),
)  # fmt: skip
def test_a_chat_too_long_for_the_model_is_named_by_the_lab_s_field(fields):
    name = next(iter(fields))
    with pytest.raises(ConfigError, match=f"{name} is .*8191"):
        LAB.run(FakeSession(), Config(**fields))
