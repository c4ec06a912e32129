"""`labcli diagnose-pair`: the causes told apart on lab 04's own requests, as the engine counts them; nothing private shown."""

import json
import os
import subprocess
import sys

import pytest

from engine.config import EngineConfig
from labs.cache_laws import CacheLaws
from labs.scenarios.prefix_series import PrefixSeries
from labs.targets.open_target import SIM_MODEL, open_target_factory
from labs.workload import SharedPrefixWorkload
from tests.labs.conftest import ByteTokenizer

OPEN = open_target_factory("sim", EngineConfig(model=SIM_MODEL))


def write_json(name, content):
    with open(name, "w", encoding="utf-8") as file:
        json.dump(content, file)


@pytest.fixture
def diagnose(labcli_command):
    """The diagnosis of two requests as JSON: token ids, or what their files hold."""

    def run(first, second, *options):
        write_json("a.json", first)
        write_json("b.json", second)
        result = labcli_command("diagnose-pair", "a.json", "b.json", *options, "--json")
        assert (result.exit_code, result.stderr) == (0, ""), result.stderr
        return json.loads(result.stdout)

    return run


@pytest.fixture
def byte_model(monkeypatch):
    """Text and messages are read by a byte tokenizer with a template of plain lines."""
    monkeypatch.setattr("engine.model.tokenizer.open_tokenizer", lambda model, cache_dir: ByteTokenizer())


# Lab 04's own requests


@pytest.fixture(scope="module")
def series():
    workload = SharedPrefixWorkload.from_token_ids(
        vocab_size=30_000, seed=0, num_shared=2000, num_tail=200, num_requests=3, num_markers=12
    )
    return PrefixSeries(workload, CacheLaws(16), 0)


def counted_by_the_engine(requests, cache):
    """Hits of the last of some requests, sent one after the other."""
    size = {"page_size": cache["unit"]} if cache["cache"] == "radix" else {"block_size": cache["unit"]}
    target = OPEN(prefix_cache=cache["cache"], **size)
    completions = [target.complete(request.token_ids, cache_salt=request.cache_salt) for request in requests]
    target.close()
    return completions[-1].num_cached_tokens


SCENARIOS = {
    "a fresh salt per request": ("fresh_salts", "identity", [0, 0], [2000, 2000]),
    "one salt for both": ("fixed_salt", "parted", [2000, 2000], [0, 0]),
    "a token in front": ("unique_prepended", "front", [0, 0], [2000, 2000]),
    "the same token in front of both": ("shared_prepended", "parted", [2000, 2001], [0, 0]),
    "a token behind": ("unique_appended", "parted", [2000, 2000], [0, 0]),
    "an aligned prompt twice": ("repeated", "last token", [1984, 1999], [16, 1]),
}


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_lab_04_s_requests_are_told_apart_and_counted_as_the_engine_counts_them(labcli_command, series, scenario):
    make, cause, reusable, lost = SCENARIOS[scenario]
    pair = (getattr(series, make)(*(() if make == "repeated" else (2,)))).requests[:2]
    for name, request in zip(("a.json", "b.json"), pair):
        write_json(name, {"token_ids": request.token_ids, "cache_salt": request.cache_salt})
    result = labcli_command("diagnose-pair", "a.json", "b.json", "--json")
    report = json.loads(result.stdout)
    assert (result.exit_code, report["cause"]) == (0, cause)
    assert [one["reusable_tokens"] for one in report["caches"]] == reusable
    assert [one["lost_tokens"] for one in report["caches"]] == lost
    for cache in report["caches"]:
        assert cache["reusable_tokens"] == counted_by_the_engine(pair, cache)
    shown = result.stdout + labcli_command("diagnose-pair", "a.json", "b.json").stdout
    assert all(request.cache_salt is None or request.cache_salt not in shown for request in pair)


@pytest.mark.parametrize(("block_size", "cause", "reusable"), [(784, "too short", 0), (16, "parted", 240)])
def test_a_block_of_784_never_sees_a_prefix_of_240(diagnose, block_size, cause, reusable):
    system = list(range(240))
    report = diagnose([*system, *range(1_000, 1_660)], [*system, *range(2_000, 2_660)], "--block-size", str(block_size))
    (cache,) = report["caches"]
    assert (report["cause"], cache["reusable_tokens"], cache["unit"]) == (cause, reusable, block_size)
    assert ("a shared front of 784 would hit" in report["hint"]) == (cause == "too short")


