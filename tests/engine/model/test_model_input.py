import numpy as np
import pytest
import torch

from engine.kvcache.cache_identity import LoRA
from engine.model.model_input import AdapterRows, build_model_input
from engine.model.pinned_inputs import InputCopier
from engine.request import Request, SamplingParams
from engine.scheduler import ScheduledRequest, SchedulerOutput

CPU = torch.device("cpu")


def build(*items, unit_size=4):
    return build_model_input(SchedulerOutput(list(items)), unit_size, 100, InputCopier(CPU))


def test_scheduled_tokens_of_all_requests_lie_flat_in_one_row():
    whole = Request("whole", [11, 12, 13])
    decoding = Request("decoding", [21, 22])
    decoding.append_output_token_ids([23])
    chunk = Request("chunk", list(range(30, 40)))
    step = build(
        ScheduledRequest(whole, 0, 3, [5]), ScheduledRequest(decoding, 2, 1, [2]), ScheduledRequest(chunk, 3, 4, [9, 4])
    )
    assert step.input_ids.tolist() == [11, 12, 13, 23, 33, 34, 35, 36]
    assert step.positions.tolist() == [0, 1, 2, 2, 3, 4, 5, 6]
    assert step.write_slots.tolist() == [20, 21, 22, 10, 39, 16, 17, 18]
    assert [(span.first_row, span.num_rows, span.start) for span in step.spans] == [(0, 3, 0), (3, 1, 2), (4, 4, 3)]
    assert step.spans[2].context_slots.tolist() == [36, 37, 38, 39, 16, 17, 18]
    # The chunk has tokens left to compute: it samples nothing.
    assert step.sampling == [0, 1] and step.sample_rows.tolist() == [2, 3]
    assert step.prompt_rows == []


def test_prompt_logprobs_need_the_rows_before_the_prompts_tokens():
    request = Request("scored", [1, 2, 3, 4, 5], SamplingParams(prompt_logprobs=2))
    other = Request("other", [7, 8])
    first = build(ScheduledRequest(other, 0, 2, [1]), ScheduledRequest(request, 0, 3, [3, 2])).prompt_rows[0]
    assert (first.request_id, first.num_top) == ("scored", 2)
    assert (first.first_row, first.first_position, first.token_ids) == (2, 1, [2, 3, 4])
    rest = build(ScheduledRequest(request, 3, 2, [3, 2])).prompt_rows[0]
    assert (rest.first_row, rest.first_position, rest.token_ids) == (0, 4, [5])
    request.append_output_token_ids([6])
    assert build(ScheduledRequest(request, 5, 1, [3, 2])).prompt_rows == []
    # Computed again after a preemption: outputs are not part of the prompt.
    assert build(ScheduledRequest(request, 0, 6, [3, 2])).prompt_rows[0].token_ids == [2, 3, 4, 5]


def test_rows_with_an_adapter_or_a_given_embedding_are_named():
    lora, given = LoRA("a", "seeded:1"), [np.full(4, value, dtype="<f4").tobytes() for value in range(5)]
    plain, adapted = Request("plain", [1, 2]), Request("adapted", [3, 4, 5], lora=lora)
    embedded = Request("embedded", [0] * 5, lora=lora, prompt_embeds=given)
    step = build(ScheduledRequest(plain, 0, 2, [1]), ScheduledRequest(adapted, 1, 2, [2]), ScheduledRequest(embedded, 2, 3, [3, 4]))
    assert step.is_changed
    assert step.adapter_rows == [AdapterRows(2, 4, lora), AdapterRows(4, 7, lora)]
    (rows,) = step.embedding_rows
    assert rows.first_row == 4 and rows.values.tolist() == [[value] * 4 for value in (2, 3, 4)]
    embedded.append_output_token_ids([9])
    later = build(ScheduledRequest(embedded, 5, 1, [3, 4]))
    assert later.embedding_rows == [] and len(later.adapter_rows) == 1
    again = build(ScheduledRequest(embedded, 3, 3, [3, 4]))  # the last prompt tokens and an output
    assert again.embedding_rows[0].values[:, 0].tolist() == [3, 4]
    assert not build(ScheduledRequest(plain, 0, 2, [1])).is_changed


def test_a_token_id_outside_the_vocabulary_never_reaches_the_model():
    with pytest.raises(AssertionError, match="vocabulary"):
        build(ScheduledRequest(Request("bad", [3, 100]), 0, 2, [1]))
