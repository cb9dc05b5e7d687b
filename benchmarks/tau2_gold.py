"""Reference actions and doing nothing on every base task of tau2, under the benchmark's own evaluators.

    python -m benchmarks.tau2_gold [DOMAIN ...]

Each domain is played alone and as a dialogue with a scripted user that does on its side what gold asks for in
words. Prints per domain and mode: tasks, how many gold solves, on how many the end state of the databases is
the reference's, how many doing nothing solves, and the exceptions by name.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence

from data import canonical
from data.messages import Role, ToolCall, ToolSpec, Turn, assistant
from data.tasks import Task
from data.trajectories import Trajectory
from pipeline.chat.scripted import ScriptedChat
from pipeline.environments.agents import null_agent
from pipeline.environments.play import play
from pipeline.environments.tau2 import Tau2Environment
from pipeline.environments.tau2.package import DOMAINS


def obedient(turns: Sequence[Turn], tools: Sequence[ToolSpec]) -> Turn:
    """A user that does what it is asked to, says so, and ends the dialogue at anything else."""
    if turns[-1].role is Role.TOOL:
        return assistant("I did that.")
    _, asked, text = turns[-1].text.partition("Please do this on your side: ")
    if not asked:
        return assistant("###STOP###")
    wanted = canonical.loads(text)
    arguments = canonical.dumps(wanted["arguments"])
    return assistant("", ToolCall(call_id=f"user_{len(turns)}", name=wanted["name"], arguments=arguments))


def part(played: Trajectory, name: str) -> float:
    """A component of the reward."""
    assert played.reward is not None
    return next(component.value for component in played.reward.components if component.name == name)


async def table_row(domain: str, *, dialogue: bool) -> str:
    """A domain's line of the table."""
    environment = Tau2Environment(domain=domain, user=ScriptedChat(obedient) if dialogue else None)
    tasks: list[Task] = list(environment.tasks("all"))
    played = [await play(environment, task, environment.gold(task)) for task in tasks]
    null = [await play(environment, task, null_agent()) for task in tasks]
    pairs = list(zip(tasks, played, strict=True))
    failed = [task.state_value()["name"] for task, one in pairs if not one.success]
    equal = sum(part(one, "db") == 1 for one in played)
    return (
        f"| {domain} | {'dialogue' if dialogue else 'solo'} | {len(tasks)} | {len(tasks) - len(failed)} | "
        f"{equal} | {sum(bool(one.success) for one in null)} | {', '.join(failed) or 'none'} |"
    )


async def main(chosen: list[str]) -> None:
    """The table."""
    print("| domain | mode | tasks | gold solves | end state equal | null solves | gold fails |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for domain in chosen or DOMAINS:
        for dialogue in (False, True):
            print(await table_row(domain, dialogue=dialogue), flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
