"""Lab 06: are generated tokens reused?

Background. A chat's next turn brings the whole conversation back as its prompt. Its K/V are there, those of the answer too,
since decoding computes them like any other; all but those of the last sampled token, which was never fed back into the model.
Whether the next turn finds them depends on one thing: that the same ids come back. Clients send text, and text tokenised again
need not give the ids that were sampled; templates insert and drop blocks; system texts carry clocks.

Predicted and measured, for each cache (B = block or page size), before each turn is sent:

    a turn of L + k tokens     L + k − 1 of them have K/V; the next turn reuses B·⌊(L + k − 1)/B⌋: with a prompt of 12 and
                               B = 16, 4 outputs give 0 and 5 give 16
    ids echoed                 the same law at every turn of a chat
    two tokens merged          the match ends inside the answer, where two sampled tokens came back as one other id
    text tokenised again       real text through template and tokenizer: the match is counted on the ids (models with a chat
                               template only; the simulated target has no tokenizer, and merging two tokens emulates it).
                               Answers run on past end-of-text here, and special tokens leave no trace in a text
    think block dropped        the match ends before the block that the last prompt ended with and the history leaves out
    date in system text        the match ends at the date, and everything behind it is lost, at every turn

The last four are predicted from the ids alone: B·⌊m/B⌋ for the longest match m with anything computed before.

How to read it. `turn n` is what the n-th turn found. `lost` is, over all turns, what echoed ids would have found more. On a
page of one token the columns are the matches themselves. This lab counts; it shows no times.

On a server its one cache is asked, with ids: it has to take token ids and to tell those it generated. The first chats'
prompt is four tokens short of its block, and `counted` is what the server's counters say of a whole chat.

Sources: vLLM 0.32.0, v1/core/kv_cache_manager.py and v1/core/sched/scheduler.py; SGLang 0.5.23, srt/mem_cache/radix_cache.py;
labs/theory.py; labs/scenarios/conversation.py.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Collection, Sequence

from engine.errors import ConfigError
from labs.caches import Cache, caches
from labs.chart import Chart, bars_of
from labs.field_check import check_numbers
from labs.outcome import hits_outcome
from labs.protocol import Lab, LabReport, LabSession, Measurement
from labs.scenarios.conversation import DatedSystem, EchoedIds, MergedIds, RetokenisedText, ThinkBlock
from labs.scenarios.served_chat import Chat, ChatPlan, serve_chats
from labs.series import prove_cold
from labs.served_sizes import fit_sizes
from labs.targets.base import ServedCache, TargetUnavailable
from labs.witnesses import disagreements, tell_doubts
from labs.workload import ChatTokenizer, SharedPrefixWorkload, TokenIds

MOST_TOKENS = 16_384  # of a chat on a server: longer ones take a small server minutes


@dataclass(frozen=True)
class Config:
    """Sizes of the turns, in tokens unless said otherwise."""

    prompt_tokens: int = 12  # L of the shortest chats
    output_tokens: tuple[int, ...] = (4, 5)  # k, one chat each
    num_turns: int = 4  # of the longer chats
    system_tokens: int = 96
    user_tokens: int = 24  # of each turn
    answer_tokens: int = 24
    merge_at: int = 5  # the answer's first token that comes back as another
    think_tokens: int = 4  # of the block that a template inserts and drops
    date_at: int = 20  # the system text's position that changes
    block_size: int = 16  # of the hash cache
    page_sizes: tuple[int, ...] = (1, 16)  # of the radix caches
    seed: int = 0

    def __post_init__(self) -> None:
        least = {"num_turns": 2, "system_tokens": 2, "answer_tokens": 2, "merge_at": 0, "date_at": 0}
        most = {"num_turns": 32, "merge_at": self.answer_tokens - 2, "date_at": self.system_tokens - 1, "think_tokens": 256}
        check_numbers(self, least, most)

    @property
    def most_tokens(self) -> int:
        """Of the longest prompt made of ids."""
        return self.system_tokens + self.num_turns * (self.user_tokens + self.answer_tokens) + self.think_tokens


def run(session: LabSession, config: Config) -> LabReport:
    """Every chat on every cache, each cache from a cold start."""
    target = session.open_target(num_gpu_blocks=2)
    tokenizer, vocab_size, limit = target.tokenizer(), target.info.vocab_size, target.info.max_model_len
    target.close()
    served, findings = session.open_target.served, []
    if served is not None:
        config, findings = fit_sizes(session, config, _fitting_sizes(config, served, limit, session.typed))
    _check_lengths(config, limit, None if served is None else session.typed)
    chat_tokenizer = tokenizer if tokenizer is not None and tokenizer.has_chat_template else None
    workload = _workload(config, vocab_size)
    asked = caches(config.block_size, config.page_sizes, served)
    tested = [(cache, _chat_plans(config, workload, chat_tokenizer)) for cache in asked]
    session.expect(sum(len(plan.outputs) for _, plans in tested for plan in plans))
    measurements: list[Measurement] = []
    chats_of: dict[str, list[Chat]] = {}
    cold = True
    for cache, plans in tested:
        target = session.open_target(**cache.engine_fields, num_gpu_blocks=_num_blocks(config, cache, plans))
        try:
            cold = prove_cold(session, target, _canary(workload, chat_tokenizer)) and cold
            found, chats_of[cache.title] = serve_chats(session, target, cache, plans)
        finally:
            target.close()
        measurements += found
    turns = {title: {chat.plan.name: chat.by_turn for chat in chats} for title, chats in chats_of.items()}
    main = asked[0].title
    return LabReport(
        tuple(measurements),
        "cold" if cold else "uncontrolled",
        (*findings, *_findings(chats_of, len(config.output_tokens))),
        _conclusion(measurements),
        {"workload": workload.digest, "turns": turns},
        (_chart(main, chats_of[main]),),
    )


def _fitting_sizes(config: Config, served: ServedCache, limit: int, typed: Collection[str]) -> dict[str, int]:
    """Sizes at which a server's block shows what the lab asks: four outputs do not fill the first prompt's block, five do."""
    unit = served.unit_size
    sizes = _shortened(config, limit, typed)
    user = sizes.get("user_tokens", config.user_tokens)
    if unit > 1:
        num_computed = max(config.output_tokens) - 1  # all but the last output have K/V
        fewest = (2 if served.has_drafter else 1) * unit  # tokens of a match that hits
        most = limit - 1 - max(config.output_tokens) - user
        sizes["prompt_tokens"] = max(1, min(fewest - num_computed - served.num_front % unit, most))
    if 2 * unit > config.system_tokens and 2 * unit + config.most_tokens < min(limit, MOST_TOKENS):
        sizes["system_tokens"] = 2 * unit
    return sizes


def _shortened(config: Config, limit: int, typed: Collection[str]) -> dict[str, int]:
    """Fewer turns, then shorter texts, until the longest prompt is below the limit; what was typed stays."""
    least = {"num_turns": 3, "system_tokens": config.date_at + 1, "answer_tokens": config.merge_at + 2, "user_tokens": 4}
    sizes: dict[str, int] = {}
    for name, fewest in least.items():
        excess = replace(config, **sizes).most_tokens - (limit - 1)
        turn = config.user_tokens + config.answer_tokens
        each = {"num_turns": turn, "system_tokens": 1}.get(name, sizes.get("num_turns", config.num_turns))
        size = max(fewest, getattr(config, name) - -(-excess // each))
        if excess > 0 and name not in typed and size < getattr(config, name):
            sizes[name] = size
    return sizes


def _check_lengths(config: Config, max_model_len: int, typed: Collection[str] | None) -> None:
    """Every turn must fit the model. Raises ConfigError for the field furthest above its default, of those that add up.

    typed  on a server, whose other sizes were fitted: what a person set; when it is none of these, raises TargetUnavailable
    """
    shortest = config.prompt_tokens + max(config.output_tokens) + config.user_tokens
    short_fields = ("prompt_tokens", "output_tokens", "user_tokens")
    long_fields = ("num_turns", "system_tokens", "user_tokens", "answer_tokens", "think_tokens")
    for names, num_tokens in ((short_fields, shortest), (long_fields, config.most_tokens)):
        if num_tokens >= max_model_len:
            if typed is not None:
                names = tuple(name for name in names if name in typed)
            if not names:
                raise TargetUnavailable(
                    f"the lab's shortest chat takes {num_tokens:,} tokens; accepted: a server whose longest prompt has as many, "
                    f"not {max_model_len - 1:,}"
                )
            name = max(names, key=lambda name: _largest(getattr(config, name)) / _largest(getattr(Config, name)))
            accepted = f"less: its last turn takes up to {num_tokens} tokens, and this model allows {max_model_len - 1}"
            raise ConfigError(name, getattr(config, name), accepted)


def _largest(value: int | tuple[int, ...]) -> int:
    return max(value) if isinstance(value, tuple) else value


def _workload(config: Config, vocab_size: int) -> SharedPrefixWorkload:
    """Random ids: tails are users' turns, unrelated prompts the beginnings of chats, markers what is inserted."""
    return SharedPrefixWorkload.from_token_ids(
        vocab_size,
        config.seed,
        num_shared=max(config.system_tokens, config.prompt_tokens),
        num_tail=config.user_tokens,
        num_requests=config.num_turns,
        num_unrelated=4 + len(config.output_tokens),
        num_markers=3 + config.think_tokens + config.num_turns,
    )


