"""What counts as success: end state, typed final answer, and the look-ups a refusal must rest on.

Private part of a task: {"goal": what gold needs, "bookings" and "member": the end state, "answer": the final
answer, "ask": the question that must be asked or "", "evidence": look-ups [tool, arguments] that must have
been made, "replies": later user turns}. Not covered: style; a finished request may be closed in any words.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from data import canonical
from data.messages import ParseStatus, Role, ToolStatus, Turn
from data.tasks import Task
from pipeline.checks.typed_answers import read_answer


def judge_episode(task: Task, state: Mapping[str, Any], turns: Sequence[Turn]) -> dict[str, float]:
    """Components `state`, `answer`, `evidence` (each 0 or 1) and `success`, their product."""
    private = task.private_value()
    parts = {
        "state": state_matches(task.state_value(), private, state),
        "answer": answer_matches(private, turns),
        "evidence": evidence_seen(private["evidence"], turns),
    }
    return {"success": float(all(parts.values())), **{name: float(value) for name, value in parts.items()}}


def state_matches(start: Mapping[str, Any], private: Mapping[str, Any], state: Mapping[str, Any]) -> bool:
    """Whether exactly the expected changes were made; ids of new bookings do not matter."""
    wanted = {**start, "bookings": private["bookings"], "member": private["member"]}
    return end_state(start, state) == end_state(start, wanted)


def end_state(start: Mapping[str, Any], state: Mapping[str, Any]) -> dict[str, Any]:
    """What of a state matters: all of it but the order of bookings, and the ids of those `start` lacks."""
    old = {booking["id"] for booking in start["bookings"]}
    kept = {key: state[key] for key in ("flights", "hotels", "member")}
    return kept | {"bookings": _bookings(state["bookings"], old)}


def answer_matches(private: Mapping[str, Any], turns: Sequence[Turn]) -> bool:
    """Whether the last assistant turn is the expected answer, and the question, if any, was asked before."""
    texts = [turn.text for turn in turns if turn.role is Role.ASSISTANT and not turn.tool_calls]
    if not texts or turns[-1].role is not Role.ASSISTANT or turns[-1].tool_calls:
        return False
    asked = not private["ask"] or read_answer(private["ask"]) in map(read_answer, texts[:-1])
    return asked and read_answer(texts[-1]) == read_answer(private["answer"])


def evidence_seen(evidence: Sequence[Sequence[Any]], turns: Sequence[Turn]) -> bool:
    """Whether every look-up [name as shown, arguments] was made and answered."""
    answered = {turn.result.call_id for turn in turns if turn.result and turn.result.status is ToolStatus.OK}
    made = {
        _look_up(call.name, call.parsed_arguments())
        for turn in turns
        for call in turn.tool_calls
        if call.status is ParseStatus.OK and call.call_id in answered
    }
    return all(_look_up(name, arguments) in made for name, arguments in evidence)


def _look_up(name: str, arguments: Mapping[str, Any]) -> str:
    return canonical.dumps([name, arguments], sort_keys=True).lower()


def _bookings(records: Sequence[Mapping[str, Any]], old: set[str]) -> list[str]:
    named = [{**record, "id": record["id"] if record["id"] in old else ""} for record in records]
    return sorted(canonical.dumps(record, sort_keys=True) for record in named)
