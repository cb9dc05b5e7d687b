"""Fails when the same paragraph of at least 200 characters stands twice in the documents.

It compares text with whitespace squeezed, so re-wrapping does not hide a copy. It does not judge near copies.
"""

import re
import sys
from collections import defaultdict
from pathlib import Path

MIN_CHARACTERS = 200


def documents(root: Path) -> list[Path]:
    """The Markdown files that people read: the README, docs/ and examples/, sorted."""
    found = [*root.glob("*.md"), *root.glob("docs/**/*.md"), *root.glob("examples/**/*.md")]
    return sorted(found)


def paragraphs(text: str) -> list[tuple[int, str]]:
    """(line number, squeezed text) of every block between blank lines."""
    blocks = re.finditer(r"(?:^[^\n]*\S[^\n]*(?:\n|\Z))+", text, re.MULTILINE)
    return [(text.count("\n", 0, block.start()) + 1, " ".join(block.group().split())) for block in blocks]


def duplicates(root: Path) -> list[str]:
    """One line per paragraph that stands in more than one place, naming every place."""
    places: dict[str, list[str]] = defaultdict(list)
    for path in documents(root):
        for line, paragraph in paragraphs(path.read_text(encoding="utf-8")):
            if len(paragraph) >= MIN_CHARACTERS:
                places[paragraph].append(f"{path.relative_to(root)}:{line}")
    return [f"{', '.join(where)}: {text[:80]}..." for text, where in places.items() if len(where) > 1]


def main() -> int:
    root = Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve()
    problems = duplicates(root)
    for problem in problems:
        print(f"the same paragraph stands twice: {problem}; keep one and link to it", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
