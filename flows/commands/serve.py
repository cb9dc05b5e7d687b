"""`trajsmith serve`: a vLLM server in the foreground, ended whole with Ctrl-C."""

from __future__ import annotations

import signal
import threading
from typing import Annotated

import typer

from flows.commands.common import StatusLines


def serve(
    model: Annotated[str, typer.Argument(help="A model directory or a known name (smollm2).")],
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 = any free port.")] = 8000,
    name: Annotated[str, typer.Option(help="Model name in requests.")] = "policy",
    max_model_len: Annotated[int, typer.Option(min=1, help="Longest prompt plus completion, tokens.")] = 2048,
    max_num_seqs: Annotated[int, typer.Option(min=1, help="Sequences decoded together.")] = 32,
    kv_cache_gib: Annotated[
        int, typer.Option(min=1, help="GiB of prompts it remembers, where there is no GPU.")
    ] = 1,
    start_seconds: Annotated[float, typer.Option(min=1.0, help="Seconds it has until it answers.")] = 300.0,
    lora: Annotated[bool, typer.Option(help="Let adapters be pushed.")] = False,
) -> None:
    """Serve a model on 127.0.0.1 until Ctrl-C."""
    from flows.stages.policy import starting_lines
    from pipeline.server import ModelServer, ServerSettings
    from rl.models import resolve_model

    say = StatusLines()
    told = starting_lines(say)
    settings = ServerSettings(
        served_name=name,
        port=port,
        max_model_len=max_model_len,
        max_num_seqs=max_num_seqs,
        kv_cache_gib=kv_cache_gib,
        start_seconds=start_seconds,
        lora=lora,
    )
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())

    def progress(waited: float, line: str) -> None:
        if stop.is_set():
            raise typer.Exit
        told(waited, line)

    server = ModelServer(resolve_model(model), settings=settings)
    try:
        server.start(progress)
        say(f"{model} is served as {name!r} at {server.url}; log: {server.log_path}; Ctrl-C ends it")
        while not stop.wait(1.0):
            server.check_running()
    finally:
        server.stop()
