"""OpenAIHttpTarget: a server of completions over HTTP, with what vLLM and SGLang add to that.

    prompt (lab ids) ─▶ renamed ─▶ ids or words ─▶ server ─▶ reply: usage, output ids, times
                                                        └──▶ /metrics: how much the counters grew

A reply is checked before it is believed: the server must have counted the tokens that were sent, and found no more than
those. Cached tokens are the reply's own if it tells them, else the counters'; where both speak and differ, the difference
is kept (Evidence) and noted. What nobody tells is None.
"""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from typing import Any, Sequence

from engine.kvcache.cache_identity import LoRA, MultimodalItem
from labs.servers.completion_sender import SendOptions
from labs.servers.counter_watch import Growth
from labs.servers.send_together import send_together
from labs.servers.server_client import ServerRefused
from labs.servers.server_link import ServerLink
from labs.servers.server_reply import ServerReply
from labs.targets.base import CacheCounters, Completion, Evidence, FieldRefused, TargetError, TargetInfo

SETTLE_S = 0.1  # for counters that should not move: a server that moves them all the same does so a step after its reply
FAILED = ("abort", "error", "content_filter", "repetition")  # finish reasons of a request that was not served


class OpenAIHttpTarget:
    """Target over one server. Its one cache is as it is; requests are greedy and ask to ignore end-of-text."""

    engine = None

    def __init__(self, link: ServerLink, info: TargetInfo) -> None:
        self._link, self.info = link, info
        self.last_reset = ""

    def complete(
        self,
        prompt_token_ids: Sequence[int],
        *,
        max_tokens: int = 1,
        cache_salt: str | None = None,
        logprob_gaps: bool = False,
        prompt_logprobs: bool = False,
        lora: LoRA | None = None,
        images: Sequence[MultimodalItem] = (),
        prompt_embeds: Sequence[bytes] | None = None,
    ) -> Completion:
        _refuse_fields(lora, images, prompt_embeds)
        kind = self._link.facts.kind
        if prompt_logprobs and (kind == "openai" or (kind == "sglang" and not self._link.form.is_exact_ids)):
            raise FieldRefused("prompt_logprobs is True; accepted on this server: False, it is not known to skip its cache then")
        options = SendOptions(max_tokens, self._link.salt_of_run(cache_salt), logprob_gaps, prompt_logprobs)
        try:
            completion = self._send((prompt_token_ids, options), None)
        except ServerRefused as error:
            if prompt_logprobs and error.status in (400, 422):
                raise FieldRefused(str(error)) from error
            raise
        # vLLM leaves a request that skips its cache out of the counters.
        return self._counted(completion, is_counted=not (prompt_logprobs and kind == "vllm"))

    def complete_all(
        self, prompts: Sequence[Sequence[int]], *, max_tokens: int, cache_salts: Sequence[str | None] | None = None
    ) -> list[Completion]:
        salts = [None] * len(prompts) if cache_salts is None else list(cache_salts)
        if len(salts) != len(prompts):
            raise TargetError(f"{len(salts)} cache_salts for {len(prompts)} prompts; accepted: one for each")
        jobs = [(prompt, SendOptions(max_tokens, self._link.salt_of_run(salt))) for prompt, salt in zip(prompts, salts)]
        if len(jobs) == 1:  # alone, it has the counters for itself
            return [self._counted(self._send(jobs[0], None))]
        completions = send_together(jobs, self._send, self._link.run.concurrency)
        if self._link.watch is not None:
            found = sum(one.evidence.usage or 0 for one in completions)
            self._noted(self._link.watch.after(sum(one.num_prompt_tokens for one in completions), found))
        return completions

    def counters(self) -> CacheCounters:
        watch = self._link.watch
        if watch is None:
            return CacheCounters(None, None)
        growth = self._noted(watch.since_mark())
        if growth.num_late:
            self._link.notes.lost(growth.num_late)
        own, grown = growth.reading, growth.grown
        return CacheCounters(own.queries, own.hits, grown_queries=grown.queries, grown_hits=grown.hits)

    def reset(self) -> bool:
        link = self._link
        if link.watch is not None:
            link.watch.forget_late()
        if link.run.isolation != "rename" and link.reset():
            link.isolations.add("reset")
            self.last_reset = "reset"
            return True
        if link.run.isolation == "reset":
            self.last_reset = "refused"
            return False
        self._renamed()
        return True

    def rename(self) -> bool:
        if self._link.run.isolation == "reset":
            return False
        if self._link.reset.exists:
            self._link.distrust_reset()
        self._renamed()
        return True

    def _renamed(self) -> None:
        self._link.rename()
        self.last_reset = "renamed"
        self.info.config["isolation"] = "renamed"  # for good: greedy outputs before and after are of other prompts

    def block_hashes(
        self,
        prompt_token_ids: Sequence[int],
        *,
        cache_salt: str | None = None,
        lora: LoRA | None = None,
        images: Sequence[MultimodalItem] = (),
        prompt_embeds: Sequence[bytes] | None = None,
    ) -> list[str]:
        return []  # no server shows the names of its blocks

    def tokenizer(self) -> Any | None:
        return None

    def close(self) -> None:
        """Nothing to free: the connection is the run's, and other targets use it."""

    def _send(self, job: tuple[Sequence[int], SendOptions], stop: threading.Event | None) -> Completion:
        """One request, its reply checked; the reply alone is its evidence so far."""
        link, (prompt, options) = self._link, job
        if options.max_tokens < 1:
            raise TargetError(f"max_tokens is {options.max_tokens}; accepted: a whole number from 1")
        self._check_ids(prompt)
        payload = link.form.payload(link.renaming.sent(prompt))
        reply = link.sender.send(payload, options, stop)
        with link.lock:
            link.num_requests += 1
        self._check(reply, payload, len(prompt), options)
        return self._completion(reply, len(prompt) + link.form.num_front)

    def _check_ids(self, prompt: Sequence[int]) -> None:
        link = self._link
        if not prompt:
            raise TargetError("the prompt is empty; accepted: at least one token")
        outside = {one for one in prompt if not 0 <= one <= link.form.own_id} - link.given_ids
        if outside:
            raise TargetError(f"{len(outside)} token ids are outside the bound; accepted: 0 to {link.form.vocab_size - 1}")

    def _check(self, reply: ServerReply, payload: list[int] | str, num_tokens: int, options: SendOptions) -> None:
        """Raises TargetError for a reply that cannot be about this request."""
        shown, usage = self._link.client.shown, reply.usage
        expected = num_tokens + self._link.form.num_front
        counted = usage.prompt_tokens
        if counted is None and reply.prompt_token_ids is not None:
            counted = len(reply.prompt_token_ids)
        if counted is not None and counted != expected:
            raise TargetError(
                f"{shown} counts {counted:,} prompt tokens where {expected:,} were sent: something on the way changes the prompt"
            )
        if (
            isinstance(payload, list)
            and reply.prompt_token_ids is not None
            and list(reply.prompt_token_ids[-num_tokens:]) != payload
        ):
            raise TargetError(
                f"{shown} was sent {num_tokens:,} token ids and computed others: something on the way changes the prompt"
            )
        if usage.cached_tokens is not None and usage.cached_tokens > expected:
            raise TargetError(f"{shown} reports {usage.cached_tokens:,} cached tokens in a prompt of {expected:,}: it cannot be")
        num_output = usage.completion_tokens
        if num_output is not None and num_output > options.max_tokens:
            raise TargetError(f"{shown} generated {num_output:,} tokens where at most {options.max_tokens:,} were asked for")
        if None not in (num_output, reply.output_token_ids) and len(reply.output_token_ids) != num_output:
            raise TargetError(f"{shown} counts {num_output:,} generated tokens and names {len(reply.output_token_ids):,}")
        if reply.finish_reason is None or reply.finish_reason in FAILED:
            raise TargetError(f"{shown} ended the request with {reply.finish_reason or 'no finish_reason'}: it was not served")

    def _completion(self, reply: ServerReply, num_prompt_tokens: int) -> Completion:
        link, usage = self._link, reply.usage
        cached = usage.cached_tokens
        if cached is None and link.is_null_a_miss:
            cached = 0
        # Behind words there are other ids, which mean nothing to a lab.
        ids = link.form.read(reply.output_token_ids or ()) if link.form.is_exact_ids else ()
        num_output = len(ids) if usage.completion_tokens is None else usage.completion_tokens
        link.given_ids.update(one for one in ids if not 0 <= one <= link.form.own_id)
        # Two best tokens of one text are one entry, without a gap: then the others have lost their positions.
        gaps = reply.top_logprob_gaps
        return Completion(
            output_token_ids=link.renaming.read(ids),
            num_prompt_tokens=num_prompt_tokens,
            num_cached_tokens=cached,
            ttft_s=reply.ttft_s,
            e2e_s=reply.e2e_s,
            finish_reason=reply.finish_reason or "",
            top_logprob_gaps=gaps if len(gaps) == num_output else (),
            evidence=Evidence(cached, None, None),
        )

    def _noted(self, growth: Growth) -> Growth:
        notes = self._link.notes
        if growth.is_shared:
            notes.shared(growth.grown.queries, growth.num_sent)
        if growth.is_impossible:
            notes.impossible()
        if growth.is_fallen:
            notes.fell()
        if growth.num_checks:
            notes.add("the server counts its own health checks as prompts of one token each: they were left out of its counters")
        return growth

    def _counted(self, completion: Completion, is_counted: bool = True) -> Completion:
        """With what the counters say of it; they are read until it has landed."""
        link, usage = self._link, completion.evidence.usage
        if link.watch is None:
            return completion
        if not is_counted:
            time.sleep(SETTLE_S)
        num_tokens, found = (completion.num_prompt_tokens, usage or 0) if is_counted else (0, 0)
        growth = self._noted(link.watch.after(num_tokens, found))
        if not is_counted:
            return completion
        if growth.is_silent:
            link.notes.silent(usage)
        evidence = Evidence(usage, growth.reading.hits, growth.reading.queries)
        if evidence.disagrees:
            link.notes.disagreement(link.num_requests, usage, growth.reading.hits)
        return replace(completion, num_cached_tokens=growth.reading.hits if usage is None else usage, evidence=evidence)


def _refuse_fields(lora: LoRA | None, images: Sequence[MultimodalItem], prompt_embeds: Sequence[bytes] | None) -> None:
    for name, is_given in (("lora", lora is not None), ("images", bool(images)), ("prompt_embeds", prompt_embeds is not None)):
        if is_given:
            raise TargetError(f"{name} is given; accepted: none, a server takes token ids alone from labs")
