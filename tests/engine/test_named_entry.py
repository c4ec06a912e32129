"""Names as people type them: whole, short, or one word of them; never a wrong card."""

from dataclasses import dataclass

import pytest

from engine.cost_model import GPUS, MODELS, gpu_by_name, model_shape
from engine.errors import ConfigError
from engine.named_entry import find_named


@dataclass(frozen=True)
class Entry:
    name: str
    aliases: tuple[str, ...] = ()


TABLE = (Entry("Ox 40GB", ("ox",)), Entry("Ox 80GB"), Entry("Ass"), Entry("Ass S"), Entry("Mule 4"))


@pytest.mark.parametrize(
    "typed, name",
    [
        ("Ox 80GB", "Ox 80GB"), (" OX 80gb ", "Ox 80GB"), ("ox", "Ox 40GB"), ("80gb", "Ox 80GB"), ("80GB ox", "Ox 80GB"),
        ("ass", "Ass"), ("ass-s", "Ass S"), ("mule", "Mule 4"), ("4", "Mule 4"),
    ],
)  # fmt: skip
def test_a_name_an_alias_or_words_of_one_name_find_it(typed, name):
    assert find_named("animal", typed, TABLE).name == name


@pytest.mark.parametrize("typed", ["", "  ", "cow", "ox 4", "mul", "as", "mule 4 5", "-"])
def test_half_a_word_or_a_word_too_many_finds_nothing(typed):
    with pytest.raises(ConfigError, match="accepted: Ox 40GB, Ox 80GB, Ass, Ass S, Mule 4$"):
        find_named("animal", typed, TABLE)


def test_words_of_several_names_are_refused_with_those_names():
    with pytest.raises(ConfigError, match="^animal is 'OX GB'; accepted: Ox 40GB, Ox 80GB, Ass"):
        find_named("animal", "OX GB", TABLE)
    with pytest.raises(ConfigError, match="^animal is 'S'; accepted: Ox"):
        find_named("animal", "S", (Entry("Ox S"), Entry("Ass S"), Entry("Mule")))
    try:
        find_named("animal", "S", (Entry("Ox S"), Entry("Ass S"), Entry("Mule")))
    except ConfigError as error:
        assert error.accepted == "Ox S, Ass S"


@pytest.mark.parametrize(
    "typed, name",
    [
        ("h100", "H100 SXM"), ("H100 pcie", "H100 PCIe"), ("a100 40gb", "A100 SXM 40GB"), ("4090", "RTX 4090"), ("l4", "L4"),
        ("l40s", "L40S"),
    ],
)  # fmt: skip
def test_gpus_have_the_short_names_people_use(typed, name):
    assert gpu_by_name(typed).name == name


@pytest.mark.parametrize("typed", ["l40", "a10", "a100", "b20", "h20", "gh200"])
def test_a_card_that_is_not_in_the_table_is_never_taken_for_another(typed):
    with pytest.raises(ConfigError, match="accepted: "):
        gpu_by_name(typed)


@pytest.mark.parametrize(
    "typed, name",
    [
        ("Llama-3-8B", "llama-3-8b"), ("llama 3.1 8b", "llama-3.1-8b"), ("Qwen/Qwen3-8B", "qwen3-8b"),
        ("mistral", "mistral-7b-v0.3"),
    ],
)  # fmt: skip
def test_models_are_found_by_name_and_by_hub_id(typed, name):
    assert model_shape(typed).name == name


def test_no_name_or_alias_stands_for_two_entries():
    for table in (MODELS, GPUS):
        names = [name.casefold() for entry in table for name in (entry.name, *entry.aliases)]
        assert len(names) == len(set(names))
