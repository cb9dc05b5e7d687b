"""What a policy is shown of a dialogue that outgrew its context window.

Pure views: older results dropped, or everything before the last exchange folded into a summary. Not
covered: when a view is taken, and who writes the summary (`pipeline.rollout_author`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from data.messages import Part, PartType, Role, Turn, text_parts, user
from pipeline.renderers.base import Rendered

DROPPED = "[result dropped]"
"""What stands in place of a tool result that drop_old_results removed."""


def drop_results(turns: Sequence[Turn], count: int) -> Sequence[Turn]:
    """`turns` with the first `count` tool results replaced by DROPPED."""
    shown, left = list(turns), count
    for index, turn in enumerate(turns):
        if left and turn.result is not None:
            result = turn.result.model_copy(update={"parts": text_parts(DROPPED)})
            shown[index] = turn.model_copy(update={"result": result})
            left -= 1
    return shown


@dataclass(frozen=True, slots=True)
class Folding:
    """Where a dialogue was folded: its prompt, and what follows from turn `kept` on, stand as they are.

    Between them the user's own words are kept too; everything else is what the summary in turn `summary`
    says (None = not folded yet, `kept` is then the length of the prompt).
    """

    prompt: int
    kept: int
    summary: int | None = None

    def shown(self, turns: Sequence[Turn], frame: str) -> tuple[list[Turn], list[int]]:
        """The turns shown, and for each its index in `turns`, -1 where several became one.

        `frame` holds `{summary}`. Summary and user turns are one user turn, because many templates refuse
        a second one in a row and system turns inside a dialogue.
        """
        later = [index for index in range(self.kept, len(turns)) if turns[index].role is not Role.SYSTEM]
        if self.summary is None:
            indices = [*range(self.prompt), *later]
            return [turns[index] for index in indices], indices
        head = self.prompt - (self.prompt > 0 and turns[self.prompt - 1].role is Role.USER)
        said = [turn for turn in turns[head : self.kept] if turn.role is Role.USER]
        told = user(frame.replace("{summary}", turns[self.summary].text, 1))
        folded = Turn(role=Role.USER, parts=_joined([*said, told]))
        return [*turns[:head], folded, *(turns[index] for index in later)], [*range(head), -1, *later]


def _joined(turns: Sequence[Turn]) -> tuple[Part, ...]:
    """The content of several turns, a blank line between them; one part where all of it is text."""
    parts = [part for turn in turns for part in (*turn.parts, *text_parts("\n\n"))][:-1]
    if all(part.type is PartType.TEXT for part in parts):
        return text_parts("".join(part.text for part in parts))
    return tuple(parts)


def renumbered(rendered: Rendered, indices: Sequence[int], following: int) -> Rendered:
    """`rendered` with the turns of its spans named by `indices`; the turn after them is `following`."""
    names = [*indices, following]
    spans = [span if span.turn < 0 else span._replace(turn=names[span.turn]) for span in rendered.spans]
    return replace(rendered, spans=spans)
