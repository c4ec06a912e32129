"""`labcli probe`: why is a server's hit rate 0 %, or too good? One minute of small prompts, then verdicts with evidence.

    labcli probe http://localhost:8000
    labcli probe https://models.example.org/team-a --model qwen3-8b --prompt-tokens 900
    labcli probe http://localhost:8000 --stress --max-seconds 300 --json > probe.json

It reads, and sends prompts of random tokens that nobody else has; it resets nothing. An API key is taken from the environment
variable LABCLI_API_KEY. --json gives one object of these keys:

    schema      1
    server      address, title, kind, version, is_labcli, model, num_models, max_model_len, unit_size, is_caching, pool_tokens,
                has_drafter, has_counters, has_reset, has_tokenizer, num_engines; null where the server does not tell
    verdicts    worst first: name, state (fault, expected, cannot tell, fine), confidence (certain, strong, weak), finding,
                evidence (lines), next_step
    own_rate    of this probe's exact repeats: num_repeats, num_tokens, num_cached, rate, expected, unit, has_drafter, law
    requests    purpose, prompt (its number), turn, length, matched, cached, usage_cached, counted, salt, seconds
    sent        num_requests, seconds, form (ids, words, text, chat, unknown), num_failed, num_turned_away (requests that a busy
                server refused and got again), stopped (the limit that was met, "interrupted", or null), left_out (questions that
                were not asked, or not to their end, for that limit)

Neither prompts nor token ids, salts or keys are in it.
"""

from __future__ import annotations

from typing import Annotated, Optional

import typer

_MAX_SECONDS = 60.0


def probe(
    url: Annotated[str, typer.Argument(metavar="URL", help="The server, or the gateway in front of it: http://HOST:PORT.")],
    json_: Annotated[bool, typer.Option("--json", help="Print verdicts, evidence and requests as JSON on stdout.")] = False,
    stress: Annotated[
        bool, typer.Option("--stress", help="Also fill the cache until a prompt is lost: disturbs other users.")
    ] = False,
    prompt_tokens: Annotated[
        Optional[int], typer.Option(help="Tokens of your own prompts: can they hit at all?", show_default=False)
    ] = None,
    model: Annotated[Optional[str], typer.Option(help="The model's name there. [default: the first it lists]")] = None,
    max_seconds: Annotated[float, typer.Option(help="The probe ends after so long, with what it has seen.")] = _MAX_SECONDS,
    max_requests: Annotated[
        Optional[int], typer.Option(help="Most requests that compute tokens. [default: 300, with --stress 2000]")
    ] = None,
) -> int:
    """Say what keeps a server's prefix cache from being used, with evidence and the next step.

    It sends 60 to 120 small requests of random tokens that nobody else has, and resets nothing. A key is read from LABCLI_API_KEY.

    Each verdict is a fault, expected (looks wrong and is not), fine, or cannot tell; certain where the server itself says so,
    strong where it was measured, weak where another cause is possible.

    --json: schema, server, verdicts (name, state, confidence, finding, evidence, next_step), own_rate, requests and sent.

    Exit codes: 0 no fault was found, 1 a fault was found or nothing usable answers, 2 bad usage, 130 Ctrl-C, after verdicts over
    what was seen until then.
    """
    import time

    from labcli.fault import Interrupted, UsageFault
    from labcli.progress_bar import ProgressBar
    from labcli.render.probe_report import print_report, write_report_json
    from labcli.server_options import read_api_key
    from labs.probe.budget import MAX_REQUESTS, STRESS_REQUESTS, ProbeLimits
    from labs.probe.judgement import judge
    from labs.probe.probe_run import INTERRUPTED, ProbeSettings
    from labs.probe.probe_run import probe as run_probe
    from labs.servers.server_address import ServerAddress
    from labs.servers.server_client import SendLimits, ServerClient

    address = ServerAddress.of(url)
    most = max_requests if max_requests is not None else STRESS_REQUESTS if stress else MAX_REQUESTS
    for option, value, low, high in (("--max-seconds", max_seconds, 1, 86_400), ("--max-requests", most, 1, 1_000_000),
                                     ("--prompt-tokens", prompt_tokens, 1, 10_000_000)):  # fmt: skip
        if value is not None and not low <= value <= high:
            raise UsageFault(f"{option} is {value}", f"a number from {low} to {high}")
    key, begin_s = read_api_key(), time.monotonic()
    settings = ProbeSettings(model, prompt_tokens, stress, ProbeLimits(max_seconds, most))

    def connect() -> ServerClient:
        left_s = max(1.0, begin_s + max_seconds - time.monotonic())  # of the probe: a late connection has little
        return ServerClient(address, api_key=key, limits=SendLimits(min(120.0, left_s), most, left_s))

    with ProgressBar() as bar:
        seen = run_probe(connect, settings, lambda label: bar.advance(label, 1))
    verdicts = judge(seen)
    if json_:
        write_report_json(address.shown, seen, verdicts)
    else:
        print_report(address.shown, seen, verdicts)
    if seen.stopped == INTERRUPTED:
        raise Interrupted("interrupted; the verdicts are over what was seen until then")
    return 1 if any(verdict.is_fault for verdict in verdicts) or not seen.sent else 0
