"""The child process in which answers are compared: one JSON line in, one JSON line out.

It runs under limits of CPU time and memory that its parent raises per request, so an answer such as
9^9^9^9 ends this process and not the trainer. math-verify reads numbers, LaTeX and sets; what it evaluates is
cut out by patterns of digits and operators. Not covered: several processes at once (the parent keeps one).
"""

from __future__ import annotations

import json
import logging
import resource
import sys


def main() -> None:
    """Answer requests until the input ends."""
    logging.disable(logging.CRITICAL)  # math-verify warns that its own timeouts are off; ours are outside
    from math_verify import parse, verify

    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        _limit(request["cpu_seconds"], request["memory_bytes"])
        try:
            given = parse(request["given"], parsing_timeout=None)
            equal = any(
                verify(parse(reference, parsing_timeout=None), given, timeout_seconds=None)
                for reference in request["references"]
            )
            reply: dict[str, bool | str] = {"equal": bool(equal)}
        except (MemoryError, RecursionError, OverflowError):
            reply = {"over_limit": True}
        except Exception as error:  # said to the parent, which makes it a failed judge
            reply = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(reply), flush=True)


def _limit(cpu_seconds: int, memory_bytes: int) -> None:
    """This request may use so many more CPU seconds; past them the kernel ends the process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    spent = int(used.ru_utime + used.ru_stime) + 1
    for kind, soft in ((resource.RLIMIT_CPU, spent + cpu_seconds), (resource.RLIMIT_AS, memory_bytes)):
        hard = resource.getrlimit(kind)[1]
        resource.setrlimit(kind, (soft if hard == resource.RLIM_INFINITY else min(soft, hard), hard))


if __name__ == "__main__":
    main()
