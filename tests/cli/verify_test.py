#!/usr/bin/env python3
"""`zoetrope verify` as a user types it: on threads and under MPI, its certificates, and weights that are not sound.

    verify_test.py PROGRAM MODEL NAME    runs one test (exit 77: skipped, with the reason)
    verify_test.py --list                the names
"""
import json
import pathlib
import re
import shutil
import struct
import sys

sys.dont_write_bytecode = True
import harness  # noqa: E402
from harness import MPI_ENV, SMALL, Skip, files_in, refused, run, run_script, write_tensors  # noqa: E402

TESTS = {}
SOUND = "Every value is inside its bound"


def test(function):
    TESTS[function.__name__] = function
    return function


def verify(cwd, *arguments, model=None, small=True):
    return run([harness.PROGRAM, "verify", model or harness.MODEL, *(SMALL if small else []), *arguments], cwd)


def recheck(cwd, *arguments, file="c.json"):
    return verify(cwd, f"certificate={file}", *arguments, small=False)


def certificate(cwd, **changes):
    """A certificate of the small run, with other values of some of its fields."""
    file = pathlib.Path(cwd) / "c.json"
    if not file.exists():
        assert verify(cwd, "certificate=c.json").returncode == 0
    read = json.loads(file.read_text())
    read.update(changes)
    (pathlib.Path(cwd) / "changed.json").write_text(json.dumps(read))
    return read


