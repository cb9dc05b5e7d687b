"""The imperative that a tool's description begins with: "Books a flight for the user." -> "book a flight".

English only. Not covered: the arguments (`clauses`).
"""

from __future__ import annotations

import re

from synthesizers.phrasing.vocabulary import FOLLOWERS, LOOK_UPS, PARTICLES, VERBS

_CUT = re.compile(
    r"\s*(?:[;:(\[]|\s-\s|,?\s(?:if|in case|such as|e\.g\.|i\.e\.|which|that|using|based on|given|where|when|"
    r"so that|by providing|with the given|(?:for|of) the (?:authenticated|current) user|of any extension|"
    r"for the user|with (?:a |the |their )?(?:user ?name|given)|(?:for|from|of) (?:a|the) (?:specified|given|"
    r"particular))\b|, (?!(?:\w+, )*(?:and\b|\w+,? and\b))).*$",
    re.IGNORECASE | re.DOTALL,
)
_LONGEST = 500
"""Characters of a description that are read."""
_OPENERS = re.compile(
    r"^(?:this|the)?\s*(?:tool|function|method|api|endpoint|command|operation)?\s*(?:is\s+)?"
    r"(?:used to|allows? (?:you|users?|the user) to|(?:tool|function|method) (?:to|for)|will|can|to)\s+",
    re.IGNORECASE,
)
_SENTENCE_END = re.compile(r"(?<=[\w)\"'])[.!](?:\s|$)")


def imperative(description: str) -> str:
    """The description's first sentence as an imperative, short; "" where there is none."""
    first = _SENTENCE_END.split(description.strip()[:_LONGEST], maxsplit=1)[0].strip(" .\n")
    first = _OPENERS.sub("", re.sub(r"\s+", " ", first))
    cut = _without_alternative(_CUT.sub("", first))
    first = cut if len(cut.split()) > 1 else first
    verb, _, rest = first.partition(" ")
    base, follower = _base(verb.lower()), rest.split(" ")[0].lower()
    if base != verb.lower() and (follower == "of" or (follower == "in" and base not in PARTICLES)):
        return f"tell me the {first[:1].lower()}{first[1:]}"  # "names in a folder" are asked for
    if base in LOOK_UPS and rest:
        return f"{LOOK_UPS[base]} {rest}"
    if base in VERBS or (follower in FOLLOWERS and verb.lower() not in FOLLOWERS):
        plain = base[:-1] if base.endswith("s") and not base.endswith("ss") and base not in VERBS else base
        return f"{plain} {rest}".strip()
    if not first:
        return ""
    lowered = first if verb.isupper() and len(verb) > 1 else first[:1].lower() + first[1:]
    return f"tell me {lowered}" if verb.lower() in FOLLOWERS else f"tell me the {lowered}"


def _without_alternative(text: str) -> str:
    """What stands before "or" where another verb follows it."""
    for found in re.finditer(r"\s+or\s+(\w+)", text):
        if _base(found[1].lower()) in (*VERBS, *LOOK_UPS):
            return text[: found.start()]
    return text


def _base(verb: str) -> str:
    for ending, new in (("ies", "y"), ("es", "e"), ("es", ""), ("s", "")):
        stem = verb[: -len(ending)] + new
        if verb.endswith(ending) and (stem in VERBS or stem in LOOK_UPS):
            return stem
    return verb
