"""Fields that would change the answer and that this engine does not have: refused by name, unless they ask for nothing.

A field that is not here and not read is harmless (`user`, `metadata`, `store`), and ignored.
"""

from __future__ import annotations

from typing import Any

from engine.server.requests.refusal import not_supported

_NOTHING = (None, False, "", [], {})

# Field -> values that ask for nothing, beside null.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "min_p": (0,),
    "min_tokens": (0,),
    "min_new_tokens": (0,),
    "skip_special_tokens": (True,),
    "truncate_prompt_tokens": (),
    "response_format": ({"type": "text"},),
    "tool_choice": ("none", "auto"),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "stream_interval": (1,),
}

_ONLY_WITHOUT = (
    "echo", "suffix", "logit_bias", "tools", "functions", "structured_outputs", "guided_json", "guided_regex", "guided_choice",
    "guided_grammar", "json_schema", "regex", "ebnf", "structural_tag", "stop_regex", "use_beam_search", "allowed_token_ids",
    "bad_words", "include_stop_str_in_output", "no_stop_trim", "prompt_embeds", "input_embeds", "logits_processors",
    "custom_logit_processor", "logprob_token_ids", "thinking_token_budget", "repetition_detection",
    "kv_transfer_params", "ec_transfer_params", "lora_path", "session_params", "image_data", "video_data", "audio_data", "audio",
    "return_hidden_states", "return_logprob", "return_routed_experts", "watermarking", "watermark", "chat_template",
    "chat_template_kwargs", "continue_final_message", "documents",
)  # fmt: skip


def refuse_unsupported(fields: dict[str, Any]) -> None:
    """Raises Refusal for the first field that asks for what is not there."""
    for name in fields.keys() & _NEUTRAL.keys():
        neutral = _NEUTRAL[name]
        if fields[name] is not None and fields[name] not in neutral:
            raise not_supported(name, ", ".join(map(_written, neutral)) or "none")
    for name in _ONLY_WITHOUT:
        if name in fields and fields[name] not in _NOTHING:
            raise not_supported(name, "a request without it")


def _written(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return '{"type": "text"}' if isinstance(value, dict) else str(value).replace("'", '"')
