"""A script of its own process: transformers' generate, or its continuous batching, serves prompts.

It needs torch and transformers only, and speaks JSON, one object a line, over stdin and stdout:

    {"do": "start", "settings": {fields of EngineSettings}, "method": "generate" or "generate_batch"}
                                                                 -> {"start_s": seconds, imports included}
    {"do": "serve", "prompts": [[id, …], …], "num_outputs": n}   -> {"seconds": t, "output_ids": [[id, …], …],
        "token_times_s": [[seconds since the start, …], …] or null, "num_cached_tokens": null}
    {"do": "reset"}                                              -> {}
    anything that fails                                          -> {"error": text of one line}

The first line, sent when both are imported, is {"version": text} or {"error": text}.
"""

import json
import os
import sys
import time

_BEGIN = time.perf_counter()

# Warnings and the like are printed; only answers may reach the caller.
_answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
os.dup2(2, 1)


def _answer(content):
    print(json.dumps(content), file=_answers, flush=True)


def _describe(error):
    """One line, however many the message has."""
    return "%s: %s" % (type(error).__name__, " ".join(str(error).split()))


def load(settings):
    """The model on the CPU, in the settings' dtype. Raises what transformers raises."""
    import torch
    from transformers import AutoModelForCausalLM, GenerationConfig
    from transformers.utils import logging

    logging.disable_progress_bar()  # else a bar would be the last thing that an ended process said
    torch.set_num_threads(settings["num_threads"])
    model = AutoModelForCausalLM.from_pretrained(
        settings["model_folder"],
        dtype=getattr(torch, settings["dtype"]),
        attn_implementation="sdpa",
        local_files_only=True,
    ).eval()
    # Fields that we leave out are filled in from here: a checkpoint's own would bring sampling and a token that ends
    # a text. Asking for as many new tokens at least would forbid that token instead, which changes the output; the
    # other engines let it come and go on.
    model.generation_config = GenerationConfig()
    model.config.eos_token_id = None
    return model


class Generate:
    """One prompt after another."""

    def __init__(self, model, settings):
        self._model = model

    def serve(self, prompts, num_outputs):
        """(seconds, output ids by prompt, None)."""
        import torch
        from transformers import GenerationConfig

        config = GenerationConfig(do_sample=False, max_new_tokens=num_outputs, use_cache=True)
        output_ids = []
        begin = time.perf_counter()
        for prompt in prompts:
            input_ids = torch.tensor([prompt])  # [1, tokens]
            whole = self._model.generate(
                input_ids=input_ids, attention_mask=torch.ones_like(input_ids), generation_config=config
            )
            output_ids.append(whole[0, len(prompt) :].tolist())
        return time.perf_counter() - begin, output_ids, None


class GenerateBatch:
    """All prompts together: transformers' continuous batching."""

    def __init__(self, model, settings):
        self._model, self._settings = model, settings

    def serve(self, prompts, num_outputs):
        """(seconds, output ids by prompt, seconds of each token by prompt).

        Its clock stops at the last token, not when the call returns: ending the thread that generates, and collecting
        garbage, take half a second that no token waits for.
        """
        from transformers import GenerationConfig

        begin = time.perf_counter()
        results = self._model.generate_batch(
            inputs=prompts,
            generation_config=GenerationConfig(do_sample=False, max_new_tokens=num_outputs),
            continuous_batching_config=self._batching(prompts, num_outputs),
            record_timestamps=True,
        )
        seconds = time.perf_counter() - begin
        results = list(results.values())  # in the order of the prompts; those that went missing are left out
        for result in results:
            if result.error is not None:
                raise RuntimeError(result.error)
        if len(results) != len(prompts):
            raise RuntimeError("generate_batch returned %d results for %d prompts" % (len(results), len(prompts)))
        times = [[at - begin for at in result.timestamps] for result in results]
        # A request whose blocks were taken away starts anew and forgets when its first tokens came.
        seconds = max((of_request[-1] for of_request in times if of_request), default=seconds)
        complete = all(len(of_request) == num_outputs for of_request in times)
        return seconds, [list(result.generated_tokens) for result in results], times if complete else None

    def _batching(self, prompts, num_outputs):
        """The settings' pool and step, or as much of them as these prompts can use.

        Each call makes its pool anew, writes zeros into all of it, and allocates a mask of a step's tokens times the
        pool's: time and memory that a call pays for even if it uses little of them.
        """
        from transformers import ContinuousBatchingConfig

        size = self._settings["block_size"]
        needed = sum(-(-(len(prompt) + num_outputs) // size) for prompt in prompts)  # blocks, none shared
        roomy = needed * 5 // 4 + 2  # no request is begun while less than 15 % of the blocks are free
        return ContinuousBatchingConfig(
            page_size=size,  # tokens
            num_blocks=min(self._settings["num_blocks"], roomy),
            max_batch_tokens=min(self._settings["max_num_batched_tokens"], sum(map(len, prompts))),
            max_requests_per_batch=self._settings["max_num_seqs"],
            allow_block_sharing=self._settings["enable_prefix_caching"],
            auto_switch_to_flash=False,  # a GPU's kernels
        )


METHODS = {"generate": Generate, "generate_batch": GenerateBatch}


def serve(method, prompts, num_outputs):
    """The answer to "serve". Raises RuntimeError when a prompt did not get its tokens."""
    import torch

    with torch.inference_mode():
        seconds, output_ids, token_times_s = method.serve(prompts, num_outputs)
    if any(len(ids) != num_outputs for ids in output_ids):
        raise RuntimeError("transformers did not return %d tokens for each prompt" % num_outputs)
    return {
        "seconds": seconds,
        "output_ids": output_ids,
        "token_times_s": token_times_s,
        "num_cached_tokens": None,
    }


def main():
    """Answer line by line until the input ends."""
    try:
        import torch  # noqa: F401
        import transformers
        from transformers import AutoModelForCausalLM, GenerationConfig  # noqa: F401  (parts are imported when named)
    except Exception as error:
        _answer({"error": _describe(error)})
        return
    import_s = time.perf_counter() - _BEGIN
    _answer({"version": transformers.__version__})

    method = None
    for line in sys.stdin:
        try:
            question = json.loads(line)
            if question["do"] == "start":
                begin = time.perf_counter()  # the wait for this question is not the engine's
                settings = question["settings"]
                method = METHODS[question["method"]](load(settings), settings)
                _answer({"start_s": import_s + time.perf_counter() - begin})
            elif question["do"] == "serve":
                _answer(serve(method, question["prompts"], question["num_outputs"]))
            else:
                _answer({})  # nothing is kept between two calls
        except Exception as error:
            _answer({"error": _describe(error)})


if __name__ == "__main__":
    main()
