"""Exact attention over arrays, in place."""
from __future__ import annotations

import operator
import sys
from collections.abc import Sequence
from typing import Any

import numpy

from . import _core
from ._values import is_torch, keys_of

_LAYOUTS = ("BSHD", "BHSD")


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


def _checked(name: str, array: Any) -> Any:
    """What the engine can read: without gradients, which it does not compute."""
    if not is_torch(array):
        return array
    torch = sys.modules["torch"]
    if array.requires_grad and torch.is_grad_enabled():
        raise _core.Error(f"attention: {name} requires gradients, which are not computed; call this under "
                          "torch.no_grad(), or zoetrope.torch.scaled_dot_product_attention(), which hands it to PyTorch")
    return array.detach()


def _heads_first(array: Any) -> Any:
    """The axes of tokens and heads exchanged: a view."""
    if is_torch(array):
        return array.transpose(1, 2)
    if hasattr(array, "swapaxes"):
        return array.swapaxes(1, 2)
    return array.__array_namespace__().permute_dims(array, (0, 2, 1, 3))


def _is_numpy_bfloat16(array: Any) -> bool:
    return isinstance(array, numpy.ndarray) and array.dtype.name == "bfloat16"


def _output_like(q: Any) -> Any:
    if is_torch(q):
        return sys.modules["torch"].empty(q.shape, dtype=q.dtype)
    if isinstance(q, numpy.ndarray):
        return numpy.empty(q.shape, q.dtype)
    try:
        return numpy.empty_like(numpy.from_dlpack(q), order="C")
    except (TypeError, AttributeError, RuntimeError, BufferError) as error:
        raise TypeError(f"attention: q is of type {type(q).__name__}, whose result cannot be made ({error}); give a "
                        "NumPy array, a PyTorch tensor, or an object with __dlpack__ whose dtype NumPy has") from error


def attention(q: Any, k: Any, v: Any, *, scale: float | None = None, key_lengths: Sequence[int] | None = None,
              key_mask: Any = None, layout: str = "BSHD", return_log_sum_exp: bool = False,
              strategy: str | None = None, ranks: int = 1, threads: int | None = None, **keys: Any) -> Any:
    """softmax(scale * q k^T) v per batch entry and head, over threads of this process. Bidirectional, exact.

    q is [B, S, H, D] (batch, tokens, heads, head_dim), k and v [B, keys, H, D]; layout="BHSD": [B, H, S, D]. NumPy
    arrays, PyTorch tensors or any objects with __dlpack__, on the CPU, float32 or bfloat16 (NumPy: of ml_dtypes). They
    are read in place: D must be contiguous, the other strides may be anything. The result is of the kind, dtype and
    layout of q.

    scale: unset 1/sqrt(D). key_lengths: the number of valid keys of each batch entry. key_mask: [B, keys], bool or
    uint8, true where a key is valid. A query without a valid key gives zeros. return_log_sum_exp: also gives
    ln(sum(exp(scale * q k^T))), float32 [B, S, H], as a NumPy array or, where q is one, a PyTorch tensor.

    strategy, ranks, threads and other keys: as docs/attention.md has them (strategy is the key `attention`):
    ulysses_shards, ring_direction, softmax, flash_block_sizes, deterministic, …; implementation names a kernel.
    Raises TypeError for what is no array, on another device or of another dtype, Error (a ValueError) for the rest.
    """
    if layout not in _LAYOUTS:
        raise _core.Error(f"attention: layout={layout!r}; use 'BSHD' or 'BHSD'")
    factor, lengths = scale_of(scale), lengths_of(key_lengths)
    q, k, v = (_checked(name, array) for name, array in (("q", q), ("k", k), ("v", v)))
    output = _output_like(q)
    bits = all(_is_numpy_bfloat16(array) for array in (q, k, v))
    views = [q, k, v, output]
    if bits:
        views = [array.view(numpy.uint16) for array in views]
    if layout == "BHSD":
        views = [_heads_first(array) if len(array.shape) == 4 else array for array in views]
    logs = None
    if return_log_sum_exp:
        shape = tuple(views[0].shape)[:3]
        logs = sys.modules["torch"].empty(shape) if is_torch(q) else numpy.empty(shape, numpy.float32)
    settings = keys_of({"attention": strategy, "ranks": ranks, "threads": threads, **keys})
    _core.attention(*views, logs, lengths, key_mask, factor, bits, settings)
    if not is_torch(output) and not isinstance(q, numpy.ndarray) and hasattr(q, "__array_namespace__"):
        output = q.__array_namespace__().from_dlpack(output)
    return (output, logs) if return_log_sum_exp else output
