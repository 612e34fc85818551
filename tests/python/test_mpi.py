"""WanPipeline in the processes of mpirun: what one of them raises ends the call in all, and a program ends with it."""
import pathlib
import shutil
import subprocess
import sys
import textwrap

import pytest
from conftest import MODEL, PROMPT, SMALL, TINY

BEGIN = f"""
import os, sys
import zoetrope
rank = int(os.environ["OMPI_COMM_WORLD_RANK"])
pipe = zoetrope.WanPipeline.from_pretrained({TINY!r}, keep_weights="all", **{ {**MODEL, "threads": 1}!r})
class Wrong(Exception):
    def __str__(self):
        return "-".join(["enough"] * 100)
def call(callback=None):
    return pipe({PROMPT!r}, generator=7, output_type="latent", callback_on_step_end=callback, **{SMALL!r})
def wrong(pipeline, step, timestep, tensors):
    raise Wrong
"""


def mpirun(ranks, script):
    if not shutil.which("mpirun"):
        pytest.skip("mpirun is not installed")
    # Far less than comm_timeout, for which a rank waits for another.
    return subprocess.run(["mpirun", "-n", str(ranks), sys.executable, "-c", BEGIN + textwrap.dedent(script)],
                          capture_output=True, text=True, timeout=120)


def test_an_exception_of_one_rank_ends_the_call_of_all(tmp_path):
    done = mpirun(3, f"""
        latents = call().frames
        for turn in range(2):
            try:
                call(wrong)
                said = "nothing"
            except (Wrong, zoetrope.Error) as error:
                said = f"{{type(error).__name__}}: {{error}}"
            assert (call().frames == latents).all()
        open(os.path.join({str(tmp_path)!r}, str(rank)), "w").write(said)
    """)
    assert done.returncode == 0, done.stderr
    own = "Wrong: " + "-".join(["enough"] * 100)
    others = f"Error: rank 0 failed: a callback raised {own}"
    assert [pathlib.Path(tmp_path, str(rank)).read_text() for rank in range(3)] == [own, others, others]


@pytest.mark.parametrize("how", ["call(wrong)", "call(lambda *_: None); raise Wrong"])
def test_an_uncaught_exception_of_one_rank_ends_all(how):
    done = mpirun(2, f"""
        print(f"this is {{rank}}")
        if rank == 0:
            {how}
        while True:
            try:
                call(wrong)
            except zoetrope.Error:
                pass
    """)
    assert done.returncode != 0
    assert "Wrong: enough" in done.stderr and "this is 0" in done.stdout, done


@pytest.mark.parametrize("one, other, said", [
    ("output_type='np'", "output_type='latent'",
     "rank 1 has decode=false (latents alone) where rank 0 has decode=true (frames)"),
    ("callback_on_step_end=print", "",
     "rank 1 has no callback that sees latents where rank 0 has a callback that sees latents"),
    ("batch_size=2", "batch_size=1", "rank 1 has 1 video in a call where rank 0 has 2 videos in a call")])
def test_what_differs_between_ranks_ends_the_call_of_all(tmp_path, one, other, said):
    done = mpirun(2, f"""
        keys = dict({one}) if rank == 0 else dict({other})
        try:
            pipe([{PROMPT!r}, "a"], generator=7, **{{**{SMALL!r}, **keys}})
        except zoetrope.Error as error:
            open(os.path.join({str(tmp_path)!r}, str(rank)), "w").write(str(error))
    """)
    assert done.returncode == 0, done.stderr
    for rank in range(2):
        words = pathlib.Path(tmp_path, str(rank)).read_text()
        assert words == f"the ranks disagree about their settings: {said}"


def test_a_callback_calls_another_pipeline():
    done = mpirun(1, f"""
        second = zoetrope.WanPipeline.from_pretrained({TINY!r}, **{ {**MODEL, "threads": 1}!r})
        def another(pipeline, step, timestep, tensors):
            if step == 0:
                made.append(second({PROMPT!r}, generator=7, output_type="latent", **{SMALL!r}).frames)
        made = []
        made.append(call(another).frames)
        assert (made[0] == made[1]).all()
    """)
    assert done.returncode == 0, done.stderr
