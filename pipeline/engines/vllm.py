"""The engine that asks vLLM servers: token ids in and out over `/v1/completions`, weights pushed by path.

Every answer is checked before it is believed: the prompt came back unchanged, as many finite
log-probs as tokens, a known finish reason. All sampling fields are sent, so no default of the server
or the model's files changes the distribution. Weight updates wait for running requests and hold new
ones back, so a completion is of one version. Not covered: starting servers (`pipeline.server`).
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from pipeline.engines.base import Completion, FinishReason, Sampling
from pipeline.errors import ConfigError, EngineError, EngineProtocolError
from pipeline.http import HttpPolicy, HttpPool, Server

_PROBE_IDS = [11, 23, 5, 17, 42, 31, 7, 29]
_NEUTRAL = {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
_RESET_SECONDS = 60.0
_UNBOUNDED = 2**31
_LARGEST_ID = 2**31 - 1


@dataclass(frozen=True, slots=True)
class ServedModel:
    """What a server says of a model."""

    longest: int
    """Tokens of prompt and completion; 0 where it does not say."""
    is_vllm: bool


class VllmEngine:
    """One model behind one or many vLLM servers."""

    def __init__(
        self,
        urls: Sequence[str],
        *,
        model: str,
        name: str = "",
        weights_version: str = "",
        api_key: str = "",
        policy: HttpPolicy | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """`model` is the served name, `name` what results show; `urls` without `/v1`.

        `api_key` is sent as a bearer token with every request.
        """
        self.model, self.name = model, name or model
        self.weights_version = weights_version
        self.updatable = False
        """Whether `check` found vLLM everywhere; only its weights can be asked for and replaced."""
        self.urls, self._policy, self._transport, self._api_key = tuple(urls), policy, transport, api_key
        headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        self.pool = HttpPool(urls, policy=policy, headers=headers, transport=transport)
        self._running, self._updating = 0, False
        self._changed: asyncio.Condition | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def twin(self) -> VllmEngine:
        """Another engine on the same servers, with connections of its own: for use in another event loop."""
        return VllmEngine(
            self.urls,
            model=self.model,
            name=self.name,
            weights_version=self.weights_version,
            api_key=self._api_key,
            policy=self._policy,
            transport=self._transport,
        )

    async def generate(
        self,
        token_ids: list[int],
        sampling: Sampling,
        *,
        n: int = 1,
        affinity: str = "",
        server: Server | None = None,
    ) -> list[Completion]:
        """See `Engine.generate`; `server` is one of the pool's, asked and no other."""
        body = self._body(token_ids, sampling, n)
        async with self._request():
            version = self.weights_version

            def read(answer: Any) -> list[Completion]:
                return read_completions(answer, token_ids, n=n, weights_version=version)

            return await self.pool.request(
                "/v1/completions", body, affinity=affinity, validate=read, server=server
            )

    async def score(self, token_ids: list[int], *, server: Server | None = None) -> list[float]:
        """See `Engine.score`; at temperature 1. `server` as in `generate`."""
        if len(token_ids) < 2:
            return []
        body = self._body(token_ids, Sampling(temperature=0.0, max_tokens=1), 1) | {"prompt_logprobs": 0}
        async with self._request():
            return await self.pool.request(
                "/v1/completions",
                body,
                validate=lambda answer: read_prompt_logprobs(answer, token_ids),
                server=server,
            )

    async def served_models(self) -> list[dict[str, ServedModel]]:
        """What every server serves, by name. ConfigError where one does not list its models."""
        answers: list[Any] = await self.pool.broadcast("/v1/models", method="GET")
        return [
            self._read_models(server, answer)
            for server, answer in zip(self.pool.servers, answers, strict=True)
        ]

    async def check(self) -> int:
        """The longest sequence every server takes, after making sure that each is what we need.

        Raises ConfigError where a server has another model, or returns log-probs from before temperature.
        """
        served = []
        for server, models in zip(self.pool.servers, await self.served_models(), strict=True):
            if self.model not in models:
                names = self.pool.shown(sorted(models))
                raise ConfigError(
                    f"the server {server.url} has the models {names}, not {self.model!r}; "
                    "correct the name or the URL"
                )
            served.append(models[self.model])
        self.updatable = all(model.is_vllm for model in served)
        await asyncio.gather(*map(self._check_logprobs, self.pool.servers))
        return min(model.longest or _UNBOUNDED for model in served)

    async def reload_weights(self, directory: Path) -> str:
        """Load the checkpoint in `directory` on every server; its digest, now also `weights_version`.

        The directory must be readable by the servers. Raises EngineError where servers disagree.
        """
        async with self._update():
            body = {"method": "trajsmith_load", "args": [str(Path(directory).resolve())]}
            digest = _one_digest(await self.pool.broadcast("/collective_rpc", body, validate=read_digests))
            await self._reset_prefix_cache()
            self.weights_version = digest
        return digest

    async def load_adapter(self, directory: Path, *, name: str = "adapter", version: str) -> None:
        """Serve the LoRA adapter in `directory` from now on, in place of one of that `name`."""
        async with self._update():
            body = {"lora_name": name, "lora_path": str(Path(directory).resolve()), "load_inplace": True}
            await self.pool.broadcast("/v1/load_lora_adapter", body)
            await self._reset_prefix_cache()
            self.model, self.weights_version = name, version

    async def served_weights_digest(self) -> str:
        """Digest of the base weights the servers loaded last, taken while they were loaded."""
        digests = await self._digests("trajsmith_digest")
        if not all(all(each) for each in digests):
            digests = await self._digests("trajsmith_load")
        return _one_digest(digests)

    async def close(self) -> None:
        """Release connections."""
        await self.pool.close()

    def _read_models(self, server: Server, answer: Any) -> dict[str, ServedModel]:
        entries = answer.get("data") if isinstance(answer, dict) else None
        if not isinstance(entries, list) or not all(map(_is_model, entries)):
            raise ConfigError(
                f"{server.url}/v1/models answered {self.pool.shown(answer)}, which lists no models; correct "
                "the URL (what stands before /v1 of a server of OpenAI's API)"
            )
        return {
            entry["id"]: ServedModel(entry.get("max_model_len") or 0, entry.get("owned_by") == "vllm")
            for entry in entries
        }

    async def _check_logprobs(self, server: Server) -> None:
        sampling = Sampling(temperature=0.05, max_tokens=1, seed=0)
        sampled = (await self.generate(_PROBE_IDS, sampling, server=server))[0]
        scored = (await self.score([*_PROBE_IDS, sampled.token_ids[0]], server=server))[-1]
        # At temperature 0.05 the top token is nearly certain; a log-prob as at temperature 1 is a raw one.
        if scored < -0.2 and abs(sampled.logprobs[0] - scored) < 0.5 * abs(scored):
            raise ConfigError(
                f"the server {server.url} of {self.model!r} returns log-probs from before temperature "
                f"({sampled.logprobs[0]:.3f} at temperature 0.05, {scored:.3f} at 1); "
                f"start it with --logprobs-mode processed_logprobs"
            )

    def _body(self, token_ids: list[int], sampling: Sampling, n: int) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self.model,
            "prompt": token_ids,
            "n": n,
            "max_tokens": sampling.max_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "min_p": sampling.min_p,
            "logprobs": 0,
            "return_token_ids": True,
            "skip_special_tokens": False,
            **_NEUTRAL,
        }
        if sampling.seed is not None:
            body["seed"] = sampling.seed
        if sampling.stop_token_ids:
            body["stop_token_ids"] = list(sampling.stop_token_ids)
        if sampling.stop:
            body |= {"stop": list(sampling.stop), "include_stop_str_in_output": True}
        return body

    async def _digests(self, method: str) -> list[list[str]]:
        return await self.pool.broadcast("/collective_rpc", {"method": method}, validate=read_digests)

    def _condition(self) -> asyncio.Condition:
        loop = asyncio.get_running_loop()
        if self._changed is None or self._loop is not loop:
            self._changed, self._loop = asyncio.Condition(), loop
            self._running, self._updating = 0, False
        return self._changed

    @contextlib.asynccontextmanager
    async def _request(self) -> AsyncIterator[None]:
        condition = self._condition()
        async with condition:
            await condition.wait_for(lambda: not self._updating)
            self._running += 1
        try:
            yield
        finally:
            self._running -= 1
            if self._updating:
                async with condition:
                    condition.notify_all()

    @contextlib.asynccontextmanager
    async def _update(self) -> AsyncIterator[None]:
        condition = self._condition()
        async with condition:
            await condition.wait_for(lambda: not self._updating)
            self._updating = True
        try:
            async with condition:
                await condition.wait_for(lambda: self._running == 0)
            yield
        finally:
            async with condition:
                self._updating = False
                condition.notify_all()

    async def _reset_prefix_cache(self) -> None:
        """Forget the old weights' cache; the server refuses while aborted requests still hold blocks."""
        deadline = time.monotonic() + _RESET_SECONDS
        while True:
            answers: list[Any] = await self.pool.broadcast("/reset_prefix_cache")
            if all(isinstance(answer, dict) and answer.get("success") for answer in answers):
                return
            if time.monotonic() >= deadline:
                raise EngineError(
                    f"the server did not empty its prefix cache in {_RESET_SECONDS:g} s, so old weights "
                    "could answer; restart it"
                )
            await asyncio.sleep(0.1)


