"""The planner's answer as data."""
from __future__ import annotations

import json
import os
from typing import Any

from . import _core
from ._values import keys_of, text

# Keys of `zoetrope plan` that say where its answer goes.
_OF_THE_PROGRAM = {
    "json": "the answer is returned", "report": "`zoetrope plan` writes it", "trace": "`zoetrope plan` writes it",
    "top": "all candidates are returned", "published": "`zoetrope plan` prints it"}


def plan(model: str | os.PathLike[str] | None = None, *, what_if: dict[str, Any] | None = None,
         **keys: Any) -> dict[str, Any]:
    """Which configuration to use for a run, how fast it is, how much memory it takes, and why. Loads nothing.

    model: a checkpoint folder, a folder with only its configs, or a name of configs/. The keys are those of
    `zoetrope plan`: hardware, ranks (a number or a list), objective, price, ranks_per_process, and those of a run.
    what_if: figures of the profile by name, {"links.node.bandwidth": 900}. Returns what `zoetrope plan json=FILE`
    writes; docs/planner.md lists its keys. Where nothing fits, "fits" is false, and nothing is raised.
    """
    for key, instead in _OF_THE_PROGRAM.items():
        if keys.get(key) is not None:
            raise _core.Error(f"{key}: is a key of the program alone; {instead}")
    words = [] if model is None else [f"model={os.fspath(model)}"]
    words += [f"{key}={value}" for key, value in keys_of(keys)]
    words += [f"what_if.{key}={text(key, value)}" for key, value in (what_if or {}).items()]
    return json.loads(_core.plan_json(words))
