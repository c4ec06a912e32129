"""Conversations bring their history back as they say, and each in its own way changes ids."""

from __future__ import annotations

from labs.scenarios.conversation import DatedSystem, EchoedIds, MergedIds, RetokenisedText, ThinkBlock

SYSTEM, USERS = (1, 2, 3), ((10, 11), (12, 13))


def two_prompts(conversation, answer=(50, 51, 52, 53)):
    first = conversation.prompt()
    conversation.hear(answer)
    return first, conversation.prompt()


def test_echoed_ids_begin_with_all_that_was_said():
    assert two_prompts(EchoedIds(SYSTEM, USERS)) == ((1, 2, 3, 10, 11), (1, 2, 3, 10, 11, 50, 51, 52, 53, 12, 13))


def test_merged_ids_part_at_the_merge_whatever_was_sampled_there():
    assert two_prompts(MergedIds(SYSTEM, USERS, 1, (90, 91)))[1] == (1, 2, 3, 10, 11, 50, 90, 53, 12, 13)
    assert two_prompts(MergedIds(SYSTEM, USERS, 2, (52, 91)))[1] == (1, 2, 3, 10, 11, 50, 51, 91, 12, 13)


def test_a_think_block_ends_each_prompt_and_is_in_no_history():
    first, second = two_prompts(ThinkBlock(SYSTEM, USERS, (80, 81)))
    assert first == (1, 2, 3, 10, 11, 80, 81) and second == (1, 2, 3, 10, 11, 50, 51, 52, 53, 12, 13, 80, 81)


def test_a_date_changes_one_token_each_turn():
    first, second = two_prompts(DatedSystem(SYSTEM, USERS, 1, (70, 71)))
    assert first == (1, 70, 3, 10, 11) and second == (1, 71, 3, 10, 11, 50, 51, 52, 53, 12, 13)


def test_text_keeps_what_the_tokenizer_reads_back_as_it_was(byte_tokenizer):
    first, second = two_prompts(RetokenisedText(byte_tokenizer, 5), answer=tuple(b"Yes."))
    assert bytes(first).endswith(b"[assistant]\n") and second[: len(first) + 4] == (*first, *b"Yes.")
    first, second = two_prompts(RetokenisedText(byte_tokenizer, 5), answer=(65, 255, 66))  # 255 is no text
    assert second[: len(first) + 1] == (*first, 65) and second[len(first) + 1] != 255
