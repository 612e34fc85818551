"""The engine's attention as a backend of diffusers.

    import zoetrope.diffusers
    zoetrope.diffusers.enable()                                  # for every model, from now on
    model.set_attention_backend("zoetrope")                      # for one model; enable() or register() came before

What the engine does not compute goes to diffusers' native backend: zoetrope.torch.reasons() says what and how often.
diffusers has no public way to add a backend: this adds a name to its enumeration AttentionBackendName and a function to
its registry. docs/python.md says with which versions it was tried.
"""
from __future__ import annotations

import inspect
from typing import Any

import torch

try:
    from diffusers.models.attention_dispatch import AttentionBackendName, _AttentionBackendRegistry

    _AttentionBackendRegistry.set_active_backend  # noqa: B018
except (ImportError, AttributeError) as error:
    raise ImportError(f"zoetrope.diffusers needs diffusers 0.37 or later, whose attention can be chosen: {error}"
                      ) from error

from .torch import hand_back, scaled_dot_product_attention

__all__ = ["disable", "enable", "register"]

NAME = "zoetrope"
_before: list[Any] = []


def _attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_mask: torch.Tensor | None = None,
               dropout_p: float = 0.0, is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
               return_lse: bool = False, _parallel_config: Any = None) -> torch.Tensor:
    """Tensors [B, S, H, D]; attn_mask as the native backend takes it."""
    if return_lse or _parallel_config is not None:
        hand_back("context parallelism of diffusers")
        native = _AttentionBackendRegistry._backends[AttentionBackendName.NATIVE]
        given = {"query": query, "key": key, "value": value, "attn_mask": attn_mask, "dropout_p": dropout_p,
                 "is_causal": is_causal, "scale": scale, "enable_gqa": enable_gqa, "return_lse": return_lse,
                 "_parallel_config": _parallel_config}
        known = inspect.signature(native).parameters
        return native(**{name: value for name, value in given.items() if name in known})
    # As the native backend has it: a mask [B, keys] is one of keys.
    if attn_mask is not None and attn_mask.dim() == 2 and tuple(attn_mask.shape) == (query.shape[0], key.shape[1]):
        attn_mask = attn_mask[:, None, None, :]
    query, key, value = (x.transpose(1, 2) for x in (query, key, value))
    return scaled_dot_product_attention(query, key, value, attn_mask, dropout_p, is_causal, scale,
                                        enable_gqa).transpose(1, 2)


def _add_name() -> Any:
    known = AttentionBackendName._value2member_map_
    if NAME not in known:
        member = str.__new__(AttentionBackendName, NAME)
        member._name_, member._value_ = NAME.upper(), NAME
        known[NAME] = member
        AttentionBackendName._member_map_[member.name] = member
        AttentionBackendName._member_names_.append(member.name)
    return known[NAME]


def register() -> None:
    """Adds the backend "zoetrope" to those that diffusers knows. A second call changes nothing."""
    name = _add_name()
    if name not in _AttentionBackendRegistry._backends:
        _AttentionBackendRegistry.register(name)(_attention)


def enable() -> None:
    """Makes the backend the one that every model uses which was not given another."""
    register()
    active, _ = _AttentionBackendRegistry.get_active_backend()
    if active != NAME:
        _before.append(active)
        _AttentionBackendRegistry.set_active_backend(AttentionBackendName(NAME))


def disable() -> None:
    """Takes enable() back."""
    if _before:
        _AttentionBackendRegistry.set_active_backend(_before.pop())