def test_a_prompt_of_one_block_says_which_length_would_hit(diagnose):
    report = diagnose(list(range(16)), list(range(16)), "--block-size", "16")
    (cache,) = report["caches"]
    assert (report["cause"], cache["reusable_tokens"], cache["lost_tokens"]) == ("last token", 0, 16)
    assert "Expected, no fault" in report["hint"] and "A prompt of 17 would reuse it" in report["hint"]


# What it says


def test_a_table_a_verdict_and_what_to_do(labcli_command):
    write_json("a.json", {"token_ids": [1, *range(100, 200)], "cache_salt": "pepper"})
    write_json("b.json", {"token_ids": [2, *range(100, 200)], "cache_salt": "paprika", "temperature": 0})
    result = labcli_command("diagnose-pair", "a.json", "b.json")
    assert result.exit_code == 0
    lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert "B b.json: token ids, 101 tokens, with a salt" in lines
    assert "hash, block 16 0 101 96 6 ids differ at position 0" in lines
    assert "radix, page 1 0 101 100 100 ids differ at position 0" in lines
    assert "0 0 another cache salt" in lines
    assert "note: not read: 'temperature'" in lines
    text = " ".join(lines)
    assert "(id 1 against 2)" in text and "Move what varies at the very front" in text
    assert "Give one cache_salt to each trust domain" in text and "Repair the identity in any case" in text
    assert "pepper" not in text and "paprika" not in text


def test_a_clock_in_the_system_prompt_is_named_without_quoting_it(diagnose, byte_model):
    def chat(clock, question):
        system = f"It is {clock}. " + "You answer briefly and politely. " * 10
        return {"messages": [{"role": "system", "content": system}, {"role": "user", "content": question}]}

    pair = chat("12:30:11", "How do I pay?"), chat("12:30:45", "Who are you?")
    report = diagnose(*pair)
    at = len("[system]\nIt is 12:30:")
    assert (report["cause"], report["first_difference"], report["looks_like"]) == ("divergence", at, "a date or a time")
    assert report["section"]["B"] == f"in message 0 ('system'), {at} tokens into it"
    assert report["caches"][0]["reusable_tokens"] == 16 and report["caches"][0]["lost_tokens"] > 300
    assert "text" not in report and "briefly" not in json.dumps(report) and "12:30" not in json.dumps(report)
    shown = diagnose(*pair, "--show-text")["text"]
    assert (shown["A"]["differing"], shown["B"]["differing"]) == ("11", "45")
    assert shown["B"]["before"].endswith("It is 12:30:") and shown["B"]["after"].startswith(". You answer")


def test_reordered_json_is_called_equal_in_value(diagnose, byte_model):
    texts = [f"Schema: {json.dumps(schema)} Answer in it." for schema in ({"a": 1, "b": 2}, {"b": 2, "a": 1})]
    report = diagnose(*({"prompt": text} for text in texts))
    assert report["looks_like"].startswith("JSON of equal value in other bytes")


def test_identities_are_compared_part_by_part(diagnose):
    ids = list(range(64))
    image = {"id": "cat", "offset": 20, "length": 4}
    report = diagnose(
        {"token_ids": ids, "lora": {"name": "sql", "path": "/v1"}, "images": [image]},
        {"token_ids": ids, "lora": {"name": "sql", "path": "/v2"}, "images": [{**image, "id": "dog"}]},
    )
    assert report["identity_differences"] == ["LoRA path", "images"]
    assert report["caches"][0]["image_difference"] == {"item": 0, "position": 20, "first_block": 1}
    assert "one path" in report["hint"] and "in front of images" in report["hint"]
    assert "cat" not in json.dumps(report) and "/v2" not in json.dumps(report)


