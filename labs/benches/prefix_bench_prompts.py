"""PrefixBenchPrompts: the prompts of vLLM's prefix caching benchmark, and how much of each a cache should find.

The benchmark asks one question: how long do some prompts take when each is sent several times? A run is made in
three steps:

    sample    num_prompts prompts: random ids behind one shared prefix, or the first turns of a ShareGPT file
    arrange   each prompt repeat_count times, shuffled, or sorted by length
    serve     all of them, temperature 0, output_len tokens each (not here)

A random prompt of L tokens, with min <= L <= max:

    0                      prefix_len                        L
    ├── prefix ────────────┼── unique part ──────────────────┤
    │   drawn once,        │   of its own from its first
    │   the same for all   │   token on

The script makes texts of the ids, which a tokenizer may read as other ids, so that nobody knows exactly what two
prompts share. Here the ids themselves are sent. Then `expected_hits_in_turn` can say before a run, token by token,
what requests served one after the other take from the cache. The same arguments give the same ids.

Source: vLLM, benchmarks/benchmark_prefix_caching.py.
"""

from __future__ import annotations

import json
import random
import re
from bisect import bisect_left
from dataclasses import dataclass
from statistics import fmean, median_high
from typing import Any, Collection, Iterable, Sequence

from engine.errors import ConfigError
from labs import theory
from labs.diagnose.prompt_file import PromptFileError
from labs.workload import ChatTokenizer, TokenIds

# The script holds an answer of fewer tokens for a broken record of its dataset.
MIN_DATASET_OUTPUT_LEN = 4

_DATASET_SHAPE = 'a ShareGPT JSON list, [{"conversations": [{"value": "a text"}, {"value": "a text"}]}, …]'


@dataclass(frozen=True)
class PrefixBenchConfig:
    """What to sample and how to arrange it; names and defaults are the script's. Raises ConfigError."""

    num_prompts: int  # distinct prompts
    input_length_range: str  # "min:max", in tokens, both included; the shared prefix is part of it
    output_len: int = 10  # tokens of each output
    repeat_count: int = 1  # how often each prompt is sent
    sort: bool = False  # shortest first, in place of a shuffle
    prefix_len: int = 0  # tokens that all random prompts share
    dataset_path: str | None = None  # a ShareGPT JSON file; None: random ids
    seed: int = 0

    def __post_init__(self) -> None:
        _check_count("num_prompts", self.num_prompts, 1)
        _check_count("repeat_count", self.repeat_count, 1)
        _check_count("prefix_len", self.prefix_len, 0)
        _check_count("seed", self.seed, 0)
        shortest, _ = self.length_range
        if self.dataset_path is None:
            _check_count("output_len", self.output_len, 1)
        else:
            _check_count("output_len", self.output_len, MIN_DATASET_OUTPUT_LEN, " with dataset_path")
            if self.prefix_len:
                raise ConfigError("prefix_len", self.prefix_len, "0 with dataset_path: its prompts are sent as they are")
        if self.prefix_len >= shortest:
            accepted = f"a whole number from 0 to {shortest - 1}: a prompt of {shortest} tokens needs one of its own"
            raise ConfigError("prefix_len", self.prefix_len, accepted)

    @property
    def length_range(self) -> tuple[int, int]:
        """The shortest and the longest prompt, in tokens. Raises ConfigError for a text of another form."""
        text = self.input_length_range
        # Nine digits: more tokens than any model takes, and no number too long for Python to read.
        form = re.fullmatch("([0-9]{1,9}):([0-9]{1,9})", text) if isinstance(text, str) else None
        shortest, longest = (int(form[1]), int(form[2])) if form else (0, 0)
        if not 1 <= shortest <= longest:
            raise ConfigError("input_length_range", text, '"min:max" with whole numbers 1 <= min <= max, such as "128:256"')
        return shortest, longest


