"""A small question with its graph, tools written well and badly, and chats that play the roles by script."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from data import canonical
from pipeline.chat.base import Chat
from pipeline.chat.scripted import ScriptedChat
from pipeline.environments.question_dag.dag import QuestionDag, SubQuestion
from pipeline.environments.question_dag.items import MadeTool
from synthesizers.astra.dag import Source

DOCUMENT = "The voyage Alba is made by the ship Brio. The ship Brio has a crew of 420."
QUESTION = "How many crew has the ship of voyage Alba?"
SOURCE = Source(document=DOCUMENT, question=QUESTION, answer="420", domain="sea")
STEPS = [
    {"text": "What is the ship of voyage Alba?", "answer": "Brio", "depends_on": [], "needs_tool": True},
    {"text": "What is the crew of #0?", "answer": "420", "depends_on": [0], "needs_tool": True},
]
PLAN = {"question": QUESTION, "answer": "420", "steps": STEPS}
DAG = QuestionDag(
    question=QUESTION,
    answer="420",
    steps=(
        SubQuestion(text="What is the ship of voyage Alba?", answer="Brio"),
        SubQuestion(text="What is the crew of #0?", answer="420", depends_on=(0,)),
    ),
)
JUDGED = {"reason": "Each uses what it depends on.", "score": 1}

SHIP_DOC: dict[str, Any] = {
    "name": "ship_of_voyage",
    "description": "Which ship makes a voyage.",
    "parameters": [{"name": "voyage", "type": "string", "description": "Its name.", "required": True}],
}
CREW_DOC: dict[str, Any] = {
    "name": "crew_of_ship",
    "description": "How many people work on a ship.",
    "parameters": [{"name": "ship", "type": "string", "description": "Its name.", "required": True}],
}
RICH_DOC: dict[str, Any] = {
    **CREW_DOC,
    "parameters": [
        *CREW_DOC["parameters"],
        {"name": "year", "type": "integer", "description": "As of this year.", "required": False},
    ],
}
SHIPS = {"Alba": "Brio", "Cora": "Dune", "Enna": "Fala", "Gora": "Hilt", "Iona": "Jura"}
CREWS = {"Brio": 420, "Dune": 17, "Fala": 96, "Hilt": 55, "Jura": 8}
SHIP_CODE = {"data": SHIPS, "code": "def ship_of_voyage(voyage):\n    return DATA[voyage]\n"}
CREW_CODE = {"data": CREWS, "code": "def crew_of_ship(ship):\n    return DATA[ship]\n"}
RICH_CODE = {"data": CREWS, "code": "def crew_of_ship(ship, year=0):\n    return DATA[ship]\n"}
CONSTANT = {"data": {"x": 420}, "code": "def crew_of_ship(ship):\n    return DATA['x']\n"}
"""Gives the sub-answer whatever is asked."""


def chat(*replies: Any) -> ScriptedChat:
    """A chat that gives these replies in order: JSON values, or text as it is. Nothing is asked again."""
    texts = [reply if isinstance(reply, str) else canonical.dumps(reply) for reply in replies]
    return ScriptedChat(texts, max_asks=1)


def playing(**chats: Chat) -> Callable[[str], Chat | None]:
    """Roles by name; nobody plays the others."""
    return chats.get


def made(name: str, code: str, data: dict[str, Any], **parameters: str) -> MadeTool:
    """A tool; parameters are given as name=type."""
    properties = {name: {"type": kind} for name, kind in (parameters or {"ship": "string"}).items()}
    return MadeTool(
        name=name,
        description=f"The {name.replace('_', ' ')}.",
        parameters={"type": "object", "properties": properties, "required": list(properties)},
        code=code,
        data=data,
    )
