"""`labcli predict`: the worked numbers, why they are what they are, the laws behind them, and what was typed wrong."""

import json
import re

import pytest

from engine.cost_model import GPUS, MODELS

PREFILL = ("prefill", "--model", "llama-3-8b", "--gpu", "h100", "--prompt", "2200", "--cached", "2000")
REPEAT = ("reuse", "--prompt", "2000", "--block-size", "16", "--repeat")
POOL = ("pool", "--model", "llama-3-8b", "--memory", "52.32GiB")
EVERY = [
    (*PREFILL, "--rate", "20"),
    ("prefill", "--model", "llama-3.3-70b", "--gpu", "l4", "--prompt", "200000"),
    (*PREFILL[:-1], "2190", "--rate", "3"),
    REPEAT,
    ("reuse", "--prompt", "2200", "--match", "2000", "--requests", "10", "--outputs", "5"),
    ("reuse", "--prompt", "900", "--match", "240", "--unit", "784", "--drafter"),
    ("reuse", "--prompt", "2000", "--repeat", "--page-size", "1"),
    POOL,
    ("pool", "--model", "llama-3-8b", "--gpu", "h100", "--weight-dtype", "fp8"),
    ("collision", "--blocks", "1e9", "--per-second", "1e6"),
    ("collision", "--blocks", "1e25", "--bits", "64"),
]


@pytest.fixture
def predict(labcli_command, monkeypatch):
    """`labcli predict` with these arguments, in 80 columns: the lines it prints, folded sentences joined by the caller."""
    monkeypatch.setenv("COLUMNS", "80")

    def run(*arguments):
        result = labcli_command("predict", *arguments)
        assert (result.exit_code, result.stderr) == (0, "")
        return result.stdout

    return run


@pytest.fixture
def results(predict):
    """The values of --json, by name."""
    return lambda *arguments: {one["name"]: one["value"] for one in json.loads(predict(*arguments, "--json"))["results"]}


def figure(text, label):
    """What stands behind a label at the start of a line."""
    (line,) = re.findall(rf"(?m)^{re.escape(label)}  +(.*)$", text)
    return line


def sentences(text):
    return " ".join(text.split())


def test_a_prefill_prints_the_worked_numbers(predict):
    text = predict(*PREFILL, "--mfu", "0.45", "--rate", "20")
    expected = {
        "arithmetic, cold": "36.60 TFLOP",
        "arithmetic, with the cache": "3.43 TFLOP",
        "arithmetic, cold over cached": "10.66×",
        "redundant when cold": "90.6 %",
        "time, cold": "82.2 ms",
        "time, with the cache": "7.7 ms",
        "saved by the cache": "74.5 ms",
        "redundant at 20 requests/s": "663.4 of 445.2 TFLOP/s",
        "load at 20 requests/s, cold": "164.4 %",
        "load at 20 requests/s, with the cache": "15.4 %",
        "saturated, cold, from": "12.2 requests/s",
        "saturated, with the cache, from": "129.7 requests/s",
    }
    assert {label: figure(text, label) for label in expected} == expected
    assert "llama-3-8b on H100 SXM, MFU 0.45" in text
    assert (
        "Saturated at 20 requests/s when cold, from 12.2 requests/s on: the redundant part alone asks more than the GPU "
        "delivers. With the cache one GPU bears up to 129.7 requests/s." in sentences(text)
    )


@pytest.mark.parametrize(
    "arguments, verdict",
    [
        (("--cached", "2000", "--rate", "5"), "Not saturated at 5 requests/s, even cold"),
        (("--cached", "2000", "--rate", "13"), "Saturated at 13 requests/s when cold, from 12.2 requests/s on: queues grow"),
        (("--cached", "2000", "--rate", "130"), "Saturated at 130 requests/s, even with the cache"),
        (("--rate", "5"), "Not saturated at 5 requests/s: "),
        (("--rate", "13"), "Saturated at 13 requests/s: "),
    ],
)
def test_whether_a_gpu_bears_a_rate_is_said_in_words(predict, arguments, verdict):
    assert verdict in sentences(predict(*PREFILL[:-2], *arguments))


