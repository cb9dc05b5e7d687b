"""Programs sent to a server that speaks Sandbox-Fusion's `POST /run_code`: a fleet of machines of their own.

At most `concurrency` requests are out at once. 504 (the gateway gave up), 429, 503, 5xx and lost
connections are asked again after a growing pause; when the tries are used up, or the server says
`SandboxError`, that is an EnvironmentFailure and never an outcome. The protocol has no field for "out of
memory": an exit by SIGKILL, or what the language's runtime prints, is read as that. The key is kept out of
what errors tell, never out of what a program printed. `processes` and `disk_mib` of Limits are the server's
business, and so is everything about isolation. Not covered: arguments (the protocol has none).
"""

from __future__ import annotations

import asyncio
import base64
import json
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx

from pipeline.checks.credentials import blotted, blotted_json, read_variable
from pipeline.errors import ConfigError, EnvironmentFailure
from pipeline.sandbox.base import Execution, Limits, Program
from pipeline.sandbox.toolchains import Language, compile_limits, find_language
from pipeline.sandbox.verdicts import checked, compile_failure, judge
from pipeline.urls import checked_url

_NAMES = {"javascript": "nodejs"}
_KILLED = (-9, 137)
_FOREIGN = (AttributeError, KeyError, OverflowError, TypeError, ValueError)
"""What an answer raises that is none of /run_code."""
_MAX_BODY = 256 << 20


class RemoteSandbox:
    """A client of one server (or of the balancer in front of many)."""

    name = "remote"

    def __init__(
        self,
        *,
        url: str,
        concurrency: int = 32,
        tries: int = 5,
        pause: float = 0.5,
        queue_seconds: float = 60.0,
        api_key_env: str = "",
    ) -> None:
        """`url` without `/run_code`. A request may wait `queue_seconds` beyond its own limits.

        The environment variable `api_key_env` holds what is sent as `Authorization: Bearer`.
        """
        if concurrency < 1 or tries < 1:
            raise ConfigError(
                f"remote sandbox concurrency={concurrency}, tries={tries}; allowed: at least 1 each"
            )
        self._url = checked_url(url, what="remote sandbox").removesuffix("/run_code") + "/run_code"
        self._tries, self._pause, self._queue_seconds = tries, pause, queue_seconds
        limits = httpx.Limits(max_connections=concurrency, max_keepalive_connections=concurrency)
        headers = {"Accept-Encoding": "identity", "Content-Type": "application/json"}
        self._secrets = (read_variable(api_key_env, where="api_key_env"),) if api_key_env else ()
        if self._secrets:
            headers["Authorization"] = f"Bearer {self._secrets[0]}"
        self._client = httpx.Client(limits=limits, trust_env=False, headers=headers)
        self._workers = ThreadPoolExecutor(concurrency, thread_name_prefix="sandbox-remote")

    def describe(self) -> str:
        """Where programs go."""
        return f"{self._url}; memory and time limits are sent along, isolation is the server's"

    async def run(self, program: Program, limits: Limits | None = None) -> Execution:
        """Raises ConfigError (language, file names, arguments, a refused request), EnvironmentFailure."""
        return await asyncio.wrap_future(self._workers.submit(self._run, program, limits or Limits()))

    def _run(self, program: Program, limits: Limits) -> Execution:
        language = find_language(program.language)
        if program.args:
            raise ConfigError(
                f"arguments {program.args!r}; /run_code takes none: use standard input or a file"
            )
        files = checked(program, language, limits)
        building = compile_limits(language, limits)
        payload = {
            "code": program.code,
            "language": _NAMES.get(language.name, language.name),
            "stdin": program.stdin,
            "compile_timeout": building.seconds,
            "run_timeout": limits.seconds,
            "memory_limit_MB": limits.memory_mib,
            "files": {n: base64.b64encode(c).decode() for n, c in files.items() if n != language.file},
            "fetch_files": list(program.collect),
        }
        answer = self._ask(payload, building.seconds + limits.seconds + self._queue_seconds)
        try:
            return _execution(answer, program, language, limits)
        except _FOREIGN as error:
            said = type(error).__name__
        try:  # the error may quote a part of the key: what is told is wrong with an answer that holds none
            _execution(blotted_json(answer, self._secrets), program, language, limits)
        except _FOREIGN as error:
            said = repr(error)
        raise EnvironmentFailure(f"{self._url} answered what /run_code never does: {said}")

    def _ask(self, payload: dict[str, Any], seconds: float) -> dict[str, Any]:
        problem = ""
        for attempt in range(self._tries):
            if attempt:
                time.sleep(self._pause * 2 ** (attempt - 1))
            try:
                status, body = self._post(payload, seconds)
            except httpx.TransportError as error:
                problem = type(error).__name__
                continue
            if status == 200:
                answer = _parsed(body)
                if answer is None:
                    problem = "no JSON object"
                elif answer.get("status") != "SandboxError":
                    return answer  # as it is: a program may print what a key happens to be
                else:
                    problem = f"SandboxError: {blotted(str(answer.get('message')), self._secrets):.300}"
            elif status >= 500 or status == 429:
                problem = f"HTTP {status}"
            else:
                said = blotted(body.decode("utf-8", errors="replace"), self._secrets)
                raise ConfigError(f"{self._url} refused the program with HTTP {status}: {said:.300}")
        raise EnvironmentFailure(f"{self._url} failed in {self._tries} tries; the last one: {problem}")

    def _post(self, payload: dict[str, Any], seconds: float) -> tuple[int, bytes]:
        timeout = httpx.Timeout(30.0, read=seconds, pool=None)
        content = json.dumps(payload).encode()  # ASCII: lone surrogates travel as escapes
        deadline = time.monotonic() + seconds
        with self._client.stream("POST", self._url, content=content, timeout=timeout) as response:
            body = bytearray()
            for chunk in response.iter_raw():  # an answer that is packed nevertheless is no JSON
                body += chunk
                if len(body) > _MAX_BODY:
                    raise EnvironmentFailure(f"{self._url} answered more than {_MAX_BODY:,} bytes")
                if time.monotonic() > deadline:
                    raise httpx.ReadTimeout("the answer trickles")
            return response.status_code, bytes(body)

    async def close(self) -> None:
        """Wait for what is out and close the connections; idempotent."""
        await asyncio.to_thread(self._workers.shutdown, cancel_futures=True)
        self._client.close()


