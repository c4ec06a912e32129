"""Greedy tokens and log-probabilities over paged K/V against transformers' own, in float32.

transformers runs each prompt alone, whole, over its own contiguous cache; the engine runs it in pieces, beside
others, over scattered blocks. Every token must be the same.
"""

from __future__ import annotations

import random

import pytest

NUM_OUTPUTS = 6

ENGLISH = (
    "The lighthouse keeper wrote down the weather every evening: wind from the west, clouds low over the bay, and "
    "three fishing boats that came home before the storm. On the fourth day the lamp went out, and he climbed the "
    "stairs with a can of oil, counting one hundred and twelve steps as his father had done. "
)


def prompt_of(pair, num_tokens: int, seed: int = 0) -> list[int]:
    """Real text for the real model, random ids for the random one."""
    if pair.loaded.tokenizer.has_chat_template:
        words = ENGLISH.split()
        random.Random(seed).shuffle(words)
        ids = pair.loaded.tokenizer.encode(ENGLISH * (seed == 0) + " ".join(words * 4))
        assert len(ids) >= num_tokens
        return ids[:num_tokens]
    return [random.Random(seed * 1000 + index).randrange(512) for index in range(num_tokens)]


def scattered(num_blocks: int, seed: int) -> list[int]:
    """All blocks but the null block, in an order with no long runs."""
    blocks = list(range(1, num_blocks))
    random.Random(seed).shuffle(blocks)
    return blocks


@pytest.mark.parametrize("unit_size", [1, 16])
def test_one_whole_prefill_gives_the_tokens_of_generate(pair, drive, unit_size):
    prompt = prompt_of(pair, 120)
    num_blocks = 160 // unit_size + 2
    driver = drive(pair.runner(num_blocks, unit_size))
    request = driver.add("whole", prompt, list(range(1, num_blocks)))
    driver.run(request, num_outputs=NUM_OUTPUTS, chunk=1000)
    assert request.output_token_ids == pair.generate(prompt, NUM_OUTPUTS)


@pytest.mark.parametrize("unit_size", [1, 16])
@pytest.mark.parametrize("chunk", [7, 64])
def test_chunked_prefill_gives_the_tokens_of_generate(pair, drive, chunk, unit_size):
    prompt = prompt_of(pair, 150)
    num_blocks = 160 // unit_size + 2
    driver = drive(pair.runner(num_blocks, unit_size))
    request = driver.add("chunked", prompt, scattered(num_blocks, seed=chunk))
    driver.run(request, num_outputs=NUM_OUTPUTS, chunk=chunk)
    assert request.output_token_ids == pair.generate(prompt, NUM_OUTPUTS)


@pytest.mark.parametrize("unit_size", [1, 16])
def test_a_batch_of_prefills_chunks_and_decodes_leaves_every_request_as_if_alone(pair, drive, unit_size):
    prompts = [prompt_of(pair, length, seed) for seed, length in enumerate((100, 33, 17, 61, 40))]
    per_request = 112 // unit_size
    num_blocks = 5 * per_request + 1
    driver = drive(pair.runner(num_blocks, unit_size))
    blocks = scattered(num_blocks, seed=5)
    requests = [
        driver.add(str(index), prompt, blocks[index * per_request : (index + 1) * per_request])
        for index, prompt in enumerate(prompts[:-1])
    ]
    driver.step((requests[1], 33), (requests[2], 5))
    driver.step((requests[1], 1), (requests[0], 50), (requests[2], 12))
    # Two decodes, a chunk and a whole prefill in one step, the decodes not side by side.
    driver.step((requests[1], 1), (requests[0], 50), (requests[2], 1), (requests[3], 61))
    late = driver.add("late", prompts[-1], blocks[4 * per_request :])
    driver.step(*((request, 1) for request in requests), (late, 39))
    driver.run(*requests, late, num_outputs=NUM_OUTPUTS, chunk=1000)
    for request, prompt in zip([*requests, late], prompts):
        assert request.output_token_ids == pair.generate(prompt, NUM_OUTPUTS), request.request_id