def test_a_prefill_without_a_cache_or_a_rate_has_no_figures_about_them(predict):
    text = predict(*PREFILL[:-2])
    assert figure(text, "arithmetic, cold") == "36.60 TFLOP"
    assert "cache" not in text and "redundant" not in text and "load" not in text


def test_where_arithmetic_alone_misleads_it_is_said(predict):
    assert "Reading the weights (bf16) takes 4.8 ms in any step" in sentences(predict(*PREFILL[:-1], "2190"))
    assert "Reading" not in predict(*PREFILL)
    text = sentences(predict("prefill", "--model", "llama-3-70b", "--gpu", "l4", "--prompt", "9000"))
    assert "do not fit in one L4" in text and "llama-3-70b takes at most 8,192 tokens." in text


def test_a_repeat_of_2000_tokens_reuses_1984_and_why(predict):
    text = predict(*REPEAT)
    assert figure(text, "reused") == "1,984 of 2,000 tokens"
    assert figure(text, "blocks reused") == "124 of 125 blocks"
    assert figure(text, "lost to whole blocks") == "0 tokens"
    assert figure(text, "lost to the last token") == "16 tokens"
    assert figure(text, "next length that reuses more") == "2,001 tokens"
    said = sentences(text)
    assert "The last token is computed again: its logits choose the next one." in said
    assert "at most 1,999 tokens can match, and only whole blocks are reused." in said
    assert "One token more would change that: a repeat of 2,001 tokens reuses 2,000." in said
    assert "The radix cache with page 1 reuses 1,999." in said
    assert predict("reuse", "--prompt", "2000", "--match", "2000") == text


@pytest.mark.parametrize(
    "arguments, hits",
    [
        (("--prompt", "2200", "--match", "2000"), 2000),
        (("--prompt", "2200", "--match", "2000", "--drafter"), 1984),
        (("--prompt", "2200", "--repeat", "--drafter"), 2176),
        (("--prompt", "2000", "--repeat", "--page-size", "1"), 1999),
        (("--prompt", "2000", "--repeat", "--page-size", "16"), 1984),
        (("--prompt", "2000", "--repeat", "--unit", "784"), 1568),
        (("--prompt", "1", "--repeat"), 0),
        (("--prompt", "10", "--match", "0"), 0),
    ],
)
def test_hits_follow_the_law_of_what_was_asked(results, arguments, hits):
    found = results("reuse", *arguments)
    match = int(arguments[3]) if "--match" in arguments else int(arguments[1])
    assert found["hits"] == hits
    lost = found["lost_to_rounding"] + found["lost_to_last_token"] + found.get("lost_to_drafter", 0)
    assert hits + lost == match


def test_ten_requests_that_share_2000_of_2200_tokens(predict):
    text = predict("reuse", "--prompt", "2200", "--match", "2000", "--requests", "10")
    assert figure(text, "hits of 10 requests") == "18,000 of 22,000 tokens"
    assert figure(text, "hit rate of 10 requests") == "81.8 %"
    drafted = predict("reuse", "--prompt", "2200", "--match", "2000", "--requests", "10", "--drafter")
    assert figure(drafted, "hits of 10 requests") == "17,856 of 22,000 tokens"


@pytest.mark.parametrize("outputs, hits", [("4", 0), ("5", 16)])
def test_the_next_turn_reuses_what_has_kv(results, outputs, hits):
    found = results("reuse", "--prompt", "12", "--outputs", outputs)
    assert found == {"offered": 11 + int(outputs), "next_turn_hits": hits}


