"""Why a plan is given up, inside this package; outside it is a verdict."""

from __future__ import annotations


class PlanStopped(Exception):
    """`reason` is a stable identifier; the verdict's."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason, self.detail = reason, detail
