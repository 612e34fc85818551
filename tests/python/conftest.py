"""What the tests of the package share. ZOETROPE_PROGRAM is the program, ZOETROPE_SOURCE the source tree."""
import json
import os
import pathlib
import struct
import subprocess

import numpy
import pytest

PROGRAM = os.environ["ZOETROPE_PROGRAM"]
SOURCE = pathlib.Path(os.environ["ZOETROPE_SOURCE"])
TINY = str(SOURCE / "demo" / "wan-tiny")
# A video of the small model, as keys of the program and as arguments of a call.
SMALL = {"height": 64, "width": 64, "num_frames": 9, "num_inference_steps": 3, "guidance_scale": 3.0}
PROMPT = "a green square moves left on a white background"
MODEL = {"dtype": "float32", "threads": 2, "deterministic": True}


def program(*words, fails=False):
    """Standard output of `zoetrope WORD…`; where it fails, its sentence."""
    done = subprocess.run([PROGRAM, *words], capture_output=True, text=True, timeout=300)
    assert (done.returncode != 0) == fails, done.stderr
    return done.stderr if fails else done.stdout


def settings(keys):
    return [f"{key}={str(value).lower() if isinstance(value, bool) else value}" for key, value in keys.items()]


def tensors_of(path):
    """The tensors of a safetensors file."""
    data = pathlib.Path(path).read_bytes()
    size, = struct.unpack("<Q", data[:8])
    dtypes = {"F32": numpy.float32, "U8": numpy.uint8}
    return {name: numpy.frombuffer(data[8 + size + entry["data_offsets"][0]:8 + size + entry["data_offsets"][1]],
                                   dtypes[entry["dtype"]]).reshape(entry["shape"])
            for name, entry in json.loads(data[8:8 + size]).items() if name != "__metadata__"}


@pytest.fixture(scope="session")
def dump(tmp_path_factory):
    """Everything that the program makes of PROMPT with seed 7: frames and latents by name."""
    folder = tmp_path_factory.mktemp("program")
    program("generate", TINY, f"prompt={PROMPT}", "seed=7", *settings({**MODEL, **SMALL}),
            f"output={folder / 'frames'}", f"dump={folder / 'dump'}")
    return tensors_of(folder / "dump" / "run.safetensors")


@pytest.fixture(scope="session")
def pipe():
    import zoetrope

    return zoetrope.WanPipeline.from_pretrained(TINY, keep_weights="all", **MODEL)