@dataclass(frozen=True)
class BenchRequest:
    """One request of the benchmark; all repeats of a prompt carry its number."""

    token_ids: TokenIds
    number: int  # which of the sampled prompts, from 0


@dataclass(frozen=True)
class InputLengths:
    """How many requests there are, and the lengths of their prompts, in tokens."""

    num_requests: int
    average: float
    median: int  # the upper one of an even number of requests, as the script's P50
    minimum: int
    maximum: int


def sample_prompts(
    config: PrefixBenchConfig,
    vocab_size: int,
    tokenizer: ChatTokenizer | None = None,
    special_ids: Collection[int] = frozenset(),
) -> tuple[TokenIds, ...]:
    """The `num_prompts` prompts of a run, as token ids, each once.

    vocab_size   random ids are below it
    tokenizer    for a dataset, which is text
    special_ids  ids that no random prompt contains

    Random ids are uniform over the rest of the vocabulary, lengths uniform over the range. Unlike in the script,
    the unique parts begin with pairwise different tokens: two prompts share exactly `prefix_len` tokens, not one
    more by chance, and so the hits follow their law exactly.

    Raises ConfigError for a vocabulary too small for that and for a dataset without a tokenizer, PromptFileError
    for a dataset that cannot be read or has too few prompts of these lengths.
    """
    if config.dataset_path is None:
        return _random_prompts(config, vocab_size, frozenset(special_ids))
    if tokenizer is None:
        raise ConfigError("dataset_path", config.dataset_path, "none without a tokenizer: a dataset is text")
    return _dataset_prompts(config, config.dataset_path, tokenizer)


def check_dataset(path: str) -> None:
    """Raises PromptFileError for a file that is no dataset."""
    _first_turns(path)


def arrange(prompts: Sequence[TokenIds], config: PrefixBenchConfig) -> tuple[BenchRequest, ...]:
    """Each prompt `repeat_count` times: len(prompts) · repeat_count requests, in the order they are sent.

    Shuffled by the seed; with `sort` the shortest first, and those of one length in the order of their numbers,
    over and over (0, 1, 0, 1), as a stable sort leaves them. The script's own --sort raises TypeError: it takes a
    request for a tuple. This is what it means to do.
    """
    requests = [BenchRequest(token_ids, number) for number, token_ids in enumerate(prompts)] * config.repeat_count
    if config.sort:
        requests.sort(key=lambda request: len(request.token_ids))
    else:
        # A stream of its own: the order does not depend on how many numbers the sampling drew.
        random.Random(f"order {config.seed}").shuffle(requests)
    return tuple(requests)


def describe(requests: Sequence[BenchRequest]) -> InputLengths:
    """What the script prints of its inputs. At least one request.

    The script counts each prompt once, here each request counts; the four lengths come out the same.
    """
    lengths = [len(request.token_ids) for request in requests]
    return InputLengths(len(lengths), fmean(lengths), median_high(lengths), min(lengths), max(lengths))


def expected_hits_in_turn(requests: Iterable[BenchRequest], unit: int) -> tuple[int, ...]:
    """Hit tokens of each request, when each is finished before the next is sent: the law of both caches.

    unit  tokens a hit is a multiple of: the hash cache's block size, or the radix cache's page size

    A request finds the longest beginning it has in common with any earlier prompt, in whole units, but never its
    last token: unit·⌊min(common, L − 1)/unit⌋ (theory.reuse). In blocks that is the smaller of the whole common
    blocks and the blocks before the last token.

    It holds from a cold cache with room for everything. Outputs are left out: they could be found only by a prompt
    that continues an earlier one with the very tokens the model answered, and no two random prompts continue each
    other. Requests in flight together may find less than this.
    """
    known: list[TokenIds] = []  # earlier prompts, each once, in lexicographic order
    hits: list[int] = []
    for request in requests:
        prompt = request.token_ids
        place = bisect_left(known, prompt)
        # In this order the prompts that share most stand next to each other, so two neighbours speak for all.
        hits.append(theory.control_hits(prompt, known[max(0, place - 1) : place + 1], unit))
        if known[place : place + 1] != [prompt]:
            known.insert(place, prompt)
    return tuple(hits)


