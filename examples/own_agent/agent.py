"""An agent of your own: its loop and its prompt are yours, the gateway records what the model is asked.

trajsmith gateway examples/own_agent/recipe.yaml     # prints the two variables that this file reads
TRAJSMITH_GATEWAY=... TRAJSMITH_TOKEN=... python examples/own_agent/agent.py
"""

import json
import os

import httpx


def play(client: httpx.Client, number: int) -> float:
    """One task of the environment; the reward that its verifier gave."""
    episode = client.post("/episodes", json={"split": "train", "index": number}).raise_for_status().json()
    agent = {"authorization": f"Bearer {episode['api_key']}"}  # may ask, may not judge
    messages = list(episode["messages"])
    while True:
        body = {"model": "policy", "messages": messages, "tools": episode["tools"]}
        answer = client.post(f"{episode['path']}/v1/chat/completions", json=body, headers=agent)
        if answer.status_code == 400:  # the task's budget is used up, which scores what the task says
            break
        reply = answer.raise_for_status().json()["choices"][0]["message"]
        messages.append(reply)
        for call in reply.get("tool_calls", ()):
            asked = {"arguments": json.loads(call["function"]["arguments"]), "call_id": call["id"]}
            path = f"{episode['path']}/tools/{call['function']['name']}"
            result = client.post(path, json=asked, headers=agent).raise_for_status().json()
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": result["content"]})
        if not reply.get("tool_calls"):
            break
    return client.post(f"{episode['path']}/close", json={}).raise_for_status().json()["reward"]


def main() -> list[float]:
    """The rewards of eight episodes."""
    token = {"authorization": f"Bearer {os.environ['TRAJSMITH_TOKEN']}"}
    with httpx.Client(base_url=os.environ["TRAJSMITH_GATEWAY"], headers=token, timeout=300) as client:
        return [play(client, number) for number in range(8)]


if __name__ == "__main__":
    print(main())
