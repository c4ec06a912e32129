"""A renaming keeps what prompts share, and shares nothing with what was sent before."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from labs.laws.prompt_ids import common_prefix
from labs.servers.renaming import Renaming

SIZE = 50
PROMPTS = st.lists(st.lists(st.integers(0, SIZE - 1), min_size=1, max_size=12), min_size=2, max_size=8)


def renamed(prompts, seed=0, times=1):
    renaming = Renaming(SIZE, random.Random(seed))
    for _ in range(times):
        renaming.renew()
    return [renaming.sent(prompt) for prompt in prompts]


@given(PROMPTS, st.integers(0, 99))
def test_any_two_prompts_share_as_many_tokens_as_before(prompts, seed):
    sent = renamed(prompts, seed)
    for one, other in zip(range(len(prompts)), range(1, len(prompts))):
        assert common_prefix(sent[one], sent[other]) == common_prefix(prompts[one], prompts[other])


@given(PROMPTS, st.integers(0, 99))
def test_no_prompt_begins_like_one_that_was_sent_before(prompts, seed):
    renaming = Renaming(1_000, random.Random(seed))
    begun: set[int] = set()
    for _ in range(5):
        firsts = {renaming.sent(prompt)[0] for prompt in prompts}
        assert not firsts & begun
        begun |= firsts
        renaming.renew()


def test_generated_tokens_come_back_as_the_ids_that_stand_for_them():
    renaming = Renaming(SIZE, random.Random(3))
    renaming.renew()
    prompt = [7, 8, 9, 49]
    assert list(renaming.read(renaming.sent(prompt)[1:])) == prompt[1:]


def test_ids_beyond_its_size_stay_as_they_are():
    renaming = Renaming(SIZE, random.Random(3))
    renaming.renew()
    assert renaming.sent([SIZE, 3, SIZE + 7])[::2] == [SIZE, SIZE + 7] and renaming.read([SIZE + 7]) == (SIZE + 7,)


def test_without_a_renaming_ids_are_sent_as_they_are():
    assert Renaming(SIZE).sent([4, 4, 9]) == [4, 4, 9] and Renaming(SIZE).sent([]) == []


@given(st.integers(0, 99))
def test_in_a_small_vocabulary_prompts_of_one_mapping_never_begin_alike(seed):
    rng = random.Random(seed)
    renaming = Renaming(64, rng)
    renaming.renew()
    for one in rng.sample(range(64), 31):
        renaming.sent([one, 1])
    renaming.renew()
    assert not renaming.is_used_up
    assert len({renaming.sent([one, 1])[0] for one in rng.sample(range(64), 45)}) == 45 and renaming.is_used_up


def test_no_prompt_begins_like_a_text_that_was_sent_before():
    renaming = Renaming(10, random.Random(0), begun=(3, 4))
    assert {renaming.sent([one])[0] for one in range(8)} == {0, 1, 2, 5, 6, 7, 8, 9} and not renaming.is_used_up


def test_a_vocabulary_that_is_used_up_still_gives_ids():
    renaming = Renaming(4, random.Random(0))
    for _ in range(20):
        assert sorted(renaming.sent([one])[0] for one in range(4)) == [0, 1, 2, 3]
        renaming.renew()