def _parsed(body: bytes) -> dict[str, Any] | None:
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return answer if isinstance(answer, dict) else None


def _execution(answer: dict[str, Any], program: Program, language: Language, limits: Limits) -> Execution:
    compiled = answer.get("compile_result")
    if compiled and compiled["status"] == "Error":
        raise ValueError("status Error: the server could not run the compiler")
    if compiled and (compiled["status"] != "Finished" or compiled.get("return_code")):
        said = f"{compiled.get('stdout') or ''}{compiled.get('stderr') or ''}"[: limits.output_bytes]
        late = compiled["status"] == "TimeLimitExceeded"
        return compile_failure(said, timed_out=late, out_of_memory=compiled.get("return_code") in _KILLED)
    ran = answer["run_result"]
    outputs = [_cut(str(ran.get(name) or ""), limits.output_bytes) for name in ("stdout", "stderr")]
    late = ran["status"] == "TimeLimitExceeded"
    code = None if late else int(ran["return_code"])
    outcome, code = judge(
        program,
        language,
        code=code,
        stdout=outputs[0][0],
        stderr=outputs[1][0],
        timed_out=late,
        out_of_memory=code in _KILLED,
        cut=bool(str(ran.get("stdout") or "").encode(errors="surrogatepass")[limits.output_bytes :].strip()),
    )
    files = {name: base64.b64decode(data) for name, data in (answer.get("files") or {}).items()}
    return Execution(
        outcome,
        stdout=outputs[0][0],
        stderr=outputs[1][0],
        exit_code=code,
        seconds=float(ran.get("execution_time") or 0.0),
        truncated=outputs[0][1] or outputs[1][1],
        files={name: data for name, data in files.items() if name in program.collect},
    )


def _cut(text: str, keep: int) -> tuple[str, bool]:
    data = text.encode("utf-8", errors="surrogatepass")
    return data[:keep].decode("utf-8", errors="replace"), len(data) > keep