@pytest.mark.parametrize("unit_size", [1, 16])
def test_two_requests_that_share_a_prefix_in_scattered_blocks_give_the_tokens_of_generate(pair, drive, unit_size):
    shared, num_shared = prompt_of(pair, 96), 96
    first_prompt = shared + prompt_of(pair, 20, seed=1)
    second_prompt = shared + prompt_of(pair, 30, seed=2)
    num_blocks = 300 // unit_size + 2
    blocks = scattered(num_blocks, seed=9)
    shared_blocks, rest = blocks[: num_shared // unit_size], blocks[num_shared // unit_size :]
    driver = drive(pair.runner(num_blocks, unit_size))
    first = driver.add("first", first_prompt, shared_blocks + rest[: len(rest) // 2])
    driver.run(first, num_outputs=2, chunk=1000)
    second = driver.add("second", second_prompt, shared_blocks + rest[len(rest) // 2 :], num_cached=num_shared)
    driver.run(first, second, num_outputs=NUM_OUTPUTS, chunk=1000)
    assert first.output_token_ids == pair.generate(first_prompt, NUM_OUTPUTS)
    assert second.output_token_ids == pair.generate(second_prompt, NUM_OUTPUTS)


def test_a_request_reads_blocks_that_another_computes_in_the_same_step(pair, drive):
    shared = prompt_of(pair, 48)
    second_prompt = shared + prompt_of(pair, 9, seed=3)
    driver = drive(pair.runner(20, 16))
    first = driver.add("first", shared + [5], [7, 3, 12, 1])
    second = driver.add("second", second_prompt, [7, 3, 12, 5], num_cached=48)
    driver.step((first, 49), (second, 9))
    driver.run(second, num_outputs=NUM_OUTPUTS, chunk=1000)
    assert second.output_token_ids == pair.generate(second_prompt, NUM_OUTPUTS)


@pytest.mark.parametrize("chunk", [1000, 16])
def test_prompt_logprobs_equal_the_log_softmax_of_transformers(pair, drive, chunk):
    prompt = prompt_of(pair, 70)
    driver = drive(pair.runner(20, 16))
    request = driver.add("scored", prompt, scattered(20, seed=1), prompt_logprobs=3)
    reports = {}
    while not request.num_output_tokens:
        reports.update(driver.step((request, chunk)).prompt_logprobs.get("scored", {}))
    expected = pair.logprobs(prompt)
    assert sorted(reports) == list(range(1, len(prompt)))
    for position, report in reports.items():
        row = expected[position - 1]
        assert report.token_id == prompt[position]
        assert report.logprob == pytest.approx(row[prompt[position]].item(), abs=1e-4)
        top = row.topk(3)
        assert [candidate.logprob for candidate in report.top] == pytest.approx(top.values.tolist(), abs=1e-4)
        assert report.top[0].token_id == top.indices[0].item()


def test_logprobs_of_a_sampled_token_equal_the_log_softmax_of_transformers(pair, drive):
    prompt = prompt_of(pair, 40)
    driver = drive(pair.runner(20, 16))
    request = driver.add("scored", prompt, [4, 2, 9], logprobs=2)
    report = driver.step((request, 1000)).logprobs[0]
    row = pair.logprobs(prompt)[-1]
    assert report.token_id == request.output_token_ids[0] == row.argmax().item()
    assert [candidate.logprob for candidate in report.top] == pytest.approx(row.topk(2).values.tolist(), abs=1e-4)


def test_the_real_model_knows_the_capital_of_france(smollm2, drive):
    tokenizer = smollm2.loaded.tokenizer
    prompt = tokenizer.encode(tokenizer.render_chat([{"role": "user", "content": "What is the capital of France?"}]))
    driver = drive(smollm2.runner(20, 16))
    request = driver.add("question", prompt, list(range(1, 20)))
    driver.run(request, num_outputs=8, chunk=1000)
    assert "Paris" in tokenizer.decode(request.output_token_ids)
