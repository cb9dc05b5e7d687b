# Sourced by the set-up scripts: find Python, make an environment, pick a torch build, skip what is up to date.
# Needs bash and coreutils only; every function prints one clear line when it cannot go on.

log_file=/dev/null

die() { printf 'error: %s\n' "$1" >&2; shift; for line in "$@"; do printf '  %s\n' "$line" >&2; done; exit 2; }

say() { printf '==> %s\n' "$1"; }

has_nvidia_gpu() { nvidia-smi -L >/dev/null 2>&1 || [ -e /proc/driver/nvidia/version ]; }

# find_python: the first Python >= 3.11 and < 3.15 (what torch and vLLM are built for), or $PYTHON.
find_python() {
  local candidate
  for candidate in ${PYTHON:-python3.11 python3.12 python3.13 python3 python}; do
    if "$candidate" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 15))' >/dev/null 2>&1; then
      command -v "$candidate"
      return
    fi
  done
  die "no Python from 3.11 to 3.14 found (looked for: ${PYTHON:-python3.11 python3.12 python3.13 python3 python})" \
    "install one (Debian: apt-get install python3 python3-venv) or name it: make setup PYTHON=/path/to/python3.11"
}

# apt_install PACKAGE REASON: install one Debian package as root, else say which command does it.
apt_install() {
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    say "Installing the system package $1 ($2)"
    logged apt-get update
    logged env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$1"
  else
    die "the system package $1 is missing ($2)" "install it and run this again: sudo apt-get install $1"
  fi
}

# logged COMMAND...: run quietly into the log; on failure show its end and stop.
logged() {
  if ! "$@" >>"$log_file" 2>&1; then
    tail -n 15 "$log_file" >&2
    die "this command failed: $*" "full log: $log_file"
  fi
}

# digest FILE-OR-WORD...: one hash over the files' contents and the words.
digest() {
  local item
  for item in "$@"; do if [ -f "$item" ]; then cat "$item"; else printf '%s\n' "$item"; fi; done | sha256sum | cut -d' ' -f1
}

# is_current VENV DIGEST: was this environment finished from exactly these inputs?
is_current() { [ -x "$1/bin/python" ] && [ "$(cat "$1/.complete" 2>/dev/null)" = "$2" ]; }

mark_current() { printf '%s\n' "$2" >"$1/.complete"; }

# make_venv VENV: create it, or keep it when its Python still runs.
make_venv() {
  local python
  python=$(find_python)
  if ! "$1/bin/python" -m pip --version >/dev/null 2>&1; then
    "$python" -c 'import ensurepip' 2>/dev/null || apt_install python3-venv "Python's venv module needs it"
    rm -rf "$1"
    "$python" -m venv "$1"
  fi
  rm -f "$1/.complete"
  log_file="$PWD/$1/setup.log"
  : >"$log_file"
  logged "$1/bin/python" -m pip install --upgrade pip
}

# install_torch VENV VERSION: the CUDA build on an NVIDIA machine, the CPU build elsewhere, never a guess.
install_torch() {
  local pip=("$1/bin/python" -m pip install)
  if [ -n "${TORCH_INDEX:-}" ]; then pip+=(--extra-index-url "$TORCH_INDEX"); fi
  if has_nvidia_gpu || [ "${TORCH:-auto}" = default ] || [ "$(uname -sm)" != "Linux x86_64" ]; then
    logged "${pip[@]}" "torch==$2"
  elif ! "${pip[@]}" "torch==$2+cpu" >>"$log_file" 2>&1; then
    die "no NVIDIA GPU here, and pip finds no CPU build of torch $2 (log: $log_file). Choose one:" \
      "make $MAKE_TARGET TORCH_INDEX=URL   with the CPU index URL that PyTorch's install page shows (about 0.2 GB)" \
      "make $MAKE_TARGET TORCH=default     the default build, which carries CUDA and also runs without a GPU (about 3 GB)"
  fi
}
