"""Values of Python in the spelling of docs/configuration.md, which the engine's description of its keys reads."""
from __future__ import annotations

import numbers
import operator
import os
from collections.abc import Mapping, Sequence
from typing import Any

from . import _core

Keys = list[tuple[str, str]]


def text(key: str, value: Any) -> str:
    """One value. Raises TypeError for what no key can be."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool) or type(value).__name__ in ("bool_", "bool"):
        return "true" if value else "false"
    if isinstance(value, numbers.Integral):
        return str(int(value))
    if isinstance(value, numbers.Real):
        return repr(float(value))
    if isinstance(value, os.PathLike):
        return os.fsdecode(value)
    if str(value).startswith("torch.") and type(value).__name__ == "dtype":
        return str(value).removeprefix("torch.")
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


def scale_of(scale: Any) -> float:
    """The scale of attention as the engine takes it, in float32: 0 where it is unset."""
    smallest, largest = 2.0 ** -149, (2 - 2.0 ** -23) * 2.0 ** 127
    if scale is None:
        return 0.0
    if not smallest <= scale <= largest:
        raise _core.Error(f"attention: scale={scale}; it must be above 0 and within float32")
    return float(scale)


def lengths_of(key_lengths: Sequence[Any] | None) -> list[int] | None:
    """Raises TypeError for what is no whole number."""
    if key_lengths is None:
        return None
    lengths = []
    for length in key_lengths:
        try:
            lengths.append(operator.index(length))
        except TypeError:
            raise TypeError(f"attention: key_lengths has {length!r}; it must be a whole number") from None
        if not 0 <= lengths[-1] < 2 ** 63:
            raise _core.Error(f"attention: key_lengths has {length}; it must be from 0 to the number of keys")
    return lengths


def keys_of(values: Mapping[str, Any]) -> Keys:
    """Keys with their values; those that are None are left as they are."""
    return [(key, text(key, value)) for key, value in values.items() if value is not None]
