"""A tiny rental desk over HTTP: the server that openapi_rental.py starts for every session.

Any server will do; this one speaks just enough HTTP by hand, because it starts in a fraction of the time.
"""

import json
import socketserver
import sys

BIKES = {
    "b1": {"id": "b1", "kind": "city", "gears": 3, "free": True},
    "b2": {"id": "b2", "kind": "road", "gears": 18, "free": True},
    "b3": {"id": "b3", "kind": "cargo", "gears": 7, "free": False},
    "b4": {"id": "b4", "kind": "city", "gears": 8, "free": True},
}
RENTALS: dict[str, dict] = {}


def answer(method: str, path: str, query: str, body: dict) -> tuple[int, object]:
    """Status and JSON value of one request."""
    if (method, path) == ("GET", "/bikes"):
        kind = query.removeprefix("kind=")
        return 200, [bike for bike in BIKES.values() if bike["free"] and kind in ("", bike["kind"])]
    if (method, path) == ("GET", "/rentals"):
        return 200, list(RENTALS.values())
    if (method, path) == ("POST", "/rentals"):
        bike = BIKES.get(body["bike"], {"free": False})
        if not bike["free"]:
            return 409, {"detail": f"bike {body['bike']} is not free"}
        bike["free"] = False
        key = f"r{len(RENTALS) + 1}"
        RENTALS[key] = {"id": key, **body}
        return 201, RENTALS[key]
    rental = RENTALS.pop(path.rsplit("/", 1)[-1], None) if method == "DELETE" else None
    if rental is None:
        return 404, {"detail": "there is no such rental"}
    BIKES[rental["bike"]]["free"] = True
    return 204, None


class Desk(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        while line := self.rfile.readline().decode():
            method, target, _ = line.split()
            length = 0
            while (header := self.rfile.readline().decode().lower().strip()) != "":
                name, _, value = header.partition(":")
                length = int(value) if name == "content-length" else length
            path, _, query = target.partition("?")
            status, value = answer(method, path, query, json.loads(self.rfile.read(length) or "{}"))
            data = b"" if value is None else json.dumps(value).encode()
            head = [f"HTTP/1.1 {status} x", "content-type: application/json", f"content-length: {len(data)}"]
            self.wfile.write("\r\n".join([*head, "", ""]).encode() + data)


if __name__ == "__main__":
    with socketserver.ThreadingTCPServer(("127.0.0.1", int(sys.argv[1])), Desk) as server:
        server.daemon_threads = True
        server.serve_forever()