def damaged_model(cwd, tensor, bits=0xff):
    """A copy of the model in which the value in the middle of a tensor has another sign and exponent, or `bits` of them."""
    folder = pathlib.Path(cwd) / "damaged"
    shutil.copytree(harness.MODEL, folder)
    for file in (folder / "transformer").glob("*.safetensors"):
        data = bytearray(file.read_bytes())
        size = int.from_bytes(data[:8], "little")
        header = json.loads(data[8:8 + size])
        if tensor not in header:
            continue
        begin, end = header[tensor]["data_offsets"]
        width = {"F32": 4, "BF16": 2}[header[tensor]["dtype"]]
        data[8 + size + begin + (end - begin) // 2 // width * width + width - 1] ^= bits
        file.write_bytes(data)
        return folder
    raise AssertionError(f"no tensor {tensor}")


@test
def sound_runs_say_so(cwd):
    for words in (["summary=full"], ["ranks=3", "data_parallelism=1", "attention=ring"], ["dtype=bf16", "ranks=2"],
                  ["cache=cfg", "num_inference_steps=6"]):
        result = verify(cwd, *words)
        assert result.returncode == 0 and SOUND in result.stdout, result.stderr + result.stdout
        assert ("Worst of each tensor against float64" in result.stdout) == (words == ["summary=full"]), result.stdout
        assert files_in(cwd) == [], files_in(cwd)
    assert "Steps that reuse" in result.stdout, result.stdout


@test
def a_certificate_is_checked_elsewhere(cwd):
    result = verify(cwd, "certificate=c.json", "ranks=2", "data_parallelism=1")
    assert result.returncode == 0 and "Wrote c.json" in result.stdout, result.stderr
    read = json.loads((pathlib.Path(cwd) / "c.json").read_text())
    assert read["ranks"] == 2 and read["outside"] == 0 and len(read["latents"]) == 3, read
    tensors = [value["tensor"] for value in read["float64"]["worst"]]
    assert {"text_embedding", "block.0.self_attention", "proj_out"} <= set(tensors), tensors
    before = (pathlib.Path(cwd) / "c.json").read_bytes()
    same = recheck(cwd, "ranks=2", "data_parallelism=1")
    assert same.returncode == 0 and "have the same bits as in c.json" in same.stdout, same.stderr + same.stdout
    # Another split, so other sums.
    other = recheck(cwd, "ranks=4", "data_parallelism=1", "attention=ring")
    assert other.returncode == 0 and "from those of c.json" in other.stdout, other.stderr + other.stdout
    assert (pathlib.Path(cwd) / "c.json").read_bytes() == before and files_in(cwd) == ["c.json"]


@test
def certificates_of_other_runs_are_refused(cwd):
    read = certificate(cwd)
    left = ["c.json", "changed.json"]
    refused(cwd, recheck(cwd, "seed=9"), "c.json: is of a run with other settings: seed", left=left)
    refused(cwd, recheck(cwd, "height=64"), "other settings: height", left=left)
    for changes, said in (({"zoetrope_certificate": 99}, "has format 99"), ({"weights": "0" * 16}, "is of other weights"),
                          ({"outside": 3, "first_outside": "step 1: x is"}, "left its bounds: step 1: x is"),
                          ({"files": {}}, "other files: "), ({"latents": read["latents"][:1]}, "the latents of"),
                          ({"latents": [dict(read["latents"][0], hash="0" * 16)] + read["latents"][1:]}, "other noise"),
                          ({"latents": [dict(mark, hash="xyz") for mark in read["latents"]]}, "'xyz' is not a hash"),
                          ({"latents": [dict(mark, sample=[1e300]) for mark in read["latents"]]}, "is not a float32"),
                          ({"settings": dict(read["settings"], seed="-1")}, "has no seed"),
                          ({"latents": read["latents"][:1] + [dict(mark, hash="0" * 16, sample=[-v for v in mark["sample"]])
                                                              for mark in read["latents"][1:]]},
                           "more than the"),
                          ({"latents": read["latents"][:1] + [dict(mark, hash="0" * 16, norm=0) for mark in
                                                              read["latents"][1:]]}, "the norm of the latents")):
        certificate(cwd, **changes)
        refused(cwd, recheck(cwd, file="changed.json"), said, left=left)
    for text, said in (("", "changed.json"), ("{", "changed.json"), ("{}", "exists but is not a certificate"),
                       (json.dumps({k: v for k, v in read.items() if k != "latents"}), "latents")):
        (pathlib.Path(cwd) / "changed.json").write_text(text)
        refused(cwd, recheck(cwd, file="changed.json"), said, left=left)


@test
def latents_that_may_be_far_apart_say_nothing(cwd):
    """Bounds of int8 attention reach half of what a model does at the first step, those of int8 at the fifth."""
    for words, said in ((["attention_dtype=int8"], "Against changed.json"), (["num_inference_steps=6"], "values of steps 1 to 4 ")):
        assert verify(cwd, "certificate=c.json", "dtype=int8", "int8_layers=all", *words).returncode == 0
        *before, last = json.loads((pathlib.Path(cwd) / "c.json").read_text())["latents"]
        certificate(cwd, latents=[*before, dict(last, hash="0" * 16)])  # not the same bits
        result = recheck(cwd, file="changed.json")
        assert result.returncode == 0 and said in result.stdout and " say nothing: " in result.stdout, \
            result.stderr + result.stdout
        (pathlib.Path(cwd) / "c.json").unlink()


@test
def a_certificate_is_of_every_byte_of_a_lora(cwd):
    file = pathlib.Path(cwd) / "l.safetensors"

    def write(first):  # 12 KiB: more than what a fingerprint reads of a tensor
        values = [first] + [0.001] * (64 * 48 - 1)
        write_tensors(file, {"diffusion_model.blocks.0.ffn.0.diff": ("F32", [64, 48], struct.pack("<3072f", *values))})

    for random in ([], ["weights=random"]):
        write(0.001)
        result = verify(cwd, "certificate=c.json", f"lora={file}", *random)
        assert result.returncode == 0 and "Wrote c.json" in result.stdout, result.stderr
        result = recheck(cwd, f"lora={file}", *random)
        assert result.returncode == 0 and "have the same bits as in c.json" in result.stdout, result.stderr
        write(0.002)
        refused(cwd, recheck(cwd, f"lora={file}", *random), "c.json: is of other weights", left=["c.json", file.name])
        (pathlib.Path(cwd) / "c.json").unlink()


@test
def damaged_weights_are_found(cwd):
    damaged = damaged_model(cwd, "blocks.1.attn1.to_v.weight")
    # By itself it is a model like any other.
    result = verify(cwd, model=damaged)
    assert result.returncode == 0, result.stderr
    result = verify(cwd, f"reference={harness.MODEL}", "ranks=2", "certificate=c.json", model=damaged)
    assert result.returncode == 1, result.stdout
    assert "zoetrope: verify: the files of transformer: blocks.1.attn1.to_v.weight is" in result.stderr, result.stderr
    refused(cwd, recheck(cwd), "c.json", left=["c.json", "damaged"])


@test
def a_weight_that_differs_a_little_from_the_reference_is_named(cwd):
    """Far less than the rounding of bf16 in all of a stage, and still no weight of the reference."""
    tensor = "blocks.1.attn2.to_v.weight"
    result = verify(cwd, f"reference={harness.MODEL}", "dtype=bf16", model=damaged_model(cwd, tensor, bits=0x80))
    assert result.returncode == 1 and f"{tensor} is" in result.stderr and "from the reference" in result.stderr, \
        result.stderr + result.stdout
    result = verify(cwd, f"reference={harness.MODEL}", "dtype=bf16")
    assert result.returncode == 0 and SOUND in result.stdout, result.stderr + result.stdout


@test
def quantised_weights_have_a_budget(cwd):
    made = run([harness.PROGRAM, "convert", f"{harness.MODEL}/transformer", "out=q.gguf", "format=q8_0"], cwd)
    assert made.returncode == 0, made.stderr
    result = verify(cwd, "transformer=q.gguf", f"reference={harness.MODEL}")
    assert result.returncode == 0 and SOUND in result.stdout, result.stderr + result.stdout
    # A code of every block: the matrix is no rounding any more.
    file = pathlib.Path(cwd) / "q.gguf"
    data = bytearray(file.read_bytes())
    for at in range(len(data) // 2, len(data) // 2 + 34 * 400, 34):
        data[at] ^= 0x7c
    file.write_bytes(data)
    result = verify(cwd, "transformer=q.gguf", f"reference={harness.MODEL}")
    assert result.returncode == 1 and "outside of their bounds" in result.stderr, result.stdout


@test
def it_fits_into_the_time(cwd):
    result = run([harness.PROGRAM, "verify", harness.MODEL, "prompt=a cat", "height=32", "width=32", "num_frames=5",
                  "minutes=0.001", "num_inference_steps=40"], cwd)
    assert result.returncode == 0, result.stderr
    # Without figures of this machine nothing is predicted, so it keeps its size; float64 ends with its time.
    checked, of = re.search(r"Against float64, (\d+) of (\d+) stages", result.stdout).groups()
    assert int(checked) <= int(of) and "40 steps" in result.stdout, result.stdout


@test
def ranks_of_mpi_are_verified(cwd):
    if not shutil.which("mpirun"):
        raise Skip("mpirun is not installed")

    def ranks(count, *words):
        result = run(["mpirun", "-n", count, harness.PROGRAM, "verify", harness.MODEL, *words], cwd, env=MPI_ENV)
        assert result.returncode == 0 and SOUND in result.stdout, result.stderr + result.stdout
        assert result.stdout.count(f"Verified {count} ranks") == 1, result.stdout
        return result.stdout

    assert "Wrote c.json" in ranks(3, *SMALL, "certificate=c.json", "data_parallelism=1")
    assert "c.json" in ranks(2, "certificate=c.json", "data_parallelism=2") and files_in(cwd) == ["c.json"]


@test
def keys_of_several_clips_are_refused(cwd):
    for words, said in ((["num_videos=2"], "num_videos"), (["journal=j"], "journal"), (["dump=d"], "dump"),
                        (["minutes=-1"], "minutes"), (["rows=x"], "rows"), (["reference=none"], "none"),
                        (["certificate=no/c.json"], "no/c.json")):
        refused(cwd, verify(cwd, *words), said)


if __name__ == "__main__":
    sys.exit(run_script(TESTS, harness.use))
