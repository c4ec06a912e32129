"""RequestPair: two requests from files, made comparable, and all that can be said about them.

    two files ──▶ token ids, salts, adapters, images ──▶ one diagnosis a cache
                                                    └──▶ where in the chat they part, and what that looks like
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Callable, Sequence

from engine.kvcache.block_hash import BlockHash, BlockHasher
from engine.kvcache.cache_identity import LoRA
from labs.diagnose.diagnosis import PairDiagnosis, SentRequest, compare
from labs.diagnose.parting import Parting, part
from labs.diagnose.prompt_file import PromptFile, PromptFileError, read_prompt_file
from labs.diagnose.rendered_prompt import RenderedPrompt, render_prompt
from labs.diagnose.varying_text import Passage, looks_like, passage, tools_look_like


@dataclass(frozen=True)
class CacheSettings:
    """The caches to ask; None leaves one out."""

    block_size: int | None = 16  # tokens a block of the hash cache
    page_size: int | None = 1  # tokens a page of the radix cache
    algorithm: str = "sha256"  # names the hash cache's blocks
    drafter: bool = False  # beside the hash cache


@dataclass(frozen=True)
class PairedRequest:
    """One request of the pair: what was read, and its tokens."""

    label: str  # "A" or "B"
    path: str
    prompt: PromptFile
    rendered: RenderedPrompt
    lora: LoRA | None

    def as_sent(self, block_hashes: Sequence[str] = ()) -> SentRequest:
        fields = self.prompt.fields
        return SentRequest(
            self.label, self.rendered.token_ids, fields.cache_salt, self.lora, fields.images, block_hashes, fields.prompt_logprobs
        )


@dataclass(frozen=True)
class PairReport:
    """The answer. `passages` is prompt text: only there when asked for."""

    requests: tuple[PairedRequest, PairedRequest]
    parting: Parting
    diagnoses: tuple[PairDiagnosis, ...]  # one a cache, at least one
    sections: tuple[str | None, str | None]  # where A and B part, in a chat
    looks_like: str | None
    notes: tuple[str, ...]
    passages: tuple[Passage, Passage] | None = field(default=None, repr=False)


def diagnose_files(
    paths: Sequence[str], settings: CacheSettings, open_tokenizer: Callable[[], Any], *, show_text: bool = False
) -> PairReport:
    """Read two files and compare them. Raises PromptFileError for one that cannot be used.

    open_tokenizer  called only when there is text to read or to show: token ids need none
    """
    prompts = [read_prompt_file(path) for path in paths]
    needs_text = show_text or any(prompt.token_ids is None for prompt in prompts)
    tokenizer = open_tokenizer() if needs_text else None
    rendered = [render_prompt(prompt, tokenizer, path) for prompt, path in zip(prompts, paths)]
    adapters, notes = _comparable_adapters([prompt.fields.lora for prompt in prompts])
    first, second = (PairedRequest(*parts) for parts in zip("AB", paths, prompts, rendered, adapters))
    for request in (first, second):
        _check_images(request)
        if request.prompt.other_json:
            notes.append(f"{request.label} is JSON of no known shape: it was taken as plain text")
    unread = dict.fromkeys(name for prompt in prompts for name in prompt.unread)
    if unread:
        notes.append(f"not read: {', '.join(map(repr, unread))}")
    if second.prompt.fields.prompt_logprobs and settings.page_size is not None:
        notes.append("SGLang has no prompt_logprobs; where it returns logprobs itself, a match ends at logprob_start_len")
    parting = part(first.rendered.token_ids, second.rendered.token_ids)
    report = PairReport((first, second), parting, _diagnoses(first, second, parting, settings), (None, None), None, tuple(notes))
    if parting.first_difference is None:
        return report
    if show_text:
        _check_vocabulary((first, second), tokenizer)
    return replace(
        report,
        sections=(first.rendered.section_at(parting.common), second.rendered.section_at(parting.common)),
        looks_like=_looks_like(first, second, tokenizer if show_text else None),
        passages=_passages(first, second, parting, tokenizer) if show_text else None,
    )


def _diagnoses(
    first: PairedRequest, second: PairedRequest, parting: Parting, settings: CacheSettings
) -> tuple[PairDiagnosis, ...]:
    diagnoses = []
    if settings.block_size is not None:
        hasher = BlockHasher(settings.algorithm, settings.block_size)  # one for both: a random start must be the same
        named = [request.as_sent(_block_names(request, hasher)) for request in (first, second)]
        diagnoses.append(compare(*named, settings.block_size, drafter=settings.drafter, parting=parting))
    if settings.page_size is not None:
        diagnoses.append(compare(first.as_sent(), second.as_sent(), settings.page_size, cache="radix", parting=parting))
    return tuple(diagnoses)


def _block_names(request: PairedRequest, hasher: BlockHasher) -> list[str]:
    names: list[BlockHash] = []
    hasher.extend(names, request.rendered.token_ids, request.as_sent().identity)
    return [name.hex() for name in names]


def _comparable_adapters(adapters: list[LoRA | None]) -> tuple[list[LoRA | None], list[str]]:
    """A path that only one request names says nothing about the other's: it is taken as the same."""
    first, second = adapters
    if first is None or second is None or first.name != second.name or bool(first.path) == bool(second.path):
        return adapters, []
    known = LoRA(first.name, first.path or second.path)
    return [known, known], [f"{'A' if second.path else 'B'} does not say its adapter's path: taken as the other's"]


def _check_images(request: PairedRequest) -> None:
    length = len(request.rendered.token_ids)
    for number, image in enumerate(request.prompt.fields.images):
        if image.offset + image.length > length:
            what = f"{request.path!r}: images[{number}] ends at token {image.offset + image.length:,}"
            raise PromptFileError(f"{what}; accepted: up to {length:,}, the prompt's length")


def _check_vocabulary(requests: Sequence[PairedRequest], tokenizer: Any) -> None:
    for request in requests:
        largest = max(request.rendered.token_ids)
        if largest >= tokenizer.vocab_size:
            accepted = f"0 to {tokenizer.vocab_size - 1} with this --model, or no --show-text"
            raise PromptFileError(f"{request.path!r} has the token id {largest}, which has no text; accepted: {accepted}")


def _looks_like(first: PairedRequest, second: PairedRequest, tokenizer: Any | None) -> str | None:
    """By the tools that both carry, or by their texts; token ids have one only for those who ask for text."""
    tools = tools_look_like(first.prompt.fields.tools, second.prompt.fields.tools)
    if tools is not None:
        return tools
    mine, theirs = (_text(request.rendered, tokenizer) for request in (first, second))
    return None if mine is None or theirs is None else looks_like(mine, theirs)


def _text(rendered: RenderedPrompt, tokenizer: Any | None) -> str | None:
    if rendered.text is not None or tokenizer is None:
        return rendered.text
    return tokenizer.decode(rendered.token_ids)


def _passages(first: PairedRequest, second: PairedRequest, parting: Parting, tokenizer: Any) -> tuple[Passage, Passage]:
    mine, theirs = (
        passage(tokenizer, request.rendered.token_ids, parting.common, num_differing)
        for request, num_differing in zip((first, second), parting.replaced)
    )
    return mine, theirs
