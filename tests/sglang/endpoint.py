"""What SGLang's frontend language gets from a server, as JSON: python tests/sglang/endpoint.py URL PROMPT

It flushes the cache, has the prompt cached, then generates after it, whole and streamed.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import serve  # noqa: E402, F401  its stand-ins

NUM_TOKENS = 4


def main(url: str, prompt: str) -> None:
    import sglang
    from sglang.lang.backend.runtime_endpoint import RuntimeEndpoint

    @sglang.function
    def continued(s):  # SGLang wants this name
        s += prompt
        s += sglang.gen("answer", max_tokens=NUM_TOKENS, temperature=0, ignore_eos=True)

    endpoint = RuntimeEndpoint(url)
    endpoint.flush_cache()
    endpoint.cache_prefix(prompt)
    whole = continued.run(backend=endpoint)
    streamed = continued.run(backend=endpoint, stream=True)
    told = {
        "version": endpoint.get_server_info()["version"],
        "whole": whole["answer"],
        "num_tokens": whole.get_meta_info("answer")["completion_tokens"],
        "streamed": "".join(streamed.text_iter("answer")),
    }
    print(json.dumps(told))


if __name__ == "__main__":
    main(*sys.argv[1:])
