"""Routes around the tokenizer: /tokenize and /detokenize, with each flavor's fields."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from engine.server.requests.json_body import invalid, parse_object
from engine.server.requests.refusal import Refusal
from engine.server.requests.request_body import DetokenizeBody, TokenizeBody, read_fields
from engine.server.requests.unsupported_fields import refuse_unsupported
from engine.server.routes.parts import ServerParts

# Of the tokenizers in use the longest token is 128 characters, of spaces. A longer text never fits, and is not worth its time.
_MAX_CHARACTERS_PER_TOKEN = 128


class TextRoutes:
    """Text to ids and back, without the engine."""

    def __init__(self, parts: ServerParts) -> None:
        self._parts = parts

    def routes(self) -> list[Route]:
        prefixes = [""] if self._parts.is_vllm else ["", "/v1"]
        routes = []
        for prefix in prefixes:
            routes.append(Route(f"{prefix}/tokenize", self.tokenize, methods=["POST"]))
            routes.append(Route(f"{prefix}/detokenize", self.detokenize, methods=["POST"]))
        return routes

    async def tokenize(self, request: Request) -> JSONResponse:
        return JSONResponse(await self._parts.read(request, self._tokenized))

    async def detokenize(self, request: Request) -> JSONResponse:
        return JSONResponse(await self._parts.read(request, self._detokenized))

    def _tokenized(self, body: bytes) -> dict[str, Any]:
        parts = self._parts
        fields = parse_object(body)
        refuse_unsupported(fields)
        asked = read_fields(TokenizeBody, fields)
        parts.rules.model_name(asked.model)
        max_model_len = parts.rules.max_model_len
        if (asked.prompt is None) == (asked.messages is None):
            raise invalid("prompt and messages; accepted: one of them", param="prompt")
        if asked.messages is not None:
            token_ids = parts.intake.read_chat(asked.messages, asked.add_generation_prompt)
        elif isinstance(asked.prompt, str):
            token_ids = self._ids_of(asked.prompt)
        elif isinstance(asked.prompt, list) and not parts.is_vllm and all(isinstance(one, str) for one in asked.prompt):
            several = [self._ids_of(one) for one in asked.prompt]
            return {"tokens": several, "count": [len(one) for one in several], "max_model_len": max_model_len}
        else:
            raise invalid("prompt: Input should be a valid string", param="prompt")
        if not parts.is_vllm:
            return {"tokens": token_ids, "count": len(token_ids), "max_model_len": max_model_len}
        strings = parts.text.token_strings(token_ids) if asked.return_token_strs else None
        return {"count": len(token_ids), "max_model_len": max_model_len, "tokens": token_ids, "token_strs": strings}

    def _ids_of(self, text: str) -> list[int]:
        most = self._parts.rules.max_model_len * _MAX_CHARACTERS_PER_TOKEN
        if len(text) > most:
            raise Refusal(f"a text of {len(text):,} characters; accepted: up to {most:,}, more never fit", param="prompt")
        return self._parts.text.encode(text)

    def _detokenized(self, body: bytes) -> dict[str, Any]:
        parts = self._parts
        asked = read_fields(DetokenizeBody, parse_object(body))
        parts.rules.model_name(asked.model)
        tokens, keep_special = asked.tokens, parts.is_vllm or asked.skip_special_tokens is False
        if isinstance(tokens, list) and tokens and not parts.is_vllm and all(isinstance(one, list) for one in tokens):
            return {"text": [self._text_of(one, keep_special) for one in tokens]}
        text = self._text_of(tokens, keep_special)
        return {"prompt": text} if parts.is_vllm else {"text": text}

    def _text_of(self, tokens: Any, keep_special: bool) -> str:
        if not isinstance(tokens, list) or not all(isinstance(one, int) and not isinstance(one, bool) for one in tokens):
            raise invalid("tokens: a list of token ids is required", param="tokens")
        if any(one < 0 for one in tokens):
            raise invalid("tokens: Input should be greater than or equal to 0", param="tokens")
        known = [one for one in tokens if one < self._parts.rules.vocab_size]  # the others are no text
        return self._parts.text.decode(known, keep_special=keep_special)
