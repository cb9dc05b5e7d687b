"""Tools that only have a document, played by a Chat; here a scripted one, so that the example runs offline.

`trajsmith env check simulated_kitchen:load` takes it as it is. With a real model, `chat` is instead
`{"url": "http://127.0.0.1:8000", "model": "...", "params": {"temperature": 0, "seed": 0}}`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from data.messages import ToolSpec, Turn
from pipeline.chat.scripted import ScriptedChat
from pipeline.environments.simulated import SimulatedEnvironment

HERE = Path(__file__).parent


def play(turns: Sequence[Turn], tools: Sequence[ToolSpec]) -> str:
    """What a model would answer: outcome, result, and the patch that keeps the state true."""
    asked = json.JSONDecoder().raw_decode(turns[1].text)[0]
    arguments, state = asked["arguments"], asked["state"]
    reply: dict[str, Any] = {"outcome": "ok", "result": None, "error": "", "patch": {}}
    if asked["tool"] == "search_recipes":
        word = arguments["ingredient"].lower()
        reply["result"] = [recipe for recipe in state["recipes"].values() if word in recipe["title"].lower()]
    elif arguments["recipe_id"] not in state["recipes"]:
        reply |= {"outcome": "not_found", "error": f"No recipe {arguments['recipe_id']}."}
    else:
        key = f"m{len(state['meals']) + 1}"
        reply["result"] = {"id": key, **arguments}
        reply["patch"] = {"meals": {key: reply["result"]}}
    return json.dumps(reply)


def make_chat() -> ScriptedChat:
    return ScriptedChat(play)


def load(**options: Any) -> SimulatedEnvironment:
    return SimulatedEnvironment(
        name="kitchen",
        chat=make_chat(),
        tools=HERE / "simulated_tools.yaml",
        tasks=HERE / "simulated_tasks.yaml",
        guidance="A recipe box with a weekly meal plan.",
        **options,
    )
