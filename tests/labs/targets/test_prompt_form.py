"""A lab's ids reach a server as exactly that many tokens, or not at all."""

from __future__ import annotations

import random

import pytest

from labs.targets.base import TargetError, TargetUnavailable
from labs.targets.prompt_form import VARIED_TEXTS, find_prompt_form
from labs.targets.server_facts import find_facts
from tests.labs.targets.fake_server import FakeServer


def form_of(fake: FakeServer):
    client = fake.client()
    return find_prompt_form(client, find_facts(client))


def test_ids_stay_below_the_largest_one_that_the_tokenizer_gave():
    fake = FakeServer()
    form = form_of(fake)
    largest = max(fake._encode("\n".join(VARIED_TEXTS)))
    assert form.is_exact_ids and form.own_id == largest and form.vocab_size == largest and form.num_front == 0
    assert form.payload([3, form.own_id]) == [3, largest]


def test_without_a_tokenizer_the_ids_of_a_text_prompt_give_the_bound():
    fake = FakeServer(has_tokenizer=False)
    assert form_of(fake).own_id == max(fake._encode("\n".join(VARIED_TEXTS)))
    assert form_of(fake).is_exact_ids


def test_where_no_id_is_ever_seen_none_is_sent():
    fake = FakeServer(has_tokenizer=False, takes_extras=False)
    form = form_of(fake)
    assert not form.is_exact_ids and all(isinstance(body["prompt"], str) for body in fake.requests)


def test_the_tools_own_prompts_begin_like_no_labs_prompt():
    fake = FakeServer()
    form = form_of(fake)
    sent = [body["prompt"][0] for body in fake.requests]
    assert sent and set(sent) == {form.own_id}
    assert form.own_prompt(5, random.Random(1))[0] == form.own_id


@pytest.mark.parametrize("num_front", [0, 1, 7])
def test_words_cost_one_token_each_and_what_stands_in_front_is_known(num_front):
    fake = FakeServer(takes_ids=False, num_front=num_front)
    form = form_of(fake)
    assert not form.is_exact_ids and form.num_front == num_front and form.vocab_size >= 64
    prompt = [0, 5, 63, 5]
    text = form.payload(prompt)
    assert len(fake._encode(text)) == len(prompt) and len(set(text.split())) == 3
    firsts = {body["prompt"].split()[0] for body in fake.requests if isinstance(body["prompt"], str)} - {"The"}
    assert form.words[form.own_id] in firsts and not firsts & {form.words[index] for index in range(64)}


def test_ids_with_a_constant_front_are_counted_with_it():
    assert form_of(FakeServer(num_front=3)).num_front == 3


def test_a_word_of_two_tokens_is_found_out_and_dropped():
    fake = FakeServer(takes_ids=False, long_words=("parcel", "street", "person"))
    form = form_of(fake)
    assert not {"parcel", "street", "person"} & set(form.words) and form.vocab_size > 200


def test_a_server_that_counts_ids_wrongly_gets_words():
    fake = FakeServer()

    def alter(reply):
        if isinstance(fake.requests[-1]["prompt"], list):  # it read the list as a text
            reply["usage"]["prompt_tokens"] *= 4
            reply["choices"][0].pop("prompt_token_ids", None)
        return reply

    fake.alter = alter
    assert not form_of(fake).is_exact_ids


def test_a_front_that_grows_with_the_prompt_is_no_front():
    fake = FakeServer()

    def alter(reply):
        reply["usage"]["prompt_tokens"] += reply["usage"]["prompt_tokens"] // 2
        return reply

    fake.alter = alter
    with pytest.raises(TargetUnavailable, match="accepted: "):
        form_of(fake)


def test_no_form_is_exact_without_ids_and_without_counts():
    with pytest.raises(TargetUnavailable, match="takes no token ids and reports no prompt_tokens"):
        form_of(FakeServer(takes_ids=False, details="no usage"))
    with pytest.raises(TargetUnavailable, match="counts 2 tokens for one word, 4 for two"):
        form_of(FakeServer(takes_ids=False, long_words=("the",)))


def test_too_few_words_of_one_token_are_no_vocabulary():
    class Bytes(FakeServer):
        def _encode(self, text):
            return list(text.replace(" the", "\x01").encode())

    with pytest.raises(TargetUnavailable, match="only 0 words could be proven"):
        form_of(Bytes(takes_ids=False))


def test_a_server_of_chats_alone_is_refused():
    class Chat(FakeServer):
        def __call__(self, request):
            if request.url.path == "/v1/completions":
                request.url = request.url.copy_with(path="/nothing")
            return super().__call__(request)

    with pytest.raises(TargetUnavailable, match="answered /v1/completions with 404.*chat alone hides the prompt"):
        form_of(Chat())


def test_a_busy_server_says_nothing_about_the_form():
    import httpx

    fake = FakeServer(alter=lambda reply: httpx.Response(503, text="busy"))
    with pytest.raises(TargetError, match="503: busy"):
        form_of(fake)
