"""The benchmark's own checker of single-turn calls, imported without its thirty vendor clients.

`ast_checker` reads one flag of its table of models ("is '.' shown as '_'"), and importing that table imports
a client library per vendor: a stand-in answers for the table (`stand_ins`). It evaluates no code. Not
covered: which calls a text holds (`prompted_text`); calls come parsed.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from pipeline.environments.bfcl.single_rows import CALLING, REFUSING
from pipeline.environments.bfcl.stand_ins import imported

_MODELS = "bfcl_eval.constants.model_config"
_UNDERSCORES = "tools-with-underscores"
_DOTS = "prompts-with-dots"


def upstream_verdict(
    category: str,
    functions: Sequence[dict[str, Any]],
    answers: Sequence[dict[str, Any]],
    calls: Sequence[dict[str, dict[str, Any]]],
    *,
    dotted: bool = False,
) -> str:
    """ "" where the benchmark accepts `calls` ([{name: arguments}, ...] of one reply), else its error type.

    `dotted`: names are as in the documents, not with "_" for ".". Rows to refuse accept no call at all,
    `live_relevance` any; the others go through `ast_checker`.
    """
    if category in REFUSING:
        return "irrelevance_error" if calls else ""
    if category == CALLING:
        return "" if calls else "relevance_error"
    checker, language, model = _checker(), _language(category), _DOTS if dotted else _UNDERSCORES
    found = checker(list(functions), list(calls), list(answers), language, category, model)
    return "" if found["valid"] else str(found.get("error_type", "unknown"))


def convert_source(text: str, kind: str, inner: str | None, category: str) -> Any:
    """What upstream makes of an argument written in Java or JavaScript."""
    short = "java" if category == "simple_java" else "js"
    path = f"bfcl_eval.eval_checker.ast_eval.type_convertor.{short}_type_converter"
    convert = getattr(importlib.import_module(path), f"{short}_type_converter")
    return convert(text, kind, inner) if inner else convert(text, kind)


@functools.cache
def _checker() -> Any:
    models = {name: SimpleNamespace(underscore_to_dot=name == _UNDERSCORES) for name in (_UNDERSCORES, _DOTS)}
    stand_ins = {_MODELS: {"MODEL_CONFIG_MAPPING": models}}
    return imported("bfcl_eval.eval_checker.ast_eval.ast_checker", stand_ins).ast_checker


def _language(category: str) -> Any:
    languages = importlib.import_module("bfcl_eval.constants.enums").Language
    return {"simple_java": languages.JAVA, "simple_javascript": languages.JAVASCRIPT}.get(
        category, languages.PYTHON
    )
