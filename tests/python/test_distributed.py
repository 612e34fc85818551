"""Context-parallel attention over processes of torch.distributed, against one process."""
import os
import pathlib
import subprocess
import sys

import pytest
import torch
import zoetrope
from zoetrope.torch import context_parallel_attention, token_shard


@pytest.mark.parametrize("ranks", [3, 4])
def test_ranks_agree_with_one(ranks, tmp_path):
    script = pathlib.Path(__file__).with_name("distributed_ranks.py")
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    processes = [subprocess.Popen([sys.executable, script, tmp_path / "store", str(rank), str(ranks)], env=environment,
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for rank in range(ranks)]
    try:
        for rank, process in enumerate(processes):
            output, errors = process.communicate(timeout=200)
            assert output == "ok\n", f"rank {rank}: {errors}"
    finally:
        for process in processes:
            process.kill()


def test_without_a_group():
    with pytest.raises(zoetrope.Error, match="not initialised"):
        context_parallel_attention(*[torch.zeros(1, 2, 1, 4)] * 3)


def test_shards_cover_the_sequence():
    for tokens in (0, 1, 7, 100):
        for ranks in (1, 3, 8):
            shards = [token_shard(tokens, rank, ranks) for rank in range(ranks)]
            assert [begin for begin, _ in shards] + [tokens] == [0] + [end for _, end in shards]
