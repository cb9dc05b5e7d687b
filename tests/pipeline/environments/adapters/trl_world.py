"""A TRL environment class as its users write them."""

from __future__ import annotations

from typing import Any

from pipeline.environments.tools import ToolError


class Lamp:
    """Three lamps, to be switched."""

    def reset(self, target: str, lit: list[str] | None = None, **_: Any) -> str:
        self.lit, self.target = list(lit or []), target
        return f" Lit now: {', '.join(self.lit) or 'none'}."

    def switch(self, lamp: str, on: bool = True) -> dict[str, Any]:
        """Switch a lamp.

        Args:
            lamp: Its colour.
            on: Whether it is to be lit.
        """
        if lamp not in ("red", "green", "blue"):
            raise ToolError(f"there is no {lamp} lamp")
        self.lit = sorted({*self.lit, lamp} if on else {*self.lit} - {lamp})
        return {"lit": self.lit}

    async def count(self) -> int:
        """How many lamps are lit."""
        return len(self.lit)

    def get_reward(self) -> float:
        return 1.0 if self.lit == [self.target] else 0.0


class Moody(Lamp):
    """Its reset does not depend on the row alone."""

    times = 0

    def reset(self, target: str, lit: list[str] | None = None, **row: Any) -> str:
        Moody.times += 1
        return super().reset(target, lit, **row) + str(Moody.times)


class Broken(Lamp):
    """Its reward fails."""

    def get_reward(self) -> float:
        raise OSError("no disk")


def rows() -> list[dict[str, Any]]:
    """One colour alone is to be lit; `target` is what `reset` and nobody else may see."""
    cases = [("green", []), ("red", ["blue"]), ("blue", ["green", "red"]), ("red", []), ("green", ["blue"])]
    made = [_row(target, lit) for target, lit in cases]
    return [*made[:4], made[4] | {"split": "heldout"}]


def _row(target: str, lit: list[str]) -> dict[str, Any]:
    prompt = f"Only the {target} lamp is to be lit."
    off = [{"name": "switch", "arguments": {"lamp": lamp, "on": False}} for lamp in lit]
    on = {"name": "switch", "arguments": {"lamp": target}}
    shown: Any = prompt if lit else [{"role": "user", "content": prompt}]
    return {"prompt": shown, "lit": lit, "target": target, "gold": [on, *off]}