def test_a_path_that_one_request_leaves_out_is_taken_as_equal_and_said(diagnose):
    ids = list(range(64))
    report = diagnose({"token_ids": ids, "lora": {"name": "sql", "path": "/v1"}}, {"token_ids": ids, "lora": "sql"})
    assert report["identity_differences"] == [] and report["notes"] == ["B does not say its adapter's path: taken as the other's"]


def test_prompt_logprobs_of_b_are_a_cause_in_one_cache_and_unknown_to_the_other(diagnose):
    ids = list(range(97))
    report = diagnose({"token_ids": ids}, {"token_ids": ids, "prompt_logprobs": 0})
    found = [(one["cause"], one["reusable_tokens"], one["lost_tokens"]) for one in report["caches"]]
    assert found == [("logprobs", 0, 96), ("last token", 96, 1)]
    assert "vLLM looks nothing up" in report["hint"] and "logprob_start_len" in report["notes"][0]


def test_prompts_that_part_for_good_are_said_to_and_the_server_is_not_suspected(labcli_command):
    write_json("a.json", [*range(20), *range(1_000, 1_980)])
    write_json("b.json", [*range(20), *range(2_000, 2_980)])
    result = labcli_command("diagnose-pair", "a.json", "b.json")
    text = " ".join(result.stdout.split())
    assert "B reuses 16 tokens of A. In the way: prompts part at position 20" in text and "they do not meet again" in text
    assert "that is where to look" in text and "is caching on" not in text and "nothing is lost" not in text


HOSTILE = "\x1b[2J\x9b31m\u202e\u2066\x07"


def test_a_terminal_obeys_nothing_that_a_name_or_a_prompt_holds(labcli_command, byte_model):
    first, second = f"a{HOSTILE}\n.json", "b.json"
    write_json(first, {"prompt": f"front {HOSTILE} and more", "odd\x9b": 1, "lora": HOSTILE})
    write_json(second, {"prompt": "front and more"})
    shown = labcli_command("diagnose-pair", first, second, "--show-text").stdout
    document = labcli_command("diagnose-pair", first, second, "--show-text", "--json").stdout
    for text in (shown, document):
        assert not set(HOSTILE) - set("[2J31m") & set(text)
    assert "a\\x1b[2J\\x9b31m\\u202e\\u2066\\x07\\n.json: text" in shown
    read = json.loads(document)
    assert read["requests"]["A"]["path"] == first and HOSTILE in read["text"]["A"]["differing"] + read["text"]["A"]["after"]


