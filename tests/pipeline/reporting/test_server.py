import threading
from collections.abc import Iterator
from http.client import HTTPConnection

import pytest

from data.errors import ConfigError, StoreError
from data.trajectories import Termination, Trajectory
from pipeline.reporting.server import HOST, Catalogue, Source, make_server
from tests.samples import trajectory

POOL = [
    trajectory(
        "x", index=index, template=f"t{index % 3}", reward=None if index % 10 == 9 else float(index % 2)
    )
    for index in range(120)
]
BY_ID = {item.trajectory_id: item for item in POOL}
SOURCE = Source(lambda: POOL, BY_ID.get)


@pytest.fixture
def port() -> Iterator[int]:
    server = make_server(SOURCE, title="runs/demo")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server.server_address[1]
    server.shutdown()
    thread.join()
    server.server_close()


def get(port: int, path: str, host: str = "") -> tuple[int, str, dict[str, str]]:
    connection = HTTPConnection(HOST, port, timeout=60)
    connection.request("GET", path, headers={"Host": host or f"{HOST}:{port}"})
    response = connection.getresponse()
    body, headers = response.read().decode(), dict(response.getheaders())
    connection.close()
    return response.status, body, headers


def test_list_filters_and_pages() -> None:
    catalogue = Catalogue(SOURCE)
    first = catalogue.list({})
    assert (len(first.rows), first.matching, first.page, first.num_pages) == (50, 120, 1, 3)
    assert first.choices["success"] == [("failure", 60), ("no reward", 12), ("success", 48)]
    assert first.choices["template"] == [("t0", 40), ("t1", 40), ("t2", 40)]
    last = catalogue.list({"page": "3"})
    assert [row.trajectory_id for row in last.rows] == [item.trajectory_id for item in POOL[100:]]
    both = catalogue.list({"success": "success", "template": "t1"})
    assert (
        both.matching == sum(bool(item.success) and item.template == "t1" for item in POOL) == len(both.rows)
    )
    broken = catalogue.list({"termination": str(Termination.INFRA_FAILURE)})
    assert {row.success for row in broken.rows} == {"no reward"} and broken.matching == 12


@pytest.mark.parametrize(
    ("wanted", "page"), [("99", 3), ("0", 1), ("-1", 1), ("x", 1), ("²", 1), ("9" * 5000, 3)]
)
def test_impossible_pages_are_the_nearest_one(wanted: str, page: int) -> None:
    assert Catalogue(SOURCE).list({"page": wanted}).page == page


def test_the_index_is_read_once_until_reload() -> None:
    reads: list[int] = []

    def read() -> list[Trajectory]:
        reads.append(1)
        return POOL[: 10 * len(reads)]

    catalogue = Catalogue(Source(read, BY_ID.get))
    assert [catalogue.list({}).matching, catalogue.list({}).matching] == [10, 10]
    assert catalogue.list({"reload": "1"}).matching == 20 and len(reads) == 2


def test_list_and_trajectory_over_http(port: int) -> None:
    status, body, headers = get(port, "/?success=failure&template=t1&page=1")
    assert (
        status == 200
        and "runs/demo" in body
        and headers["Content-Security-Policy"].startswith("default-src 'none'")
    )
    link = f"/t/{POOL[4].trajectory_id}?success=failure&amp;template=t1"
    assert f'href="{link}"' in body
    status, body, _ = get(port, link.replace("&amp;", "&"))
    assert status == 200 and POOL[4].trajectory_id in body
    assert 'href="/?success=failure&amp;template=t1"' in body


def test_unknown_pages_and_foreign_hosts_are_refused(port: int) -> None:
    assert get(port, "/t/nope<script>")[0] == 404
    assert "<script>" not in get(port, "/t/nope<script>")[1]
    assert get(port, "/etc/passwd")[0] == 404
    status, body, _ = get(port, "/", host="evil.example:80")
    assert status == 403 and POOL[0].trajectory_id not in body
    assert get(port, "/", host=f"localhost:{port}")[0] == 200


def test_an_unreadable_run_is_a_page_that_says_so() -> None:
    def broken() -> list[Trajectory]:
        raise StoreError("runs/demo/trajectories/part-0.parquet is cut off; run the stage again")

    server = make_server(Source(broken, BY_ID.get), title="x")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        status, body, _ = get(server.server_address[1], "/")
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert status == 500 and "part-0.parquet is cut off" in body


def test_bound_to_this_machine_only_and_a_taken_port_is_one_clear_error(port: int) -> None:
    with pytest.raises(ConfigError, match=rf"cannot listen on {HOST}:{port}: .*choose another --port"):
        make_server(SOURCE, title="x", port=port)
