"""One tiny random model for all tests of this folder, and a checkpoint folder of the same shape."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.config import EngineConfig
from engine.model.loader import LoadedModel, load_model


@pytest.fixture(scope="session")
def tiny() -> LoadedModel:
    return load_model(EngineConfig(model="synthetic:tiny", dtype="float32", device="cpu"))


@pytest.fixture(scope="session")
def checkpoint(tiny: LoadedModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model saved the way transformers saves it, with a word-level tokenizer and two end-of-text ids."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import AutoModelForCausalLM, GenerationConfig, PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("checkpoint")
    words = {word: index for index, word in enumerate(["[UNK]", "[END]", "the", "cat", "sat", "[USER]"])}
    words |= {f"w{index}": index for index in range(len(words), 512)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    hf_tokenizer = PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]", eos_token="[END]")
    hf_tokenizer.chat_template = (
        "{% for message in messages %}[USER] {{ message.content }} [END] {% endfor %}"
        "{% if add_generation_prompt %}the {% endif %}"
    )
    hf_tokenizer.save_pretrained(folder)
    model = AutoModelForCausalLM.from_config(type(tiny.model.config)(**tiny.model.config.to_dict()))
    model.load_state_dict(tiny.model.state_dict())
    model.generation_config = GenerationConfig(eos_token_id=[1, 7], pad_token_id=0)
    model.save_pretrained(folder)
    return folder


@pytest.fixture
def config_folder(tmp_path: Path) -> Any:
    """Writes a folder that holds a config.json of some model type and nothing else."""
    from transformers import AutoConfig

    def write(model_type: str, **fields: Any) -> Path:
        AutoConfig.for_model(model_type, **fields).save_pretrained(tmp_path)
        return tmp_path

    return write
