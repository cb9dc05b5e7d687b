"""The live policy of a run: renderer, engine and, where one is needed, its server.

Without a URL in the recipe a server is started for the run, once: later weights are pushed under it in a
fraction of a second. With a URL the server is the user's: it is checked, given the model's weights where it
holds others, used and left running. A server that lets nobody ask for its weights is believed to hold the
right ones. The scripted policy needs no server and cannot be trained.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from data.files import user_path
from data.tasks import Task
from flows.stages.progress import Say, silent
from flows.stages.recipe import MemorySection, PolicySection
from flows.stages.scripted import ScriptedPolicy, scripted_label
from pipeline.checks.credentials import read_variable
from pipeline.engines.base import Engine, Sampling
from pipeline.engines.vllm import VllmEngine
from pipeline.environments.base import Environment
from pipeline.errors import ConfigError
from pipeline.http import HttpPolicy, RequestRefusedError
from pipeline.memory.showing import ShownMemory
from pipeline.memory.stored import load_memory
from pipeline.renderers.base import Renderer
from pipeline.renderers.load import load_renderer
from pipeline.rollout import ContextPolicy, Deadlines, InlineFormat, Mode, RolloutSettings, SummaryFormat
from pipeline.server import ModelServer, Progress, ServerSettings

_SAY_EVERY_SECONDS = 5.0
_FIRST_PATIENCE_SECONDS = 10.0
"""A server that does not answer the first question is rather a wrong URL than a busy server."""


def policy_model(section: PolicySection) -> Path:
    """Directory of the section's model; of the scripted policy, of its tokenizer. ConfigError elsewhere."""
    from rl.models import MODEL_LABELS, resolve_model

    tokenizer = user_path(section.model)
    if section.engine == "vllm" or section.model in MODEL_LABELS:
        return resolve_model(section.model)
    if not os.path.isfile(tokenizer / "tokenizer.json"):  # Path.is_file raises for a name that is too long
        raise ConfigError(f"policy.model {section.model!r} is no known model and has no tokenizer.json")
    return tokenizer.resolve()


def policy_label(section: PolicySection) -> str:
    """The name results show for the section's policy."""
    from rl.models import model_label

    return scripted_label(section.mistakes) if section.engine == "scripted" else model_label(section.model)


@dataclass(frozen=True)
class LivePolicy:
    """A policy that can act now."""

    engine: Engine
    renderer: Renderer
    sampling: Sampling
    settings: RolloutSettings
    max_in_flight: int

    def at(self, temperature: float) -> LivePolicy:
        """The same policy sampled at another temperature."""
        return replace(self, sampling=replace(self.sampling, temperature=temperature))

    def told_of(self, tasks: Sequence[Task]) -> None:
        """Tell the scripted policy of tasks that its environment may not list; a model needs no telling."""
        if isinstance(self.engine, ScriptedPolicy):
            self.engine.learn(tasks)

    def speaking_to(self, environment: Environment) -> LivePolicy:
        """The same policy writing its calls as the environment reads them: chat turns, or inline tags."""
        inline: InlineFormat | None = getattr(environment, "inline", None)
        mode = Mode.CHAT if inline is None else Mode.INLINE
        return replace(self, settings=replace(self.settings, mode=mode, inline=inline))

    def remembering(self, memory: MemorySection | None, environment: Environment) -> LivePolicy:
        """The same policy shown a memory. ConfigError where the file may not be shown."""
        if memory is None:
            return self
        held = load_memory(user_path(memory.path), memory.kind, environment)
        shown = ShownMemory(held, max_entries=memory.max_entries)
        return replace(self, settings=replace(self.settings, memory=shown))

    async def load(self, model_dir: Path) -> str:
        """Put other weights under the policy; returns the digest the server computed of what it loaded."""
        return await self.server_engine().reload_weights(model_dir)

    def server_engine(self) -> VllmEngine:
        """The engine whose weights can be replaced. ConfigError where the policy has none."""
        if not isinstance(self.engine, VllmEngine):
            raise _untrainable(self.engine.name)
        return self.engine


def refuse_script_to_train(section: PolicySection) -> None:
    """ConfigError where the section's policy has no weights: before anything is opened."""
    if section.engine == "scripted":
        raise _untrainable(policy_label(section))


def _untrainable(name: str) -> ConfigError:
    return ConfigError(f"policy {name!r} has no weights to train; set policy.engine: vllm in the recipe")


