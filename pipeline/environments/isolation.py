"""One call of a blocking tool in a process of its own, so that a missed deadline can end it for real.

Decides: a fresh interpreter per call, ended with its whole process group at the deadline, which counts from
the moment the function is imported: how long that takes is the machine's doing, not the agent's. Function and
arguments travel by pickle, so the function must be importable. Not covered: this is no sandbox (same user,
same files, same network), and an isolated tool cannot change the session's state.

This file is also the child's script, so at the top it imports nothing but the standard library.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import os
import pickle
import signal
import sys
from collections.abc import Callable
from typing import Any

START_SECONDS = 120.0
"""How long interpreter and import may take."""
_IMPORTED = b"\0"


class IsolatedTimeout(Exception):
    """The child was ended at its deadline."""


async def call_isolated(
    function: Callable[..., Any], arguments: dict[str, Any], *, timeout_seconds: float
) -> Any:
    """The function's result. Raises what it raised, IsolatedTimeout, or EnvironmentFailure on a crash."""
    from pipeline.errors import EnvironmentFailure

    where = (function.__module__, function.__qualname__)
    request = json.dumps([sys.path, *where]).encode() + b"\n" + pickle.dumps(arguments)
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        __file__,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    assert child.stdout is not None and child.stderr is not None
    saying = asyncio.create_task(child.stderr.read())  # from the start: a full pipe would stop the child
    try:
        if not await _imported(child, request):
            raise EnvironmentFailure(
                f"{'.'.join(where)} was not imported in {START_SECONDS:g} s; its module must import quickly, "
                "and the machine must not be overloaded"
            )
        async with asyncio.timeout(timeout_seconds):
            output, errors = await child.stdout.read(), await saying
    except TimeoutError as error:
        raise IsolatedTimeout from error
    finally:
        saying.cancel()
        await _end(child)
    if not output:
        raise EnvironmentFailure(
            f"{'.'.join(where)} died with exit code {child.returncode}: {errors[-300:]!r}"
        )
    raised, value = pickle.loads(output)
    if raised:
        raise value
    return value


async def _imported(child: asyncio.subprocess.Process, request: bytes) -> bool:
    """Hand the request over; whether the child said in time that it has imported the function, or died."""
    assert child.stdin is not None and child.stdout is not None
    try:
        async with asyncio.timeout(START_SECONDS):
            with contextlib.suppress(ConnectionError):
                child.stdin.write(request)
                await child.stdin.drain()
            child.stdin.close()
            await child.stdout.read(len(_IMPORTED))
    except TimeoutError:
        return False
    return True


async def _end(child: asyncio.subprocess.Process) -> None:
    """End the child and everything it started; its group id is its own, because it leads a new session."""
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    finally:
        await child.wait()


def _serve() -> None:
    """The child's side: one request on standard input, one pickled answer on the original standard output."""
    answer = os.dup(1)
    os.dup2(2, 1)  # what the tool prints must not mix with the answer
    header, _, body = sys.stdin.buffer.read().partition(b"\n")
    sys.path[:], module, qualname = json.loads(header)
    function: Any = importlib.import_module(module)
    for name in qualname.split("."):
        function = getattr(function, name)
    arguments = pickle.loads(body)
    os.write(answer, _IMPORTED)
    try:
        outcome = (False, function(**arguments))
        data = pickle.dumps(outcome)
    except Exception as error:
        data = _pickled_error(error)
    with os.fdopen(answer, "wb") as stream:
        stream.write(data)


def _pickled_error(error: Exception) -> bytes:
    """The exception as it is where it survives pickling, its text in a RuntimeError where not."""
    try:
        data = pickle.dumps((True, error))
        pickle.loads(data)
    except Exception:
        return pickle.dumps((True, RuntimeError(f"{type(error).__name__}: {error}")))
    return data


if __name__ == "__main__":
    _serve()
