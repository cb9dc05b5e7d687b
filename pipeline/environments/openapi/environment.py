"""An OpenAPI document and a task file as an Environment over a live server.

Decides which options there are and how they fit together. The version is a digest of the document and of
every option that changes what an agent sees; URL, command, credentials and patience are not part of it, nor
is the server itself. Not covered: tools that only have a document (`pipeline.environments.simulated`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx

from data import canonical
from data.tasks import Task
from pipeline.checks.credentials import check_variable
from pipeline.environments.documented import sources_digest
from pipeline.environments.host import FileHost
from pipeline.environments.openapi.client import ClientPolicy, Credential, checked_base_url, credential
from pipeline.environments.openapi.document import load_document
from pipeline.environments.openapi.operations import Operation, read_operations, security_schemes
from pipeline.environments.openapi.session import LiveApi, OpenApiSession, get_problem, setup_problem
from pipeline.environments.task_file import TaskRules, file_checks, read_tasks, splits_of
from pipeline.environments.tools import ToolLimits, tool_limits
from pipeline.errors import ConfigError

_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
VERIFIER = "openapi/task_file/2"
_PLAIN_SCHEMES: dict[str, dict[str, Any]] = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "basic": {"type": "http", "scheme": "basic"},
}


class OpenApiEnvironment(FileHost):
    """See `pipeline.environments.base.Environment`."""

    def __init__(
        self,
        *,
        document: str | Path,
        tasks: str | Path,
        name: str = "openapi",
        url: str = "",
        start: Sequence[str] = (),
        reset: str | Mapping[str, Any] = "",
        session_header: str = "",
        auth: Mapping[str, str] | None = None,
        operations: Sequence[str] = (),
        hidden: Sequence[str] = (),
        keep: Mapping[str, Sequence[str]] | None = None,
        refs: Mapping[str, str] | None = None,
        deterministic: bool | None = None,
        limits: ToolLimits | Mapping[str, Any] | None = None,
        policy: ClientPolicy | Mapping[str, Any] | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """`url`: the one server that may be called; with `start`, only a path such as /v1.

        `start`: command of a server per session, with {port} and perhaps {seed}. `reset`: the operation (or
        {name, arguments}) that makes a shared server fresh. `session_header`: name of a header by which the
        server keeps sessions apart. `auth`: security scheme of the document (or `bearer`, `basic`) to the
        environment variable that holds the secret (basic: user:password). `operations`: which ones, in prompt
        order. `hidden`: which ones the agent is not shown, though a task's `setup` may call them. `keep`:
        operation to the fields of its answer that are shown. `refs`: other documents that this one refers
        to, as local files. `deterministic`: answers need no cassette; by default where each session gets a
        fresh world (start, reset, session_header).
        """
        if session_header and not _HEADER.fullmatch(session_header):
            raise ConfigError(f"session_header {session_header!r} is no name of a header, such as X-Session")
        self.name = name
        self.limits = tool_limits(limits)
        described = load_document(document, refs=refs)
        reset_name, reset_arguments = _reset(reset)
        aside = frozenset(filter(None, [*hidden, reset_name]))
        chosen = [*operations, *sorted(aside.difference(operations))] if operations else []
        found = read_operations(described, chosen=chosen)
        self._auth, self._document = dict(auth or {}), described
        self._api = LiveApi(
            operations=found,
            url=_url(url, start),
            start=tuple(start),
            reset=reset_name,
            reset_arguments=reset_arguments,
            hidden=aside,
            session_header=session_header,
            keep={key: tuple(names) for key, names in (keep or {}).items()},
            policy=policy if isinstance(policy, ClientPolicy) else ClientPolicy(**(policy or {})),
            transport=transport,
        )
        self._deterministic = self._api.isolates if deterministic is None else deterministic
        _refuse_unknown(self._api, found)
        self._refuse_unknown_auth()
        rules = TaskRules(
            environment=name,
            verifier=VERIFIER,
            tools=[key for key in found if key not in aside],
            checks={"get": get_problem},
        )
        self._tasks = read_tasks(Path(tasks), rules)
        self.splits = splits_of(self._tasks)
        self._refuse_unusable_tasks()
        shown = [item.spec.model_dump() for item in found.values()]
        kept = {key: list(names) for key, names in self._api.keep.items()}
        source = sources_digest(__name__)
        self.version = canonical.digest(source, described.digest, shown, kept, repr(self.limits), length=12)

    async def open(self, task: Task, *, seed: int = 0) -> OpenApiSession:
        """A session; its world is made at its first call. Raises ConfigError where a secret is not set."""
        self.check_task(task)
        session = OpenApiSession(
            task,
            replace(self._api, credentials=self._credentials(), undocumented=self._undocumented()),
            deterministic=self._deterministic,
            seed=seed,
            limits=self.limits,
            on_close=self._session_closed,
        )
        self.num_open += 1
        return session

    def _refuse_unusable_tasks(self) -> None:
        for task in self._tasks:
            problem = setup_problem(task.state_value(), self._api)
            # What a cassette answers never reaches the server, so the server cannot be asked afterwards.
            if not self._deterministic and any("get" in check for check in file_checks(task)):
                problem = (
                    "it has a `get` check, and the API is shared and live: give start, reset or "
                    "session_header, check `calls` or `answer`, or say deterministic"
                )
            if problem:
                raise ConfigError(f"task {task.prompt[-1].text!r:.60}: {problem}")

    def _refuse_unknown_auth(self) -> None:
        known = _PLAIN_SCHEMES | security_schemes(self._document)
        unknown = [name for name in self._auth if name not in known]
        if unknown:
            raise ConfigError(f"auth names the schemes {unknown}; there are {', '.join(known)}")
        for name, variable in self._auth.items():
            check_variable(variable, where=f"auth {name!r}")

    def _credentials(self) -> dict[str, Credential]:
        """Read anew for each session and held by nothing else."""
        known = _PLAIN_SCHEMES | security_schemes(self._document)
        return {name: credential(known[name], variable, name=name) for name, variable in self._auth.items()}

    def _undocumented(self) -> tuple[str, ...]:
        return tuple(name for name in self._auth if name not in security_schemes(self._document))


def load(**options: Any) -> OpenApiEnvironment:
    """The environment; options are those of OpenApiEnvironment."""
    return OpenApiEnvironment(**options)


def _reset(reset: str | Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    if isinstance(reset, str):
        return reset, {}
    if not isinstance(reset.get("name"), str) or reset.keys() - {"name", "arguments"}:
        raise ConfigError(f"reset {dict(reset)} is an operation's name, or {{name, arguments}}")
    return reset["name"], dict(reset.get("arguments", {}))


def _url(url: str, start: Sequence[str]) -> str:
    if not start:
        return checked_base_url(url)
    if not any("{port}" in part for part in start):
        raise ConfigError(f"start command {list(start)} has no {{port}}; the server must listen there")
    if url and not url.startswith("/"):
        raise ConfigError(f"url {url!r}: with `start` it is only a path such as /v1")
    return url.rstrip("/")


def _refuse_unknown(api: LiveApi, operations: Mapping[str, Operation]) -> None:
    unknown = [name for name in (*api.keep, *sorted(api.hidden)) if name not in operations]
    if unknown:
        raise ConfigError(
            f"keep, hidden and reset name {unknown}; the operations are {', '.join(operations)}"
        )
