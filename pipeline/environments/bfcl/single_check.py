"""The benchmark's own checker of single-turn calls, imported without its thirty vendor clients.

`ast_checker` reads one flag of its table of models ("is '.' shown as '_'"), and importing that table imports
a client library per vendor. During the import a stand-in answers for the table, and it is taken out of
`sys.modules` again; nothing else of the module is touched. It evaluates no code. Not covered: which calls a
text holds; calls come parsed.
"""

from __future__ import annotations

import functools
import importlib
import sys
from collections import defaultdict
from collections.abc import Sequence
from types import ModuleType, SimpleNamespace
from typing import Any

from pipeline.environments.bfcl.single_rows import CALLING, REFUSING

_MODELS = "bfcl_eval.constants.model_config"
_MODEL = "tools-with-underscores"


def upstream_verdict(
    category: str,
    functions: Sequence[dict[str, Any]],
    answers: Sequence[dict[str, Any]],
    calls: Sequence[dict[str, dict[str, Any]]],
) -> str:
    """ "" where the benchmark accepts `calls` ([{name: arguments}, ...] of one reply), else its error type.

    Rows to refuse accept no call at all, `live_relevance` any; the others go through `ast_checker`.
    """
    if category in REFUSING:
        return "irrelevance_error" if calls else ""
    if category == CALLING:
        return "" if calls else "relevance_error"
    checker, language = _checker(), _language(category)
    found = checker(list(functions), list(calls), list(answers), language, category, _MODEL)
    return "" if found["valid"] else str(found.get("error_type", "unknown"))


def convert_source(text: str, kind: str, inner: str | None, category: str) -> Any:
    """What upstream makes of an argument written in Java or JavaScript."""
    short = "java" if category == "simple_java" else "js"
    path = f"bfcl_eval.eval_checker.ast_eval.type_convertor.{short}_type_converter"
    convert = getattr(importlib.import_module(path), f"{short}_type_converter")
    return convert(text, kind, inner) if inner else convert(text, kind)


@functools.cache
def _checker() -> Any:
    kept = sys.modules.get(_MODELS)
    stand_in = ModuleType(_MODELS)
    vars(stand_in)["MODEL_CONFIG_MAPPING"] = defaultdict(lambda: SimpleNamespace(underscore_to_dot=True))
    sys.modules[_MODELS] = stand_in
    try:
        return importlib.import_module("bfcl_eval.eval_checker.ast_eval.ast_checker").ast_checker
    finally:
        del sys.modules[_MODELS]
        if kept is not None:
            sys.modules[_MODELS] = kept


def _language(category: str) -> Any:
    languages = importlib.import_module("bfcl_eval.constants.enums").Language
    return {"simple_java": languages.JAVA, "simple_javascript": languages.JAVASCRIPT}.get(
        category, languages.PYTHON
    )
