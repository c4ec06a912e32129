"""Run by a Python that has vLLM: times vLLM's own KVCacheManager on prompts, one request at a time.

It stands alone (nothing of ours is installed there) and speaks JSON, one object a line, over stdin and stdout:

    {"do": "load", "prompts": [[id, …], …]}                              -> {}
    {"do": "run", "algorithm": a, "block_size": n, "num_blocks": m}      -> {"seconds": t, "hits": tokens}
    anything that fails                                                  -> {"error": text}

The first line, sent when vLLM is imported, is {"version": text} or {"error": text}.
"""

import json
import os
import sys
import time

# vLLM prints while it is imported; only answers may reach the caller.
_answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
os.dup2(2, 1)


def _answer(content):
    print(json.dumps(content), file=_answers, flush=True)


def main():
    """Answer line by line until the input ends."""
    try:
        import torch
        import vllm
        from vllm.sampling_params import SamplingParams
        from vllm.utils.hashing import get_hash_fn_by_name
        from vllm.v1.core import kv_cache_utils
        from vllm.v1.core.kv_cache_manager import KVCacheManager
        from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
        from vllm.v1.request import Request
    except Exception as error:
        _answer({"error": "%s: %s" % (type(error).__name__, error)})
        return
    _answer({"version": vllm.__version__})

    prompts = []

    def run(question):
        size, num_blocks = question["block_size"], question["num_blocks"]
        hash_function = get_hash_fn_by_name(question["algorithm"])
        kv_cache_utils.init_none_hash(hash_function)
        hasher = kv_cache_utils.get_request_block_hasher(size, hash_function)
        spec = FullAttentionSpec(block_size=size, num_kv_heads=1, head_size=1, dtype=torch.float32)
        groups = [KVCacheGroupSpec(["layer"], spec)]
        config = KVCacheConfig(num_blocks=num_blocks, kv_cache_tensors=[], kv_cache_groups=groups)
        longest = max(map(len, prompts)) + 1
        manager = KVCacheManager(config, longest, size, size, enable_caching=True, log_stats=True)
        params = SamplingParams(max_tokens=1)
        hits = 0
        begin = time.perf_counter()
        for number, prompt in enumerate(prompts):
            request = Request(
                request_id=str(number),
                prompt_token_ids=prompt,
                sampling_params=params,
                pooling_params=None,
                block_hasher=hasher,
            )
            found = manager.get_computed_blocks(request)
            blocks, num_cached = found[0], found[1]
            if manager.allocate_slots(request, request.num_tokens - num_cached, num_cached, blocks) is None:
                raise MemoryError("the pool is too small for a prompt")
            hits += num_cached
            request.num_computed_tokens = request.num_tokens
            manager.free(request)
        return {"seconds": time.perf_counter() - begin, "hits": hits}

    for line in sys.stdin:
        try:
            question = json.loads(line)
            if question["do"] == "load":
                prompts[:] = question["prompts"]
                _answer({})
            else:
                _answer(run(question))
        except Exception as error:
            _answer({"error": "%s: %s" % (type(error).__name__, error)})


if __name__ == "__main__":
    main()