@pytest.mark.parametrize("columns", [40, 60, 80])
def test_a_narrow_terminal_cuts_no_cell(labcli_command, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    write_json("a.json", {"token_ids": list(range(100)), "cache_salt": "a"})
    write_json("b.json", {"token_ids": list(range(100)), "cache_salt": "b"})
    options = ("--block-size", "784", "--page-size", "16", "--drafter")
    text = labcli_command("diagnose-pair", "a.json", "b.json", *options).stdout
    lines = text.splitlines()[2:]  # the files' names are not folded
    assert "…" not in text and max(map(len, lines)) <= columns
    said = " ".join(text.split())
    assert said.count("another cache salt") == 3 and said.count("shorter than two blocks of 784") == 2


def test_an_unknown_model_is_bad_usage(labcli_command):
    for name in ("a.json", "b.json"):
        write_json(name, {"prompt": "some text"})
    result = labcli_command("diagnose-pair", "a.json", "b.json", "--model", "nope")
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert "'nope'" in result.stderr and "accepted: " in result.stderr


def test_a_drafter_costs_the_hash_cache_a_block(diagnose):
    ids = list(range(65))
    report = diagnose(ids, ids, "--drafter")
    assert [(one["cause"], one["reusable_tokens"]) for one in report["caches"]] == [("drafter", 48), ("last token", 64)]


def test_both_caches_by_default_or_those_whose_size_is_given(diagnose):
    ids = list(range(65))
    found = [
        [(one["cache"], one["unit"]) for one in diagnose(ids, ids, *options)["caches"]]
        for options in ((), ("--block-size", "32"), ("--page-size", "64"), ("--block-size", "32", "--page-size", "64"))
    ]
    assert found == [[("hash", 16), ("radix", 1)], [("hash", 32)], [("radix", 64)], [("hash", 32), ("radix", 64)]]


def test_names_follow_the_algorithm_and_are_equal_for_equal_blocks(diagnose):
    ids = list(range(65))
    cbor, default = (diagnose(ids, ids, *options)["evidence"] for options in (("--algorithm", "sha256_cbor"), ()))
    assert " = " in cbor and " = " in default and cbor != default


# How it is called


def test_one_request_may_come_from_stdin(labcli_process, tmp_path):
    (tmp_path / "a.json").write_text(json.dumps(list(range(65))))
    process = labcli_process("diagnose-pair", "a.json", "-", "--json", stdin=subprocess.PIPE)
    out, err = process.communicate(json.dumps(list(range(65))))
    assert (process.returncode, err) == (0, "")
    assert json.loads(out)["requests"]["B"] == {
        "path": "-", "kind": "token ids", "num_tokens": 65, "has_salt": False, "lora": None, "num_images": 0,
    }  # fmt: skip


def test_token_ids_need_neither_torch_nor_transformers(tmp_path):
    (tmp_path / "a.json").write_text(json.dumps(list(range(65))))
    code = (
        "import sys\nfrom labcli.main import main\nsys.argv = ['labcli', 'diagnose-pair', 'a.json', 'a.json']\n"
        "try: main()\nexcept SystemExit as end: assert not end.code\n"
        "assert not {'torch', 'transformers', 'numpy'} & set(sys.modules)"
    )
    root = os.path.abspath(os.path.join(os.path.dirname(__file__), "../.."))
    environment = {**os.environ, "PYTHONPATH": root}
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, check=True, capture_output=True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["none.json", "ok.json"], "'none.json' cannot be read (No such file"),
        (["ok.json", "bytes"], "'bytes' is not UTF-8"),
        (["ok.json", "empty.json"], "'empty.json' is empty"),
        (["ok.json", "floats.json"], "'floats.json' holds JSON of another shape (token ids that are not all whole numbers)"),
        (["ok.json", "negative.json"], "'negative.json' has a token id out of range at position 1"),
        (["ok.json", "image.json"], "'image.json': images[0] ends at token 70; accepted: up to 65, the prompt's length"),
        (["ok.json", "salt.json"], "'salt.json': cache_salt is no text; accepted: a text, or null"),
        (["-", "-"], "A and B are both '-'; accepted: a file for one of them"),
        (["ok.json", "ok.json", "--block-size", "0"], "--block-size is 0; accepted: a whole number from 1 to 65536"),
        (["ok.json", "ok.json", "--algorithm", "md5"], "--algorithm is 'md5'; accepted: sha256, sha256_cbor, xxhash"),
        (["ok.json", "ok.json", "--page-size", "1", "--drafter"], "--drafter means nothing with --page-size alone"),
        (["ok.json", "ok.json", "--page-size", "1", "--algorithm", "sha256"], "--algorithm means nothing with --page-size alone"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(labcli_command, arguments, message):
    contents = {
        "ok.json": list(range(65)), "floats.json": [1, 2.5], "negative.json": [1, -1],
        "image.json": {"token_ids": list(range(65)), "images": [{"id": "cat", "offset": 60, "length": 10}]},
        "salt.json": {"token_ids": [1], "cache_salt": 5},
    }  # fmt: skip
    for name, content in contents.items():
        write_json(name, content)
    open("empty.json", "w").close()
    with open("bytes", "wb") as file:
        file.write(b"\xff\xfe\x00")
    result = labcli_command("diagnose-pair", *arguments)
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert result.stderr.startswith(f"labcli: {message}") and "accepted: " in result.stderr


def test_an_id_without_a_text_is_refused_when_text_is_asked_for(labcli_command, byte_model):
    write_json("a.json", [1, 2])
    write_json("b.json", [1, 999])
    result = labcli_command("diagnose-pair", "a.json", "b.json", "--show-text")
    assert (result.exit_code, result.stderr) == (
        2, "labcli: 'b.json' has the token id 999, which has no text; accepted: 0 to 255 with this --model, or no --show-text\n",
    )  # fmt: skip
