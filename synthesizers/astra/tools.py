"""One tool per sub-question that needs one: written by a chat, or from the typed step where no chat is.

Source: ASTRA (arXiv 2601.21558): tool document, call statement, Python code, run until the sub-answer comes
out. Data and code are two things here, so that a tool can be given more data, and every tool must pass the
perturbed calls of `trials`. A sub-question whose tool cannot be made ends its item. Not covered: tools that
change a state.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field, ValidationError

from pipeline.checks.calls import argument_problems
from pipeline.environments.question_dag.dag import QuestionDag
from pipeline.environments.question_dag.items import MadeTool
from pipeline.environments.question_dag.questions import shown_value
from pipeline.environments.question_dag.relations import ARITHMETIC, Op, Relation
from pipeline.environments.question_dag.tables import KINDS, Tables
from pipeline.environments.sandboxed import SandboxRunner
from pipeline.errors import StructuredReplyError
from synthesizers.astra.dag import Refused, RoleOf
from synthesizers.astra.trials import UNKNOWN, Other, ProvenTool, ToolTest, perturbed, tool_problem
from synthesizers.roles import ChatRole, Exchange

INNER_TRIES = 5
"""[paper's code] Codes tried for one document and call."""
OUTER_TRIES = 15
"""[paper's code] Documents tried for one sub-question."""
_MORE_ROWS = 3
"""[ours] Rows beside those that the call needs."""
_OTHERS = 2
"""[ours] Perturbed calls of a typed step whose arguments the data know."""
_SLICES = 8


class Parameter(Exchange):
    """One parameter as the document says it."""

    name: str = Field(pattern=r"^[a-z_][a-z0-9_]{0,40}$")
    type: Literal["string", "integer", "number", "boolean"]
    description: str
    required: bool


class WriteDoc(Exchange):
    """The document writer's request."""

    question: str
    answer: str
    known: list[str]
    complaint: str


class ToolDoc(Exchange):
    """The document writer's reply."""

    name: str = Field(pattern=r"^[a-z_][a-z0-9_]{0,60}$")
    description: str = Field(min_length=1)
    parameters: list[Parameter] = Field(min_length=1, max_length=6)

    @property
    def schema_(self) -> dict[str, Any]:
        """The parameters as JSON Schema."""
        properties = {
            item.name: {"type": item.type, "description": item.description} for item in self.parameters
        }
        required = [item.name for item in self.parameters if item.required]
        return {"type": "object", "properties": properties, "required": required}


class ScaleDoc(Exchange):
    """The complexity scaler's request; it replies with another document."""

    question: str
    name: str
    description: str
    parameters: dict[str, Any]


class WriteCall(Exchange):
    """The call writer's request."""

    question: str
    known: list[str]
    name: str
    description: str
    parameters: dict[str, Any]


class CallStatement(Exchange):
    """The call writer's reply."""

    arguments: dict[str, Any]


class WriteCode(Exchange):
    """The code writer's request; `complaint`, `data` and `code` are of the last try."""

    question: str
    answer: str
    name: str
    description: str
    parameters: dict[str, Any]
    arguments: dict[str, Any]
    complaint: str
    data: dict[str, Any]
    code: str


class ToolCode(Exchange):
    """The code writer's reply."""

    data: dict[str, Any]
    code: str = Field(min_length=1)


DOC_WRITER: ChatRole[WriteDoc, ToolDoc] = ChatRole("astra_env/doc_writer", reply=ToolDoc)
COMPLEXITY_SCALER: ChatRole[ScaleDoc, ToolDoc] = ChatRole("astra_env/complexity_scaler", reply=ToolDoc)
CALL_WRITER: ChatRole[WriteCall, CallStatement] = ChatRole("astra_env/call_writer", reply=CallStatement)
CODE_WRITER: ChatRole[WriteCode, ToolCode] = ChatRole("astra_env/code_writer", reply=ToolCode)
TOOL_ROLES: tuple[ChatRole[Any, Any], ...] = (DOC_WRITER, COMPLEXITY_SCALER, CALL_WRITER, CODE_WRITER)
"""All who write on a tool."""


@dataclass(frozen=True, kw_only=True)
class ToolWriter:
    """Writes tools by chats and tries them in `runner`.

    `roles` must play the three writers; documents stay as they are where nobody plays the complexity scaler.
    """

    runner: SandboxRunner
    roles: RoleOf
    inner: int = INNER_TRIES
    outer: int = OUTER_TRIES

    async def write(self, dag: QuestionDag, index: int, *, domain: str) -> ProvenTool:
        """A tool for a sub-question, tested. Raises Refused after the last try."""
        parents = dag.steps[index].depends_on
        known = [f"{dag.resolved(parent)} {dag.steps[parent].answer}" for parent in parents]
        question, answer, complaint = dag.resolved(index), dag.steps[index].answer, ""
        for _ in range(self.outer):
            try:
                request = WriteDoc(question=question, answer=answer, known=known, complaint=complaint)
                doc = await self._scaled(await DOC_WRITER.ask(self._chat(DOC_WRITER), request), question)
                if complaint := _doc_problem(doc, answer):
                    continue
                call = await CALL_WRITER.ask(
                    self._chat(CALL_WRITER),
                    WriteCall(
                        question=question,
                        known=known,
                        name=doc.name,
                        description=doc.description,
                        parameters=doc.schema_,
                    ),
                )
            except StructuredReplyError as error:
                complaint = str(error)[:300]
                continue
            if problems := argument_problems(call.arguments, doc.schema_):
                complaint = f"the call {call.arguments} does not fit it: {'; '.join(problems)}"
                continue
            made = await self._coded(doc, call, question, answer, index=index, domain=domain)
            if isinstance(made, ProvenTool):
                return made
            complaint = made
        raise Refused("tool_failed", f"sub-question {index} after {self.outer} documents: {complaint}")

    async def _scaled(self, doc: ToolDoc, question: str) -> ToolDoc:
        """The document made richer, where somebody plays that role."""
        chat = self.roles(COMPLEXITY_SCALER.name)
        if chat is None:
            return doc
        request = ScaleDoc(
            question=question, name=doc.name, description=doc.description, parameters=doc.schema_
        )
        return await COMPLEXITY_SCALER.ask(chat, request)

    async def _coded(
        self, doc: ToolDoc, call: CallStatement, question: str, answer: str, *, index: int, domain: str
    ) -> ProvenTool | str:
        """A tool that passes its tests, or what was wrong with the last code."""
        complaint, data, code = "", dict[str, Any](), ""
        for _ in range(self.inner):
            request = WriteCode(
                question=question,
                answer=answer,
                name=doc.name,
                description=doc.description,
                parameters=doc.schema_,
                arguments=call.arguments,
                complaint=complaint,
                data=data,
                code=code,
            )
            try:
                reply = await CODE_WRITER.ask(self._chat(CODE_WRITER), request)
                tool = MadeTool(
                    name=doc.name,
                    description=doc.description,
                    parameters=doc.schema_,
                    code=reply.code,
                    data=reply.data,
                    domain=domain,
                )
            except (StructuredReplyError, ValidationError) as error:
                complaint = str(error)[:300]
                continue
            data, code = reply.data, reply.code
            test = ToolTest(index, call.arguments, answer, perturbed(tool, call.arguments, answer))
            complaint = await tool_problem(self.runner, tool, test)
            if not complaint:
                return ProvenTool(tool, (test,))
        return complaint

    def _chat(self, role: ChatRole[Any, Any]) -> Any:
        chat = self.roles(role.name)
        if chat is None:
            raise Refused("nobody_writes", f"no chat plays {role.name}; name one in `chats` or `chat`")
        return chat


def _doc_problem(doc: ToolDoc, answer: str) -> str:
    shown = f"{doc.name} {doc.description} {' '.join(item.description for item in doc.parameters)}"
    if len(answer.strip()) >= 3 and answer.strip().casefold() in shown.casefold():
        return "the tool's document gives the answer away"
    if not any(item.required for item in doc.parameters):
        return "no parameter is required, so the tool would always answer the same"
    names = [item.name for item in doc.parameters]
    return "two parameters have one name" if len(set(names)) < len(names) else ""


async def typed_tool(
    runner: SandboxRunner,
    relation: Relation,
    tables: Tables,
    arguments: Mapping[str, Any],
    *,
    name: str,
    index: int,
    rng: random.Random,
) -> ProvenTool:
    """The tool of a typed step over a part of the tables, tested. Raises Refused.

    What other arguments give is computed from that part by `Relation.answer`, not by the tool's code.
    """
    answer = shown_value(relation.answer(tables, arguments))
    for _ in range(_SLICES):
        data = sliced(relation, tables, arguments, rng)
        others = _others(relation, data, arguments, answer, rng)
        if any(other.wanted not in ("", answer) for other in others):
            break
    else:
        raise Refused("no_contrast", f"sub-question {index}: whatever is asked, the answer is {answer}")
    tool = relation.tool_named(name, data)
    test = ToolTest(index, arguments, answer, others)
    if problem := await tool_problem(runner, tool, test):
        raise Refused("tool_failed", f"sub-question {index}: {problem}")
    return ProvenTool(tool, (test,))


def sliced(relation: Relation, tables: Tables, arguments: Mapping[str, Any], rng: random.Random) -> Tables:
    """The rows that the call needs and a few more, in the tables' order; whole columns stay whole."""
    if relation.op in ARITHMETIC:
        return {}
    rows, kind = tables[relation.kind], KINDS[relation.kind]
    if relation.op in (Op.ABOVE, Op.RANK):
        return {relation.kind: rows}
    if relation.op in (Op.FILTER, Op.COUNT, Op.WITH):
        column = kind.word if relation.op is Op.WITH else kind.parent
        asked = next(iter(arguments.values()))
        values = sorted({row[column] for row in rows.values()} - {asked})
        kept = {asked, *rng.sample(values, min(2, len(values)))}
        return {relation.kind: {name: row for name, row in rows.items() if row[column] in kept}}
    named = [name for value in arguments.values() for name in (value if isinstance(value, list) else [value])]
    others = sorted(rows.keys() - set(named))
    kept = {*named, *rng.sample(others, min(_MORE_ROWS, len(others)))}
    return {relation.kind: {name: row for name, row in rows.items() if name in kept}}


def _others(
    relation: Relation, data: Tables, arguments: Mapping[str, Any], answer: str, rng: random.Random
) -> tuple[Other, ...]:
    """Perturbed calls of a typed step with what the data say: those that differ first, and unknown words."""
    known, unknown = list[Other](), list[Other]()
    for drawn in _redrawn(relation, data, arguments, rng):
        try:
            wanted = shown_value(relation.answer(data, drawn))
        except LookupError:
            wanted = ""
        if UNKNOWN in str(drawn):
            unknown.append(Other(drawn, wanted, unknown=True))
        elif drawn != dict(arguments):
            known.append(Other(drawn, wanted))
    known.sort(key=lambda other: other.wanted in ("", answer))
    return (*known[:_OTHERS], *unknown)


def _redrawn(
    relation: Relation, data: Tables, arguments: Mapping[str, Any], rng: random.Random
) -> list[dict[str, Any]]:
    if relation.op in ARITHMETIC:
        a, b = arguments["a"], arguments["b"]
        return [{"a": a + 4, "b": b}, {"a": a, "b": 3 * b + 2}]
    names, kind = list(data[relation.kind]), KINDS[relation.kind]
    (first, given), *_ = arguments.items()
    if relation.op in (Op.FILTER, Op.COUNT):
        parents = sorted({row[kind.parent] for row in data[relation.kind].values()} - {given})
        return [{first: name} for name in (*parents, UNKNOWN)]
    if relation.op is Op.WITH:  # other words may come with other data
        return [{first: value} for value in sorted({row[kind.word] for row in data[relation.kind].values()})]
    if relation.op is Op.ABOVE:
        return [
            {first: limit} for limit in sorted({row[relation.label] for row in data[relation.kind].values()})
        ]
    if relation.op is Op.RANK:
        return [{first: place} for place in range(1, len(names) + 2)]
    if relation.op is Op.COMPARE:
        return [dict(zip(arguments, pair, strict=True)) for pair in _pairs(names, rng)]
    if isinstance(given, list):
        return [{first: pair} for pair in [*_pairs(names, rng)[:-1], [UNKNOWN]]]
    return [{first: name} for name in (*names, UNKNOWN)]


def _pairs(names: Sequence[str], rng: random.Random) -> list[list[str]]:
    """A few pairs of different names, and one with an unknown name at the end."""
    return [*(rng.sample(list(names), 2) for _ in range(4)), [names[0], UNKNOWN]]
