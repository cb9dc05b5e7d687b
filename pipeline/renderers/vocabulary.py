"""Text to ids and back for one tokenizer.json, with a hard line between markup and text.

`plain` knows no added token at all, so text from users, tools and tool descriptions can never become
a control token, whatever it spells. `markup` and `glue` are for the template's own strings.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Encoding, Tokenizer

from data.errors import ConfigError


class Vocabulary:
    """The tokenizer of one model directory, on the `tokenizers` library alone."""

    def __init__(self, tokenizer_json: str) -> None:
        spec: dict[str, Any] = json.loads(tokenizer_json)
        added = spec.get("added_tokens", [])
        self.marks: dict[str, int] = {token["content"]: token["id"] for token in added}
        """Every added token (control tokens and tags) with its id."""
        self._all = _alternation(self.marks)
        self._tags = _alternation(token["content"] for token in added if not token["special"])
        whole = spec | {"truncation": None, "padding": None, "post_processor": None}
        self._tagged = Tokenizer.from_str(json.dumps(whole))
        self.digest = hashlib.sha256(self._tagged.to_str().encode("utf-8")).hexdigest()[:32]
        """Of the tokenizer, not of the file: saving it again in another layout changes nothing."""
        self._tagged.encode_special_tokens = True
        self._plain = Tokenizer.from_str(json.dumps(whole | {"added_tokens": []}))

    @classmethod
    def load(cls, model_dir: Path) -> Vocabulary:
        """Read `tokenizer.json` of a model directory. Raises ConfigError where it is missing."""
        path = model_dir / "tokenizer.json"
        if not path.is_file():
            raise ConfigError(
                f"no tokenizer.json in {model_dir}; a model directory has one (convert a slow tokenizer with "
                "transformers: AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR))"
            )
        return cls(path.read_text(encoding="utf-8"))

    def plain(self, text: str) -> list[int]:
        """Ids of `text` with no added token recognised; lone surrogates become U+FFFD."""
        return list(self._plain.encode(_valid(text), add_special_tokens=False).ids) if text else []

    def tagged(self, text: str) -> Encoding:
        """`text` with ordinary added tokens (tags) recognised and control tokens not; for `external`."""
        return self._tagged.encode(_valid(text), add_special_tokens=False)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text with control tokens shown; bytes that are no UTF-8 become U+FFFD."""
        return str(self._tagged.decode(list(token_ids), skip_special_tokens=False))

    def split(self, text: str, *, control: bool) -> Iterator[tuple[str, bool]]:
        """Pieces of `text` and whether each is an added token; control tokens count only with `control`."""
        pattern = self._all if control else self._tags
        for index, piece in enumerate(pattern.split(text) if pattern else [text]):
            if piece:
                yield piece, bool(index % 2)


def _alternation(tokens: Iterable[str]) -> re.Pattern[str] | None:
    ordered = sorted(tokens, key=len, reverse=True)
    return re.compile("(" + "|".join(map(re.escape, ordered)) + ")") if ordered else None


def _valid(text: str) -> str:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
