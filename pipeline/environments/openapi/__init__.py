"""An OpenAPI document as an environment: `load(document=..., tasks=..., url=... or start=[...])`."""

from pipeline.environments.openapi.environment import OpenApiEnvironment, load

__all__ = ["OpenApiEnvironment", "load"]
