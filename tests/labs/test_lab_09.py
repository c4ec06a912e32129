"""Lab 09 measures what each part of an identity allows, and notices an engine whose key lacks one."""

from __future__ import annotations

import pytest

from engine.config import EngineConfig
from engine.errors import ConfigError
from engine.kvcache import wrong_key
from engine.kvcache.cache_identity import CacheIdentity, LoRA, MultimodalItem
from labs.lab_09_identity import LAB, Config
from labs.protocol import LabReport
from labs.scenarios.identity_prompts import IdentityPrompts
from labs.scenarios.identity_series import IdentityRequest, shared_tokens
from labs.targets.in_process import InProcessTarget
from labs.targets.open_target import open_target_factory
from tests.labs.fake_session import FakeSession

HASH, PAGE_1, PAGE_16 = "hash cache, block 16", "radix cache, page 1", "radix cache, page 16"
WRONG = ": the wrong key beside the right one"
SMALL = Config(
    prompt_tokens=60, equal_tokens=37, image_offset=20, image_tokens=8, image_shift=4, output_tokens=4, page_sizes=(16,)
)


def run_lab(config: Config = SMALL, session: FakeSession | None = None) -> LabReport:
    return LAB.run(session or FakeSession(), config)


def on_tiny() -> FakeSession:
    return FakeSession(open_target_factory("engine", EngineConfig(model="synthetic:tiny", device="cpu")))


@pytest.fixture(scope="module")
def report() -> LabReport:
    return run_lab(Config())


@pytest.fixture(scope="module")
def real() -> LabReport:
    return run_lab(session=on_tiny())


def measured(report: LabReport, group: str, row: str) -> dict[str, object]:
    return {one.name: one.value for one in report.measurements if (one.group, one.row) == (group, row)}