@pytest.mark.parametrize(
    "arguments, hint",
    [
        (("--prompt", "900", "--match", "240", "--unit", "784"), "one unit: 0 hits. The next length that would hit is 784."),
        (("--prompt", "700", "--match", "240", "--unit", "784"), "would hit is 784, in a prompt of at least 785."),
        (("--prompt", "784", "--match", "240", "--unit", "784"), "would hit is 784, in a prompt of at least 785."),
        (("--prompt", "900", "--match", "20", "--drafter"), "The next length that would hit is 32."),
        (("--prompt", "900", "--match", "250"), "The next length that would reuse more is 256."),
        (("--prompt", "16", "--repeat"), "One token more would change that: a repeat of 17 tokens reuses 16."),
        (("--prompt", "10", "--repeat", "--drafter"), "23 tokens more would change that: a repeat of 33 tokens reuses 16."),
    ],
)
def test_a_hint_says_what_would_reuse_more(predict, arguments, hint):
    assert hint in sentences(predict("reuse", *arguments))


def test_a_pool_of_52_32_gib_holds_26787_blocks(predict, results):
    text = predict(*POOL)
    assert figure(text, "blocks, the null block among them") == "26,787 blocks"
    assert figure(text, "usable") == "26,786 blocks"
    assert figure(text, "requests of 8,192 tokens at once") == "52 requests"
    found = results(*POOL)
    assert found["tokens"] == 428_576 and found["key_bytes"] == 26_786 * 36
    assert results(*POOL, "--algorithm", "xxhash")["key_bytes"] == 26_786 * 20
    assert results(*POOL, "--kv-dtype", "fp8")["blocks"] == 53_575  # twice as many, and the half block that was left
    assert results(*POOL, "--block-size", "32")["blocks"] == 13_393
    assert results(*POOL, "--max-model-len", "17")["concurrent_requests"] == 26_786 // 2


@pytest.mark.parametrize(
    "text, num_bytes",
    [("2147483648", 2**31), ("2 gib", 2**31), ("2.5GB", 2.5e9), ("2_000mb", 2e9), ("3e9", 3e9), ("4G", 4e9)],
)
def test_memory_is_read_in_the_units_people_write(labcli_command, text, num_bytes):
    result = labcli_command("predict", "pool", "--model", "llama-3-8b", "--memory", text, "--json")
    assert json.loads(result.stdout)["inputs"]["memory_bytes"] == num_bytes


def test_a_gpus_pool_is_what_the_weights_leave(predict, results):
    pool = ("pool", "--model", "llama-3-8b", "--gpu", "h100")
    assert results(*pool)["pool_bytes"] == pytest.approx(0.92 * 80e9 - 16.06e9)
    assert results(*pool, "--utilization", "0.5", "--weight-dtype", "fp8")["pool_bytes"] == 40e9 - 8.03e9
    assert "An upper bound" in predict(*pool)
    assert "Not even one request of 8,192 tokens fits" in sentences(predict(*POOL[:-1], "100MiB"))


def test_a_billion_blocks_collide_as_rarely_as_worked_out(predict, results):
    text = predict("collision", "--blocks", "1e9", "--per-second", "1e6")
    assert figure(text, "chance of a collision, sha256") == "4.3e-60"
    assert figure(text, "chance of a collision, xxhash") == "1.5e-21"
    assert figure(text, "1,000,000,000 blocks take") == "16.7 min"
    assert "says nothing about an adversary" in sentences(text)
    assert results("collision", "--blocks", "1,000", "--bits", "16") == {
        "chance_16_bits": 1000**2 / 2**17, "blocks_16_bits": (1e-6 * 2**17) ** 0.5
    }  # fmt: skip
    by_algorithm = results("collision", "--blocks", "10", "--algorithm", "xxhash_cbor")
    assert list(by_algorithm) == ["chance_xxhash_cbor", "blocks_xxhash_cbor"]
    assert "expect collisions" in predict("collision", "--blocks", "1e25", "--bits", "64")


def test_a_config_json_is_a_model_like_those_of_the_table(results, tmp_path):
    (tmp_path / "config.json").write_text(
        json.dumps(
            dict(
                model_type="qwen3", hidden_size=4096, intermediate_size=12288, num_hidden_layers=36, num_attention_heads=32,
                num_key_value_heads=8, vocab_size=151936, max_position_embeddings=40960, head_dim=128, tie_word_embeddings=False,
            )
        )
    )  # fmt: skip
    rest = ("--gpu", "h100", "--prompt", "2200", "--cached", "2000")
    by_name = results("prefill", "--model", "qwen3-8b", *rest)
    assert results("prefill", "--config", "config.json", *rest) == by_name
    assert results("prefill", "--config", str(tmp_path), *rest) == by_name


