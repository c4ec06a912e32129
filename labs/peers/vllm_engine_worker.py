"""Run by a Python that has vLLM: a whole vLLM engine that serves prompts, and says when each token came.

It stands alone (nothing of ours is installed there) and speaks JSON, one object a line, over stdin and stdout:

    {"do": "start", "settings": {fields of EngineSettings}}              -> {"start_s": seconds, imports included}
    {"do": "serve", "prompts": [[id, …], …], "num_outputs": n}           -> {"seconds": t, "output_ids": [[id, …], …],
        "token_times_s": [[seconds since the first prompt was handed over, …], …], "num_cached_tokens": [tokens, …]}
    {"do": "reset"}                                                      -> {}
    anything that fails                                                  -> {"error": text of one line}

The first line, sent when vLLM is imported, is {"version": text} or {"error": text}.
"""

import json
import os
import sys
import time

_BEGIN = time.perf_counter()

# vLLM prints while it is imported; only answers may reach the caller.
_answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
os.dup2(2, 1)

ENOUGH_BYTES = 2**20


def _answer(content):
    print(json.dumps(content), file=_answers, flush=True)


def _describe(error):
    """One line, however many the message has."""
    return "%s: %s" % (type(error).__name__, " ".join(str(error).split()))


def load(settings):
    """A vLLM of these settings, ready. Raises what vLLM raises."""
    from vllm import LLM

    return LLM(
        model=settings["model_folder"],
        dtype=settings["dtype"],
        enforce_eager=not settings["compile"],
        block_size=settings["block_size"],
        max_model_len=settings["max_model_len"],
        max_num_seqs=settings["max_num_seqs"],
        max_num_batched_tokens=settings["max_num_batched_tokens"],
        enable_prefix_caching=settings["enable_prefix_caching"],
        skip_tokenizer_init=True,  # ids go in and ids come out
        num_gpu_blocks_override=settings["num_blocks"],  # the CPU's blocks too
        # The override alone sizes the pool. Without a size in bytes vLLM would ask for a share of the whole memory
        # first, and refuse to start where that is not free.
        kv_cache_memory_bytes=ENOUGH_BYTES,
    )


class Server:
    """Serves on a loaded vLLM."""

    def __init__(self, llm):
        self._llm, self._engine, self._num_requests = llm, llm.llm_engine, 0

    def serve(self, prompts, num_outputs):
        """The answer to "serve". Raises what vLLM raises; no request is left in it then."""
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        number_of = {str(self._num_requests + number): number for number in range(len(prompts))}
        self._num_requests += len(prompts)  # an id is never used again
        output_ids, token_times_s = [[] for _ in prompts], [[] for _ in prompts]
        num_cached_tokens = [0 for _ in prompts]
        # What is made per request and is no work of the engine is made before the clock starts. Each request has
        # parameters of its own: vLLM may write into them.
        requests = [
            (
                request_id,
                {"prompt_token_ids": prompts[number]},
                SamplingParams(
                    temperature=0.0,
                    max_tokens=num_outputs,
                    ignore_eos=True,
                    detokenize=False,
                    output_kind=RequestOutputKind.DELTA,  # only the new tokens: no list grows with each step
                ),
            )
            for request_id, number in number_of.items()
        ]
        try:
            begin = time.perf_counter()
            for request in requests:
                self._engine.add_request(*request)
            while self._engine.has_unfinished_requests():
                outputs = self._engine.step()
                now = time.perf_counter() - begin
                for output in outputs:
                    number, new_ids = number_of[output.request_id], output.outputs[0].token_ids
                    if not output_ids[number]:
                        num_cached_tokens[number] = output.num_cached_tokens or 0
                    output_ids[number].extend(new_ids)
                    token_times_s[number].extend([now] * len(new_ids))
        except BaseException:
            self._engine.abort_request(list(number_of))
            raise
        if any(len(ids) != num_outputs for ids in output_ids):
            raise RuntimeError("vLLM did not return %d tokens for each prompt" % num_outputs)
        return {
            "seconds": max((times[-1] for times in token_times_s), default=0.0),
            "output_ids": output_ids,
            "token_times_s": token_times_s,
            "num_cached_tokens": num_cached_tokens,
        }

    def reset(self):
        """Empty the prefix cache."""
        if not self._llm.reset_prefix_cache():
            raise RuntimeError("vLLM did not reset its prefix cache")
        return {}


def main():
    """Answer line by line until the input ends."""
    try:
        import vllm
        from vllm import LLM, SamplingParams  # noqa: F401  (vllm imports its parts when they are first named)
    except Exception as error:
        _answer({"error": _describe(error)})
        return
    import_s = time.perf_counter() - _BEGIN
    _answer({"version": vllm.__version__})

    server = None
    for line in sys.stdin:
        try:
            question = json.loads(line)
            if question["do"] == "start":
                begin = time.perf_counter()  # the wait for this question is not vLLM's
                server = Server(load(question["settings"]))
                _answer({"start_s": import_s + time.perf_counter() - begin})
            elif question["do"] == "serve":
                _answer(server.serve(question["prompts"], question["num_outputs"]))
            else:
                _answer(server.reset())
        except Exception as error:
            _answer({"error": _describe(error)})


if __name__ == "__main__":
    main()
