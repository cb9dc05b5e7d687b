"""Importing one module of the benchmark without what it imports for other purposes.

Upstream's modules import a client library per vendor, parsers we have no use for, and a file of settings that
makes folders beside the package. During the import stand-ins answer for these, and they are taken out of
`sys.modules` again; nothing else is touched. Not covered: names a stand-in lacks and the module later uses.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any


def imported(name: str, stand_ins: Mapping[str, Mapping[str, Any]]) -> Any:
    """The module `name`; `stand_ins` maps the modules it must not import to the names it takes from them."""
    kept = {other: sys.modules.get(other) for other in stand_ins}
    for other, names in stand_ins.items():
        sys.modules[other] = ModuleType(other)
        vars(sys.modules[other]).update(names)
    try:
        return importlib.import_module(name)
    finally:
        for other, module in kept.items():
            del sys.modules[other]
            if module is not None:
                sys.modules[other] = module
