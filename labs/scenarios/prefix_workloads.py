"""PrefixWorkloads: the prompts for every scenario of a shared prefix, at sizes that the model takes.

    long       ├── shared_tokens ─────────────────────────┼── user_tokens ──┤
    short      ├── short_shared_tokens ──┼── short_user_tokens ──┤      for what takes too long at full length
    aligned    ├── whole blocks ──────────────────┤                     where a server's block does not divide shared_tokens

They are real text where the model has a chat template, else random ids. In this process a size that does not fit is refused by
its field's name. A server's block and longest prompt were not chosen for the lab: sizes that nobody typed give way to them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Collection

from engine.errors import ConfigError
from labs.length_check import check_length
from labs.protocol import LabSession
from labs.served_sizes import fit_sizes
from labs.workload import ChatTokenizer, SharedPrefixWorkload

NUM_REPEATED = 125  # whole blocks of the repeat that shows the last-token rule
MOST_REPEATED = 8_192  # tokens of it: prompts of more take a small server minutes


@dataclass(frozen=True)
class PrefixWorkloads:
    """The same object where one serves several purposes."""

    long: SharedPrefixWorkload
    short: SharedPrefixWorkload
    aligned: SharedPrefixWorkload | None = None  # None where the long one's shared part is whole blocks, and in process

    @property
    def digests(self) -> dict[str, str]:
        made = {"long": self.long, "short": self.short, "aligned": self.aligned}
        return {name: workload.digest for name, workload in made.items() if workload is not None}


def fitted_workloads(session: LabSession, config: Any, full: bool) -> tuple[Any, PrefixWorkloads, list[str]]:
    """The configuration that can be run, its prompts, and findings on what was fitted to a server.

    config  lab 04's: its fields are the sizes
    full    every scenario is sent at full length: the long prompts are the short ones too

    Raises ConfigError naming the field to change, and TargetUnavailable when the lab does not fit beside what was typed.
    """
    target = session.open_target(num_gpu_blocks=2)
    tokenizer, vocab_size, limit = target.tokenizer(), target.info.vocab_size, target.info.max_model_len
    target.close()
    served, findings, num_aligned = session.open_target.served, [], 0
    if served is not None:
        config, findings = fit_sizes(session, config, _fitting_sizes(config, full, limit, served.unit_size, session.typed))
        num_aligned, finding = _aligned_tokens(config, limit, served.unit_size)
        findings += finding
    _check_lengths(config, full, limit, session.typed if served is not None else ())
    long = _workload(config, tokenizer, vocab_size, "shared_tokens", "user_tokens")
    short = long if full else _workload(config, tokenizer, vocab_size, "short_shared_tokens", "short_user_tokens")
    aligned = SharedPrefixWorkload.from_token_ids(vocab_size, config.seed, num_aligned, 1, 1) if num_aligned else None
    return config, PrefixWorkloads(long, short, aligned), findings


def _fitting_sizes(config: Any, full: bool, limit: int, unit: int, typed: Collection[str]) -> dict[str, int]:
    """Sizes that fit a server, beside those that were typed: two blocks are shared where they can be, and every prompt ends
    below its limit."""

    def fitted(name: str, most: int) -> int:
        size = getattr(config, name)
        return size if name in typed else min(size, most)

    shift = fitted("max_shift", max(1, limit // 4))
    spare = max(shift if full else 1, config.output_tokens) + 2  # behind or in front of a prompt
    short_spare = max(shift, config.output_tokens) + 2
    user, short_user = (fitted(name, max(2, limit // 8)) for name in ("user_tokens", "short_user_tokens"))
    shared = max(config.shared_tokens, 2 * unit)
    return {
        "user_tokens": user,
        "shared_tokens": max(2, min(shared, limit - user - spare)),
        "short_user_tokens": short_user,
        "short_shared_tokens": max(2, min(config.short_shared_tokens, limit - short_user - short_spare)),
        "max_shift": shift,
    }


def _aligned_tokens(config: Any, limit: int, unit: int) -> tuple[int, list[str]]:
    """Tokens of the repeat of whole blocks, 0 where the shared prompt is one already; a finding when it is not 125 blocks."""
    num_units = min(NUM_REPEATED, (limit - 1) // unit, max(2, MOST_REPEATED // unit))
    if config.shared_tokens % unit == 0 or num_units < 2:
        return 0, []
    if num_units == NUM_REPEATED:
        return num_units * unit, []
    return num_units * unit, [
        f"the repeat of whole blocks has {num_units} of them, {num_units * unit:,} tokens, not {NUM_REPEATED}: the longest "
        f"prompt here is {limit - 1:,} tokens, and the lab sends none of more than {max(2 * unit, MOST_REPEATED):,}"
    ]


def _check_lengths(config: Any, full: bool, max_model_len: int, typed: Collection[str]) -> None:
    """Every prompt must fit the model, and the longest the pool."""
    main = {"shared_tokens": config.shared_tokens, "user_tokens": config.user_tokens}
    short = {"short_shared_tokens": config.short_shared_tokens, "short_user_tokens": config.short_user_tokens}
    if full:
        short = main
    else:
        check_length(config, max_model_len - 2, typed=typed, **main)  # a token in front, and one generated
    check_length(config, max_model_len - 1, typed=typed, **short, max_shift=config.max_shift)
    check_length(config, max_model_len, typed=typed, **short, output_tokens=config.output_tokens)
    longest = sum(main.values()) + (config.max_shift if full else 1) + 1  # a token is generated
    if config.pool_tokens is not None and config.pool_tokens < longest:
        raise ConfigError("pool_tokens", config.pool_tokens, f"at least {longest}: one request must fit")


def _workload(
    config: Any, tokenizer: ChatTokenizer | None, vocab_size: int, shared_field: str, user_field: str
) -> SharedPrefixWorkload:
    sizes = {
        "seed": config.seed,
        "num_shared": getattr(config, shared_field),
        "num_tail": getattr(config, user_field),
        "num_requests": max(config.num_requests, config.num_failing),
        "num_unrelated": config.num_controls,
        "num_markers": max(2 * config.num_failing + 2, config.max_shift + 1),
    }
    try:
        if tokenizer is not None and tokenizer.has_chat_template:
            return SharedPrefixWorkload.from_text(tokenizer, **sizes)
        return SharedPrefixWorkload.from_token_ids(vocab_size, **sizes)
    except ConfigError as error:
        # The workload knows its own names; people set the lab's.
        names = {"num_shared": shared_field, "num_tail": user_field, "num_unrelated": "num_controls", "num_markers": "max_shift"}
        raise ConfigError(names.get(error.field, error.field), error.value, error.accepted) from error
