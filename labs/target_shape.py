"""Target shape: what the cost model has to know of the model behind a target."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from engine.errors import ConfigError
from engine.model_shape import ModelShape, shape_from_config
from labs.targets.base import Target


def shape_of(target: Target) -> ModelShape:
    """The shape of an in-process target's model: from its configuration, or by counting the weights it loaded."""
    assert target.engine is not None, "a target in this process"
    runner: Any = target.engine.runner
    return runner.shape if runner.is_simulated else _shape_of_loaded(runner.loaded, target.info.model)


def _shape_of_loaded(loaded: Any, name: str) -> ModelShape:
    try:
        counted = shape_from_config(loaded.model.config.to_dict(), name, "the loaded model's configuration")
        return replace(counted, max_model_len=loaded.max_model_len)
    except ConfigError:
        # Another family than the cost model can count from a configuration: every weight once, tied ones too.
        num_parameters = sum(weight.numel() for weight in loaded.model.parameters())
    return ModelShape(
        name=name,
        num_parameters=num_parameters,
        num_layers=loaded.num_layers,
        num_heads=loaded.num_heads,
        num_kv_heads=loaded.num_kv_heads,
        head_dim=loaded.head_dim,
        vocab_size=loaded.vocab_size,
        max_model_len=loaded.max_model_len,
        source="weights counted after loading",
    )
