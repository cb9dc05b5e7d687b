"""Tree: draws the files of one task and keeps the end state that the right actions lead to.

`files` is what the agent finds, `expected` what must be there in the end, `steps` the calls gold makes. A
template changes `expected` by its rule and lists gold's calls; executing gold proves that they agree. Not
covered: prompts (`templates`).
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

_FOLDERS = (
    "inbox", "logs", "notes", "drafts", "reports", "data", "shop", "north", "south", "lab", "house", "club",
    "garden", "archive", "office", "trips", "music", "team",
)  # fmt: skip
_STEMS = (
    "apple", "birch", "cloud", "dune", "ember", "fern", "grove", "heron", "iris", "jade", "kite", "lark",
    "maple", "north", "olive", "pearl", "quartz", "river", "slate", "tulip", "umber", "violet", "wren",
    "yarrow",
)  # fmt: skip
_WORDS = (
    "paint", "fence", "order", "seeds", "call", "plan", "bridge", "ticket", "bread", "window", "engine",
    "letter", "market", "roof", "winter", "summer", "train", "guest", "radio", "basket", "mirror", "pump",
    "lamp", "rope",
)  # fmt: skip
_NAMES = (
    "Ada", "Bo", "Cleo", "Dov", "Esa", "Fay", "Gus", "Hana", "Ivo", "Jun", "Kai", "Lea", "Mio", "Nia",
    "Ota", "Pia", "Quin", "Ria", "Sol", "Tova", "Uma", "Vik", "Wen", "Yara",
)  # fmt: skip


@dataclass(slots=True)
class Tree:
    """One task in the making."""

    rng: random.Random
    files: dict[str, str] = field(default_factory=dict)
    expected: dict[str, str] = field(default_factory=dict)
    steps: list[list[Any]] = field(default_factory=list)
    answer: str = ""
    must_read: str = ""
    _folders: list[str] = field(default_factory=list)
    _stems: list[str] = field(default_factory=list)
    _words: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._folders = self.rng.sample(_FOLDERS, len(_FOLDERS))
        self._stems = self.rng.sample(_STEMS, len(_STEMS))
        self._words = self.rng.sample(_WORDS, len(_WORDS))

    def folder(self) -> str:
        """A folder not used yet."""
        return self._folders.pop()

    def stem(self) -> str:
        """A file name without its end, not used yet."""
        return self._stems.pop()

    def word(self) -> str:
        """A word not used yet."""
        return self._words.pop()

    def names(self, number: int) -> list[str]:
        """Different names of people."""
        return self.rng.sample(_NAMES, number)

    def text(self, *, lines: int = 2) -> str:
        """Lines of three words."""
        return "\n".join(" ".join(self.rng.choices(_WORDS[:16], k=3)) for _ in range(lines))

    def add(self, path: str, text: str) -> str:
        """A file the agent finds, and that stays unless the template changes `expected`."""
        self.files[path] = text
        self.expected[path] = text
        return path

    def add_several(self, folder: str, ending: str, *, least: int = 2, most: int = 3) -> list[str]:
        """Some files with texts of their own, sorted."""
        number = self.rng.randint(least, most)
        return sorted(self.add(f"{folder}/{self.stem()}{ending}", self.text()) for _ in range(number))

    def add_noise(self) -> None:
        """Files that nothing is asked about."""
        folder = self.folder()
        for _ in range(self.rng.randint(1, 3)):
            self.add(f"{folder}/{self.stem()}.{self.rng.choice(('txt', 'md', 'log'))}", self.text())

    def rename(self, path: str, to: str) -> None:
        """Expected: moved; gold: the call."""
        self.expected[to] = self.expected.pop(path)
        self.step("move", path=path, to=to)

    def write(self, path: str, text: str) -> None:
        """Expected: written; gold: the call."""
        self.expected[path] = text
        self.step("write", path=path, text=text)

    def delete(self, path: str) -> None:
        """Expected: gone; gold: the call."""
        del self.expected[path]
        self.step("delete", path=path)

    def step(self, name: str, **arguments: Any) -> None:
        """A call of gold."""
        self.steps.append([name, arguments])
