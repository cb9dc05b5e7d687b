"""Episodes of foreign harnesses: opened by a task and a key, closed with a verdict, recorded.

Decides how an episode ends. A verdict counts only where nothing of ours failed: a request that was never
answered makes it infra_failure; an episode in which nothing was asked, or that nobody closes, is cancelled;
none of these has a reward. A used-up budget scores what the verdict or else the task says. Not covered: HTTP
(`routes`).
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import itertools
import re
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from data import canonical
from data.messages import ToolCall, ToolResult, ToolSpec, ToolStatus, text_parts
from data.tasks import Task
from data.trajectories import (
    Blame,
    Reward,
    Termination,
    Trajectory,
)
from pipeline.checks.calls import check_call
from pipeline.engines.base import Engine, Sampling
from pipeline.environments.base import Environment
from pipeline.gateway.asks import Ask, RequestError
from pipeline.gateway.episode import Answer, RecordedEpisode
from pipeline.gateway.fields import Limits
from pipeline.gateway.lines import make_lines
from pipeline.gateway.records import Recorder, Verify, judged
from pipeline.gateway.settings import GatewaySettings
from pipeline.renderers.base import Renderer
from pipeline.rollout_author import EpisodeEnd

_KEY = re.compile(r"[A-Za-z0-9_-]{1,100}")
_REMEMBERED = 10_000


@dataclass(frozen=True, slots=True)
class Opened:
    """What a harness needs: the key goes into its URL, the API key into its client."""

    key: str
    api_key: str = field(repr=False)
    task: Task


@dataclass(frozen=True, slots=True)
class Closed:
    """What became of an episode."""

    trajectory_ids: tuple[str, ...]
    """The main trajectory first."""
    termination: Termination
    blame: Blame
    error: str
    reward: float | None


class Gateway:
    """See the module docstring. One event loop; any number of episodes."""

    def __init__(
        self,
        engine: Engine,
        *,
        renderer: Renderer,
        sampling: Sampling | None = None,
        settings: GatewaySettings | None = None,
        environment: Environment | None = None,
        emit: Callable[[Task | Trajectory], object] = lambda record: None,
        first_index: Mapping[str, int] | None = None,
        run_id: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`emit` takes each task when it is first opened and each trajectory when its episode ends.

        `sampling` fills what requests leave out; `first_index` says from which rollout index to count per
        task id, where a store holds rollouts already.
        """
        self.engine, self.renderer, self.environment = engine, renderer, environment
        self.settings = settings or GatewaySettings()
        self.limits = Limits(sampling or Sampling(), self.settings.max_choices, self.settings.allow_truncated)
        self._emit, self._clock = emit, clock
        self._recorder = Recorder(engine, renderer, self.settings, self.limits.defaults, environment, run_id)
        self._open: dict[str, RecordedEpisode] = {}
        self._closing: dict[str, asyncio.Task[list[Trajectory]]] = {}
        self._closed: OrderedDict[str, Closed] = OrderedDict()
        self._next_index = dict(first_index or {})
        self._known_tasks: set[str] = set()
        self._tool_locks: dict[str, asyncio.Lock] = {}

    @property
    def open_keys(self) -> tuple[str, ...]:
        """Keys of the episodes that are open."""
        return tuple(self._open)

    def api_key(self, key: str) -> str:
        """What lets a harness ask within episode `key`, and nothing else."""
        sign = hmac.new(self.settings.token.encode(), key.encode(), hashlib.sha256).hexdigest()[:32]
        return f"{key}.{sign}"

    async def open(
        self, task: Task, key: str = "", *, rollout_index: int | None = None, seed: int = 0
    ) -> Opened:
        """Begin an episode. `key` "" draws one; `rollout_index` None takes the task's next.

        With an environment its session is opened too. Raises RequestError for a key that is taken or not
        made of letters, digits, `_` and `-`.
        """
        key = key or secrets.token_hex(8)
        if not _KEY.fullmatch(key):
            raise RequestError(
                f"key must be 1 to 100 letters, digits, _ or -, got {key[:120]!r}", param="key"
            )
        if key in self._open or key in self._closed:
            raise RequestError(f"episode {key} exists already; choose another key", status=409, param="key")
        index = self._next_index.get(task.task_id, 0) if rollout_index is None else rollout_index
        self._next_index[task.task_id] = max(index + 1, self._next_index.get(task.task_id, 0))
        episode = self._open[key] = RecordedEpisode(
            task,
            key,
            engine=self.engine,
            renderer=self.renderer,
            max_context_tokens=self.settings.max_context_tokens,
            engine_seconds=self.settings.engine_seconds,
            rollout_index=index,
            seed=seed,
            clock=self._clock,
        )
        try:
            if self.environment is not None:
                episode.session = await self.environment.open(task, seed=seed)
            if task.task_id not in self._known_tasks:
                self._emit(task)
                self._known_tasks.add(task.task_id)
        except BaseException:
            del self._open[key]
            raise
        return Opened(key, self.api_key(key), task)

    def tools(self, key: str) -> tuple[ToolSpec, ...]:
        """The tools of the episode's session, none without an environment."""
        session = self._episode(key).session
        return session.tools if session else ()

    def task_of(self, split: str, index: int) -> Task:
        """Task number `index` of a split of the environment. Raises RequestError."""
        environment = self.environment
        if environment is None or split not in environment.splits:
            known = ", ".join(environment.splits) if environment else "none, there is no environment"
            raise RequestError(f"no split {split!r}; splits: {known}", param="split")
        task = next(itertools.islice(environment.tasks(split), index, index + 1), None)
        if task is None:
            raise RequestError(f"split {split} has no task number {index}", param="index")
        return task

    async def ask(self, key: str, ask: Ask) -> Answer:
        """The reply to a request of episode `key`. Raises RequestError."""
        return await self._episode(key).answer(ask)

    async def call_tool(self, key: str, name: str, arguments: dict[str, Any], call_id: str) -> ToolResult:
        """Execute a tool of the environment's session; calls of one episode follow each other.

        A repeated `call_id` executes nothing: the session answers what it answered before.
        """
        episode = self._episode(key)
        if episode.session is None:
            raise RequestError("this gateway has no environment, so no tools to call", status=404)
        episode.refuse_if_closed()
        call = ToolCall(call_id=call_id, name=name, arguments=canonical.dumps(arguments))
        checked = check_call(call, episode.session.tools)
        if not checked.ok:
            text = f"error: {checked.status}: {checked.error}"
            result = ToolResult(
                call_id=call_id, name=name, parts=text_parts(text), status=ToolStatus.TOOL_ERROR
            )
        else:
            result = await self._executed(episode, call)
        episode.results[call_id] = result
        return result

    async def _executed(self, episode: RecordedEpisode, call: ToolCall) -> ToolResult:
        """What the session answers; anything that is not the agent's doing breaks the episode."""
        assert episode.session is not None, "asked only where there is one"
        episode.at_work += 1
        try:
            async with self._tool_locks.setdefault(episode.key, asyncio.Lock()):
                result = await episode.session.call(call.name, call.parsed_arguments(), call.call_id)
        except Exception as error:
            episode.broke(call.call_id, f"tool {call.name}: {type(error).__name__}: {error}")
            raise RequestError(f"tool {call.name} broke", status=503, code="tool_failure") from error
        finally:
            episode.at_work -= 1
            episode.touch()
        if result.status is ToolStatus.INFRA_ERROR:
            episode.broke(call.call_id, f"tool {call.name}: {result.text}")
        return result

    async def _settled(self, episode: RecordedEpisode) -> None:
        """Wait for tools that are at work: what they do is judged, and what they break is no reward."""
        try:
            async with (
                asyncio.timeout(self.settings.verify_seconds),
                self._tool_locks.setdefault(episode.key, asyncio.Lock()),
            ):
                pass
        except TimeoutError:
            episode.broke("tools", "a tool was still at work when the episode was closed")

    async def close(
        self,
        key: str,
        *,
        reward: float | Reward | None = None,
        verify: Verify | None = None,
        cancelled: str = "",
        broken: str = "",
        final: str = "",
    ) -> list[Trajectory]:
        """End an episode with a verdict; its trajectories, the main one first.

        The verdict is a `reward`, a function that judges the trajectory, or, with neither, the environment's
        verifier. `cancelled` or `broken` say why there is none (`broken`: something of the harness's own
        failed). `final` names the reply that was the answer, where it is not the last one asked for. Raises
        RequestError where there is no verdict.
        """
        episode = self._episode(key)
        judge = verify or (episode.session.verify if episode.session else None)
        if reward is None and judge is None and not cancelled and not broken:
            raise RequestError(
                "no verdict: give a reward, or say `cancelled` or `broken` and why", param="reward"
            )
        end = EpisodeEnd(Termination.FINISHED)
        if cancelled:
            end = EpisodeEnd(Termination.CANCELLED, Blame.NONE, cancelled)
        elif broken:
            end = EpisodeEnd(Termination.INFRA_FAILURE, Blame.TOOL, broken)
        return await self._ended(episode, end, reward=reward, judge=judge, final=final)

    def closed(self, key: str) -> Closed | None:
        """What became of an episode that was closed (of the last 10,000); None where it was not."""
        return self._closed.get(key)

    async def reap(self) -> list[str]:
        """Give up every episode that has been idle for too long; their keys."""
        now, idle = self._clock(), self.settings.idle_seconds
        keys = [
            key
            for key, one in self._open.items()
            if not one.in_flight and not one.at_work and now - one.touched_at >= idle
        ]
        for key in keys:
            await self._give_up(key, f"no request for {idle:g} s, and nobody closed the episode")
        return keys

    async def stop(self) -> None:
        """Give up all open episodes."""
        for key in self.open_keys:
            await self._give_up(key, "the gateway was stopped before the episode was closed")

    async def _give_up(self, key: str, why: str) -> None:
        end = EpisodeEnd(Termination.CANCELLED, Blame.INFRASTRUCTURE, why)
        if (episode := self._open.get(key)) is not None:
            await self._ended(episode, end)

    def _episode(self, key: str) -> RecordedEpisode:
        if key not in self._open:
            gone = key in self._closed
            what = "is closed" if gone else "is not open; open it first"
            raise RequestError(
                f"episode {key[:120]!r} {what}",
                status=409 if gone else 404,
                code="episode_closed" if gone else "no_episode",
            )
        return self._open[key]

    async def _ended(
        self,
        episode: RecordedEpisode,
        end: EpisodeEnd,
        *,
        reward: float | Reward | None = None,
        judge: Verify | None = None,
        final: str = "",
    ) -> list[Trajectory]:
        """End an episode once, whoever asks for it while that goes on, and even if the asker leaves."""
        key = episode.key
        if key not in self._closing:
            work = self._end(episode, end, reward=reward, judge=judge, final=final)
            self._closing[key] = asyncio.create_task(work)
            self._closing[key].add_done_callback(lambda _: self._closing.pop(key, None))
        return await asyncio.shield(self._closing[key])

    async def _end(
        self,
        episode: RecordedEpisode,
        end: EpisodeEnd,
        *,
        reward: float | Reward | None,
        judge: Verify | None,
        final: str,
    ) -> list[Trajectory]:
        """Build, judge and emit the trajectories; nothing is forgotten before all are emitted."""
        last = episode.find(final)
        episode.abandon()
        await self._settled(episode)
        lines = make_lines(episode.tree.exchanges, final=last)
        if episode.ending is not None and end.termination.has_reward:
            end = episode.ending
        elif not lines and end.termination.has_reward:
            end = EpisodeEnd(Termination.CANCELLED, Blame.NONE, "no reply was ever given")
        elif episode.failed and end.termination is Termination.CANCELLED:
            end = episode.ending or end
        main = self._recorder.main(episode, lines[0] if lines else None, end)
        main = await judged(main, episode.task, settings=self.settings, reward=reward, judge=judge)
        records = [main]
        for line in lines[1:]:
            records.append(self._recorder.side(episode, line, main, records))
        for record in records:
            self._emit(record)
        self._closed[episode.key] = Closed(
            tuple(record.trajectory_id for record in records),
            *(main.termination, main.blame, main.error),
            main.reward.total if main.reward else None,
        )
        if len(self._closed) > _REMEMBERED:
            self._closed.popitem(last=False)
        self._open.pop(episode.key, None)
        self._tool_locks.pop(episode.key, None)
        if episode.session is not None:
            with contextlib.suppress(Exception):
                await asyncio.wait_for(episode.session.close(), self.settings.verify_seconds)
        return records
