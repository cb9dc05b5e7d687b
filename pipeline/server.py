"""Start a vLLM server from the server environment, wait until it is healthy, end it whole.

The server lives in `.venv-serve` (it cannot share an environment with the rest) and in a process
group of its own, under a guard that ends the group when the owner dies. It listens on 127.0.0.1
only, because the endpoints that update weights are unprotected. One server is one replica: start
several for several. Not covered: servers somebody else runs (pass their URLs to the engine).
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import httpx

from data.files import disk_errors
from pipeline.errors import ConfigError, EngineError
from pipeline.serve_guard import group_members

Progress = Callable[[float, str], None]
"""Told (seconds waited, the server's last log line) about once a second while the server starts."""

EXTENSION_MODULE = "trajsmith_serve_extension"
_START_ATTEMPTS_PER_SECOND = 4
_PREFILL_TOKENS = 4096
_KILLED_SECONDS = 30.0
_UNTOUCHED = "no server was started"
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """What the server is started with."""

    served_name: str = "policy"
    """Model name in requests."""
    host: str = "127.0.0.1"
    port: int = 0
    """0 = any free port."""
    dtype: str = "bfloat16"
    lora: bool = False
    """Whether adapters can be pushed."""
    max_lora_rank: int = 32
    max_model_len: int = 2048
    """Longest prompt plus completion, in tokens."""
    max_num_seqs: int = 32
    """Sequences decoded together."""
    kv_cache_gib: int = 1
    """Memory of the key-value cache where there is no GPU."""
    cpu_cores: str = ""
    """Cores to compute on where there is no GPU, e.g. "0-3"; "" = $VLLM_CPU_OMP_THREADS_BIND, else all.
    Replicas on one machine need cores of their own."""
    start_seconds: float = 300.0
    """Seconds until an unhealthy server is given up."""
    stop_grace: float = 10.0
    """Seconds between SIGTERM and SIGKILL."""
    extra_args: tuple[str, ...] = ()
    """More flags for the server, passed last."""


class ModelServer:
    """One running vLLM server; a context manager. `url` answers once `start` has returned.

    Example::

        with ModelServer(model_dir, settings=ServerSettings(max_num_seqs=32)) as server:
            engine = VllmEngine([server.url], model=server.settings.served_name)
    """

    def __init__(
        self,
        model_dir: Path,
        *,
        settings: ServerSettings | None = None,
        log_path: Path | None = None,
        python: Path | None = None,
    ) -> None:
        self.model_dir = Path(model_dir)
        self.settings = settings or ServerSettings()
        self.port = self.settings.port or _free_port(self.settings.host)
        self._python = python
        with disk_errors(Path("a temporary file"), safe=_UNTOUCHED):
            self.log_path = (
                log_path or Path(tempfile.gettempdir()) / f"trajsmith-serve-{os.getpid()}-{self.port}.log"
            )
        self._modules: tempfile.TemporaryDirectory[str] | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._leash = -1

    @property
    def url(self) -> str:
        """Base URL without `/v1`."""
        return f"http://{self.settings.host}:{self.port}"

    @property
    def process_group(self) -> int:
        """Process group of the guard, the server and its workers; 0 when not running."""
        return self._process.pid if self._process else 0

    def start(self, progress: Progress | None = None) -> ModelServer:
        """Start and wait for health.

        ConfigError before anything runs, StoreError where the disk takes no log, EngineError where the server
        dies or hangs.
        """
        python = self._python or serve_python()
        check_model(self.model_dir)
        check_port(self.settings.host, self.port)
        if without_gpu(python):
            check_memory(self.model_dir, self.settings.kv_cache_gib)
        try:
            self._launch(python)
            self._wait_for_health(progress)
        except BaseException:
            self.stop()
            raise
        return self

    def _launch(self, python: Path) -> None:
        """Start the guard and, under it, the server."""
        # A copy in a directory of its own: the checkout on the server's path would shadow its packages.
        with disk_errors(Path("a temporary file"), safe=_UNTOUCHED):
            self._modules = tempfile.TemporaryDirectory(prefix="trajsmith-serve-")
            extension = Path(self._modules.name) / f"{EXTENSION_MODULE}.py"
            shutil.copy(Path(__file__).with_name("serve_extension.py"), extension)
        with contextlib.ExitStack() as opened:
            with disk_errors(self.log_path, safe=_UNTOUCHED):
                self.log_path.parent.mkdir(parents=True, exist_ok=True)
                log = opened.enter_context(open(self.log_path, "ab"))
            reading_end, self._leash = os.pipe()
            script = str(Path(__file__).with_name("serve_guard.py"))
            guard = [sys.executable, script, str(reading_end), str(self.settings.stop_grace)]
            try:
                self._process = subprocess.Popen(
                    [*guard, *self.command(python)],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=self.environment() | {"PYTHONPATH": self._modules.name},
                    pass_fds=(reading_end,),
                    start_new_session=True,
                )
            finally:
                os.close(reading_end)

    def command(self, python: Path) -> list[str]:
        """The server's command line."""
        settings = self.settings
        flags: dict[str, object] = {
            "--model": self.model_dir,
            "--served-model-name": settings.served_name,
            "--host": settings.host,
            "--port": self.port,
            "--dtype": settings.dtype,
            "--max-model-len": settings.max_model_len,
            "--max-num-seqs": settings.max_num_seqs,
            # Log-probs of the distribution sampled from; no sampling defaults from the model's files.
            "--logprobs-mode": "processed_logprobs",
            "--generation-config": "vllm",
            "--worker-extension-cls": f"{EXTENSION_MODULE}.ServedWeights",
        }
        if settings.lora:
            flags["--max-lora-rank"] = settings.max_lora_rank
        switches = ["--enable-lora"] if settings.lora else []
        if without_gpu(python):
            # Without a GPU a seeded request kills the engine when its prompt is prefilled in chunks.
            switches += ["--enforce-eager", "--no-enable-chunked-prefill"]
            flags["--max-num-batched-tokens"] = max(settings.max_model_len, _PREFILL_TOKENS)
            # The default of 128 tokens is longer than most turns, so little would be found in the cache.
            flags["--block-size"] = 32
        words = [str(word) for pair in flags.items() for word in pair]
        module = "vllm.entrypoints.openai.api_server"
        return [str(python), "-P", "-m", module, *words, *switches, *settings.extra_args]

    def environment(self) -> dict[str, str]:
        """The server's environment: the caller's plus what makes weights updatable and the start offline."""
        # Left alone, the server keeps a core free for itself, which is half of a machine of two.
        every_core = ",".join(map(str, sorted(os.sched_getaffinity(0))))
        cores = self.settings.cpu_cores or os.environ.get("VLLM_CPU_OMP_THREADS_BIND", every_core)
        return os.environ | {
            "VLLM_CPU_OMP_THREADS_BIND": cores,
            "VLLM_SERVER_DEV_MODE": "1",
            "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_CPU_KVCACHE_SPACE": str(self.settings.kv_cache_gib),
            "HF_HUB_OFFLINE": "1",
        }

    def check_running(self) -> None:
        """EngineError where the server ended by itself."""
        if self._process is None or self._process.poll() is not None:
            raise EngineError(f"the model server ended: {self._reason()}; log: {self.log_path}")

    def stop(self) -> None:
        """End the whole group and wait until no process of it is left; warn if one is. Safe to call twice."""
        process, self._process = self._process, None
        if self._leash >= 0:
            os.close(self._leash)
            self._leash = -1
        if process is not None:
            _end_group(process, self.settings.stop_grace)
        if self._modules is not None:
            self._modules.cleanup()
            self._modules = None

    def __enter__(self) -> ModelServer:
        return self.start() if self._process is None else self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _wait_for_health(self, progress: Progress | None) -> None:
        started = time.monotonic()
        while (waited := time.monotonic() - started) < self.settings.start_seconds:
            if self._process is None or self._process.poll() is not None:
                raise EngineError(
                    f"the model server exited while starting: {self._reason()}; log: {self.log_path}"
                )
            with contextlib.suppress(httpx.HTTPError):
                if httpx.get(f"{self.url}/health", timeout=2.0, trust_env=False).status_code == 200:
                    return
            if progress:
                progress(waited, self._last_lines(1))
            time.sleep(1 / _START_ATTEMPTS_PER_SECOND)
        raise EngineError(
            f"the model server was not healthy after {self.settings.start_seconds:.0f} s "
            f"(last line: {self._last_lines(1)!r}); raise start_seconds (policy.start_seconds of a recipe, "
            f"--start-seconds of `trajsmith serve`) or read {self.log_path}"
        )

    def _reason(self) -> str:
        """The line of the log that explains a failed start, in the server's own words."""
        lines = self._last_lines(400).splitlines()
        errors = [line for line in lines if "Error" in line and "Traceback" not in line]
        told = [line for line in errors if "See root cause above" not in line]
        return (told or errors or lines or ["it wrote nothing"])[-1].strip()[-500:]

    def _last_lines(self, count: int) -> str:
        with contextlib.suppress(OSError):
            text = self.log_path.read_bytes()[-100_000:].decode("utf-8", errors="replace")
            return "\n".join(text.strip().splitlines()[-count:])
        return ""


def serve_python() -> Path:
    """The server environment's interpreter: $TRAJSMITH_SERVE_PYTHON, else `.venv-serve` of the checkout."""
    configured = os.environ.get("TRAJSMITH_SERVE_PYTHON")
    python = Path(configured) if configured else Path(__file__).parents[1] / ".venv-serve" / "bin" / "python"
    if not python.exists():
        raise ConfigError(
            f"no server environment at {python}; run `make serve-setup` or set TRAJSMITH_SERVE_PYTHON"
        )
    return python


def without_gpu(python: Path) -> bool:
    """Whether the server environment holds the build for machines without a GPU."""
    return any(python.parents[1].glob("lib/python3*/site-packages/vllm_cpu-*"))


def check_model(directory: Path) -> None:
    """ConfigError unless `directory` holds config, weights, tokenizer and a template that shows tools."""
    if not directory.is_dir():
        raise ConfigError(
            f"model directory {directory} does not exist; pass another or a known name (smollm2)"
        )
    for pattern in ("config.json", "*.safetensors", "tokenizer.json"):
        if not any(directory.glob(pattern)):
            raise ConfigError(f"model directory {directory} has no {pattern}; save model and tokenizer there")
    template = directory / "chat_template.jinja"
    source = template if template.exists() else directory / "tokenizer_config.json"
    try:
        text = source.read_text(encoding="utf-8") if source.exists() else ""
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the chat template {source}: {error!r:.100}") from error
    if "tools" not in text:
        raise ConfigError(
            f"the chat template of {directory} ({source.name}) never mentions `tools`, so the model "
            f"would not see them; save one that does as {template.name} "
            f"(ours is pipeline/renderers/chatml_tools.jinja)"
        )


def check_port(host: str, port: int) -> None:
    """ConfigError where another process listens on the port."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise ConfigError(
                f"port {port} on {host} cannot be used ({error.strerror}); choose another, 0 = any free one"
            ) from error


def check_memory(directory: Path, kv_cache_gib: int, *, meminfo: Path = Path("/proc/meminfo")) -> None:
    """ConfigError where main memory does not hold a server: weights twice, cache, 1 GiB of runtime."""
    weights = sum(file.stat().st_size for file in directory.glob("*.safetensors")) / 2**30
    needed = 2 * weights + kv_cache_gib + 1.0
    available = _available_gib(meminfo)
    if available < needed:
        smaller = f", lower kv_cache_gib (now {kv_cache_gib})" if kv_cache_gib > 1 else ""
        raise ConfigError(
            f"serving {directory} needs about {needed:.1f} GiB of memory, {available:.1f} GiB are available; "
            f"end other processes{smaller} or serve a smaller model"
        )


def _available_gib(meminfo: Path) -> float:
    for line in meminfo.read_text(encoding="ascii").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) / 2**20
    return float("inf")


def _free_port(host: str) -> int:
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def _end_group(process: subprocess.Popen[bytes], grace: float) -> None:
    """The guard ends the group when the leash closes; what is left after its grace gets SIGKILL."""
    deadline = time.monotonic() + grace + 5.0
    while time.monotonic() < deadline and (process.poll() is None or any(group_members(process.pid))):
        time.sleep(0.1)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    # A killed process needs a moment to go: all its memory is given back first.
    deadline = time.monotonic() + _KILLED_SECONDS
    while (left := sorted(group_members(process.pid))) and time.monotonic() < deadline:
        time.sleep(0.1)
    if left:
        _log.warning(
            "processes %s of the model server still run %.0f s after SIGKILL; until they end they hold its "
            "port and its memory: look at them with ps, and start the next server on another port",
            ", ".join(map(str, left)),
            _KILLED_SECONDS,
        )
