"""Two requests side by side: the cause follows from ids and identities, and the engine finds what the diagnosis says."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.config import EngineConfig
from engine.kvcache.cache_identity import LoRA, MultimodalItem
from engine.llm_engine import LLMEngine
from engine.model.simulated_runner import SimulatedRunner
from engine.request import SamplingParams
from labs.diagnose.diagnosis import SentRequest, compare
from labs.targets.open_target import SIM_GPU, SIM_MODEL

SYSTEM = list(range(100, 164))
V1, V2, OTHER = LoRA("sql", "/v1"), LoRA("sql", "/v2"), LoRA("chat", "/v1")


def sent(ids, **fields) -> SentRequest:
    return SentRequest("request", ids, **fields)


def engine_reuse(first: SentRequest, second: SentRequest, unit: int, cache: str = "hash", drafter: bool = False) -> int:
    """What an engine takes from its cache for the second request, after it served the first."""
    size = {"page_size": unit} if cache == "radix" else {"block_size": unit}
    config = EngineConfig(model=SIM_MODEL, prefix_cache=cache, use_eagle=drafter, num_gpu_blocks=600, **size)
    engine = LLMEngine(config, SimulatedRunner(model=SIM_MODEL, gpu=SIM_GPU))
    for request in (first, second):
        identity = request.identity
        plp = 0 if request.prompt_logprobs and cache == "hash" else None  # SGLang has no such field
        params = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True, prompt_logprobs=plp)
        (output,) = engine.generate(
            [request.token_ids], params, cache_salt=identity.cache_salt, lora=identity.lora, mm_items=identity.mm_items
        )
    return output.num_cached_tokens


@pytest.mark.parametrize(
    ("first", "second", "cause", "position", "reusable"),
    [
        (sent(SYSTEM), sent(SYSTEM, cache_salt="a"), "identity", None, 0),
        (sent(SYSTEM, lora=V1), sent(SYSTEM, lora=V2), "identity", None, 0),
        (sent([1, *SYSTEM]), sent([2, *SYSTEM]), "front", 0, 0),
        (sent([1, *SYSTEM]), sent([2, *SYSTEM], cache_salt="a"), "front", 0, 0),
        (sent([*SYSTEM, 1, *SYSTEM]), sent([*SYSTEM, 2, *SYSTEM]), "divergence", 64, 64),
        (sent([*SYSTEM[:10], 1, *SYSTEM]), sent([*SYSTEM[:10], 2, *SYSTEM]), "divergence", 10, 0),
        (sent([*SYSTEM[:10], 1, 3]), sent([*SYSTEM[:10], 2, 4]), "too short", 10, 0),
        (sent(SYSTEM), sent(SYSTEM), "last token", None, 48),
        (sent([*SYSTEM, 1]), sent([*SYSTEM, 1]), "none", None, 64),
        (sent([*SYSTEM, 1]), sent([*SYSTEM, 2]), "parted", 64, 64),
        (sent([*SYSTEM[:20], *range(500, 700)]), sent([*SYSTEM[:20], *range(900, 999)]), "parted", 20, 16),
        (sent([*SYSTEM, 1]), sent([*SYSTEM, 1], prompt_logprobs=True), "logprobs", None, 0),
        (sent([*SYSTEM, 1], prompt_logprobs=True), sent([*SYSTEM, 1]), "none", None, 64),
        (sent(SYSTEM), sent([*SYSTEM, 1, 2]), "none", None, 64),
        (sent([*SYSTEM, 1, 2]), sent(SYSTEM), "last token", None, 48),
        (sent([1, 2]), sent([1, 2]), "too short", None, 0),
        (sent(SYSTEM[:16]), sent(SYSTEM[:16]), "last token", None, 0),
        (sent(SYSTEM[:15]), sent(SYSTEM[:15]), "too short", None, 0),
        (sent(SYSTEM[:17]), sent(SYSTEM[:17]), "none", None, 16),
    ],
)
def test_each_cause_is_told_from_the_others(first, second, cause, position, reusable):
    pair = compare(first, second, unit=16)
    assert (pair.cause, pair.first_difference, pair.reusable_tokens) == (cause, position, reusable)
    assert engine_reuse(first, second, 16) == reusable


def test_the_evidence_shows_ids_identity_and_names_but_no_salt():
    first = sent([1, *SYSTEM], cache_salt="pepper-one", block_hashes=["ab" * 32])
    second = sent([2, *SYSTEM], cache_salt="pepper-two", block_hashes=["cd" * 32])
    pair = compare(first, second, unit=16)
    assert "id 1 against 2" in pair.evidence and "the next 64 ids agree again" in pair.evidence
    assert "identity differs in cache salt" in pair.evidence and "abababababababab… ≠ cdcdcdcdcdcdcdcd…" in pair.evidence
    assert "pepper" not in pair.evidence + repr(pair) + repr(first)
    assert (pair.lost_tokens, pair.lost_blocks) == (64, 4)


@pytest.mark.parametrize(
    ("mine", "theirs", "names"),
    [
        ({"lora": V1}, {"lora": V2}, ("LoRA path",)),
        ({"lora": V1}, {"lora": OTHER}, ("LoRA adapter",)),
        ({}, {"lora": V1}, ("LoRA adapter",)),
        ({"cache_salt": ""}, {}, ()),
        ({"cache_salt": "x", "lora": V1}, {"cache_salt": "y"}, ("cache salt", "LoRA adapter")),
    ],
)
def test_the_parts_of_an_identity_are_named(mine, theirs, names):
    pair = compare(sent(SYSTEM, **mine), sent(SYSTEM, **theirs), unit=16)
    assert pair.identity_differences == names


@pytest.mark.parametrize(("cache", "reusable"), [("hash", 32), ("radix", 40)])
def test_an_image_ends_a_match_at_its_block_or_at_its_own_position(cache, reusable):
    unit = 16 if cache == "hash" else 1
    first = sent(SYSTEM, images=(MultimodalItem("cat", 40, 8),))
    second = sent(SYSTEM, images=(MultimodalItem("dog", 40, 8),))
    pair = compare(first, second, unit, cache=cache)
    assert (pair.cause, pair.reusable_tokens) == ("identity", reusable)
    assert (pair.image_difference.item, pair.image_difference.position) == (0, 40)
    assert pair.reusable_tokens == engine_reuse(first, second, unit, cache)


def test_an_image_behind_the_shared_part_costs_nothing():
    first = sent([*SYSTEM, 1, 2, 3, 4], images=(MultimodalItem("cat", 66, 2),))
    pair = compare(first, sent([*SYSTEM, 5, 6]), unit=16)
    assert (pair.cause, pair.reusable_tokens, pair.identity_differences) == ("parted", 64, ("images",))


def test_of_two_causes_the_dearer_comes_first():
    clock_in_front = compare(sent([1, *SYSTEM], cache_salt="a"), sent([2, *SYSTEM], cache_salt="b"), unit=16)
    clock_behind = compare(sent([*SYSTEM, 1, *SYSTEM[:20]], cache_salt="a"), sent([*SYSTEM, 2, *SYSTEM[:20]]), unit=16)
    assert [(loss.cause, loss.tokens) for loss in clock_in_front.losses] == [("front", 64), ("identity", 0)]
    assert [(loss.cause, loss.tokens) for loss in clock_behind.losses] == [("identity", 64), ("divergence", 16)]


@pytest.mark.parametrize("cache", ["hash", "radix"])
@pytest.mark.parametrize(
    ("mine", "theirs"),
    [([1], [2]), ([], [7, 8, 9]), ([7, 8, 9], []), ([7] * 20, [8] * 3), ([*SYSTEM[:20], 1, 2], [*SYSTEM[:20], 3])],
)
def test_moving_what_differs_behind_what_agrees_gains_what_is_called_lost(cache, mine, theirs):
    unit = 16 if cache == "hash" else 1
    body, tail = list(range(500, 600)), [9, 9]
    pair = compare(sent([*mine, *body, 1, *tail]), sent([*theirs, *body, 2, *tail]), unit, cache=cache)
    start = pair.first_difference
    repaired = [sent([*ids[:start], *body, *ids[start:], number, *tail]) for number, ids in enumerate((mine, theirs), start=1)]
    assert pair.lost_tokens > 0
    assert engine_reuse(*repaired, unit, cache) == pair.reusable_tokens + pair.lost_tokens


def test_a_block_larger_than_the_shared_front_is_too_short_with_one_cache_and_fine_with_the_other():
    system = list(range(1_000, 1_240))
    first, second = sent([*system, *range(660)]), sent([*system, *range(2_000, 2_660)])
    hybrid, radix = compare(first, second, 784), compare(first, second, 1, cache="radix")
    assert (hybrid.cause, hybrid.reusable_tokens) == ("too short", 0)
    assert "these share 240, a shared front of 784 would hit" in hybrid.hint
    assert (radix.cause, radix.reusable_tokens) == ("parted", 240)
    assert "part at position 240" in radix.hint and "is caching on" not in radix.hint


@pytest.mark.parametrize("unit", [1, 16, 1024])
def test_a_prompt_of_one_block_loses_it_to_its_last_token(unit):
    pair = compare(sent(range(unit)), sent(range(unit)), unit)
    assert [(loss.cause, loss.tokens) for loss in pair.losses] == [("last token", unit)]
    assert f"A prompt of {unit + 1:,} would reuse it" in pair.hint
    assert compare(sent(range(unit + 1)), sent(range(unit + 1)), unit).reusable_tokens == unit


@pytest.mark.parametrize(("cache", "unit"), [("hash", 16), ("radix", 1)])
def test_behind_another_salt_or_image_the_last_token_costs_nothing(cache, unit):
    image = (MultimodalItem("cat", 60, 4),), (MultimodalItem("dog", 60, 4),)
    for mine, theirs in (({"cache_salt": "a"}, {"cache_salt": "b"}), ({"images": image[0]}, {"images": image[1]})):
        pair = compare(sent(SYSTEM, **mine), sent(SYSTEM, **theirs), unit, cache=cache)
        assert [loss.cause for loss in pair.losses] in (["identity"], [])
    assert "identity" in [loss.cause for loss in compare(sent(SYSTEM, cache_salt="a"), sent(SYSTEM), unit, cache=cache).losses]


def test_prompt_logprobs_cost_all_that_would_match_and_nothing_in_the_radix_cache():
    first, second = sent(SYSTEM), sent(SYSTEM, prompt_logprobs=True)
    hash_, radix = compare(first, second, 16), compare(first, second, 1, cache="radix")
    assert [(loss.cause, loss.tokens) for loss in hash_.losses] == [("logprobs", 48)]
    assert (radix.cause, radix.reusable_tokens) == ("last token", 63)
    salted = compare(sent(SYSTEM, cache_salt="a"), second, 16)
    assert [(loss.cause, loss.tokens) for loss in salted.losses] == [("identity", 48), ("logprobs", 0)]


def test_a_drafter_gives_up_a_block():
    pair = compare(sent([*SYSTEM, 1]), sent([*SYSTEM, 1]), unit=16, drafter=True)
    assert (pair.cause, pair.reusable_tokens, pair.lost_tokens) == ("drafter", 48, 16)
    assert pair.reusable_tokens == engine_reuse(sent([*SYSTEM, 1]), sent([*SYSTEM, 1]), 16, drafter=True)


def test_beside_a_drafter_one_block_is_too_short():
    pair = compare(sent(SYSTEM[:16]), sent(SYSTEM[:16]), unit=16, drafter=True)
    assert (pair.cause, pair.lost_tokens) == ("too short", 0) and "a prompt of 33 tokens would hit" in pair.hint
    assert engine_reuse(sent(SYSTEM[:33]), sent(SYSTEM[:33]), 16, drafter=True) == 16
    assert engine_reuse(sent(SYSTEM[:32]), sent(SYSTEM[:32]), 16, drafter=True) == 0


# Any pair


@st.composite
def images(draw, length):
    """Up to three images in a prompt of `length` tokens."""
    items, start = [], 0
    for _ in range(draw(st.integers(0, 3))):
        offset = start + draw(st.integers(0, 6))
        item = MultimodalItem(draw(st.sampled_from(["i", "j"])), offset, draw(st.integers(1, 6)))
        start = item.offset + item.length
        if start <= length:
            items.append(item)
    return tuple(items)


@st.composite
def requests(draw):
    """Two requests that are often alike: the second is the first with a piece exchanged, or not."""
    ids = st.lists(st.integers(0, 2), min_size=1, max_size=48)
    first = draw(ids)
    second = list(first)
    if draw(st.booleans()):
        start = draw(st.integers(0, len(first)))
        second[start : start + draw(st.integers(0, 3))] = draw(st.lists(st.integers(0, 2), max_size=8))
    second = second or [0]
    identities = {
        "cache_salt": st.sampled_from([None, None, None, "a", "b"]),
        "lora": st.sampled_from([None, None, None, V1, V2, OTHER]),
    }
    mine, theirs = ({name: draw(choice) for name, choice in identities.items()} for _ in range(2))
    mine["images"] = draw(images(len(first)))
    same = draw(st.booleans()) and all(item.offset + item.length <= len(second) for item in mine["images"])
    theirs["images"] = mine["images"] if same else draw(images(len(second)))
    theirs["prompt_logprobs"] = draw(st.sampled_from([False, False, True]))
    return sent(first, **mine), sent(second, **theirs)


@settings(max_examples=300, deadline=None)
@given(pair=requests(), cache=st.sampled_from(["hash", "radix"]), unit=st.integers(1, 7), drafter=st.booleans())
def test_the_engine_finds_what_the_diagnosis_says(pair, cache, unit, drafter):
    first, second = pair
    drafter = drafter and cache == "hash"
    found = compare(first, second, unit, cache=cache, drafter=drafter)
    assert found.reusable_tokens == engine_reuse(first, second, unit, cache, drafter)
    assert (found.cause == "none") == (not found.losses)


@settings(max_examples=100, deadline=None)
@given(pair=requests(), cache=st.sampled_from(["hash", "radix"]), unit=st.integers(1, 5), drafter=st.booleans())
def test_with_lookup_and_equal_identities_the_engine_finds_what_these_two_cost(pair, cache, unit, drafter):
    first, second = pair
    if not all(item.offset + item.length <= len(second.token_ids) for item in first.images):
        return
    equal = sent(second.token_ids, cache_salt=first.cache_salt, lora=first.lora, images=first.images)
    drafter = drafter and cache == "hash"
    found = compare(first, second, unit, cache=cache, drafter=drafter)
    cost = sum(loss.tokens for loss in found.losses if loss.cause in ("identity", "logprobs"))
    assert engine_reuse(first, equal, unit, cache, drafter) == found.reusable_tokens + cost


@settings(max_examples=100, deadline=None)
@given(pair=requests(), cache=st.sampled_from(["hash", "radix"]), unit=st.integers(1, 5), drafter=st.booleans())
def test_a_token_longer_the_engine_finds_what_the_last_token_cost(pair, cache, unit, drafter):
    first, second = pair
    drafter = drafter and cache == "hash"
    found = compare(first, second, unit, cache=cache, drafter=drafter)
    cost = sum(loss.tokens for loss in found.losses if loss.cause == "last token")
    longer = sent([*second.token_ids, 9], **{name: getattr(second, name) for name in ("cache_salt", "lora", "images")})
    if not second.prompt_logprobs:
        assert engine_reuse(first, longer, unit, cache, drafter) == found.reusable_tokens + cost
