"""An OpenAPI document as an environment; a server of its own for every session is the reset.

`trajsmith env check openapi_rental:load --tasks 2` takes it as it is. For a server that runs already, give
`url="https://..."` instead of `start`, and `auth={"scheme": "NAME_OF_ENVIRONMENT_VARIABLE"}` for its key.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pipeline.environments.openapi import OpenApiEnvironment

HERE = Path(__file__).parent


def load(**options: Any) -> OpenApiEnvironment:
    return OpenApiEnvironment(
        name="rental_desk",
        document=HERE / "openapi_rental.yaml",
        tasks=HERE / "openapi_tasks.yaml",
        start=["python", "-S", str(HERE / "openapi_server.py"), "{port}"],
        **options,
    )
