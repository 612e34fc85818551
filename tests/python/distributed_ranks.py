"""One rank of test_distributed.py: distributed_ranks.py FILE RANK RANKS. Prints "ok" where all went as it should."""
import sys

import torch
import zoetrope
from torch import distributed
from zoetrope.torch import context_parallel_attention, token_shard

B, H, D = 2, 5, 24  # heads that most numbers of ranks do not divide


def draw(tokens, dtype):
    generator = torch.Generator().manual_seed(tokens)
    return [torch.randn(B, tokens, H, D, generator=generator).to(dtype) for _ in range(3)]


def shard(x, rank, ranks):
    begin, end = token_shard(x.shape[1], rank, ranks)
    return x[:, begin:end]


def agrees(rank, ranks, group=None, tokens=37, dtype=torch.float32, **keys):
    whole = draw(tokens, dtype)
    lengths = keys.get("key_lengths")
    wanted = zoetrope.attention(*whole, key_lengths=lengths, scale=keys.get("scale"))
    got = context_parallel_attention(*(shard(x, rank, ranks) for x in whole), group=group, **keys)
    bound = 1e-5 if dtype == torch.float32 else 2**-6
    wanted = shard(wanted, rank, ranks)
    assert got.shape == wanted.shape and got.dtype == dtype
    assert got.numel() == 0 or (got.double() - wanted.double()).abs().max() < bound, keys


def refuses(words, *arguments, **keys):
    try:
        context_parallel_attention(*arguments, **keys)
    except zoetrope.Error as error:
        assert words in str(error), error
    else:
        raise AssertionError(words)


def main(file, rank, ranks):
    distributed.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=ranks)
    strategies = ["ring", "gather", "tokamax_ring_custom", "ulysses", None]
    if ranks == 4:
        strategies += ["ulysses_ring", "ulysses_ring_custom_bidir", "ulysses_ring_custom_fixed_m"]
    for strategy in strategies:
        agrees(rank, ranks, strategy=strategy)
    agrees(rank, ranks, strategy="ring", tokens=ranks - 1)  # a rank without tokens
    agrees(rank, ranks, strategy="ring", ring_direction="two_way", key_lengths=[37, 5], scale=0.4)
    agrees(rank, ranks, strategy="ulysses", ulysses_attention_chunks=2, dtype=torch.bfloat16)
    # A group of the first two, while the others wait.
    pair = distributed.new_group([0, 1])
    if rank < 2:
        agrees(rank, 2, group=pair, strategy="ulysses", tokens=9)
    distributed.barrier()
    q = torch.zeros(B, 3 + (rank == 0), H, D)
    refuses(f"rank 0 has 4 of {3 * ranks + 1} tokens", *[torch.zeros(B, 3 + (rank == 0), H, D)] * 3)
    refuses("rank 1 has batch" if rank != 5 else "", *[torch.zeros(B, 3, H, D + (rank == 1))] * 3)
    q = torch.zeros(B, 3, H, D, dtype=torch.float64 if rank == 1 else torch.float32)
    refuses("float64" if rank == 1 else "rank 1 was given", q, q, q)
    q = torch.zeros(B, 3, H, D)
    refuses("requires gradients" if rank == 0 else "rank 0 was given", q.clone().requires_grad_(rank == 0), q, q)
    refuses("did you mean 'ring'", q, q, q, strategy="rings")
    refuses("ranks=2", q, q, q, ranks=2)
    agrees(rank, ranks, strategy="ring")  # refusals leave the group as it was
    distributed.destroy_process_group()
    print("ok")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
