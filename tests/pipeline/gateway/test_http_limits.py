"""What a request may cost the server: its size, all sizes together, and the time it takes to arrive."""

from __future__ import annotations

import asyncio
import gc
import json
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from pipeline.gateway.http import MAX_BODIES, HttpServer, Request, Response

HEAD = b"POST / HTTP/1.1\r\nHost: x\r\n"
Play = Callable[[HttpServer], Awaitable[Any]]


async def _length(request: Request) -> Response:
    return Response(body=str(len(request.body)).encode())


def serve(play: Play, **limits: Any) -> Any:
    async def served() -> Any:
        server = HttpServer(_length, **limits)
        await server.start()
        try:
            return await play(server)
        finally:
            await server.stop()

    return asyncio.run(served())


@asynccontextmanager
async def connected(server: HttpServer, *pieces: bytes) -> AsyncIterator[asyncio.StreamReader]:
    host, _, port = server.url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    for piece in pieces:
        writer.write(piece)
        await writer.drain()
    try:
        yield reader
    finally:
        writer.close()


def sized(size: int, body: bytes = b"") -> bytes:
    return HEAD + f"Content-Length: {size}\r\n\r\n".encode() + body


def status(said: bytes) -> tuple[int, str]:
    head, _, body = said.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)["error"]["message"]


def test_an_announced_body_that_is_too_large_is_refused_unread() -> None:
    async def play(server: HttpServer) -> bytes:
        async with connected(server, sized((32 << 20) + 1)) as reader:
            return await reader.read()

    assert status(serve(play)) == (413, "the body is larger than 33554432 bytes")


def test_a_body_of_unknown_size_is_refused_once_it_is_too_large() -> None:
    async def play(server: HttpServer) -> bytes:
        chunk = b"400\r\n" + b"a" * 1024 + b"\r\n"
        async with connected(server, HEAD + b"Transfer-Encoding: chunked\r\n\r\n", *[chunk] * 5) as reader:
            return await reader.read()

    assert status(serve(play, max_body=4096)) == (413, "the body is larger than 4096 bytes")


def test_the_largest_body_is_taken_whole() -> None:
    async def play(server: HttpServer) -> str:
        return await _post(server, 32 << 20)

    assert serve(play) == str(32 << 20)


def test_a_body_costs_a_few_times_its_size_and_is_given_back() -> None:
    size = 2 << 20

    async def play(server: HttpServer) -> tuple[int, int]:
        message = sized(size, bytes(size))
        tracemalloc.start()
        async with connected(server, message) as reader:  # the connection stays open
            await reader.readuntil(str(size).encode())
            gc.collect()
            left, peak = tracemalloc.get_traced_memory()
            tracemalloc.stop()
        return left, peak

    left, peak = serve(play, max_body=size)
    assert left < size / 4 and peak < 4 * size  # one of these is the client's


def test_all_bodies_together_are_bounded_and_room_comes_back() -> None:
    async def play(server: HttpServer) -> Any:
        part = sized(1000, b"a" * 900)
        async with asyncio.timeout(60):
            held = [connected(server, part) for _ in range(MAX_BODIES + 1)]
            readers = [await one.__aenter__() for one in held]
            first, _ = await asyncio.wait(
                [asyncio.create_task(reader.read()) for reader in readers],
                return_when=asyncio.FIRST_COMPLETED,
            )
            refused = [status(task.result()) for task in first]
            for one in held:
                await one.__aexit__(None, None, None)
            while True:  # until the server has seen that they are gone
                answer = await _post(server, 1000)
                if answer == "1000":
                    return refused

    refused = serve(play, max_body=1000)
    assert refused[0] == (503, "too many large requests at once; try again")


async def _post(server: HttpServer, size: int) -> str:
    async with httpx.AsyncClient(timeout=60) as client:
        return (await client.post(server.url, content=b"a" * size)).text


@pytest.mark.parametrize("begun", [b"POST / HT", HEAD + b"X: ", sized(10), sized(10, b"abc")])
def test_a_request_that_trickles_is_told_and_dropped(begun: bytes) -> None:
    async def play(server: HttpServer) -> bytes:
        async with connected(server, begun) as reader, asyncio.timeout(60):
            return await reader.read()

    assert status(serve(play, arrival=0.05)) == (408, "the request did not arrive within 0.05 s")


def test_steady_bytes_do_not_hold_a_request_open() -> None:
    """The time counts from the first byte, not from the last one."""

    async def play(server: HttpServer) -> bytes:
        async with connected(server, sized(1 << 20)) as reader:
            host, _, port = server.url.removeprefix("http://").partition(":")
            other, writer = await asyncio.open_connection(host, int(port))
            writer.write(sized(1 << 20))
            answer = asyncio.create_task(other.read())
            while not answer.done():
                writer.write(b"a")
                await asyncio.sleep(0.005)
            writer.close()
            return answer.result() or await reader.read()

    assert status(serve(play, arrival=0.1, idle=60.0))[0] == 408


def test_an_idle_connection_is_closed_without_a_word() -> None:
    async def play(server: HttpServer) -> bytes:
        async with connected(server) as reader, asyncio.timeout(60):
            return await reader.read()

    assert serve(play, idle=0.05) == b""


def test_a_client_that_takes_no_answer_is_dropped() -> None:
    answering: list[int] = []

    async def much(request: Request) -> Response:
        answering.append(len(server._connections))
        server._limits.idle = 0.05  # only now: the request had all the time it needed
        return Response(stream=(bytes(1 << 20) for _ in range(64)))

    server = HttpServer(much, idle=1000.0)

    async def play() -> None:
        await server.start()
        try:
            async with connected(server, sized(0)), asyncio.timeout(60):
                while not answering or server._connections:
                    await asyncio.sleep(0.01)
        finally:
            await server.stop()

    asyncio.run(play())
    assert answering == [1]