def read_completions(
    answer: Any, prompt: list[int], *, n: int, weights_version: str = ""
) -> list[Completion]:
    """The completions in an answer, in sample order. EngineProtocolError where it cannot be trusted."""
    choices = answer.get("choices") if isinstance(answer, dict) else None
    if not isinstance(choices, list) or len(choices) != n:
        found = len(choices) if isinstance(choices, list) else f"{answer!r:.120}"
        raise EngineProtocolError(f"expected {n} choices, got {found}")
    try:
        ordered = sorted(choices, key=lambda choice: int(choice["index"]))
        return [_read_choice(choice, prompt, weights_version) for choice in ordered]
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
        raise EngineProtocolError(f"malformed choice ({error!r}): {choices!r:.300}") from error


def _read_choice(choice: dict[str, Any], prompt: list[int], weights_version: str) -> Completion:
    if choice.get("token_ids") is None:
        raise EngineProtocolError("no token ids in the answer; the server must support return_token_ids")
    if choice.get("prompt_token_ids") not in (None, prompt):
        raise EngineProtocolError("the server changed the prompt's token ids (it must add no special tokens)")
    token_ids = tuple(choice["token_ids"])
    if not set(map(type, token_ids)) <= {int} or min(token_ids, default=0) < 0:
        raise EngineProtocolError(f"token ids must be whole numbers from 0 on, got {token_ids!r:.200}")
    if max(token_ids, default=0) > _LARGEST_ID:
        raise EngineProtocolError(f"no vocabulary has the token id {max(token_ids)!r:.40}")
    logprobs = tuple(_numbers(choice["logprobs"]["token_logprobs"]))
    if len(token_ids) != len(logprobs) or not token_ids:
        raise EngineProtocolError(f"{len(token_ids)} tokens but {len(logprobs)} log-probs in one completion")
    if not all(math.isfinite(value) and value <= 1e-4 for value in logprobs):
        raise EngineProtocolError(f"log-probs must be finite and not positive, got {logprobs!r:.200}")
    reason = choice["finish_reason"]
    if reason not in tuple(FinishReason):
        raise EngineProtocolError(f"unknown finish reason {reason!r}, expected {[*map(str, FinishReason)]}")
    return Completion(token_ids, logprobs, FinishReason(reason), weights_version)


