"""The root of every error trajsmith raises on purpose, and the errors of the record and the store.

Each class says which boundary was crossed and which exit code the command line answers with.
A message names the thing, the value it had, what was allowed and the next step. Errors of the
runtime (engines, environments, judges) live in `pipeline.errors`; both modules are flat on purpose.
"""


class TrajsmithError(Exception):
    """Base of all deliberate errors; printed without a traceback by the command line."""

    exit_code = 1


class ConfigError(TrajsmithError, ValueError):
    """The user's configuration, argument or path is wrong. Exit code 2."""

    exit_code = 2


class RecordError(TrajsmithError, ValueError):
    """A record breaks its own contract (NaN in JSON, overlapping spans, missing log-probs)."""

    exit_code = 2


class StoreError(TrajsmithError, OSError):
    """A run directory cannot be read or written (corrupt row, full disk, foreign schema). Exit code 4."""

    exit_code = 4
