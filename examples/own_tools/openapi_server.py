"""A tiny rental desk over HTTP: the server that openapi_rental.py starts for every session."""

from __future__ import annotations

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

BIKES = {
    "b1": {"id": "b1", "kind": "city", "gears": 3, "free": True},
    "b2": {"id": "b2", "kind": "road", "gears": 18, "free": True},
    "b3": {"id": "b3", "kind": "cargo", "gears": 7, "free": False},
    "b4": {"id": "b4", "kind": "city", "gears": 8, "free": True},
}
RENTALS: dict[str, dict[str, Any]] = {}


class Desk(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        query = {key: values[0] for key, values in parse_qs(url.query).items()}
        if url.path == "/bikes":
            kind = query.get("kind")
            self.answer(
                200, [bike for bike in BIKES.values() if bike["free"] and kind in (None, bike["kind"])]
            )
        elif url.path == "/rentals":
            self.answer(200, list(RENTALS.values()))
        else:
            self.answer(404, {"detail": f"there is no {url.path}"})

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        bike = BIKES.get(asked["bike"])
        if bike is None or not bike["free"]:
            self.answer(409, {"detail": f"bike {asked['bike']} is not free"})
            return
        bike["free"] = False
        rental = {"id": f"r{len(RENTALS) + 1}", **asked}
        RENTALS[rental["id"]] = rental
        self.answer(201, rental)

    def do_DELETE(self) -> None:
        rental = RENTALS.pop(self.path.rsplit("/", 1)[-1], None)
        if rental is None:
            self.answer(404, {"detail": "there is no such rental"})
            return
        BIKES[rental["bike"]]["free"] = True
        self.answer(204, None)

    def answer(self, status: int, value: Any) -> None:
        data = b"" if value is None else json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        pass


if __name__ == "__main__":
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Desk).serve_forever()
