"""The benchmark's prompts: sampled, arranged, described, and what a cache finds of them."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.config import EngineConfig
from engine.errors import ConfigError
from engine.llm_engine import LLMEngine
from engine.model.simulated_runner import SimulatedRunner
from engine.request import SamplingParams
from labs import theory
from labs.benches.prefix_bench_prompts import (
    BenchRequest,
    InputLengths,
    PrefixBenchConfig,
    arrange,
    describe,
    expected_hits_in_turn,
    sample_prompts,
)
from labs.diagnose.prompt_file import PromptFileError

CACHES = [
    {"prefix_cache": "hash", "block_size": 16},
    {"prefix_cache": "hash", "block_size": 5},
    {"prefix_cache": "radix", "page_size": 1},
    {"prefix_cache": "radix", "page_size": 16},
]


def conversation(*texts):
    return {"conversations": [{"from": "human", "value": text} for text in texts]}


def dataset(folder, content):
    path = folder / "dataset.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return str(path)


def requests_of(*prompts):
    return [BenchRequest(tuple(prompt), number) for number, prompt in enumerate(prompts)]


def engine_hits(requests, cache, num_outputs=1):
    """Cached tokens of requests served one after the other by an engine with room for all, and the unit."""
    config = EngineConfig(**cache)
    num_tokens = sum(len(request.token_ids) + num_outputs + config.unit_size for request in requests)
    engine = LLMEngine(config.replace(num_gpu_blocks=num_tokens // config.unit_size + 2), SimulatedRunner())
    params = SamplingParams(temperature=0, max_tokens=num_outputs, ignore_eos=True)
    found = (engine.generate([list(request.token_ids)], params)[0].num_cached_tokens for request in requests)
    return tuple(found), config.unit_size


# The configuration


@pytest.mark.parametrize("text", ["9", "256:128", "a:b", "0:5", "", ":", "1:2:3", "-1:5", " 1:5", "1:5\n", "1.0:5", "٣:٥", "9" * 5_000 + ":1", None])
def test_a_range_of_another_form_is_one_clear_line(text):
    with pytest.raises(ConfigError) as caught:
        PrefixBenchConfig(1, text)
    message = str(caught.value)
    assert message.startswith("input_length_range is ") and "\n" not in message
    assert message.endswith('accepted: "min:max" with whole numbers 1 <= min <= max, such as "128:256"')


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"num_prompts": 0}, "num_prompts is 0; accepted: a whole number from 1"),
        ({"num_prompts": True}, "num_prompts is True; accepted: a whole number from 1"),
        ({"num_prompts": 1.5}, "num_prompts is 1.5; accepted: a whole number from 1"),
        ({"repeat_count": 0}, "repeat_count is 0; accepted: a whole number from 1"),
        ({"output_len": 0}, "output_len is 0; accepted: a whole number from 1"),
        ({"output_len": None}, "output_len is None; accepted: a whole number from 1"),
        ({"output_len": 3, "dataset_path": "d"}, "output_len is 3; accepted: a whole number from 4 with dataset_path"),
        ({"prefix_len": -1}, "prefix_len is -1; accepted: a whole number from 0"),
        ({"prefix_len": 8}, "prefix_len is 8; accepted: a whole number from 0 to 7: a prompt of 8 tokens needs one of its own"),
        ({"prefix_len": 1, "dataset_path": "d"}, "prefix_len is 1; accepted: 0 with dataset_path: its prompts are sent as they are"),
        ({"seed": -1}, "seed is -1; accepted: a whole number from 0"),
    ],
)
def test_a_field_outside_its_range_is_named_with_what_is_accepted(fields, message):
    with pytest.raises(ConfigError) as caught:
        PrefixBenchConfig(**{"num_prompts": 1, "input_length_range": "8:9"} | fields)
    assert str(caught.value) == message


def test_what_just_fits_is_accepted():
    assert PrefixBenchConfig(1, "8:8", prefix_len=7).length_range == (8, 8)
    assert PrefixBenchConfig(1, "128:256", output_len=1).length_range == (128, 256)
    assert PrefixBenchConfig(1, "1:2", output_len=4, dataset_path="d").length_range == (1, 2)


# Random prompts


@given(
    num_prompts=st.integers(1, 20),
    shortest=st.integers(1, 30),
    spread=st.integers(0, 30),
    prefix_len=st.integers(0, 29),
    seed=st.integers(0, 2**64),
)
def test_random_prompts_share_their_prefix_and_not_a_token_more(num_prompts, shortest, spread, prefix_len, seed):
    prefix_len = min(prefix_len, shortest - 1)
    config = PrefixBenchConfig(num_prompts, f"{shortest}:{shortest + spread}", prefix_len=prefix_len, seed=seed)
    special_ids = {0, 7, 24}
    prompts = sample_prompts(config, 25, special_ids=special_ids)
    assert prompts == sample_prompts(config, 25, special_ids=special_ids)
    assert len(prompts) == num_prompts
    assert all(shortest <= len(prompt) <= shortest + spread for prompt in prompts)
    assert {token_id for prompt in prompts for token_id in prompt} <= set(range(25)) - special_ids
    shared = {theory.common_prefix(one, other) for one in prompts for other in prompts if one is not other}
    assert shared <= {prefix_len}


def test_lengths_and_ids_reach_every_value_of_their_range():
    prompts = sample_prompts(PrefixBenchConfig(60, "5:8", prefix_len=3, seed=1), 64, special_ids=[1])
    assert {len(prompt) for prompt in prompts} == {5, 6, 7, 8}
    assert {token_id for prompt in prompts for token_id in prompt} == set(range(64)) - {1}


def test_the_seed_decides_the_ids():
    first, second = (sample_prompts(PrefixBenchConfig(2, "20:20", prefix_len=10, seed=seed), 1_000) for seed in (0, 1))
    assert not set(first) & set(second)


def test_a_vocabulary_that_cannot_begin_so_many_prompts_differently_is_refused():
    assert len(sample_prompts(PrefixBenchConfig(3, "2:3"), 4, special_ids={2})) == 3
    with pytest.raises(ConfigError, match="num_prompts is 4; accepted: at most 3, the ordinary tokens there are"):
        sample_prompts(PrefixBenchConfig(4, "2:3"), 4, special_ids={2})


# Prompts of a dataset


def test_a_dataset_gives_the_first_turns_of_the_right_length(tmp_path, byte_tokenizer):
    records = [
        conversation("a", "too short"),
        conversation("bb", ""),
        conversation("ccc", "yes", {"a": 1}),
        conversation("dddd", "too long"),
        conversation("ee"),  # one turn
        conversation("ff", 5),
        conversation(None, "no text"),
        conversation("\ud800x", "half a character"),
        {"id": "no conversations"},
        {"conversations": "ff"},
        {"conversations": [["ff"], ["gg"]]},
        {"conversations": [{"from": "human"}, {"value": "gg"}]},
        [],
        "ff",
    ]
    path = dataset(tmp_path, records)
    prompts = sample_prompts(PrefixBenchConfig(2, "2:3", dataset_path=path), 256, byte_tokenizer)
    assert sorted(prompts) == [(98, 98), (99, 99, 99)]


def test_a_dataset_is_shuffled_by_the_seed_and_read_until_there_is_enough(tmp_path, byte_tokenizer):
    path = dataset(tmp_path, "\ufeff" + json.dumps([conversation(f"{number:02d}", "answer") for number in range(50)]))

    def prompts(num_prompts, seed):
        config = PrefixBenchConfig(num_prompts, "2:2", dataset_path=path, seed=seed)
        return sample_prompts(config, 256, byte_tokenizer)

    assert prompts(50, 0) == prompts(50, 0) != prompts(50, 1)
    assert set(prompts(50, 0)) == set(prompts(50, 1))
    assert prompts(50, 0)[:7] == prompts(7, 0)

    byte_tokenizer.encode = lambda text, encode=byte_tokenizer.encode: read.append(text) or encode(text)
    read = []
    prompts(7, 0)
    assert len(read) == 7


@pytest.mark.parametrize(
    "content, message",
    [
        ("", "is not JSON"),
        ("{", "is not JSON"),
        ("[" * 200_000, "is not JSON"),
        ('{"conversations": []}', "holds no conversation of two texts"),
        ("[]", "holds no conversation of two texts"),
        ("[1, null]", "holds no conversation of two texts"),
        ("null", "holds no conversation of two texts"),
    ],
)
def test_a_file_that_is_no_dataset_is_named_with_what_is_accepted(tmp_path, byte_tokenizer, content, message):
    path = dataset(tmp_path, content)
    with pytest.raises(PromptFileError) as caught:
        sample_prompts(PrefixBenchConfig(1, "1:9", dataset_path=path), 256, byte_tokenizer)
    assert str(caught.value).startswith(f"{path!r} {message}; accepted: a ShareGPT JSON list, ")
    assert "\n" not in str(caught.value)


def test_a_file_that_cannot_be_read_is_named_with_the_reason(tmp_path, byte_tokenizer):
    (tmp_path / "latin1.json").write_bytes(b'["\xe9"]')
    for name, message in (
        ("absent.json", r"cannot be read \(No such file or directory\); accepted: a ShareGPT JSON list"),
        ("", r"cannot be read \(Is a directory\); accepted"),
        ("latin1.json", "is not UTF-8; accepted"),
    ):
        config = PrefixBenchConfig(1, "1:9", dataset_path=str(tmp_path / name))
        with pytest.raises(PromptFileError, match=message):
            sample_prompts(config, 256, byte_tokenizer)


def test_too_few_prompts_are_counted(tmp_path, byte_tokenizer):
    path = dataset(tmp_path, [conversation("aaaa", "b"), conversation("cccc", "d"), conversation("a longer one", "e")])
    with pytest.raises(PromptFileError, match="has 2 of the 3 prompts asked for, of 4 to 5 tokens; accepted: fewer prompts"):
        sample_prompts(PrefixBenchConfig(3, "4:5", dataset_path=path), 256, byte_tokenizer)


def test_a_dataset_needs_a_tokenizer():
    with pytest.raises(ConfigError, match="dataset_path is 'd.json'; accepted: none without a tokenizer: a dataset is text"):
        sample_prompts(PrefixBenchConfig(1, "4:5", dataset_path="d.json"), 256)


# Arranging and describing


@given(lengths=st.lists(st.integers(1, 5), min_size=1, max_size=8), repeat_count=st.integers(1, 4), sort=st.booleans())
def test_each_prompt_is_sent_as_often_as_asked(lengths, repeat_count, sort):
    prompts = [(number,) * length for number, length in enumerate(lengths)]
    config = PrefixBenchConfig(len(prompts), "1:5", repeat_count=repeat_count, sort=sort)
    requests = arrange(prompts, config)
    assert requests == arrange(prompts, config)
    assert sorted(request.number for request in requests) == sorted(list(range(len(prompts))) * repeat_count)
    assert all(request.token_ids == prompts[request.number] for request in requests)
    assert not sort or [len(request.token_ids) for request in requests] == sorted(lengths * repeat_count)


def test_sorted_the_shortest_comes_first_and_equal_lengths_keep_their_order():
    config = PrefixBenchConfig(4, "1:5", repeat_count=2, sort=True)
    requests = arrange([(0,) * 3, (1,), (2,) * 3, (3,) * 2], config)
    assert [request.number for request in requests] == [1, 1, 3, 3, 0, 2, 0, 2]


def test_the_seed_decides_the_order():
    prompts = [(number,) for number in range(20)]
    orders = [arrange(prompts, PrefixBenchConfig(20, "1:1", seed=seed)) for seed in (0, 1)]
    assert orders[0] != orders[1] and set(orders[0]) == set(orders[1])


def test_inputs_are_described_in_tokens():
    assert describe(requests_of([1], [1] * 2, [1] * 4, [1] * 9)) == InputLengths(4, 4.0, 4, 1, 9)
    assert describe(requests_of([1, 2, 3])) == InputLengths(1, 3.0, 3, 3, 3)


# What a cache finds


def test_hits_by_hand():
    eight = range(8)
    cases = [
        (4, [eight, eight], (0, 4)),  # the last token costs its block
        (4, [range(9), range(9)], (0, 8)),
        (1, [eight, eight], (0, 7)),
        (4, [eight, range(12)], (0, 8)),  # longer than what it shares: all of that
        (4, [range(12), eight], (0, 4)),
        (1, [[1, 2, 3], [1, 2, 4], [1, 2, 4, 5], [9], [9]], (0, 2, 3, 0, 0)),
        (4, [[5, *eight], eight], (0, 0)),
        (4, [], ()),
    ]
    for unit, prompts, expected in cases:
        assert expected_hits_in_turn(requests_of(*prompts), unit) == expected


@given(st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=12), max_size=12), st.integers(1, 5))
def test_hits_are_those_of_a_comparison_with_every_earlier_prompt(prompts, unit):
    expected = tuple(theory.control_hits(prompt, prompts[:turn], unit) for turn, prompt in enumerate(prompts))
    assert expected_hits_in_turn(requests_of(*prompts), unit) == expected


@settings(max_examples=40, deadline=None)
@given(st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=50), max_size=8), st.sampled_from(CACHES + [{"block_size": 2}]))
def test_the_engine_finds_what_the_law_says_of_any_prompts(prompts, cache):
    # One output token each: it is never fed back, so no output is in the cache.
    found, unit = engine_hits(requests_of(*prompts), cache)
    assert found == expected_hits_in_turn(requests_of(*prompts), unit)


@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("sort", [False, True])
def test_the_engine_finds_what_the_law_says_request_by_request(cache, sort):
    config = PrefixBenchConfig(6, "60:100", repeat_count=3, sort=sort, prefix_len=37, seed=3)
    requests = arrange(sample_prompts(config, SimulatedRunner().vocab_size), config)
    found, unit = engine_hits(requests, cache, config.output_len)
    assert found == expected_hits_in_turn(requests, unit)
    # By the laws of the two kinds of sharing: a prompt's first request finds the prefix, each later one all but a rest.
    seen, by_kind = set(), []
    for request in requests:
        length = len(request.token_ids)
        shared = theory.reuse(37, length, unit) if seen else 0
        by_kind.append(theory.repeat(length, unit) if request.number in seen else shared)
        seen.add(request.number)
    assert list(found) == by_kind


@pytest.mark.parametrize("cache", CACHES)
def test_the_engine_finds_what_the_law_says_of_a_dataset(tmp_path, byte_tokenizer, cache):
    texts = [f"Please translate the following sentence: number {number}" for number in range(8, 13)]
    path = dataset(tmp_path, [conversation(text, "Gladly.") for text in texts])
    config = PrefixBenchConfig(5, "40:60", repeat_count=2, dataset_path=path)
    requests = arrange(sample_prompts(config, 256, byte_tokenizer), config)
    found, unit = engine_hits(requests, cache, config.output_len)
    assert found == expected_hits_in_turn(requests, unit) and max(found) > 40
