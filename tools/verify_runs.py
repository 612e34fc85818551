#!/usr/bin/env python3
"""Verifies random configurations of models that are sound: none may leave its bounds. Prints the largest error of each kind
of check as a part of its bound; exit code 1 where a run fails or is refused.

    tools/verify_runs.py PROGRAM MODEL... [tries=100] [seed=1]

MODELs need no picture or video. A try draws the model, the noise, size, dtype, ranks on threads or under MPI and how they are
used, the softmax, guidance, and a step cache.
"""
import json
import os
import pathlib
import random
import re
import subprocess
import sys
import time

MPI_ENV = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
           "OMPI_MCA_rmaps_base_oversubscribe": "1", "OMPI_MCA_btl_vader_single_copy_mechanism": "none",
           "OMPI_MCA_hwloc_base_binding_policy": "none", "ZOETROPE_MEASURE": "no"}
SPLITS = [["attention=ring"], ["attention=ring", "ring_direction=open"], ["attention=ring", "ring_direction=two_way"],
          ["attention=ring", "softmax=fixed_max"], ["attention=gather"], ["attention=ulysses"],
          ["attention=ulysses", "softmax=fixed_max"], ["attention=ulysses", "ulysses_attention_chunks=2"], []]


def drawn(random, heads):
    """The keys of a run of a model with so many heads, its ranks, and whether these are processes."""
    ranks = random.choice([1, 2, 2, 3, 4, 4])
    keys = [f"seed={random.randrange(1 << 30)}", f"height={16 * random.randint(4, 7)}", f"width={16 * random.randint(4, 7)}",
            f"num_frames={4 * random.randint(0, 3) + 1}", f"num_inference_steps={random.randint(2, 5)}",
            f"guidance_scale={random.choice([1, 5])}",
            f"mask_padding_tokens={random.choice(['true', 'false'])}", "threads=2", "rows=0", "minutes=0"]
    keys.append("prompt=" + " ".join(random.choice("a red blue ball cat moves left right slowly".split()) for _ in range(9)))
    keys += random.choice([["dtype=float32"], ["dtype=bf16"], ["dtype=bf16", "attention_dtype=int8"],
                           ["dtype=int8", "int8_layers=all"],
                           ["dtype=int8", "int8_layers=all", "attention_dtype=int8"]])
    if ranks > 1:
        keys.append("data_parallelism=1")
        # Ranks that share heads are two or four, where the heads allow it.
        kind = random.choice(["context", "tensor"]) if ranks in (2, 4) else "context"
        if kind == "tensor":
            keys.append(f"tensor_parallelism={random.choice([2, ranks if heads % ranks == 0 else 2])}")
        else:
            keys += random.choice([split for split in SPLITS if ranks != 3 or "attention=ulysses" not in split])
    if "guidance_scale=5" in keys and random.random() < 0.25:
        keys += ["cache=cfg", "num_inference_steps=6"]
    return keys, ranks, ranks > 1 and random.random() < 0.3


def main():
    words = sys.argv[1:]
    numbers = dict(word.split("=") for word in words if "=" in word)
    program, *models = [word for word in words if "=" not in word]
    tries, rng = int(numbers.get("tries", 100)), random.Random(int(numbers.get("seed", 1)))
    largest, failed, values, begin = {}, 0, 0, time.time()
    for number in range(tries):
        model = rng.choice(models)
        heads = json.loads(pathlib.Path(model, "transformer", "config.json").read_text())["num_attention_heads"]
        keys, ranks, mpi = drawn(rng, heads)
        command = ["mpirun", "-n", str(ranks), program, "verify"] if mpi else [program, "verify", f"ranks={ranks}"]
        command += [model, *keys]
        result = subprocess.run(command, text=True, capture_output=True, env={**os.environ, **MPI_ENV})
        if result.returncode != 0:
            failed += 1
            print(f"try {number}: {' '.join(command)}\n{result.stderr[-1000:]}{result.stdout}", flush=True)
            continue
        dtype = " ".join(key for key in keys if "dtype=" in key)
        for kind, line in re.findall(r"Against (one rank|float64)(.*)", result.stdout):
            found = re.search(r"largest error (\S+) of its bound", line)
            largest[kind, dtype] = max(largest.get((kind, dtype), 0), float(found[1]) if found else 0)
        values += int(re.search(r"one rank, (\d+) value", result.stdout)[1])
    for (kind, dtype), part in sorted(largest.items()):
        print(f"{dtype} against {kind}: largest error {part} of its bound")
    print(f"{tries} sound runs, {values} values against one rank, {failed} failed; {time.time() - begin:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
