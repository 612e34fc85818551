"""Values of Python in the spelling of docs/configuration.md, which the engine's description of its keys reads."""
from __future__ import annotations

import numbers
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy

from . import _core

Keys = list[tuple[str, str]]


def is_torch(array: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(array, torch.Tensor)


def text(key: str, value: Any) -> str:
    """One value. Raises TypeError for what no key can be."""
    if isinstance(value, os.PathLike):
        value = os.fsdecode(value)
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:  # Python's stand-ins for bytes of a name or argument
            raise _core.Error(f"{key}: {value!a} is not UTF-8") from None
        return value
    if isinstance(value, bool) or type(value).__name__ in ("bool_", "bool"):
        return "true" if value else "false"
    if isinstance(value, numbers.Integral):
        return str(int(value))
    if isinstance(value, numbers.Real):
        return repr(float(value))
    if str(value).startswith("torch.") and type(value).__name__ == "dtype":
        return str(value).removeprefix("torch.")
    if isinstance(value, numpy.ndarray) or is_torch(value):
        if value.ndim > 1:
            raise TypeError(f"{key}: has the shape {list(value.shape)}; give one value, or a list of them")
        return text(key, value.tolist())
    if isinstance(value, Mapping):
        return ",".join(f"{_item(key, name)}:{_item(key, item)}" for name, item in value.items())
    if isinstance(value, Sequence) and not isinstance(value, (bytes, bytearray)):
        return ",".join(_item(key, item) for item in value)
    raise TypeError(f"{key}: a value of type {type(value).__name__} cannot be used; give text, a number, a flag, a "
                    "path, or a list or dict of them")


def _item(key: str, value: Any) -> str:
    item = text(key, value)
    if "," in item:
        raise _core.Error(f"{key}: '{item}' has a comma, which divides the items of a list; rename it")
    return item


def keys_of(values: Mapping[str, Any]) -> Keys:
    """Keys with their values; those that are None are left as they are."""
    return [(key, text(key, value)) for key, value in values.items() if value is not None]