@pytest.mark.parametrize(
    ("row", "first"),
    [
        ("tokens alone", {HASH: 0, PAGE_1: 0, PAGE_16: 0}),
        ("an adapter", {HASH: 0, PAGE_1: 0, PAGE_16: 0}),
        ("its path under another name", {HASH: 0, PAGE_1: 0, PAGE_16: 0}),
        ("its name for another path", {HASH: 0, PAGE_1: 0, PAGE_16: 0}),
        ("a salt", {HASH: 0, PAGE_1: 0, PAGE_16: 0}),
        ("another salt", {HASH: 0, PAGE_1: 0, PAGE_16: 0}),
        ("given embeddings", {HASH: 0, PAGE_1: 0, PAGE_16: 0}),
        ("other embeddings from 100 on", {HASH: 96, PAGE_1: 100, PAGE_16: 96}),
        ("an image at 72", {HASH: 0, PAGE_1: 0, PAGE_16: 0}),
        ("another image there", {HASH: 64, PAGE_1: 72, PAGE_16: 64}),
        ("the first image at 76", {HASH: 64, PAGE_1: 72, PAGE_16: 64}),
    ],
)
def test_another_identity_shares_what_lies_before_the_difference_and_the_same_one_all(report, row, first):
    for cache, tokens in first.items():
        found = measured(report, cache, row)
        assert (found["first"], found["again"], found["queries"]) == (tokens, 199 if cache == PAGE_1 else 192, 400)
        if cache == HASH and "names" in found:
            assert found["names"] == {"an image at 72": 4}.get(row, tokens // 16)


@pytest.mark.parametrize(
    ("row", "right", "wrong"),
    [
        ("without lora", {HASH: 0, PAGE_1: 0, PAGE_16: 0}, {HASH: 192, PAGE_1: 199, PAGE_16: 192}),
        ("without embeddings", {HASH: 0, PAGE_1: 0, PAGE_16: 0}, {HASH: 192, PAGE_1: 199, PAGE_16: 192}),
        ("without salt", {HASH: 0, PAGE_1: 0, PAGE_16: 0}, {HASH: 192, PAGE_1: 199, PAGE_16: 192}),
        ("without images", {HASH: 64, PAGE_1: 72, PAGE_16: 64}, {HASH: 192, PAGE_1: 199, PAGE_16: 192}),
        ("without image offsets", {HASH: 64}, {HASH: 192}),
        ("without parent", {HASH: 0}, {HASH: 192}),
        ("names of 8 bits", {HASH: 0}, {HASH: 192}),
    ],
)
def test_a_wrong_key_finds_what_belongs_to_another(report, row, right, wrong):
    for cache in right:
        found = measured(report, cache + WRONG, row)
        assert (found["right"], found["wrong"], found["undue"]) == (right[cache], wrong[cache], wrong[cache] - right[cache])


def test_every_prediction_is_met_and_the_cache_was_proven_cold(report, real):
    for one in (report, real):
        assert one.agrees and one.cache_state == "cold" and one.charts[0].kind == "bars"
    assert any("keeps no K/V" in line for line in report.findings)
    assert any(line.startswith("images: the model reads none") for line in real.findings)


def test_on_a_real_model_the_wrong_key_changes_the_answer_and_the_right_one_does_not(real):
    for cache in (HASH, PAGE_16):
        for row in ("without lora", "without embeddings"):
            found = measured(real, cache + WRONG, row)
            assert found["changed"] == 0 < found["changed, wrong"]
        # A salt parts requests whose K/V are equal.
        assert measured(real, cache + WRONG, "without salt")["changed, wrong"] == 0
    for row in ("without parent", "names of 8 bits"):
        found = measured(real, HASH + WRONG, row)
        assert found["changed"] == 0 < found["changed, wrong"]
    assert measured(real, HASH, "another image there").keys() == {"names"}
    assert sum("of 4 tokens of the answer change" in line for line in real.findings) == 4
    assert sum("the answer stays" in line for line in real.findings) == 1


def test_two_runs_say_the_same(report):
    again = run_lab(Config())
    assert [one.samples for one in again.measurements] == [one.samples for one in report.measurements]
    assert (again.findings, again.details) == (report.findings, report.details)


def test_what_the_session_was_told_is_what_the_report_has_and_every_request_was_announced():
    for session in (FakeSession(), on_tiny()):
        found = run_lab(session=session)
        assert tuple(session.measurements) == found.measurements and session.done == session.expected


@pytest.mark.parametrize("part", ["lora", "embeddings"])
def test_an_engine_whose_right_key_lacks_a_part_does_not_pass(monkeypatch, part):
    original = CacheIdentity.extra_keys
    monkeypatch.setattr(CacheIdentity, "extra_keys", lambda self, *block: original(wrong_key.without(self, part), *block))
    found = run_lab(session=on_tiny())
    missed = {(one.row, one.name) for one in found.measurements if one.agrees is False}
    assert (f"without {part}", "right") in missed and (f"without {part}", "changed") in missed


def test_an_engine_whose_switch_breaks_nothing_does_not_pass(monkeypatch):
    monkeypatch.setattr(wrong_key, "without", lambda identity, part: identity)
    missed = {(one.row, one.name) for one in run_lab().measurements if one.agrees is False}
    assert {(f"without {part}", "wrong") for part in ("lora", "images", "salt", "embeddings")} <= missed
    broken = run_lab()
    assert "NOT as predicted" in broken.conclusion
    assert any("without lora: NOT as predicted: 0 tokens of K/V from another request, 48 predicted" in line for line in broken.findings)


def test_an_engine_whose_names_keep_an_image_s_offset_when_told_to_leave_it_out_does_not_pass(monkeypatch):
    def extend_with_offsets(self, *block, **options):
        self._left_out = None if self._left_out == "image_offsets" else self._left_out
        extend(self, *block, **options)

    extend = wrong_key.WrongBlockHasher.extend
    monkeypatch.setattr(wrong_key.WrongBlockHasher, "extend", extend_with_offsets)
    found = run_lab()
    missed = {(one.row, one.name) for one in found.measurements if one.agrees is False}
    assert {("without image offsets", "wrong"), ("without image offsets", "undue")} <= missed


def drop_the_place(self, start, end, original=CacheIdentity.extra_keys):
    keys = original(self, start, end)
    return keys and tuple(key[:2] if key[0] == "mm" else key for key in keys)


@pytest.mark.parametrize("config", [Config(), LAB.quick, SMALL])
def test_a_key_without_an_image_s_place_does_not_pass(monkeypatch, config):
    """The first image comes again a little later, in the same block: its place is all that differs."""
    monkeypatch.setattr(CacheIdentity, "extra_keys", drop_the_place)
    row = f"the first image at {config.image_offset + config.image_shift}"
    missed = {(one.group, one.row, one.name) for one in run_lab(config).measurements if one.agrees is False}
    assert {(HASH, row, "first"), (HASH, row, "names")} <= missed


def test_no_finding_holds_the_text_of_an_answer(monkeypatch, byte_tokenizer):
    def decode(token_ids):
        raise AssertionError("an answer was decoded")

    monkeypatch.setattr(byte_tokenizer, "decode", decode)
    monkeypatch.setattr(InProcessTarget, "tokenizer", lambda self: byte_tokenizer)
    assert run_lab(session=on_tiny()).findings


@pytest.mark.parametrize(
    "fields",
    [
        {"block_size": 7, "image_offset": 15, "page_sizes": (3, 64)}, {"block_size": 28}, {"hash_bits": 1}, {"hash_bits": 12},
        {"equal_tokens": 59},
        {"image_offset": 0, "image_shift": 15}, {"image_offset": 16, "image_tokens": 16, "image_shift": 4},
        {"seed": 7}, {"prompt_tokens": 64, "equal_tokens": 16},
    ],
    ids=str,
)  # fmt: skip
def test_the_predictions_hold_for_other_sizes(fields):
    found = run_lab(Config(**{**vars(SMALL), **fields}))
    assert found.agrees and found.cache_state == "cold"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"prompt_tokens": 32}, "prompt_tokens is 32; accepted: at least 33"),
        ({"equal_tokens": 200}, "equal_tokens is 200; accepted: at most 199"),
        ({"image_tokens": 125}, "image_tokens is 125; accepted: at most 124"),
        ({"image_offset": 1_000_003}, "image_offset is 1000003; accepted: at most 132"),
        ({"page_sizes": (1, 1)}, "page_sizes is .*; accepted: numbers that differ"),
        ({"image_shift": 8}, "image_shift is 8; accepted: at most 7, .* in the same block"),
        ({"image_offset": 79}, "image_offset is 79; accepted: another place than the last of a block of 16"),
        ({"block_size": 100}, "block_size is 100; accepted: at most 99"),
        ({"hash_bits": 17}, "hash_bits is 17; accepted: .* to 16"),
        ({"page_sizes": ()}, "page_sizes is"), ({"block_size": 1}, "block_size is 1; accepted: a whole number from 2"),
    ],
)  # fmt: skip
def test_an_impossible_configuration_is_named(fields, message):
    with pytest.raises(ValueError, match=message):
        Config(**fields)


