"""A local web page of trajectories: a filtered, paged list, and one page per trajectory.

Decides: bound to 127.0.0.1 and answers only requests that name this machine as host, because records
may be private and a foreign page must not read them through the browser. The list works on an index
of about 0.5 kB per trajectory, read on the first request and again on "reload"; a trajectory itself is
read when its page is opened. Read-only. Not covered: access for others, editing, search in text.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock
from typing import NamedTuple
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

from data.errors import ConfigError, TrajsmithError
from data.trajectories import Trajectory
from pipeline.reporting.html import POLICY, page
from pipeline.reporting.view import Decode, render_trajectory_html

HOST = "127.0.0.1"
PAGE_SIZE = 50
FILTERS = ("success", "template", "termination", "policy")


class Row(NamedTuple):
    """One trajectory in the list."""

    trajectory_id: str
    success: str
    """success, failure or no reward."""
    template: str
    termination: str
    policy: str
    reward: float | None
    turns: int
    calls: int
    generated: int


class Source(NamedTuple):
    """Where trajectories come from: `read` streams all, `get` fetches one by id or answers None."""

    read: Callable[[], Iterable[Trajectory]]
    get: Callable[[str], Trajectory | None]


class ListPage(NamedTuple):
    """What one list request shows."""

    rows: list[Row]
    matching: int
    page: int
    """Counted from 1."""
    num_pages: int
    choices: dict[str, list[tuple[str, int]]]
    """Per filter: the values that occur in the whole pool, with counts."""
    chosen: dict[str, str]


class Catalogue:
    """The index of a source, read lazily and shared by the request threads."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._lock = Lock()
        self._rows: list[Row] | None = None

    def rows(self, *, reload: bool = False) -> list[Row]:
        """All rows, in the order of the source."""
        with self._lock:
            if self._rows is None or reload:
                self._rows = [row_of(trajectory) for trajectory in self._source.read()]
            return self._rows

    def list(self, query: Mapping[str, str]) -> ListPage:
        """The page that `query` (filters and `page`) asks for; a page beyond the ends is the nearest one."""
        rows = self.rows(reload="reload" in query)
        chosen = {name: query[name] for name in FILTERS if query.get(name)}
        matching = [row for row in rows if all(getattr(row, name) == value for name, value in chosen.items())]
        num_pages = max(1, -(-len(matching) // PAGE_SIZE))
        wanted = query.get("page", "1")
        number = min(max(int(wanted[:9]) if wanted.isdecimal() else 1, 1), num_pages)
        choices = {name: sorted(Counter(getattr(row, name) for row in rows).items()) for name in FILTERS}
        shown = matching[(number - 1) * PAGE_SIZE : number * PAGE_SIZE]
        return ListPage(shown, len(matching), number, num_pages, choices, chosen)


def row_of(trajectory: Trajectory) -> Row:
    """What the list shows of one trajectory."""
    outcome = {None: "no reward", True: "success", False: "failure"}[trajectory.success]
    return Row(
        trajectory.trajectory_id,
        outcome,
        trajectory.template,
        str(trajectory.termination),
        trajectory.policy.name,
        None if trajectory.reward is None else trajectory.reward.total,
        len(trajectory.turns),
        trajectory.usage.tool_calls,
        trajectory.usage.generated_tokens,
    )


def make_server(
    source: Source, *, title: str, decode: Decode | None = None, port: int = 0
) -> ThreadingHTTPServer:
    """A server bound to 127.0.0.1 (port 0 = any free one); call `serve_forever` and, at last, `server_close`.

    Raises ConfigError where the port is taken.
    """
    catalogue = Catalogue(source)

    class Handler(_Handler):
        def respond(self, path: str, query: dict[str, str]) -> tuple[HTTPStatus, bytes]:
            if path == "/":
                return HTTPStatus.OK, list_html(catalogue.list(query), title=title)
            trajectory = source.get(unquote(path.removeprefix("/t/"))) if path.startswith("/t/") else None
            if trajectory is None:
                return HTTPStatus.NOT_FOUND, _message("Not found", f"There is no trajectory or page {path}.")
            return HTTPStatus.OK, render_trajectory_html(trajectory, decode, back="/?" + urlencode(query))

    try:
        return ThreadingHTTPServer((HOST, port), Handler)
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {HOST}:{port}: {error.strerror}; choose another --port"
        ) from error


def list_html(listed: ListPage, *, title: str) -> bytes:
    """The list as a page. Links keep the filters, so that going back leads to the same place."""
    query = urlencode(listed.chosen | ({"page": str(listed.page)} if listed.page > 1 else {}))

    def link(number: int) -> str:
        return "/?" + urlencode(listed.chosen | {"page": str(number)})

    return page("list.html.j2", title=title, listed=listed, query=query, link=link)


def _message(title: str, text: str) -> bytes:
    return page("message.html.j2", title=title, text=text)


class _Handler(BaseHTTPRequestHandler):
    """Answers GET requests with pages; what they hold is decided by `respond`."""

    server_version = "trajsmith"
    sys_version = ""

    def respond(self, path: str, query: dict[str, str]) -> tuple[HTTPStatus, bytes]:
        """Status and page of one request."""
        raise NotImplementedError

    def do_GET(self) -> None:
        """Refuse foreign hosts, then answer; an error of ours becomes a page that says so."""
        host = (self.headers.get("Host") or "").rpartition(":")[0] or self.headers.get("Host")
        url = urlsplit(self.path)
        if host not in (HOST, "localhost"):
            status, body = (
                HTTPStatus.FORBIDDEN,
                _message("Refused", f"This page answers {HOST} and localhost only."),
            )
        else:
            try:
                status, body = self.respond(url.path, dict(parse_qsl(url.query)))
            except TrajsmithError as error:
                status, body = HTTPStatus.INTERNAL_SERVER_ERROR, _message("Cannot read the run", str(error))
        self.send_response(status)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Security-Policy", POLICY)
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Requests are not logged: the terminal belongs to the command that serves."""
