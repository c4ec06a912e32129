"""A lab's ids reach a server as exactly that many tokens, or not at all."""

from __future__ import annotations

import random

import httpx
import pytest

from labs.servers.prompt_form import find_prompt_form
from labs.servers.seen_ids import VARIED_TEXTS
from labs.servers.server_facts import find_facts
from labs.targets.base import TargetError, TargetUnavailable
from labs.targets.open_server import OpenServer
from tests.labs.servers.fake_server import FakeServer


def form_of(fake: FakeServer):
    client = fake.client()
    return find_prompt_form(client, find_facts(client))


def sent_ids(fake: FakeServer) -> set[int]:
    return {one for body in fake.requests if isinstance(body["prompt"], list) for one in body["prompt"]}


@pytest.mark.parametrize("num_front", [0, 2])
@pytest.mark.parametrize("has_tokenizer", [True, False])
@pytest.mark.parametrize("takes_extras", [True, False])
def test_ids_stay_between_the_smallest_and_the_largest_one_that_text_had(has_tokenizer, takes_extras, num_front):
    if not (has_tokenizer or takes_extras):
        return
    fake = FakeServer(has_tokenizer=has_tokenizer, takes_extras=takes_extras, num_front=num_front, first_id=17)
    ids = [one for text in VARIED_TEXTS for one in fake._encode(text)]
    form = form_of(fake)
    assert form.is_exact_ids and form.num_front == num_front
    assert form.payload([0, form.own_id]) == [min(ids), max(ids)] and min(ids) == 17
    assert form.read([17, 5]) == (0, -12) and form.vocab_size == form.own_id
    assert min(sent_ids(fake)) >= 17 and max(sent_ids(fake)) == max(ids)


@pytest.mark.parametrize("told", [(1, 2, 3, 900), (1, 2, 3, 9_999_999), (5, 70), tuple(range(1, 999))])
@pytest.mark.parametrize("takes_extras", [True, False])
def test_no_id_is_sent_where_the_tokenizer_gives_others_than_a_completion_has(told, takes_extras):
    fake = FakeServer(told_ids=told, takes_extras=takes_extras)
    form = form_of(fake)
    assert not form.is_exact_ids and not sent_ids(fake)


def test_a_tokenizer_that_is_not_believed_is_named_where_words_fail_too():
    with pytest.raises(TargetUnavailable, match="does not confirm the ids of its /tokenize and counts 2 tokens for one word"):
        form_of(FakeServer(told_ids=(1, 2, 3, 900), long_words=("the",)))


def test_texts_that_were_sent_leave_no_beginning_for_a_lab_s_prompt():
    fake = FakeServer(kind="sglang", unit=1, has_reset=False)
    opened = OpenServer(fake.run(), fake.transport)
    texts = [body["prompt"] for body in fake.requests if isinstance(body["prompt"], str)]
    begun = {fake._encode(text)[0] for text in texts}
    target = opened()
    for first in range(target.info.vocab_size - len(begun)):
        target.complete([first])
        assert fake.requests[-1]["prompt"][0] not in begun


def test_where_no_id_is_ever_seen_none_is_sent():
    fake = FakeServer(has_tokenizer=False, takes_extras=False)
    form = form_of(fake)
    assert not form.is_exact_ids and all(isinstance(body["prompt"], str) for body in fake.requests)


def test_the_tools_own_prompts_begin_like_no_labs_prompt():
    fake = FakeServer()
    form = form_of(fake)
    sent = [body["prompt"][0] for body in fake.requests if isinstance(body["prompt"], list)]
    assert sent and {sent[0]} == set(sent) == set(form.payload([form.own_id]))
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


def test_a_model_that_completes_nothing_among_others_is_named():
    class Two(FakeServer):
        def _v1_models(self, request, body):
            return httpx.Response(200, json={"data": [{"id": "embedder"}, {"id": "fake"}]})

        def _v1_completions(self, request, body):
            return httpx.Response(404) if body["model"] == "embedder" else super()._v1_completions(request, body)

    with pytest.raises(TargetUnavailable, match="it lists 2 models; accepted: --model with another name than 'embedder'"):
        form_of(Two())


def test_a_busy_server_says_nothing_about_the_form():
    fake = FakeServer(alter=lambda reply: httpx.Response(503, text="busy"))
    with pytest.raises(TargetError, match="503: busy"):
        form_of(fake)
