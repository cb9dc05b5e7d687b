"""A gateway that serves: the HTTP server, the reaper, and both shut down in order.

Not covered: which engine and which store (`flows`).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from pipeline.gateway.gateway import Gateway
from pipeline.gateway.http import HttpServer
from pipeline.gateway.routes import Routes


@contextlib.asynccontextmanager
async def run_gateway(gateway: Gateway, *, host: str = "127.0.0.1", port: int = 0) -> AsyncIterator[str]:
    """Serve `gateway` at the yielded URL; at the end open episodes are given up and recorded.

    Raises ConfigError where the port is taken.
    """
    server = HttpServer(Routes(gateway).handle, host=host, port=port)
    url = await server.start()
    reaper = asyncio.create_task(_reap(gateway))
    try:
        yield url
    finally:
        reaper.cancel()
        await asyncio.gather(reaper, return_exceptions=True)
        await server.stop()
        await gateway.stop()


async def _reap(gateway: Gateway) -> None:
    while True:
        await asyncio.sleep(gateway.settings.idle_seconds / 4)
        await gateway.reap()
