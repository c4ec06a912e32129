"""Conversation: how a chat's history comes back with the next turn, which decides what of it can be reused.

    turn t        ├── history ──┤── user t ──┤                     prompt, then the answer is generated
    turn t + 1    ├── history ──┤── user t ──┤── answer t ──┤── user t + 1 ──┤

    EchoedIds         the ids that were sampled: nothing changes
    MergedIds         two tokens of each answer come back as one other id, as when its text is tokenised again
    RetokenisedText   the answer's text, put through the chat template and the tokenizer again: what chat clients send
    ThinkBlock        the template ends each prompt with a block that it leaves out of the history (an empty think block)
    DatedSystem       one token of the system text is another one each turn (a clock)
"""

from __future__ import annotations

from itertools import cycle
from typing import Protocol, Sequence

from labs.system_prompt import SYSTEM_PROMPT, USER_OPENINGS
from labs.workload import ChatTokenizer, TokenIds


class Conversation(Protocol):
    """One chat: ask for the turn's prompt, send it, tell the answer, and so on."""

    def prompt(self) -> TokenIds:
        """Ids of the next turn's prompt, its history included."""
        ...

    def hear(self, answer: Sequence[int]) -> None:
        """Take the ids generated for the last prompt into the history."""
        ...


class EchoedIds:
    """The history is what was sent and sampled, id by id.

    system_ids  in front of all turns
    user_ids    one a turn
    """

    def __init__(self, system_ids: TokenIds, user_ids: Sequence[TokenIds]) -> None:
        self._history = system_ids
        self._users = iter(user_ids)

    def prompt(self) -> TokenIds:
        self._history += next(self._users)
        return self._history

    def hear(self, answer: Sequence[int]) -> None:
        self._history += tuple(answer)


class MergedIds(EchoedIds):
    """Two tokens of each answer, from position `merge_at` of it on, come back as one of `other_ids`."""

    def __init__(self, system_ids: TokenIds, user_ids: Sequence[TokenIds], merge_at: int, other_ids: tuple[int, int]) -> None:
        super().__init__(system_ids, user_ids)
        self._merge_at = merge_at
        self._other_ids = other_ids

    def hear(self, answer: Sequence[int]) -> None:
        at = self._merge_at
        merged = next(one for one in self._other_ids if one != answer[at])
        super().hear((*answer[:at], merged, *answer[at + 2 :]))


class ThinkBlock(EchoedIds):
    """Each prompt ends with `block_ids`, which the history does not keep."""

    def __init__(self, system_ids: TokenIds, user_ids: Sequence[TokenIds], block_ids: TokenIds) -> None:
        super().__init__(system_ids, user_ids)
        self._block_ids = block_ids

    def prompt(self) -> TokenIds:
        return super().prompt() + self._block_ids


class DatedSystem(EchoedIds):
    """Position `date_at` of the system text holds another of `date_ids` each turn."""

    def __init__(self, system_ids: TokenIds, user_ids: Sequence[TokenIds], date_at: int, date_ids: TokenIds) -> None:
        super().__init__(system_ids, user_ids)
        self._date_at = date_at
        self._dates = iter(date_ids)

    def prompt(self) -> TokenIds:
        ids = super().prompt()
        return (*ids[: self._date_at], next(self._dates), *ids[self._date_at + 1 :])


class RetokenisedText:
    """A chat client: it keeps texts, and the template and the tokenizer make ids of them anew each turn.

    tokenizer         with a chat template
    num_system_words  of the labs' system prompt
    """

    def __init__(self, tokenizer: ChatTokenizer, num_system_words: int) -> None:
        self._tokenizer = tokenizer
        self._messages = [{"role": "system", "content": " ".join(SYSTEM_PROMPT.split(" ")[:num_system_words])}]
        self._questions = cycle(USER_OPENINGS)

    def prompt(self) -> TokenIds:
        self._messages.append({"role": "user", "content": next(self._questions)})
        return tuple(self._tokenizer.encode(self._tokenizer.render_chat(self._messages, add_generation_prompt=True)))

    def hear(self, answer: Sequence[int]) -> None:
        self._messages.append({"role": "assistant", "content": self._tokenizer.decode(answer)})
