"""Run by a Python that has vLLM: times vLLM's own `hash_block_tokens` when told to.

It stands alone (nothing of ours is installed there) and speaks JSON, one object a line, over stdin and stdout:

    {"do": "load", "blocks": [[id, …], …]}          -> {}
    {"do": "names", "algorithm": a, "seed": s}      -> {"names": [hexadecimal, …]}   the seed stands for PYTHONHASHSEED
    {"do": "time", "algorithm": a, "seed": s, "repeats": n}    -> {"seconds": t}     of one round, over n
    anything that fails                             -> {"error": text}

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
        import vllm
        from vllm.utils.hashing import get_hash_fn_by_name
        from vllm.v1.core import kv_cache_utils
    except Exception as error:
        _answer({"error": "%s: %s" % (type(error).__name__, error)})
        return
    _answer({"version": vllm.__version__})

    blocks = []

    def start(request):
        hash_function = get_hash_fn_by_name(request["algorithm"])
        os.environ["PYTHONHASHSEED"] = request["seed"]
        kv_cache_utils.init_none_hash(hash_function)
        return hash_function

    def names(request):
        hash_function, parent, found = start(request), None, []
        for block in blocks:
            parent = kv_cache_utils.hash_block_tokens(hash_function, parent, block, None)
            found.append(parent.hex())
        return {"names": found}

    def seconds(request):
        hash_function = start(request)
        hash_block_tokens, repeats = kv_cache_utils.hash_block_tokens, range(request["repeats"])
        begin = time.perf_counter()
        for _ in repeats:
            parent = None
            for block in blocks:
                parent = hash_block_tokens(hash_function, parent, block, None)
        return {"seconds": (time.perf_counter() - begin) / len(repeats)}

    for line in sys.stdin:
        try:
            request = json.loads(line)
            if request["do"] == "load":
                blocks[:] = request["blocks"]
                _answer({})
            else:
                _answer({"names": names, "time": seconds}[request["do"]](request))
        except Exception as error:
            _answer({"error": "%s: %s" % (type(error).__name__, error)})


if __name__ == "__main__":
    main()
