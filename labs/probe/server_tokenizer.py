"""ServerTokenizer: what the server's own tokenizer says, where it is there to be asked (/tokenize, /detokenize)."""

from __future__ import annotations

from typing import Sequence

from labs.servers.server_client import ServerClient
from labs.targets.base import TargetError


class ServerTokenizer:
    """One model's; None for whatever the server does not give."""

    def __init__(self, client: ServerClient, model: str) -> None:
        self._client, self._model = client, model

    def ids_of(self, *texts: str) -> list[list[int]] | None:
        """Each text's ids; None when it does not give all."""
        try:
            found = [self._client.post_json("/tokenize", {"model": self._model, "prompt": text}).get("tokens") for text in texts]
        except TargetError:
            return None
        is_whole = all(isinstance(ids, list) and ids and all(type(one) is int for one in ids) for ids in found)
        return found if is_whole else None

    def text_of(self, token_ids: Sequence[int]) -> str | None:
        """The text of these ids."""
        try:
            found = self._client.post_json("/detokenize", {"model": self._model, "tokens": list(token_ids)})
        except TargetError:
            return None
        text = found.get("prompt", found.get("text"))
        return text if isinstance(text, str) and text else None
