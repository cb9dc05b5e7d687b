"""The command line: `trajsmith VERB ...`. Parses, prints, and turns errors into exit codes.

Exit codes: 0 done; 1 a check or gate failed; 2 the input is wrong (recipe, path, option); 3 a server,
environment or judge failed; 4 a run directory cannot be read or written; 5 a budget is used up; 130
interrupted. After any of them the same command goes on where it stopped. A traceback is a bug of ours.
Heavy imports wait until a verb runs.
"""

from __future__ import annotations

import errno
import os
import sys
from typing import NoReturn

import typer

from data.errors import TrajsmithError
from flows.commands import gateway, inspect, loop, make, serve, show

app = typer.Typer(
    name="trajsmith",
    help="Synthesise tool-use trajectories, curate them, train on them, and see what the model learned.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
env = typer.Typer(help="Environments.", no_args_is_help=True)
train = typer.Typer(help="Train a model on a run.", no_args_is_help=True)

app.command("serve")(serve.serve)
app.command("gateway")(gateway.gateway)
env.command("check")(inspect.env_check)
env.command("list")(inspect.env_list)
app.add_typer(env, name="env")
app.command("synth")(make.synth)
app.command("curate")(make.curate)
train.command("sft")(make.sft)
train.command("grpo")(make.grpo)
app.add_typer(train, name="train")
app.command("eval")(make.evaluate)
app.command("diagnose")(show.diagnose)
app.command("report")(show.report)
app.command("publish")(show.publish)
app.command("view")(show.view)
app.command("audit")(show.audit)
app.command("doctor")(inspect.doctor)
app.command("demo")(make.demo)
app.command("prove")(make.prove)
app.command("loop")(loop.loop)


NO_TELEMETRY = {
    "DO_NOT_TRACK": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "VLLM_NO_USAGE_STATS": "1",
}
"""No dependency reports anything to anybody, unless the user's own environment says otherwise."""
_CANNOT_WRITE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EPIPE, errno.EIO)


def main() -> None:
    """Entry point of the `trajsmith` command."""
    for name, value in NO_TELEMETRY.items():
        os.environ.setdefault(name, value)
    try:
        code = app(standalone_mode=False)  # a typer.Exit of a verb comes back as its code
    except (typer.Abort, KeyboardInterrupt):
        code = 130
    except TrajsmithError as error:
        _fail(str(error), error.exit_code)
    except OSError as error:
        if error.errno not in _CANNOT_WRITE or error.filename is not None:
            raise
        # What is still buffered would fail once more when the interpreter ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        _fail(f"cannot write the output: {error.strerror}; what was worked on is on disk", 4)
    except Exception as error:
        usage = getattr(error, "format_message", None)
        if usage is None:
            raise
        _fail(usage(), 2)
    if code == 130:
        _fail("interrupted; the same command goes on where this one stopped", 130)
    sys.exit(code)


def _fail(message: str, code: int) -> NoReturn:
    if message:
        print(f"trajsmith: {message}", file=sys.stderr)
    sys.exit(code)


if __name__ == "__main__":
    main()