@pytest.mark.parametrize("arguments", EVERY, ids=" ".join)
def test_every_number_is_explained_and_every_line_fits(predict, arguments):
    text, explained = predict(*arguments), predict(*arguments, "--explain")
    assert explained.startswith(text)
    said = sentences(explained[len(text) :])
    for one in json.loads(predict(*arguments, "--json"))["results"]:
        assert sentences(one["law"]) in said
        assert " = " in one["law"]
    assert "source: " in said
    assert max(map(len, explained.splitlines())) <= 80


@pytest.mark.parametrize("columns, widest", [(60, 60), (80, 80), (100, 100), (300, 100)])
def test_sentences_are_as_wide_as_the_terminal_up_to_100_columns(predict, monkeypatch, columns, widest):
    monkeypatch.setenv("COLUMNS", str(columns))
    for text in (predict(*PREFILL, "--rate", "20", "--explain"), predict("models")):
        lines = [line for line in text.splitlines() if "  " not in line.strip()]  # figures and rows stay whole
        assert widest - 15 < max(map(len, lines)) <= widest


@pytest.mark.parametrize("text", ["2000", "2,000", "2_000", "2e3", "2.0e3", "2000.0", "+2000"])
def test_a_count_is_read_in_the_forms_people_write(results, text):
    assert results("reuse", "--prompt", text, "--repeat")["hits"] == 1984


def test_the_extremes_stay_short_and_are_json(predict, results):
    for more in (("--mfu", "1e-6", "--rate", "1e9"), ("--rate", "1e-6"), ("--mfu", "1e-6", "--rate", "1e-6")):
        text = predict("prefill", "--model", "llama-3.3-70b", "--gpu", "l4", "--prompt", "1e9", "--cached", "999,999,999", *more)
        assert max(map(len, text.splitlines())) <= 80
    for value in results("collision", "--blocks", "1e100", "--bits", "1", "--per-second", "1e-6").values():
        assert value < float("inf")


def test_small_values_do_not_become_zero_nor_large_ones_all(predict):
    text = predict(
        "prefill", "--model", "llama-3.3-70b", "--gpu", "l4", "--prompt", "131072", "--cached", "100", "--rate", "0.02"
    )
    assert not re.search(r"\b0\.0 ", text) and figure(text, "saturated, cold, from") == "0.0013 requests/s"
    assert re.fullmatch(r"0\.0\d+ %", figure(text, "redundant when cold"))
    reuse = predict("reuse", "--prompt", "131072", "--match", "40", "--requests", "3")
    assert figure(reuse, "hit rate of this request") == "0.024 %" and figure(reuse, "hit rate of 3 requests") == "0.016 %"
    assert figure(predict("reuse", "--prompt", "1000000000", "--repeat"), "hit rate of this request") == ">99.9999 %"


@pytest.mark.parametrize(
    "block_size, max_model_len, says",
    [("8320", "4096", "No block can ever fill"), ("4096", "4096", "No block can ever be reused"), ("4095", "4096", None)],
)
def test_a_block_no_request_can_fill_is_warned_of(predict, block_size, max_model_len, says):
    pool = ("pool", "--model", "llama-3-8b", "--memory", "40GB", "--block-size", block_size, "--max-model-len", max_model_len)
    text = sentences(predict(*pool))
    assert ("find nothing, for every request" in text) == (says is not None) and (says or "") in text


def test_one_of_a_thing_is_singular_and_a_typed_rate_stays_as_typed(predict):
    texts = [
        predict("reuse", "--prompt", "1", "--repeat", "--block-size", "1", "--requests", "1", "--explain"),
        predict("collision", "--blocks", "1", "--bits", "1", "--per-second", "1"),
        predict("prefill", "--model", "llama-3-8b", "--gpu", "h100", "--prompt", "1"),
        predict(*POOL, "--max-model-len", "1", "--block-size", "1"),
    ]
    for text in texts:
        assert not re.search(r"(?<![\d,.])1 (tokens|blocks|bits|requests|units|pages)\b", text), text
    assert "1 block takes" in texts[1] and "1 bit" in texts[1]
    explained = predict(*PREFILL, "--rate", "20", "--explain")
    assert "20·FLOPs" in explained and "20.0·" not in explained


