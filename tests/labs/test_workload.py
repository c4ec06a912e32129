"""Workloads: exact sizes, the promised differences, and text that reads back as its ids."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labs.system_prompt import SYSTEM_PROMPT, TOOL_SCHEMAS
from labs.workload import NUM_CANARY_TOKENS, SharedPrefixWorkload, repeated_prompts, workload_digest

SIZES = [(2000, 200), (320, 16), (100, 14), (101, 15)]


def check_promises(workload, num_shared, num_tail, num_requests, num_unrelated, num_markers, vocab_size):
    """What a lab relies on, whatever made the workload."""
    assert len(workload.shared_ids) == num_shared
    assert [len(tail) for tail in workload.tail_ids] == [num_tail] * num_requests
    assert [len(ids) for ids in workload.unrelated_ids] == [num_shared + num_tail] * num_unrelated
    assert len(set(workload.marker_ids)) == len(workload.marker_ids) == num_markers
    assert len(workload.canary_ids) == NUM_CANARY_TOKENS
    tail_firsts = [tail[0] for tail in workload.tail_ids]
    assert len(set(tail_firsts)) == num_requests
    assert not {workload.shared_ids[0], workload.canary_ids[0], *tail_firsts} & set(workload.marker_ids)
    firsts = {workload.shared_ids[0], *tail_firsts, *(ids[0] for ids in workload.unrelated_ids), *workload.marker_ids}
    assert workload.canary_ids[0] not in firsts
    everything = (*workload.prompts, *workload.unrelated_ids, workload.marker_ids, workload.canary_ids)
    assert all(0 <= token_id < vocab_size for ids in everything for token_id in ids)
    assert workload.prompts == tuple(workload.shared_ids + tail for tail in workload.tail_ids)


@settings(max_examples=50, deadline=None)
@given(
    seed=st.integers(0, 2**32), num_shared=st.integers(1, 60), num_tail=st.integers(1, 20),
    num_requests=st.integers(1, 6), num_unrelated=st.integers(0, 4), num_markers=st.integers(0, 20),
    spare=st.integers(0, 500),
)  # fmt: skip
def test_random_ids_keep_every_promise_down_to_the_smallest_vocabulary(
    seed, num_shared, num_tail, num_requests, num_unrelated, num_markers, spare
):
    sizes = (num_shared, num_tail, num_requests, num_unrelated, num_markers)
    vocab_size = 2 + num_requests + num_unrelated + num_markers + spare
    workload = SharedPrefixWorkload.from_token_ids(vocab_size, seed, *sizes)
    check_promises(workload, *sizes, vocab_size)
    with pytest.raises(ValueError, match="^vocab_size is .*; accepted: at least"):
        SharedPrefixWorkload.from_token_ids(vocab_size - spare - 1, seed, *sizes)


def test_the_seed_decides_the_ids_and_the_digest_names_them():
    first, again, other = (SharedPrefixWorkload.from_token_ids(1000, seed, 32, 8, 3, 1, 2) for seed in (1, 1, 2))
    assert first == again and first.digest == again.digest
    assert first.digest != other.digest
    assert re.fullmatch("[0-9a-f]{64}", first.digest)


def test_the_digest_sees_every_part_and_every_boundary():
    workload = SharedPrefixWorkload.from_token_ids(1000, 1, 32, 8, 3, 1, 2)
    parts = [workload.shared_ids, workload.tail_ids, workload.unrelated_ids, workload.marker_ids, workload.canary_ids]
    digests = {workload.digest}
    for at, part in enumerate(parts):
        changed = list(parts)
        changed[at] = part[:-1]
        digests.add(SharedPrefixWorkload(*changed).digest)
    assert len(digests) == 1 + len(parts)
    assert workload_digest([[(1, 2), (3,)]]) != workload_digest([[(1,), (2, 3)]])
    assert workload_digest([[(1,)], [(2,)]]) != workload_digest([[(1,), (2,)]])


@pytest.mark.parametrize(
    "sizes, field",
    [
        ((0, 8, 1), "num_shared"),
        ((8, 0, 1), "num_tail"),
        ((8, 8, 0), "num_requests"),
        ((8, 8, 1, -1), "num_unrelated"),
        ((8, 8, 1, 0, -1), "num_markers"),
    ],
)
def test_a_size_below_its_range_is_refused_by_name(sizes, field):
    with pytest.raises(ValueError, match=f"^{field} is .*; accepted: a whole number from"):
        SharedPrefixWorkload.from_token_ids(1000, 0, *sizes)


def test_repeated_prompts_come_equally_often_shuffled_and_differ_at_once():
    prompts = repeated_prompts(500, seed=3, num_prompts=5, prompt_tokens=20, repeat_count=8)
    assert len(prompts) == 40 and {len(prompt) for prompt in prompts} == {20}
    assert sorted(map(prompts.count, set(prompts))) == [8] * 5
    assert len({prompt[0] for prompt in prompts}) == 5
    assert list(prompts) != sorted(prompts)
    assert prompts == repeated_prompts(500, 3, 5, 20, 8) != repeated_prompts(500, 4, 5, 20, 8)


@pytest.mark.parametrize(
    "sizes, field", [((501, 20, 1), "num_prompts"), ((1, 0, 1), "prompt_tokens"), ((1, 1, 0), "repeat_count")]
)
def test_repeats_that_cannot_be_made_are_refused_by_name(sizes, field):
    with pytest.raises(ValueError, match=f"^{field} is .*; accepted: "):
        repeated_prompts(500, 0, *sizes)


# Text


@pytest.fixture(scope="session", params=SIZES, ids=lambda size: "{}+{}".format(*size))
def text_workload(request, smollm2_tokenizer):
    return SharedPrefixWorkload.from_text(smollm2_tokenizer, 7, *request.param, 16, 4, 80), request.param


def test_text_prompts_keep_every_promise(text_workload, smollm2_tokenizer):
    workload, sizes = text_workload
    check_promises(workload, *sizes, 16, 4, 80, smollm2_tokenizer.vocab_size)


def test_every_text_prompt_reads_back_as_the_ids_it_was_sent_as(text_workload, smollm2_tokenizer):
    workload, _ = text_workload
    for ids in (*workload.prompts, *workload.unrelated_ids, workload.canary_ids):
        assert tuple(smollm2_tokenizer.encode(smollm2_tokenizer.decode(ids))) == ids


def test_text_prompts_are_what_the_chat_template_renders(text_workload, smollm2_tokenizer):
    workload, _ = text_workload
    start, end = re.escape("<|im_start|>"), re.escape("<|im_end|>\n")
    form = re.compile(f"{start}system\n(.+){end}{start}user\n(.+){end}{start}assistant\n", re.S)
    for ids in (*workload.prompts, *workload.unrelated_ids):
        system_text, user_text = form.fullmatch(smollm2_tokenizer.decode(ids)).groups()
        messages = [{"role": "system", "content": system_text}, {"role": "user", "content": user_text}]
        assert tuple(smollm2_tokenizer.encode(smollm2_tokenizer.render_chat(messages))) == ids
        assert "SmolLM" not in system_text  # the template's own system text would shift every position
    assert smollm2_tokenizer.decode(workload.shared_ids).endswith("<|im_start|>user\n")


def test_unrelated_prompts_share_the_templates_head_and_differ_right_after_it(text_workload, smollm2_tokenizer):
    workload, _ = text_workload
    head = tuple(smollm2_tokenizer.encode("<|im_start|>system\n"))
    prompts = (workload.shared_ids, *workload.unrelated_ids)
    assert {ids[: len(head)] for ids in prompts} == {head}
    assert len({ids[len(head)] for ids in prompts}) == len(prompts)


def test_markers_are_ordinary_words_that_encode_to_themselves(text_workload, smollm2_tokenizer):
    workload, _ = text_workload
    for token_id in workload.marker_ids:
        assert token_id not in smollm2_tokenizer.special_ids
        assert list(smollm2_tokenizer.encode(smollm2_tokenizer.decode([token_id]))) == [token_id]


def test_even_thousands_of_markers_leave_out_the_words_that_prompts_begin_with(smollm2_tokenizer):
    # So many that, not left out, some of the 24 first words would be among them.
    workload = SharedPrefixWorkload.from_text(smollm2_tokenizer, 0, 100, 14, 24, 1, 8000)
    check_promises(workload, 100, 14, 24, 1, 8000, smollm2_tokenizer.vocab_size)


def test_the_seed_decides_the_text(smollm2_tokenizer):
    first, again, other = (SharedPrefixWorkload.from_text(smollm2_tokenizer, seed, 150, 20, 4, 2, 9) for seed in (1, 1, 2))
    assert first == again
    assert first.shared_ids == other.shared_ids  # one company, one system prompt
    assert first.tail_ids != other.tail_ids and first.marker_ids != other.marker_ids


@pytest.mark.parametrize("num_tail", range(14, 40))
def test_every_small_tail_can_be_hit_exactly(smollm2_tokenizer, num_tail):
    workload = SharedPrefixWorkload.from_text(smollm2_tokenizer, num_tail, 100 + num_tail, num_tail, 3)
    assert {len(tail) for tail in workload.tail_ids} == {num_tail}


@pytest.mark.parametrize(
    "sizes, field",
    [
        ((5, 200, 2), "num_shared"),
        ((9000, 200, 2), "num_shared"),
        ((320, 2, 2), "num_tail"),
        ((320, 2000, 2), "num_tail"),
        ((320, 16, 25), "num_requests"),
        ((320, 16, 2, 9), "num_unrelated"),
        ((320, 16, 2, 1, 60_000), "num_markers"),
    ],
)
def test_text_of_an_impossible_size_is_refused_with_the_range_this_tokenizer_allows(smollm2_tokenizer, sizes, field):
    with pytest.raises(ValueError, match=rf"^{field} is .*; accepted: a whole number from \d+ to \d+"):
        SharedPrefixWorkload.from_text(smollm2_tokenizer, 0, *sizes)


def test_the_system_prompt_is_long_enough_for_the_labs_and_lists_its_tools(smollm2_tokenizer):
    assert len(smollm2_tokenizer.encode(SYSTEM_PROMPT)) >= 2300
    assert len(TOOL_SCHEMAS) >= 10
    assert all(f'"name": "{schema["name"]}"' in SYSTEM_PROMPT for schema in TOOL_SCHEMAS)


def test_a_tokenizer_in_which_turns_cannot_differ_at_once_is_refused(byte_tokenizer):
    with pytest.raises(ValueError, match="two user turns begin with the same token"):
        SharedPrefixWorkload.from_text(byte_tokenizer, 0, 400, 60, 24)


def test_a_tokenizer_without_whole_words_has_no_canary(byte_tokenizer):
    with pytest.raises(ValueError, match="no word of one token"):
        SharedPrefixWorkload.from_text(byte_tokenizer, 0, 400, 60, 1, num_unrelated=0)


def test_a_tokenizer_without_a_chat_template_is_told_of_random_ids(byte_tokenizer):
    byte_tokenizer.has_chat_template = False
    with pytest.raises(ValueError, match="from_token_ids"):
        SharedPrefixWorkload.from_text(byte_tokenizer, 0, 400, 60, 2)


def test_a_template_that_drops_the_system_text_is_refused(byte_tokenizer):
    byte_tokenizer.render_chat = lambda messages, add_generation_prompt=True: messages[-1]["content"]
    with pytest.raises(ValueError, match="chat template changes the texts"):
        SharedPrefixWorkload.from_text(byte_tokenizer, 0, 400, 60, 2)
