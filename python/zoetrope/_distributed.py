"""Context-parallel attention over the processes of torch.distributed."""
from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Any

import torch
from torch import distributed

from . import _core
from ._attention import attention as _alone, lengths_of, scale_of
from ._values import keys_of

_TIMEOUT = 300.0  # seconds, as the key comm_timeout


def token_shard(tokens: int, rank: int, ranks: int) -> tuple[int, int]:
    """The tokens [begin, end) that a rank has of a sequence: shards differ by one token at most, nothing is padded."""
    return rank * tokens // ranks, (rank + 1) * tokens // ranks


class _Messages:
    """What the engine sends and receives. A tag names a message of two ranks."""

    def __init__(self, group: Any, timeout: float) -> None:
        self._group = group
        self._timeout = datetime.timedelta(seconds=timeout)

    def send(self, peer: int, tag: int, data: Any) -> Any:
        tensor = torch.from_numpy(data)
        return distributed.isend(tensor, group=self._group, group_dst=peer, tag=tag), tensor

    def receive(self, peer: int, tag: int, data: Any) -> Any:
        tensor = torch.from_numpy(data)
        return distributed.irecv(tensor, group=self._group, group_src=peer, tag=tag), tensor

    def wait(self, posted: Any, operation: str) -> None:
        try:
            posted[0].wait(self._timeout)
        except RuntimeError as error:
            raise _core.Error(f"attention: rank {distributed.get_rank()} timed out waiting for another rank in "
                              f"'{operation}': {error}") from error


def _refusal(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> str | None:
    """What is wrong with the tensors of this rank."""
    for name, x in (("q", q), ("k", k), ("v", v)):
        if not isinstance(x, torch.Tensor):
            return f"{name} is of type {type(x).__name__}, but must be a tensor"
        if x.device.type != "cpu" or x.dtype not in (torch.float32, torch.bfloat16) or x.dim() != 4:
            return (f"{name} is {x.dtype} {list(x.shape)} on {x.device}, but must be float32 or bfloat16 [B, S, H, D] "
                    "on cpu")
        if x.shape != q.shape or x.dtype != q.dtype:
            return f"{name} is {x.dtype} {list(x.shape)} and q {q.dtype} {list(q.shape)}; they must be alike"
        if x.requires_grad and torch.is_grad_enabled():
            return f"{name} requires gradients, which are not computed; call this under torch.no_grad()"
        if x.numel() > 0 and x.shape[3] > 1 and x.stride(3) != 1:
            return f"the last axis of {name} must be contiguous, but its stride is {x.stride(3)}"
    return None


def _agreed_tokens(q: Any, refusal: str | None, group: Any) -> int:
    """Of the whole sequence. Raises Error on all ranks alike where one of them cannot go on."""
    rank, ranks = distributed.get_rank(group), distributed.get_world_size(group)
    mine = torch.zeros(6, dtype=torch.int64)
    if refusal is None:
        mine = torch.tensor([1, q.shape[0], q.shape[2], q.shape[3], int(q.dtype == torch.bfloat16), q.shape[1]])
    every = [torch.zeros_like(mine) for _ in range(ranks)]
    distributed.all_gather(every, mine, group=group)
    if refusal is not None:
        raise _core.Error(f"attention: rank {rank}: {refusal}")
    for other, sizes in enumerate(every):
        if sizes[0] == 0:
            raise _core.Error(f"attention: rank {other} was given what it cannot use, and says so")
        if not torch.equal(sizes[:5], every[0][:5]):
            raise _core.Error(f"attention: rank {other} has batch, heads, head_dim, bfloat16 = {sizes[1:5].tolist()}, "
                              f"but rank 0 {every[0][1:5].tolist()}; all must be alike")
    tokens = sum(int(sizes[5]) for sizes in every)
    for other, sizes in enumerate(every):
        begin, end = token_shard(tokens, other, ranks)
        if int(sizes[5]) != end - begin:
            raise _core.Error(f"attention: rank {other} has {int(sizes[5])} of {tokens} tokens, but its shard is "
                              f"[{begin}, {end}) (zoetrope.torch.token_shard)")
    return tokens


def context_parallel_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, group: Any = None,
                               strategy: str | None = None, scale: float | None = None,
                               key_lengths: Sequence[int] | None = None, threads: int | None = None,
                               **keys: Any) -> torch.Tensor:
    """Exact attention over a sequence whose tokens are spread over the processes of a group of torch.distributed.

    q, k, v are this rank's tokens, [B, token_shard(S, rank, ranks), H, D]: any number of tokens, heads and ranks,
    nothing is padded. The group's backend is gloo. strategy and other keys are those of zoetrope.attention();
    key_lengths count from the first token of the whole sequence. threads: unset as many as PyTorch has. Collective.
    Gives this rank's tokens of the result.
    """
    factor, lengths = scale_of(scale), lengths_of(key_lengths)
    if not distributed.is_initialized():
        raise _core.Error("attention: torch.distributed is not initialised; call init_process_group('gloo') first")
    if distributed.get_backend(group) != "gloo":
        raise _core.Error(f"attention: the group's backend is {distributed.get_backend(group)}, but must be gloo")
    tokens = _agreed_tokens(q, _refusal(q, k, v), group)
    settings = keys_of({"attention": strategy, "threads": threads or torch.get_num_threads(), **keys})
    q, k, v = q.detach(), k.detach(), v.detach()
    ranks = distributed.get_world_size(group)
    if ranks == 1:
        return _alone(q, k, v, scale=scale, key_lengths=key_lengths, strategy=strategy,
                      threads=threads or torch.get_num_threads(), **keys)
    output = torch.empty(q.shape, dtype=q.dtype)
    messages = _Messages(group, float(keys.get("comm_timeout") or _TIMEOUT))
    _core.attention_as_rank(messages, distributed.get_rank(group), ranks, tokens, q, k, v, output, lengths,
                            factor, settings)
    return output