def test_the_help_of_the_group_cuts_no_sentence(predict):
    text = predict("--help")
    assert not re.search(r"\w(\.\.\.|…)$", text, re.MULTILINE) and "What a prefill costs, cold and with the cache." in text


def test_a_hostile_folder_name_is_shown_and_not_obeyed(predict, tmp_path):
    folder = tmp_path / "a\x1b[2J\x9b31m\u202e"
    folder.mkdir()
    sizes = ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "vocab_size")
    shape = {"model_type": "llama", "num_hidden_layers": 1, "max_position_embeddings": 64, **dict.fromkeys(sizes, 64)}
    (folder / "config.json").write_text(json.dumps(shape))
    for more in ("--explain", "--json"):
        text = predict("pool", "--config", str(folder), "--memory", "1GB", more)
        assert not set("\x1b\x9b\u202e") & set(text)


def test_an_explanation_names_the_sources_of_the_figures(predict):
    said = sentences(predict(*PREFILL, "--explain"))
    assert "config.json of meta-llama/Meta-Llama-3-8B; parameters rounded as on its model card" in said
    assert "989.4 TFLOP/s bf16 dense, 3.35 TB/s, 80 GB; NVIDIA H100 architecture white paper" in said
    assert "Σ 2·8,030,000,000 + 4·32·32·128·s over positions s in [0, 2,200)" in said


@pytest.mark.parametrize("arguments", EVERY[::2], ids=" ".join)
def test_json_holds_inputs_and_results_and_nothing_else(predict, arguments):
    document = json.loads(predict(*arguments, "--json"))
    assert list(document) == ["inputs", "results"]
    assert document["results"] and all(list(one) == ["name", "value", "unit", "law"] for one in document["results"])
    names = [one["name"] for one in document["results"]]
    assert len(set(names)) == len(names) and all(re.fullmatch(r"\w+", name) for name in names)


def test_the_known_models_and_gpus_are_listed_with_their_sources(predict):
    text = predict("models")
    said = sentences(text)
    for one in (*MODELS, *GPUS):
        assert re.search(rf"(?m)^{re.escape(one.name)}  ", text)
        assert sentences(f"{one.name}: {one.source}") in said
    assert max(map(len, text.splitlines())) <= 80
    listed = json.loads(predict("models", "--json"))
    assert [one["name"] for one in listed["models"]] == [one.name for one in MODELS]
    assert [one["source"] for one in listed["gpus"]] == [one.source for one in GPUS]


