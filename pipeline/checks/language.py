"""Whether two texts are in the same language, well enough to catch an answer in another one.

By script first (Latin, Cyrillic, Han, ...), then, within Latin, by everyday words of eight languages. A text
too short to tell matches everything: this check accuses only where there is evidence. Not covered: telling
languages of one script apart that share their everyday words.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter

_WORDS = {
    "en": "the of and to in is you that it for was are with this have from your please what can not",
    "de": "der die das und ist nicht ein eine ich sie mit den von zu auf bitte wie kann für auch",
    "fr": "le la les des et est une pas vous je dans pour sur avec que qui au ce mon merci",
    "es": "el los las una y es que en por con para del se su como pero esta muy gracias usted",
    "it": "il gli che di non per una con sono del della questo come anche grazie più nel alla mio lo",
    "pt": "os uma não para com você por que mais como mas isso obrigado ao pelo está são meu nos das",
    "nl": "het een en van is niet dat ik je met voor zijn op aan ook wat bij mijn kunt graag",
    "pl": "nie się na jest że do jak ale to czy proszę mnie dla po za od przez może są tylko",
}
_EVERYDAY = {name: frozenset(text.split()) for name, text in _WORDS.items()}
_LEAST_LETTERS = 12
"""Letters below which nothing is said of a text. Ours."""
_LEAST_WORDS = 2
"""Everyday words of one language that are evidence for it. Ours."""
_MAX_CHARS = 20_000


def same_language(first: str, second: str) -> bool:
    """False only where both texts give evidence of their language and it differs."""
    scripts = script_of(first), script_of(second)
    if not all(scripts):
        return True
    if scripts[0] != scripts[1]:
        return False
    guesses = latin_language(first), latin_language(second)
    return not all(guesses) or guesses[0] == guesses[1]


def script_of(text: str) -> str:
    """The commonest script of a text's letters; "" where there are too few letters to say."""
    counts = Counter(_script(letter) for letter in text[:_MAX_CHARS] if letter.isalpha())
    script, _ = counts.most_common(1)[0] if counts else ("", 0)
    wide = script not in ("LATIN", "CYRILLIC", "GREEK")
    return script if sum(counts.values()) >= (_LEAST_LETTERS // 3 if wide else _LEAST_LETTERS) else ""


def latin_language(text: str) -> str:
    """The language whose everyday words stand in a text the most; "" where none stands out."""
    found = Counter(re.findall(r"[^\W\d_]+", text[:_MAX_CHARS].lower()))
    scores = {name: sum(found[word] for word in known) for name, known in _EVERYDAY.items()}
    (best, most), (_, next_most) = Counter(scores).most_common(2)
    return best if most >= _LEAST_WORDS and most > 1.5 * next_most else ""


def _script(letter: str) -> str:
    name = unicodedata.name(letter, "OTHER").split(" ", maxsplit=1)[0]
    return "CJK" if name in ("CJK", "HIRAGANA", "KATAKANA") else name
