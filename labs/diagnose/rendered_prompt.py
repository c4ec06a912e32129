"""RenderedPrompt: a prompt from a file as its model sees it, and which part of a chat a token position falls in.

    0          head                                                                    L
    ├─ template ─┼─ message 0 (system) ─┼─ message 1 (user) ─┼─ … ─┼─ behind the last ─┤

Where a message ends is found by rendering the first messages alone: as far as that agrees with the whole prompt, the
whole prompt belongs to them. Text is tokenised as it stands: no special token is added in front.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Sequence

from labs import theory
from labs.diagnose.prompt_file import PromptFile, PromptFileError


@dataclass(frozen=True)
class RenderedPrompt:
    """Token ids, the text they were made from (None for token ids), and the messages behind it."""

    token_ids: Sequence[int] = field(repr=False)
    text: str | None = field(default=None, repr=False)
    chat: _Chat | None = None

    def section_at(self, position: int) -> str | None:
        """What stands at a position, in words; None for a prompt that is no chat, or whose template hides it."""
        if self.chat is None:
            return None
        return self.chat.section_at(position, self.token_ids)


def render_prompt(prompt: PromptFile, tokenizer: Any, label: str) -> RenderedPrompt:
    """Tokenise a prompt, messages through the model's chat template; `tokenizer` may be None for token ids.

    Raises PromptFileError when the template cannot write what the request holds.
    """
    if prompt.token_ids is not None:
        return RenderedPrompt(prompt.token_ids)
    if prompt.text is not None:
        return RenderedPrompt(tokenizer.encode(prompt.text), prompt.text)
    chat = _Chat(prompt, tokenizer, label)
    text = chat.render(prompt.messages or [])
    chat.check_tools(text)
    return RenderedPrompt(tokenizer.encode(text), text, chat)


class _Chat:
    """Messages and their template."""

    def __init__(self, prompt: PromptFile, tokenizer: Any, label: str) -> None:
        if not tokenizer.has_chat_template:
            what = f"{label!r} holds messages, and the model's tokenizer has no chat template"
            raise PromptFileError(f"{what}; accepted: text or token ids, or another --model")
        self._messages, self._tools = prompt.messages or [], prompt.fields.tools
        self._tokenizer, self._label = tokenizer, label

    def render(self, messages: list[dict[str, Any]], *, whole: bool = True, with_tools: bool = True) -> str:
        """The template's text; whole: with the generation prompt at its end."""
        try:
            if not with_tools or self._tools is None:
                return self._tokenizer.render_chat(messages, add_generation_prompt=whole)
            return self._tokenizer.hf_tokenizer.apply_chat_template(
                messages, tools=self._tools, tokenize=False, add_generation_prompt=whole
            )
        except Exception as error:  # a template may raise anything, and its message may quote the prompt
            roles = ", ".join(repr(message["role"]) for message in messages[:8])
            what = f"{self._label!r}: the chat template refuses these messages ({type(error).__name__})"
            raise PromptFileError(f"{what}, roles {roles}; accepted: messages as its model takes them") from None

    def check_tools(self, text: str) -> None:
        """A template that leaves tools out would make two requests look equal that are not."""
        accepted = "accepted: a --model whose template does, or the rendered text"
        if self._tools is not None and text == self.render(self._messages, with_tools=False):
            raise PromptFileError(f"{self._label!r} has tools, which this model's chat template does not write; {accepted}")
        without = [{key: value for key, value in message.items() if key != "tool_calls"} for message in self._messages]
        if without != self._messages and text == self.render(without):
            raise PromptFileError(f"{self._label!r} has tool_calls, which this model's chat template does not write; {accepted}")

    def section_at(self, position: int, token_ids: Sequence[int]) -> str | None:
        try:
            if position < self._num_head_tokens(token_ids):
                return "in the chat template's head, before the first message's text"
            # The fewest messages whose rendering reaches the position.
            low, high = 1, len(self._messages) + 1
            while low < high:
                middle = (low + high) // 2
                low, high = (low, middle) if position < self._num_tokens_of(middle, token_ids) else (middle + 1, high)
            start = self._num_tokens_of(low - 1, token_ids) if low > 1 else 0
        except PromptFileError:
            return None  # this template takes no part of a chat
        if low > len(self._messages):
            return "behind the last message, in the template's opening of the answer"
        return f"in message {low - 1:,} ({self._messages[low - 1]['role']!r}), {position - start:,} token{'' if position - start == 1 else 's'} into it"

    def _num_tokens_of(self, num_messages: int, token_ids: Sequence[int]) -> int:
        rendered = self.render(self._messages[:num_messages], whole=False)
        return theory.common_prefix(token_ids, self._tokenizer.encode(rendered))

    def _num_head_tokens(self, token_ids: Sequence[int]) -> int:
        """Tokens before the first message's own text: those that do not depend on it."""
        first, *others = self._messages
        texts = (self.render([{**first, "content": other}, *others]) for other in ("0", "Z"))
        return min(theory.common_prefix(token_ids, self._tokenizer.encode(text)) for text in texts)
