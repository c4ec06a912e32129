import torch

from engine.model import logits_head
from engine.model.logits_head import LogitsHead


def test_logits_are_the_models_own_in_float32(tiny):
    hidden = torch.randn(3, 64)
    logits = LogitsHead(tiny.model)(hidden)
    assert logits.dtype == torch.float32
    assert torch.equal(logits, hidden @ tiny.model.lm_head.weight.T)


def test_rows_are_projected_a_bounded_number_at_a_time(tiny, monkeypatch):
    monkeypatch.setattr(logits_head, "MAX_LOGITS_BYTES", 4 * 512 * 3)
    head, hidden = LogitsHead(tiny.model), torch.randn(8, 64)
    chunks = list(head.in_chunks(hidden))
    assert [(first, logits.shape[0]) for first, logits in chunks] == [(0, 3), (3, 3), (6, 2)]
    torch.testing.assert_close(torch.cat([logits for _, logits in chunks]), head(hidden))
