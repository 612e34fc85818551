"""The operator zoetrope::attention, and scaled_dot_product_attention() over it, which hands to PyTorch what the engine
does not compute and says why.

    import zoetrope.torch
    zoetrope.torch.scaled_dot_product_attention(q, k, v)        # as torch.nn.functional has it: [B, H, S, D]
    zoetrope.torch.reasons()                                    # {"causal attention": 3}
"""
from __future__ import annotations

import collections
import math
import warnings

import torch

from . import _core

from ._distributed import context_parallel_attention, token_shard

__all__ = ["attention", "context_parallel_attention", "reasons", "reset_reasons", "scaled_dot_product_attention",
           "token_shard"]

_MOST_HEAD_DIM = 256
_reasons: collections.Counter[str] = collections.Counter()


@torch.library.custom_op("zoetrope::attention", mutates_args=(), device_types="cpu")
def attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, key_mask: torch.Tensor | None = None,
              scale: float | None = None) -> torch.Tensor:
    """softmax(scale * q k^T) v. query [B, S, H, D]; key and value [B, keys, G, D], where G divides H and each of their
    heads serves H / G of the query's; float32 or bfloat16, D contiguous. key_mask [B, keys], bool: true where a key is
    valid. scale: unset 1/sqrt(D). Gives [B, S, H, D], contiguous. No gradients."""
    output = torch.empty(query.shape, dtype=query.dtype)
    group = query.shape[2] // max(key.shape[2], 1)
    if key.shape[2] * group != query.shape[2]:
        raise _core.Error(f"attention: {query.shape[2]} heads of q are not a multiple of {key.shape[2]} of k and v")
    query, key, value = query.detach(), key.detach(), value.detach()
    for head in range(group):
        _core.attention(query[:, :, head::group], key, value, output[:, :, head::group], None, None, key_mask,
                        scale or 0.0, False, [])
    return output


@attention.register_fake
def _(query, key, value, key_mask=None, scale=None):  # type: ignore[no-untyped-def]
    return query.new_empty(query.shape)


def _key_mask(mask: torch.Tensor, batch: int, keys: int) -> torch.Tensor | None:
    """A mask of scaled_dot_product_attention() as [batch, keys], where it is the same for all heads and queries."""
    if mask.dtype != torch.bool or not 1 <= mask.dim() <= 4 or mask.shape[-1] != keys:
        return None
    rows = mask.reshape((1,) * (4 - mask.dim()) + tuple(mask.shape))
    if rows.shape[1] != 1 or rows.shape[2] != 1 or rows.shape[0] not in (1, batch):
        return None
    return rows[:, 0, 0, :].expand(batch, keys)


def _reason(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, dropout_p: float,
            is_causal: bool, scale: float | None, enable_gqa: bool) -> str | None:
    """Why the engine does not take it, tensors [B, H, S, D]; None: it does."""
    tensors = (query, key, value)
    if any(x.device.type != "cpu" for x in tensors):
        return "tensors on another device than the CPU"
    if query.dtype not in (torch.float32, torch.bfloat16) or key.dtype != query.dtype or value.dtype != query.dtype:
        return "dtypes other than float32 and bfloat16, or several at once"
    if torch.is_grad_enabled() and any(x.requires_grad for x in tensors):
        return "gradients"
    if dropout_p > 0:
        return "dropout"
    if is_causal:
        return "causal attention"
    if any(x.dim() != 4 for x in tensors):
        return "tensors that are not [batch, heads, tokens, head_dim]"
    batch, heads, _, dim = query.shape
    if key.shape[0] != batch or value.shape[0] != batch or key.shape[1] != value.shape[1] \
            or key.shape[2] != value.shape[2]:
        return "keys and values whose sizes are broadcast"
    if key.shape[1] != heads and not (enable_gqa and key.shape[1] > 0 and heads % key.shape[1] == 0):
        return "keys and values whose sizes are broadcast"
    if key.shape[3] != dim or value.shape[3] != dim:
        return "values whose head dimension is another than that of the keys"
    if not 0 < dim <= _MOST_HEAD_DIM:
        return f"head dimensions above {_MOST_HEAD_DIM}"
    if query.numel() == 0 or key.numel() == 0:
        return "empty tensors"
    if scale is not None and not (scale > 0 and math.isfinite(scale)):
        return "scales that are not above 0"
    if mask is not None and _key_mask(mask, batch, key.shape[2]) is None:
        return "masks that are not boolean masks of keys, the same for all heads and queries"
    return None


def hand_back(reason: str) -> None:
    """Counts the reason, and warns where it is the first of its kind."""
    if torch.compiler.is_compiling():
        return
    if reason not in _reasons:
        warnings.warn(f"zoetrope: {reason}: handed to PyTorch's own attention (this is said once; see "
                      "zoetrope.torch.reasons())", stacklevel=3)
    _reasons[reason] += 1


def reasons() -> dict[str, int]:
    """How often attention was handed to PyTorch, by reason. What torch.compile() traced is not counted."""
    return dict(_reasons)


def reset_reasons() -> None:
    """Forgets them: the next of each is warned of again."""
    _reasons.clear()


def scaled_dot_product_attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
                                 attn_mask: torch.Tensor | None = None, dropout_p: float = 0.0,
                                 is_causal: bool = False, scale: float | None = None,
                                 enable_gqa: bool = False) -> torch.Tensor:
    """torch.nn.functional.scaled_dot_product_attention() by the engine where it can, else by PyTorch. [B, H, S, D]."""
    reason = _reason(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
    if reason is not None:
        hand_back(reason)
        return torch.nn.functional.scaled_dot_product_attention(
            query, key, value, attn_mask=attn_mask, dropout_p=dropout_p, is_causal=is_causal, scale=scale,
            enable_gqa=enable_gqa)
    mask = None if attn_mask is None else _key_mask(attn_mask, query.shape[0], key.shape[2])
    tensors = (x if x.stride(3) == 1 else x.contiguous() for x in (query, key, value))
    return attention(*(x.transpose(1, 2) for x in tensors), mask, scale).transpose(1, 2)