@asynccontextmanager
async def open_policy(
    section: PolicySection,
    *,
    model_dir: Path,
    label: str,
    environment: Environment | None = None,
    log_path: Path | None = None,
    say: Say = silent,
) -> AsyncIterator[LivePolicy]:
    """Start or reach the server of `model_dir`, check it, and close everything at the end.

    `label` is the name results show. The scripted policy plays the gold of `environment` instead.
    Raises ConfigError or EngineError before any work is done.
    """
    if section.engine == "scripted":
        if environment is None:
            raise ConfigError("policy.engine: scripted plays an environment's gold, and here there is none")
        if section.context_policy is ContextPolicy.SUMMARISE:
            raise ConfigError(
                "policy.context_policy: summarise needs a model to write the summary, and policy.engine is "
                "scripted; allowed with it: none, drop_old_results"
            )
        renderer = load_renderer(model_dir)
        engine = ScriptedPolicy(environment, renderer, mistakes=section.mistakes)
        live = _live(section, engine, renderer, longest=section.max_context_tokens)
        yield live.remembering(section.memory, environment)
        return
    async with _served(section, model_dir=model_dir, label=label, log_path=log_path, say=say) as policy:
        if environment is None:
            yield policy
        else:
            yield policy.speaking_to(environment).remembering(section.memory, environment)


@asynccontextmanager
async def _served(
    section: PolicySection, *, model_dir: Path, label: str, log_path: Path | None, say: Say
) -> AsyncIterator[LivePolicy]:
    """The policy behind a server that is started here, or behind the user's."""
    server = None if section.url else _server(section, model_dir, log_path)
    variable = section.api_key_env
    key = read_variable(variable, where="policy.api_key_env") if variable and server is None else ""
    try:
        if server is not None:
            await asyncio.to_thread(server.start, starting_lines(say))
        urls = section.url.split(",") if server is None else [server.url]
        name = section.served_name or ServerSettings().served_name
        longest, updatable = await _first_check(urls, name, section.patience_seconds, key)
        engine = VllmEngine(
            urls, model=name, name=label, api_key=key, policy=HttpPolicy(patience=section.patience_seconds)
        )
        try:
            engine.weights_version = name
            if server is not None or updatable:
                await _settle_weights(engine, model_dir, ours=server is not None, say=say)
            yield _live(section, engine, load_renderer(model_dir), longest=longest)
        finally:
            await engine.close()
    finally:
        if server is not None:
            await asyncio.to_thread(server.stop)


async def _settle_weights(engine: VllmEngine, model_dir: Path, *, ours: bool, say: Say) -> None:
    """Name the weights that answer by their digest; a user's server with others gets those of `model_dir`."""
    from rl.models import checkpoint_digest

    try:
        engine.weights_version = await engine.served_weights_digest()
    except RequestRefusedError as error:
        say(f"a server tells no weights; start it with `trajsmith serve` to be sure of them ({error})")
        return
    if not ours and engine.weights_version != checkpoint_digest(model_dir):
        say(f"the server holds other weights; giving it those of {model_dir}")
        await engine.reload_weights(model_dir)


async def _first_check(urls: list[str], name: str, patience: float, key: str) -> tuple[int, bool]:
    """The longest sequence the servers take and whether they are vLLM; given up soon without answer."""
    policy = HttpPolicy(patience=min(patience, _FIRST_PATIENCE_SECONDS))
    engine = VllmEngine(urls, model=name, api_key=key, policy=policy)
    try:
        return await engine.check(), engine.updatable
    finally:
        await engine.close()


def _live(section: PolicySection, engine: Engine, renderer: Renderer, *, longest: int) -> LivePolicy:
    """The policy as the section wants it sampled, within the `longest` sequence the engine takes."""
    usual = Deadlines()
    return LivePolicy(
        engine=engine,
        renderer=renderer,
        sampling=Sampling(
            temperature=section.temperature,
            max_tokens=section.max_turn_tokens,
            stop_token_ids=renderer.stop_token_ids,
        ),
        settings=RolloutSettings(
            max_context_tokens=min(section.max_context_tokens, longest),
            context_policy=section.context_policy,
            keep_results=section.keep_results,
            summary=SummaryFormat(max_tokens=section.summary_tokens, trained=section.train_summaries),
            max_parallel_calls=section.max_parallel_calls,
            deadlines=replace(
                usual, group=section.group_seconds, engine=max(usual.engine, section.patience_seconds)
            ),
        ),
        max_in_flight=section.max_in_flight,
    )


def _server(section: PolicySection, model_dir: Path, log_path: Path | None) -> ModelServer:
    """A server sized for the section; not started."""
    settings = ServerSettings(
        max_model_len=section.max_context_tokens,
        max_num_seqs=section.max_in_flight,
        kv_cache_gib=section.kv_cache_gib,
        start_seconds=section.start_seconds,
        extra_args=section.server_args,
    )
    return ModelServer(model_dir, settings=settings, log_path=log_path)


def starting_lines(say: Say) -> Progress:
    """A progress callback that says a line at once and every few seconds while the server starts."""
    said = [-_SAY_EVERY_SECONDS]

    def progress(waited: float, line: str) -> None:
        if waited - said[0] >= _SAY_EVERY_SECONDS:
            said[0] = waited
            say(f"model server starting, {waited:.0f} s: {line[-100:]}")

    return progress
