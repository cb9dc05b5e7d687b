"""A server on a Unix socket that answers the calls of the Docker Engine API which the SDK makes for us.

It keeps books, not walls: commands run as child processes in a directory that stands for /box. What it
frames and when it ends a stream follows the API's documents: the stream of a command stays open for as long
as anything holds the command's output.
"""

import contextlib
import json
import os
import re
import signal
import socketserver
import struct
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, cast

from pipeline.sandbox import docker

HEAD = b"HTTP/1.1 101 UPGRADED\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n"


class Engine(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    """One daemon, one box."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, directory: Path) -> None:
        self.path = str(directory / "engine.sock")
        self.box = directory / "box"
        self.box.mkdir()
        self.calls: list[str] = []
        """`VERB path`, ids left out."""
        self.created: list[dict[str, Any]] = []
        self.execs: dict[str, dict[str, Any]] = {}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.image_missing = False
        self.refuses = ""
        """Calls that contain this are answered with 500."""
        self.drops = False
        """Connections break as soon as a command runs."""
        self.holds_output = False
        """Output is sent once somebody was told that the command has ended."""
        self.told = threading.Event()
        self.hides_ends = False
        """Every command is said to run for ever."""
        self.oom_killed = False
        self.oom_kills = 0
        super().__init__(self.path, Handler)

    @property
    def url(self) -> str:
        return f"unix://{self.path}"

    def kill(self) -> None:
        """End every command and what it left behind."""
        for process in self.processes.values():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    @property
    def engine(self) -> Engine:
        return cast(Engine, self.server)

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def do_DELETE(self) -> None:
        self._answer()

    def _answer(self) -> None:
        raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body = json.loads(raw) if raw else {}
        path = re.sub(r"^/v[\d.]+", "", self.path).partition("?")[0]
        call = f"{self.command} {re.sub('/(c|e[0-9]+)/', '/ID/', path + '/').rstrip('/')}"
        self.engine.calls.append(call)
        if self.engine.refuses and self.engine.refuses in call:
            self._json({"message": "the daemon is unwell"}, 500)
        elif call == "POST /exec/ID/start":
            self._attach(path.split("/")[2])
        else:
            self._json(*self._reply(call, path, body))

    def _reply(self, call: str, path: str, body: dict[str, Any]) -> tuple[Any, int]:
        engine = self.engine
        if call == "GET /version":
            return {"Version": "99.0", "ApiVersion": "1.41"}, 200
        if call == "POST /containers/create":
            engine.created.append(body)
            if engine.image_missing:
                return {"message": f"No such image: {body['Image']}"}, 404
            return {"Id": "c"}, 201
        if call == "GET /containers/ID/json":
            return {"Id": "c", "State": {"OOMKilled": engine.oom_killed}}, 200
        if call == "POST /containers/ID/exec":
            exec_id = f"e{len(engine.execs)}"
            engine.execs[exec_id] = body
            return {"Id": exec_id}, 201
        if call == "GET /exec/ID/json":
            process = engine.processes[path.split("/")[2]]
            status = None if engine.hides_ends else process.poll()
            code = status if status is None or status >= 0 else 128 - status
            if status is not None:
                engine.told.set()
            return {"Running": status is None, "ExitCode": code, "Pid": process.pid}, 200
        if call == "GET /containers/ID/top":
            running = [[str(each.pid)] for each in engine.processes.values() if each.poll() is None]
            return {"Titles": ["PID"], "Processes": running}, 200
        if call == "DELETE /containers/ID":
            engine.kill()
        return ({}, 200) if call == "POST /containers/ID/update" else (None, 204)

    def _json(self, answer: Any, status: int) -> None:
        content = json.dumps(answer).encode() if answer is not None else b""
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _attach(self, exec_id: str) -> None:
        words = [word.replace("/box", str(self.engine.box)) for word in self.engine.execs[exec_id]["Cmd"]]
        if any("memory.events" in word for word in words):
            # Behind the gate, as any command: what is said at once can be lost with the answer's head.
            words = [*docker._GATE, "sh", "-c", f"echo oom_kill {self.engine.oom_kills}; exit 1"]
        self.close_connection = True
        self.engine.told.clear()
        if self.engine.drops:
            self.wfile.write(HEAD)
            self.engine.processes[exec_id] = subprocess.Popen(["sleep", "600"], start_new_session=True)
            return
        process = subprocess.Popen(
            words,
            cwd=self.engine.box,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        self.engine.processes[exec_id] = process  # before anybody can ask for it
        self.wfile.write(HEAD)
        lock = threading.Lock()
        readers = [
            threading.Thread(target=self._frames, args=(number, pipe, lock), daemon=True)
            for number, pipe in ((1, process.stdout), (2, process.stderr))
        ]
        threading.Thread(target=self._feed, args=(process,), daemon=True).start()
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join()

    def _feed(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None
        with contextlib.suppress(OSError, ValueError):
            while data := self.rfile.read1(65_536):
                process.stdin.write(data)
                process.stdin.flush()
        with contextlib.suppress(OSError):
            process.stdin.close()

    def _frames(self, number: int, pipe: Any, lock: threading.Lock) -> None:
        with pipe, contextlib.suppress(OSError):
            while data := os.read(pipe.fileno(), 16_384):
                if self.engine.holds_output:
                    self.engine.told.wait()
                with lock:
                    self.wfile.write(struct.pack(">BxxxL", number, len(data)) + data)


@contextlib.contextmanager
def engine(directory: Path) -> Iterator[Engine]:
    """A daemon that listens; everything it started is ended afterwards."""
    with Engine(directory) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
            server.kill()
            for process in server.processes.values():
                process.wait()
