"""Tools of the same intent become one: a base whose data grow, and every old test is run again.

Source: ASTRA (arXiv 2601.21558): cluster by intent, pick a base, extend its data, regenerate calls, re-run
all tests, at most 20 tries. Clusters come from a chat (`intent_clusterer`), else from signature and
description (hashed TF-IDF, `INTENT_COSINE`, ours). Extending: rows are united where the code is the same but
for names; for other code a chat (`data_extender`) writes the extension. A merge that breaks a test is refused
and both tools stay. Not covered: merging across items.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from pydantic import Field, ValidationError

from data import canonical
from pipeline.environments.question_dag.items import MadeTool
from pipeline.environments.question_dag.similarity import cosines, tool_text
from pipeline.environments.sandboxed import SandboxRunner
from pipeline.errors import StructuredReplyError
from synthesizers.astra.dag import Refused, RoleOf
from synthesizers.astra.trials import ProvenTool, ToolTest, perturbed, tool_problem
from synthesizers.roles import ChatRole, Exchange

MERGE_TRIES = 20
"""[paper's code] Extensions tried for one pair of tools."""
INTENT_COSINE = 0.6
"""[ours] Least similarity of two tools with one intent, beside equal types of parameters."""
_NUMBERED = re.compile(r"_\d+$")


class Cluster(Exchange):
    """The clusterer's request: one line for each tool."""

    tools: list[str]


class Clusters(Exchange):
    """The clusterer's reply: groups of names."""

    groups: list[list[str]]


class ShownTool(Exchange):
    """A tool as the extender sees it."""

    name: str
    description: str
    parameters: dict[str, Any]
    data: dict[str, Any]
    code: str


class Extend(Exchange):
    """The extender's request."""

    base: ShownTool
    other: ShownTool
    kept: list[str]
    wanted: list[str]
    complaint: str


class Extension(Exchange):
    """The extender's reply; `arguments` answer the other tool's calls, in their order."""

    data: dict[str, Any]
    code: str = Field(min_length=1)
    arguments: list[dict[str, Any]]


INTENT_CLUSTERER: ChatRole[Cluster, Clusters] = ChatRole("astra_env/intent_clusterer", reply=Clusters)
DATA_EXTENDER: ChatRole[Extend, Extension] = ChatRole("astra_env/data_extender", reply=Extension)


class Merged(NamedTuple):
    """The tools that are left, and why merges were refused."""

    tools: tuple[ProvenTool, ...]
    refused: tuple[str, ...] = ()


async def merge_tools(
    made: Sequence[ProvenTool], *, runner: SandboxRunner, roles: RoleOf, tries: int = MERGE_TRIES
) -> Merged:
    """Merge what has one intent; names must be distinct. Raises Refused where the clusterer gives none."""
    left, refused = list[ProvenTool](), list[str]()
    for group in await clusters(made, roles):
        # The base is the tool with the most data; of equals, the first.
        kept = [max(group, key=lambda tested: len(canonical.dumps(tested.tool.data)))]
        for other in group:
            if other is kept[0]:
                continue
            extended = await _extended(kept[0], other, runner=runner, roles=roles, tries=tries)
            if isinstance(extended, ProvenTool):
                kept[0] = extended
            else:
                kept.append(other)
                refused.append(f"{other.tool.name} into {kept[0].tool.name}: {extended}")
        left += kept
    return Merged(tuple(left), tuple(refused))


async def clusters(made: Sequence[ProvenTool], roles: RoleOf) -> list[list[ProvenTool]]:
    """Groups of tools of one intent, each tool in one. Raises Refused for a reply that is no partition."""
    chat = roles(INTENT_CLUSTERER.name)
    if chat is None or len(made) < 2:
        return _by_words(made)
    by_name = {tested.tool.name: tested for tested in made}
    tools = [tested.tool for tested in made]
    lines = [f"{tool.name}: {tool.description} {canonical.dumps(tool.parameters)}" for tool in tools]
    try:
        groups = (await INTENT_CLUSTERER.ask(chat, Cluster(tools=lines))).groups
    except StructuredReplyError as error:
        raise Refused("invalid_reply", str(error)) from error
    if Counter(name for group in groups for name in group) != Counter(list(by_name)):
        raise Refused("clusters", f"{groups} does not hold each of {sorted(by_name)} once")
    return [[by_name[name] for name in group] for group in groups if group]


def _by_words(made: Sequence[ProvenTool]) -> list[list[ProvenTool]]:
    if not made:
        return []
    tools = [tested.tool for tested in made]
    # A number at the end of a name says which sub-question it was made for, not what it does.
    near = cosines([_NUMBERED.sub("", tool.name) + " " + tool_text(tool) for tool in tools])
    groups: list[list[int]] = []
    for index, tool in enumerate(tools):
        fitting = (
            group
            for group in groups
            if _types(tools[group[0]]) == _types(tool) and near[group[0], index] >= INTENT_COSINE
        )
        group = next(fitting, None)
        if group is None:
            groups.append([index])
        else:
            group.append(index)
    return [[made[index] for index in group] for group in groups]


def _types(tool: MadeTool) -> list[str]:
    properties = tool.parameters.get("properties", {})
    return sorted(canonical.dumps(schema.get("type")) for schema in properties.values())


async def _extended(
    base: ProvenTool, other: ProvenTool, *, runner: SandboxRunner, roles: RoleOf, tries: int
) -> ProvenTool | str:
    """The base with the other's data and tests, all of which it passes; or why not."""
    if _bare_code(base.tool) == _bare_code(other.tool):
        united = _united(base.tool.data, other.tool.data)
        if united is None:
            return "the data contradict each other"
        names = dict(zip(_parameters(other.tool), _parameters(base.tool), strict=True))
        tool = base.tool.model_copy(update={"data": united})
        tests = base.tests + tuple(test.with_arguments(names) for test in other.tests)
        return await _retested(tool, tests, runner)
    chat = roles(DATA_EXTENDER.name)
    if chat is None:
        return "the code differs, and no chat extends it"
    complaint = ""
    for _ in range(tries):
        request = Extend(
            base=_shown(base.tool),
            other=_shown(other.tool),
            kept=[_statement(base.tool, test) for test in base.tests],
            wanted=[_statement(other.tool, test) for test in other.tests],
            complaint=complaint,
        )
        try:
            reply = await DATA_EXTENDER.ask(chat, request)
            extended = await _rewritten(base, other, reply, runner)
        except (StructuredReplyError, ValidationError) as error:
            extended = str(error)[:300]
        if isinstance(extended, ProvenTool):
            return extended
        complaint = extended
    return f"after {tries} tries: {complaint}"


async def _rewritten(
    base: ProvenTool, other: ProvenTool, reply: Extension, runner: SandboxRunner
) -> ProvenTool | str:
    if len(reply.arguments) != len(other.tests):
        return f"{len(reply.arguments)} calls for the {len(other.tests)} of the other tool"
    values = base.tool.model_dump() | {"code": reply.code, "data": reply.data}
    tool = MadeTool(**values)
    moved = [
        ToolTest(test.step, arguments, test.answer, perturbed(tool, arguments, test.answer))
        for test, arguments in zip(other.tests, reply.arguments, strict=True)
    ]
    return await _retested(tool, (*base.tests, *moved), runner)


async def _retested(tool: MadeTool, tests: Sequence[ToolTest], runner: SandboxRunner) -> ProvenTool | str:
    for test in tests:
        if problem := await tool_problem(runner, tool, test):
            return f"the test of sub-question {test.step} breaks: {problem}"
    return ProvenTool(tool, tuple(tests))


def _bare_code(tool: MadeTool) -> str:
    """The code with the tool's name and its parameters numbered."""
    code = re.sub(rf"\b{re.escape(tool.name)}\b", "TOOL", tool.code)
    for index, name in enumerate(_parameters(tool)):
        code = re.sub(rf"\b{re.escape(name)}\b", f"P{index}", code)
    return code


def _parameters(tool: MadeTool) -> list[str]:
    return list(tool.parameters.get("properties", {}))


def _united(first: Any, second: Any) -> Any:
    """Both objects as one, None where they say different things of one key."""
    if not isinstance(first, dict) or not isinstance(second, dict):
        return first if first == second else None
    united = dict(first)
    for key, value in second.items():
        united[key] = _united(first[key], value) if key in first else value
        if united[key] is None and value is not None:
            return None
    return united


def _shown(tool: MadeTool) -> ShownTool:
    return ShownTool(
        name=tool.name,
        description=tool.description,
        parameters=tool.parameters,
        data=tool.data,
        code=tool.code,
    )


def _statement(tool: MadeTool, test: ToolTest) -> str:
    return f"{tool.name}({canonical.dumps(dict(test.arguments))}) -> {test.answer}"


def renamed(tested: ProvenTool, name: str) -> ProvenTool:
    """The tool under another name, in its code as well."""
    code = re.sub(rf"\b{re.escape(tested.tool.name)}\b", name, tested.tool.code)
    return replace(tested, tool=tested.tool.model_copy(update={"name": name, "code": code}))