@pytest.mark.parametrize(("name", "value"), [("prompt_tokens", 9000), ("output_tokens", 1_000_003)])
def test_what_does_not_fit_the_model_is_named(name, value):
    with pytest.raises(ConfigError, match=f"{name} is {value}; accepted: at most [1-9]"):
        run_lab(Config(**{name: value}))


def test_a_prompt_too_short_for_its_question_is_named(byte_tokenizer):
    with pytest.raises(ConfigError, match="prompt_tokens is 40; accepted: at least 46"):
        IdentityPrompts(byte_tokenizer, 256, 40, 16, 0)


def test_prompts_of_text_differ_in_their_first_block_alone(byte_tokenizer):
    prompts = IdentityPrompts(byte_tokenizer, 256, 100, 16, 0)
    many = [prompts.prompt(number) for number in range(500)]
    assert len(set(many)) == len({prompt[:16] for prompt in many}) and len({prompt[16:] for prompt in many}) == 1
    text = byte_tokenizer.decode(many[0])
    assert text.startswith(f" {prompts.name(0)} is my ") and text.endswith("Do you remember me? My name is")
    assert prompts.canary_ids[0] not in {prompt[0] for prompt in many}


def test_what_two_requests_share_ends_where_their_content_parts():
    def request(**identity):
        return IdentityRequest(tuple(range(20)), CacheIdentity(**identity))

    image = MultimodalItem("x", 5, 6)
    later, other = image._replace(offset=8), image._replace(identifier="y")
    embeds = tuple(bytes([number]) for number in range(20))
    cases = [
        ({}, {}, 20), ({"lora": LoRA("a", "1")}, {}, 0),
        ({"cache_salt": "s"}, {"cache_salt": "t"}, 0), ({"cache_salt": ""}, {}, 20),
        ({"mm_items": (image,)}, {}, 5), ({"mm_items": (image,)}, {"mm_items": (later,)}, 5),
        ({"mm_items": (image,)}, {"mm_items": (other,)}, 5), ({"prompt_embeds": embeds}, {}, 0),
        ({"prompt_embeds": embeds}, {"prompt_embeds": embeds[:9] + embeds[:11]}, 9),
    ]  # fmt: skip
    for one, other_fields, shared in cases:
        assert shared_tokens(request(**one), request(**other_fields)) == shared
    assert shared_tokens(request(lora=LoRA("a", "1")), request(lora=LoRA("b", "2")), "lora") == 20
