"""A weight update as training gives one: the same model, other numbers.

    loaded ── copy, noise on every matrix but the embedding ──▶ loaded' ──▶ ModelRunner.update_weights(loaded')

Keys and values are a function of the weights, and their place in the cache is not: block names are made of tokens and
identity alone. After an update a cache that was not reset serves K/V of the old weights to the new ones.
"""

from __future__ import annotations

import copy
from dataclasses import replace

import torch

from engine.errors import EngineError
from engine.model.loader import LoadedModel


def updated_weights(loaded: LoadedModel, seed: int, change: float) -> LoadedModel:
    """A copy of the model after an update that the seed decides; `loaded` stays as it is.

    change  standard deviation of the noise that each matrix but the embedding gets, over the matrix's own

    Takes the memory of a second model. Raises EngineError for a model whose layers were dropped.
    """
    model = copy.deepcopy(loaded.model)
    generator = torch.Generator(loaded.device).manual_seed(seed)
    embedding = model.get_input_embeddings().weight
    with torch.no_grad():
        for weight in model.base_model.parameters():
            if not weight.numel():
                raise EngineError("the model's layers were dropped to save memory; accepted: a model as load_model gives it")
            if weight.dim() > 1 and weight is not embedding:
                # Drawn in float32, so that one seed is one update in every dtype.
                noise = torch.randn(weight.shape, generator=generator, device=weight.device)
                weight.add_(noise.mul_(change * weight.float().std()).to(weight.dtype))
    return replace(loaded, model=model)