@pytest.mark.parametrize(
    "arguments, line",
    [
        ((*PREFILL[:-1], "2200"), "--cached is 2200; accepted: a whole number from 0 to 2199: the last token is always computed"),
        ((*PREFILL[:-1], "-1"), "--cached is -1; accepted: "),
        ((*PREFILL, "--mfu", "0"), "--mfu is 0; accepted: a number from 1e-6 to 1"),
        ((*PREFILL, "--mfu", "1.1"), "--mfu is 1.1; accepted: "),
        ((*PREFILL, "--mfu", "nan"), "--mfu is 'nan'; accepted: "),
        ((*PREFILL, "--mfu", "1e-320"), "--mfu is 1e-320; accepted: a number from 1e-6 to 1"),
        ((*PREFILL, "--mfu", "0,45"), "--mfu is '0,45'; accepted: a number from 1e-6 to 1"),
        ((*PREFILL, "--rate", "1e10"), "--rate is 1e10; accepted: a number from 1e-6 to 1e9, of requests per second"),
        ((*PREFILL, "--rate", "1e-7"), "--rate is 1e-7; accepted: "),
        ((*PREFILL, "--rate", "0"), "--rate is 0; accepted: a number from 1e-6 to 1e9, of requests per second"),
        ((*PREFILL, "--rate", "inf"), "--rate is 'inf'; accepted: "),
        ((*PREFILL, "--explain", "--json"), "--explain means nothing with --json; accepted: "),
        ((*PREFILL, "--config", "x"), "--model means nothing with --config; accepted: one of them"),
        (("prefill", "--gpu", "h100", "--prompt", "5"), "--model is missing; accepted: llama-3-8b, "),
        (("prefill", "--model", "gpt-9", "--gpu", "h100", "--prompt", "5"), "--model is 'gpt-9'; accepted: llama-3-8b, "),
        (("pool", "--model", "llama-3", "--memory", "1GB"), "--model is 'llama-3'; accepted: llama-3-8b, llama-3-70b; or"),
        ((*PREFILL, "--gpu", "a100"), "--gpu is 'a100'; accepted: A100 SXM 80GB, A100 SXM 40GB"),
        (("prefill", "--model", "qwen3-8b", "--gpu", "z80", "--prompt", "5"), "--gpu is 'z80'; accepted: H100 SXM, "),
        (("prefill", "--model", "qwen3-8b", "--prompt", "5"), "missing option '--gpu'; accepted: --gpu NAME"),
        (("prefill", "--model", "qwen3-8b", "--gpu", "l4", "--prompt", "0"), "--prompt is 0; accepted: a whole number from 1"),
        (("pool", "--config", "none.json", "--memory", "1GB"), "--config is 'none.json'; accepted: a model's config.json"),
        (("pool", "--config", "text.json", "--memory", "1GB"), "--config is 'text.json'; accepted: a model's config.json"),
        (("pool", "--config", "moe.json", "--memory", "1GB"), "--config moe.json: model_type is 'qwen3_moe'; accepted: llama, "),
        (("pool", "--config", "bare.json", "--memory", "1GB"), "--config bare.json: hidden_size is None; accepted: a whole number"),
        (("reuse", "--prompt", "5"), "nothing is known of the cache; accepted: --repeat, --match M or --outputs K"),
        (("reuse", "--prompt", "-3", "--repeat"), "--prompt is -3; accepted: a whole number from 1"),
        (("reuse", "--prompt", "x", "--repeat"), "--prompt is 'x'; accepted: a whole number from 1 to 1000000000, such as 2000"),
        (("reuse", "--prompt", "1,5", "--repeat"), "--prompt is '1,5'; accepted: "),
        (("reuse", "--prompt", "2000.5", "--repeat"), "--prompt is 2000.5; accepted: a whole number"),
        (("reuse", "--prompt", "nan", "--repeat"), "--prompt is 'nan'; accepted: "),
        (("reuse", "--prompt", "1e9999", "--repeat"), "--prompt is 1e9999; accepted: "),
        (("reuse", "--prompt", "٢٠", "--repeat"), "--prompt is '٢٠'; accepted: "),
        (("reuse", "--prompt", "5", "--match", "6"), "--match is 6; accepted: a whole number from 0 to 5, the tokens"),
        (("reuse", "--prompt", "5", "--match", "5", "--repeat"), "--match means nothing with --repeat; accepted: "),
        (("reuse", "--prompt", "5", "--repeat", "--block-size", "0"), "--block-size is 0; accepted: a whole number from 1"),
        (("reuse", "--prompt", "5", "--repeat", "--page-size", "1", "--unit", "2"), "--unit means nothing with --page-size; "),
        (("reuse", "--prompt", "5", "--repeat", "--page-size", "1", "--drafter"), "--drafter means nothing with --page-size; "),
        (("reuse", "--prompt", "5", "--outputs", "2", "--requests", "2"), "--requests means nothing without a match; accepted: "),
        (("reuse", "--prompt", "5", "--outputs", "2", "--drafter"), "--drafter means nothing with --outputs; accepted: "),
        (("reuse", "--prompt", "5", "--outputs", "0"), "--outputs is 0; accepted: "),
        (("reuse", "--prompt", "5", "--repeat", "--requests", "0"), "--requests is 0; accepted: "),
        ((*POOL[:-2],), "--memory and --gpu are both missing; accepted: one of them"),
        ((*POOL, "--gpu", "h100"), "--memory and --gpu are both given; accepted: one of them"),
        ((*POOL, "--utilization", "0.5"), "--utilization means nothing with --memory; accepted: --gpu NAME"),
        ((*POOL, "--kv-dtype", "int3"), "--kv-dtype is 'int3'; accepted: bf16, "),
        ((*POOL, "--algorithm", "md5"), "--algorithm is 'md5'; accepted: sha256, sha256_cbor, xxhash, xxhash_cbor"),
        ((*POOL, "--max-model-len", "0"), "--max-model-len is 0; accepted: "),
        ((*POOL[:-1], "a lot"), "--memory is 'a lot'; accepted: a size such as 52.32GiB"),
        ((*POOL[:-1], "-5GB"), "--memory is '-5GB'; accepted: a size such as"),
        ((*POOL[:-1], "0"), "--memory is '0'; accepted: a size above 0"),
        ((*POOL[:-1], "2MB"), "--memory is 2,000,000 bytes; accepted: 2,097,152 bytes, one block of 16 tokens, or more"),
        ((*POOL[:-2], "--gpu", "h100", "--utilization", "0"), "--utilization is 0; accepted: a number from 1e-6 to 1"),
        ((*POOL[:-2], "--gpu", "h100", "--utilization", "0.2"), "--gpu is 'h100', whose 16.0 GB do not hold llama-3-8b; accepted: "),
        (("collision", "--blocks", "many"), "--blocks is 'many'; accepted: a whole number from 1 to 1e100, such as"),
        (("collision", "--blocks", "1,5"), "--blocks is '1,5'; accepted: "),
        (("collision", "--blocks", "1.5"), "--blocks is 1.5; accepted: a whole number"),
        (("collision", "--blocks", "١٠٠"), "--blocks is '١٠٠'; accepted: "),
        (("collision", "--blocks", "9", "--per-second", "1e-300"), "--per-second is 1e-300; accepted: a number from 1e-6 to "),
        ((*POOL[:-1], "4_0,0GB"), "--memory is '4_0,0GB'; accepted: a size such as"),
        ((*POOL[:-1], "4,0GB"), "--memory is '4,0GB'; accepted: a size such as"),
        ((*POOL[:-1], "5iB"), "--memory is '5iB'; accepted: a size such as"),
        (("pool", "--config", "deep.json", "--memory", "1GB"), "--config is 'deep.json'; accepted: a model's config.json"),
        (("pool", "--config", "/dev/zero", "--memory", "1GB"), "--config is '/dev/zero'; accepted: a model's config.json"),
        (("collision", "--blocks", "0"), "--blocks is 0; accepted: a whole number from 1 to 1e100"),
        (("collision", "--blocks", "1e300"), "--blocks is 1e300; accepted: "),
        (("collision", "--blocks", "9", "--bits", "0"), "--bits is 0; accepted: a whole number from 1 to 512"),
        (("collision", "--blocks", "9", "--bits", "8", "--algorithm", "sha256"), "--bits means nothing with --algorithm; "),
        (("collision", "--blocks", "9", "--algorithm", "crc"), "--algorithm is 'crc'; accepted: sha256, "),
        (("collision", "--blocks", "9", "--per-second", "-1"), "--per-second is -1; accepted: "),
        (("nope",), "no command 'nope'; accepted: reuse, prefill, pool, collision, models"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_bad_usage_is_one_line(labcli_command, tmp_path, arguments, line):
    (tmp_path / "text.json").write_text("not json")
    (tmp_path / "deep.json").write_text("[" * 100_000)
    (tmp_path / "moe.json").write_text('{"model_type": "qwen3_moe"}')
    (tmp_path / "bare.json").write_text('{"model_type": "llama"}')
    result = labcli_command("predict", *arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(f"labcli: {line}")
    assert "accepted: " in result.stderr and result.stderr.count("\n") == 1
