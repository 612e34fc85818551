#!/usr/bin/env python3
"""kv_exchange_dtype in runs and in plans, as users see it.

    kv_exchange_test.py PROGRAM MODEL NAME    runs one test (exit 77: skipped, with the reason)
    kv_exchange_test.py --list                the names
"""
import json
import pathlib
import re
import sys

sys.dont_write_bytecode = True
import harness  # noqa: E402
from harness import files_in, generate, read_tensors, refused, run, run_script  # noqa: E402

TESTS = {}


def test(function):
    TESTS[function.__name__] = function
    return function


@test
def keys_and_values_travel_in_fewer_bits(cwd):
    """Any number of Ulysses ranks above one makes the same bits, which are near those of the exact run and not they; the
    summary has the error. One rank exchanges nothing and rounds nothing."""
    def latents(dtype, exchange, ranks):
        result = generate(cwd, "output=a.gif", "dump=dump", "deterministic=true", f"dtype={dtype}", f"ranks={ranks}",
                          "data_parallelism=1", "attention=ulysses", f"kv_exchange_dtype={exchange}")
        assert result.returncode == 0, result.stderr
        said = re.findall(r"Exchange of keys and values in (\w+): off by ([\d.]+) % \(keys\) and ([\d.]+) % \(values\)",
                          result.stdout)
        values = read_tensors(pathlib.Path(cwd) / "dump" / "run.safetensors")
        return values["latents.1"], said
    for dtype, exchange in (("float32", "bf16"), ("float32", "int8"), ("bf16", "int8")):
        exact, said = latents(dtype, "as_computed", 2)
        assert not said
        two, said = latents(dtype, exchange, 2)
        assert len(said) == 1 and said[0][0] == exchange, said
        # A rounding to 8 bits, or to half a 127th of the largest of 32 values.
        most = 100 * 2.0 ** -8 if exchange == "bf16" else 100 * 32 ** 0.5 / 254
        assert all(0.01 < float(x) < most for x in said[0][1:]), said
        assert two != exact
        assert latents(dtype, exchange, 3)[0] == two
        assert latents(dtype, exchange, 1) == (latents(dtype, "as_computed", 1)[0], [])
    refused(cwd, generate(cwd, "output=b.gif", "dtype=bf16", "kv_exchange_dtype=bf16"), "kv_exchange_dtype=bf16",
            "travel so anyway", left=files_in(cwd))
    refused(cwd, generate(cwd, "output=b.gif", "kv_exchange_dtype=fp8"), "as_computed, bf16, int8", left=files_in(cwd))


@test
def a_plan_says_what_it_gains(cwd):
    """Over a link so slow that nothing else counts, a step takes as much less as is sent: 144 bytes a key instead of 256. The
    planner never chooses it."""
    def plan(*keys):
        return run([harness.PROGRAM, "plan", "wan2.1_t2v_14b", "hardware=h100_8", "ranks=2", "data_parallelism=1",
                    "attention=ring", "what_if.links.node.bandwidth=0.01", "json=plan.json", *keys], cwd)

    def best(*keys):
        result = plan(*keys)
        assert result.returncode == 0, result.stderr
        found = json.loads((pathlib.Path(cwd) / "plan.json").read_text())["plans"][0]
        return found["candidates"][0]["seconds_per_step"], "\n".join(found["explanation"]), found
    whole, text, found = best()
    assert "kv_exchange_dtype" not in json.dumps(found) and "step_seconds_as_computed" not in found, text
    narrow, text, found = best("kv_exchange_dtype=int8")
    assert abs(narrow / whole - 144 / 256) < 0.01, (narrow, whole)
    assert "With kv_exchange_dtype a step of this takes" in text, text
    assert found["step_seconds_as_computed"] == whole, found["step_seconds_as_computed"]
    assert "kv_exchange_dtype=int8" in found["settings"], found["settings"]
    refused(cwd, plan("dtype=bf16", "kv_exchange_dtype=bf16"), "kv_exchange_dtype=bf16", "travel so anyway",
            left=files_in(cwd))


@test
def plans_and_runs_name_keys_of_exchanges(cwd):
    """The command that a plan prints has shard_weights, and a key that nothing comes of has a note, in both commands."""
    def plan(*keys):
        result = run([harness.PROGRAM, "plan", "wan2.1_t2v_14b", "hardware=h100_8", "guidance_scale=1", "json=plan.json", *keys], cwd)
        assert result.returncode == 0, result.stderr
        return json.loads((pathlib.Path(cwd) / "plan.json").read_text())["plans"][0]["settings"], result.stdout
    even, text = plan("ranks=2")
    assert not [word for word in even if "shard_weights" in word] and "shard_weights" not in text, text
    for keys in ("shard_weights=3,1", "shard_weights=auto"):
        settings, text = plan("ranks=2", keys)
        assert keys in settings and keys in text, text
        assert ("planned with even shards" in text) == (keys == "shard_weights=auto"), text
        assert "without effect" not in text, text
    keys = ["shard_weights=2,1", "kv_exchange_dtype=int8", "flash_min_seq_length=100000000"]
    note = "shard_weights=2,1 and kv_exchange_dtype=int8 without effect: a rank has whole sequences"
    assert note in plan("ranks=2", *keys)[1]
    whole = generate(cwd, "output=a.gif", "ranks=2", "data_parallelism=1", *keys)
    assert whole.returncode == 0 and note in whole.stdout + whole.stderr, whole.stdout + whole.stderr
    assert "Shard weights" not in whole.stdout, whole.stdout
    divided = generate(cwd, "output=b.gif", "ranks=2", "data_parallelism=1", *keys[:2])
    assert divided.returncode == 0 and "without effect" not in divided.stdout + divided.stderr, divided.stderr
    assert "Shard weights 2,1\n" in divided.stdout, divided.stdout


if __name__ == "__main__":
    sys.exit(run_script(TESTS, harness.use))