def _canary(workload: SharedPrefixWorkload, tokenizer: ChatTokenizer | None) -> TokenIds:
    """Begins like no prompt, not even like rendered text."""
    canary, spare = workload.canary_ids, workload.marker_ids[-1]
    begins_like_text = tokenizer is not None and RetokenisedText(tokenizer, 1).prompt()[0] == canary[0]
    return (spare, *canary[1:]) if begins_like_text else canary


def _chat_plans(config: Config, workload: SharedPrefixWorkload, tokenizer: ChatTokenizer | None) -> list[ChatPlan]:
    """New conversations for one cache; those of two turns first."""
    users, marks, num_block = workload.tail_ids, workload.marker_ids, config.think_tokens
    systems = [ids[: config.system_tokens] for ids in workload.unrelated_ids]
    plans = [
        ChatPlan(
            f"{config.prompt_tokens} + {num_outputs} tokens",
            EchoedIds(ids[: config.prompt_tokens], ((), users[0])),
            (num_outputs, 1),
            is_echo=True,
        )
        for ids, num_outputs in zip(workload.unrelated_ids[4:], config.output_tokens)
    ]
    outputs = (*[config.answer_tokens] * (config.num_turns - 1), 1)
    plans += [
        ChatPlan("ids echoed", EchoedIds(systems[0], users), outputs, is_echo=True),
        ChatPlan("two tokens merged", MergedIds(systems[1], users, config.merge_at, marks[:2]), outputs),
        ChatPlan("think block dropped", ThinkBlock(systems[2], users, marks[2 : 2 + num_block]), outputs),
        ChatPlan("date in system text", DatedSystem(systems[3], users, config.date_at, marks[2 + num_block : -1]), outputs),
    ]
    if tokenizer is not None:
        plans.append(ChatPlan("text tokenised again", RetokenisedText(tokenizer, config.system_tokens // 2 + 1), outputs))
    return plans


def _num_blocks(config: Config, cache: Cache, plans: Sequence[ChatPlan]) -> int:
    """Room for every turn as if it found nothing; a word of text may be several tokens, and its template takes some."""
    num_requests = sum(len(plan.outputs) for plan in plans)
    return cache.blocks_for(num_requests * (2 * config.most_tokens + 64), num_requests)


def _findings(served: dict[str, list[Chat]], num_short: int) -> list[str]:
    """By chat, all caches side by side: what became of the generated tokens, what each way of bringing them back lost."""
    findings = []
    for number, chats in enumerate(zip(*served.values())):
        first = chats[0]
        if number < num_short:
            reused = _beside(served, [chat.turns[1].hits for chat in chats])
            offered = f"{first.turns[1].offered} have K/V, since the last was never fed back"
            findings.append(f"{first.plan.name}: {offered}; the next turn reuses {reused}")
        else:
            lost = _beside(served, [chat.lost for chat in chats])
            findings.append(f"{first.plan.name}: {first.parting}; tokens lost in {len(first.turns)} turns: {lost}")
    findings += [f"{title}: {_key_verdict(chats[num_short])}" for title, chats in served.items()]
    doubts = [
        doubt
        for title, chats in served.items()
        for chat in chats
        for doubt in disagreements(f"{title}: {chat.plan.name}", [turn.completion for turn in chat.turns])
    ]
    return findings + tell_doubts(doubts)


def _beside(served: dict[str, list[Chat]], values: Sequence[int | None]) -> str:
    return ", ".join(f"{'unknown' if value is None else f'{value:,}'} ({title})" for title, value in zip(served, values))


def _key_verdict(echoed: Chat) -> str:
    """Whether the answer's own tokens are found, or hits end with the prompt that was sent."""
    turn = echoed.turns[1]
    if turn.hits is None:
        return "the server does not tell whether generated tokens are reused"
    beside = f"turn 2 of the echoed ids found {turn.hits:,}, where the last prompt alone would give {turn.prompt_only:,}"
    if turn.hits != turn.law.value and turn.hits != turn.prompt_only:
        return f"NOT as predicted: {beside} and its answer with it {turn.echoed:,}"
    if turn.echoed == turn.prompt_only:
        return "these answers are too short to fill a block"
    if turn.hits == turn.prompt_only:
        return f"NOT reused are generated tokens: hits end with the last prompt ({turn.hits:,}), so look at what the cache stores"
    return f"generated tokens are reused: {beside}"


def _chart(title: str, chats: Sequence[Chat]) -> Chart:
    turns = [(f"{chat.plan.name}, turn {number}", turn) for chat in chats for number, turn in enumerate(chat.turns[1:], start=2)]
    bars = {
        "offered": [(row, float(turn.offered)) for row, turn in turns],
        "reused": [(row, float(turn.hits)) for row, turn in turns if turn.hits is not None],
    }
    return bars_of(f"What a turn offers the next, and what is reused ({title})", bars)


def _conclusion(measurements: Sequence[Measurement]) -> str:
    outcome = hits_outcome(measurements, "Every turn found what was predicted.")
    return (
        f"{outcome} Generated tokens are reused like prompt tokens, all but the last, when the same ids come back. The loss "
        "begins where the first id differs, and ends with the prompt: a re-tokenised answer costs its rest, a block that a "
        "template drops costs what follows it, and a clock in the system text costs the conversation, at every turn. In "
        "production: send token ids back where the server takes them; render turn n and turn n + 1 and compare their ids "
        "before you blame the cache; keep clocks behind the stable text; and if hits end exactly with the last prompt, "
        "the cache leaves generated tokens out."
    )


LAB = Lab(
    number=6,
    name="multi-turn",
    question="Are generated tokens reused?",
    config_type=Config,
    quick=Config(num_turns=3, system_tokens=48, user_tokens=12, answer_tokens=10, merge_at=3),
    run=run,
    targets=("engine", "sim", "server"),
    in_process_fields=("block_size", "page_sizes"),
)
