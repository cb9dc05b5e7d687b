"""vf-eval as it is, but for one thing: its chat program runs in this interpreter, so that no uv is fetched.

Run by the interpreter of .venv-verifiers; arguments are vf-eval's.
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

from verifiers.v1.cli.eval.main import main
from verifiers.v1.harnesses.null.harness import CHAT_PROGRAM_SOURCE
from verifiers.v1.runtimes.subprocess import SubprocessRuntime

if __name__ == "__main__":
    sys.path += [str(Path(__file__).parent), str(Path(__file__).parents[4])]
    program = CHAT_PROGRAM_SOURCE.encode()
    script = Path(SubprocessRuntime.scripts_dir) / f"{hashlib.sha256(program).hexdigest()}.py"
    script.parent.mkdir(parents=True, exist_ok=True)
    script.write_bytes(program)
    SubprocessRuntime._interpreters[str(script)] = sys.executable
    main(sys.argv[1:])