def read_prompt_logprobs(answer: Any, token_ids: list[int]) -> list[float]:
    """Log-prob of each prompt token but the first. EngineProtocolError where any is missing or not finite."""
    try:
        positions = answer["choices"][0]["prompt_logprobs"]
        if len(positions) != len(token_ids):
            raise EngineProtocolError(f"{len(positions)} prompt log-probs for {len(token_ids)} tokens")
        pairs = zip(positions[1:], token_ids[1:], strict=True)
        values = _numbers([position[str(token)]["logprob"] for position, token in pairs])
    except (AttributeError, KeyError, IndexError, OverflowError, TypeError, ValueError) as error:
        raise EngineProtocolError(f"malformed prompt log-probs ({error!r}): {answer!r:.300}") from error
    if not all(math.isfinite(value) for value in values):
        raise EngineProtocolError("a prompt log-prob is not finite")
    return values


def _numbers(values: list[Any]) -> list[float]:
    """TypeError where one is text or a truth value, which float() would take."""
    if not set(map(type, values)) <= {float, int}:
        raise TypeError("log-probs must be numbers")
    return [float(value) for value in values]


def read_digests(answer: Any) -> list[str]:
    """The weights digest of each worker of a server. EngineProtocolError where it gives none."""
    try:
        digests = [result["digest"] for result in answer["results"]]
    except (KeyError, TypeError) as error:
        raise EngineProtocolError(f"the server's worker extension did not answer: {answer!r:.300}") from error
    if not digests or not all(isinstance(digest, str) for digest in digests):
        raise EngineProtocolError(f"the server's workers gave no digest of their weights: {answer!r:.300}")
    return digests


def _is_model(entry: Any) -> bool:
    """Whether an entry of `/v1/models` can be read."""
    if not isinstance(entry, dict) or not isinstance(entry.get("id"), str):
        return False
    # Half a surrogate pair is valid JSON, and can be neither printed nor sent back as the model's name.
    if any("\ud800" <= character <= "\udfff" for character in entry["id"]):
        return False
    longest = entry.get("max_model_len")
    return longest is None or (type(longest) is int and longest >= 0)


def _one_digest(digests: Iterable[list[str]]) -> str:
    different = {digest for each in digests for digest in each}
    if len(different) != 1 or "" in different:
        raise EngineError(
            f"the servers do not hold the same weights: digests {sorted(different)}; restart them"
        )
    return different.pop()