def _random_prompts(config: PrefixBenchConfig, vocab_size: int, special_ids: frozenset[int]) -> tuple[TokenIds, ...]:
    ordinary_ids = [token_id for token_id in range(vocab_size) if token_id not in special_ids]
    if len(ordinary_ids) < config.num_prompts:
        accepted = f"at most {len(ordinary_ids)}, the ordinary tokens there are: each prompt's own part begins with another"
        raise ConfigError("num_prompts", config.num_prompts, accepted)
    rng = random.Random(config.seed)
    shortest, longest = config.length_range
    prefix = rng.choices(ordinary_ids, k=config.prefix_len)
    prompts: list[TokenIds] = []
    for first in rng.sample(ordinary_ids, config.num_prompts):
        num_unique = rng.randint(shortest - config.prefix_len, longest - config.prefix_len)
        prompts.append((*prefix, first, *rng.choices(ordinary_ids, k=num_unique - 1)))
    return tuple(prompts)


def _dataset_prompts(config: PrefixBenchConfig, path: str, tokenizer: ChatTokenizer) -> tuple[TokenIds, ...]:
    """First turns of shuffled conversations, those in the range of lengths, until there are enough.

    The answers in the file do not matter: each counts as `output_len` tokens.
    """
    texts = _first_turns(path)
    random.Random(config.seed).shuffle(texts)
    shortest, longest = config.length_range
    prompts: list[TokenIds] = []
    for text in texts:
        if len(prompts) == config.num_prompts:
            break
        token_ids = tuple(tokenizer.encode(text))
        if shortest <= len(token_ids) <= longest:
            prompts.append(token_ids)
    if len(prompts) < config.num_prompts:
        found = f"{len(prompts)} of the {config.num_prompts} prompts asked for, of {shortest} to {longest} tokens"
        raise PromptFileError(f"{path!r} has {found}; accepted: fewer prompts, a wider range of lengths, or a larger file")
    return tuple(prompts)


def _first_turns(path: str) -> list[str]:
    """The first text of each conversation that has two, in the file's order; other records are passed over."""
    try:
        with open(path, encoding="utf-8-sig") as file:
            records = json.load(file)
    except OSError as error:
        raise PromptFileError(f"{path!r} cannot be read ({error.strerror}); accepted: {_DATASET_SHAPE}") from None
    except UnicodeDecodeError:
        raise PromptFileError(f"{path!r} is not UTF-8; accepted: {_DATASET_SHAPE}") from None
    except (ValueError, RecursionError):
        raise PromptFileError(f"{path!r} is not JSON; accepted: {_DATASET_SHAPE}") from None
    texts = [turns[0] for record in records if (turns := _turns(record))] if isinstance(records, list) else []
    if not texts:
        raise PromptFileError(f"{path!r} holds no conversation of two texts; accepted: {_DATASET_SHAPE}")
    return texts


def _turns(record: Any) -> list[str]:
    """The texts of a record's first two turns; none for a record of another shape."""
    conversation = record.get("conversations") if isinstance(record, dict) else None
    turns = conversation[:2] if isinstance(conversation, list) else []
    texts = [turn.get("value") if isinstance(turn, dict) else None for turn in turns]
    return texts if len(texts) == 2 and all(map(_is_text, texts)) else []


def _is_text(value: Any) -> bool:
    # JSON can name half of a character (a lone surrogate), which no tokenizer can read.
    return isinstance(value, str) and not re.search("[\ud800-\udfff]", value)


def _check_count(field: str, value: Any, lowest: int, condition: str = "") -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < lowest:
        raise ConfigError(field, value, f"a whole number from {lowest}{condition}")
