"""A user's server acts with the model that was named: wrong weights are replaced."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from flows.stages.policy import _server, open_policy
from flows.stages.recipe import PolicySection
from pipeline.environments.registry import load_environment
from pipeline.errors import ConfigError
from pipeline.rollout import ContextPolicy, Mode, RolloutSettings
from tests.flows.test_bad_input import vllm_like
from tests.serving import Received, Reply, ScriptedServer


class Served:
    """A scripted vLLM that holds weights; `digest_of` says which a directory has."""

    def __init__(self, holds: str, digest_of: dict[Path, str], *, tells: bool = True) -> None:
        self.holds, self.tells = holds, tells
        self.digest_of = {str(path.resolve()): digest for path, digest in digest_of.items()}

    def __call__(self, received: Received) -> Reply:
        if received.path == "/v1/models":
            return Reply({"data": [{"id": "policy", "max_model_len": 2048, "owned_by": "vllm"}]})
        if received.path == "/reset_prefix_cache":
            return Reply({"success": True})
        if received.path != "/collective_rpc":
            return vllm_like(received)
        if not self.tells:
            return Reply({"detail": "Not Found"}, status=404)
        for path in received.body.get("args", ()):
            self.holds = self.digest_of[path]
        return Reply({"results": [{"digest": self.holds, "path": ""}]})


@pytest.mark.parametrize(
    ("holds", "tells", "acts", "pushed"),
    [("base", True, "sft", True), ("sft", True, "sft", False), ("base", False, "policy", False)],
)
def test_weights_of_a_users_server(
    holds: str, tells: bool, acts: str, pushed: bool, tokenizer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rl.models.checkpoint_digest", lambda directory: "sft")
    model = Served(holds, {tokenizer: "sft"}, tells=tells)

    async def version(url: str) -> str:
        section = PolicySection(model=str(tokenizer), url=url)
        async with open_policy(section, model_dir=tokenizer, label="small") as policy:
            return policy.engine.weights_version

    with ScriptedServer(model) as server:
        assert asyncio.run(version(server.url)) == acts
        loads = [one for one in server.received if (one.body or {}).get("method") == "trajsmith_load"]
    assert bool(loads) is pushed


def test_every_request_to_a_users_server_brings_its_key(
    tokenizer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rl.models.checkpoint_digest", lambda directory: "sft")
    monkeypatch.setenv("FLEET_KEY", "fleet-4711")

    async def opened(url: str, variable: str) -> None:
        section = PolicySection(model=str(tokenizer), url=url, api_key_env=variable)
        async with open_policy(section, model_dir=tokenizer, label="s") as policy:
            twin = policy.engine.twin()  # type: ignore[attr-defined]
            await twin.check()
            await twin.close()

    with ScriptedServer(Served("base", {tokenizer: "sft"})) as server:
        asyncio.run(opened(server.url, "FLEET_KEY"))
        assert {one.headers.get("authorization") for one in server.received} == {"Bearer fleet-4711"}
        with pytest.raises(
            ConfigError, match=r"policy.api_key_env: the environment variable ABSENT is not set"
        ):
            asyncio.run(opened(server.url, "ABSENT"))


def test_the_recipe_sets_how_a_rollout_runs(tokenizer: Path) -> None:
    section = PolicySection(
        engine="scripted",
        model=str(tokenizer),
        context_policy="drop_old_results",
        keep_results=1,
        max_parallel_calls=3,
        group_seconds=40.0,
    )

    async def settings() -> RolloutSettings:
        world = load_environment("counter")
        async with open_policy(section, model_dir=tokenizer, label="small", environment=world) as policy:
            return policy.settings

    found = asyncio.run(settings())
    assert (found.context_policy, found.keep_results) == (ContextPolicy.DROP_OLD_RESULTS, 1)
    assert (found.max_parallel_calls, found.deadlines.group) == (3, 40.0)


def test_the_recipe_says_how_a_summary_is_written_and_trained(
    tokenizer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rl.models.checkpoint_digest", lambda directory: "sft")

    async def settings(**section: Any) -> RolloutSettings:
        policy = PolicySection(
            model=str(tokenizer),
            context_policy="summarise",
            summary_tokens=40,
            train_summaries=True,
            **section,
        )
        world = load_environment("counter")
        async with open_policy(policy, model_dir=tokenizer, label="s", environment=world) as opened:
            return opened.settings

    with ScriptedServer(Served("sft", {tokenizer: "sft"})) as server:
        found = asyncio.run(settings(url=server.url))
    assert found.context_policy is ContextPolicy.SUMMARISE
    assert (found.summary.max_tokens, found.summary.trained) == (40, True)
    with pytest.raises(ConfigError, match="summarise needs a model to write the summary"):
        asyncio.run(settings(engine="scripted"))


@pytest.mark.parametrize(("protocol", "mode"), [("chat", Mode.CHAT), ("inline", Mode.INLINE)])
def test_the_environment_says_how_calls_are_written(
    protocol: str, mode: Mode, tokenizer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rl.models.checkpoint_digest", lambda directory: "sft")
    world = load_environment("python_math", protocol=protocol)

    async def settings(url: str) -> RolloutSettings:
        section = PolicySection(model=str(tokenizer), url=url)
        async with open_policy(section, model_dir=tokenizer, label="s", environment=world) as policy:
            return policy.settings

    with ScriptedServer(Served("sft", {tokenizer: "sft"})) as server:
        found = asyncio.run(settings(server.url))
    assert found.mode is mode and (found.inline is not None) is (mode is Mode.INLINE)


def test_a_server_that_is_started_has_what_the_recipe_gives_it(tmp_path: Path) -> None:
    section = PolicySection(kv_cache_gib=3, start_seconds=900.0, max_in_flight=7, max_context_tokens=512)
    settings = _server(section, tmp_path, None).settings
    assert (settings.kv_cache_gib, settings.start_seconds) == (3, 900.0)
    assert (settings.max_num_seqs, settings.max_model_len) == (7, 512)
