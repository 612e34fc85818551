"""What a callback of WanPipeline sees and changes, and what ends a call: exceptions, Ctrl-C."""
import os
import pathlib
import subprocess
import sys
import textwrap

import numpy
import pytest
import zoetrope
from zoetrope import _pipeline
from conftest import MODEL, PROMPT, SMALL, TINY


def test_the_callback_sees_every_step(pipe, dump):
    seen = []

    def callback(pipeline, step, timestep, tensors):
        assert pipeline is pipe
        seen.append((step, timestep))
        assert (numpy.asarray(tensors["latents"]) == dump[f"latents.{step}"]).all()

    out = pipe(prompt=PROMPT, generator=7, callback_on_step_end=callback, **SMALL)
    assert (out.frames[0] == dump["frames"]).all()
    assert [step for step, _ in seen] == [0, 1, 2]
    assert [t for _, t in seen] == sorted((t for _, t in seen), reverse=True)
    pipe(prompt=PROMPT, callback_on_step_end=lambda p, s, t, tensors: seen.append(tensors),
         callback_on_step_end_tensor_inputs=[], **SMALL)
    assert seen[3:] == [{}, {}, {}]


@pytest.mark.parametrize("ranks", [1, 3])
def test_the_callback_changes_latents(ranks):
    some = zoetrope.WanPipeline.from_pretrained(TINY, ranks=ranks, **MODEL)

    def callback(pipeline, step, timestep, tensors):
        return {"latents": tensors["latents"] * 0 + 0.25} if step == 2 else {}

    latents = some(PROMPT, generator=7, output_type="latent", callback_on_step_end=callback, **SMALL).frames
    assert (numpy.asarray(latents) == 0.25).all()


@pytest.mark.parametrize("order", [numpy.asfortranarray, lambda array: numpy.repeat(array, 2, -1)[..., ::2]])
def test_the_callback_returns_an_array_of_any_order(pipe, dump, order):
    out = pipe(PROMPT, generator=7, callback_on_step_end=lambda p, s, t, tensors: {"latents": order(tensors["latents"])},
               **SMALL)
    assert (out.frames[0] == dump["frames"]).all()
    with pytest.raises(TypeError, match="callback: is >f4, but must be float32"):
        pipe(PROMPT, callback_on_step_end=lambda p, s, t, given: {"latents": given["latents"].astype(">f4")}, **SMALL)


class Wrong(Exception):
    pass


@pytest.mark.parametrize("ranks", [1, 3])
def test_an_exception_of_the_callback_ends_the_run(ranks):
    some = zoetrope.WanPipeline.from_pretrained(TINY, ranks=ranks, keep_weights="all", **MODEL)
    steps = []

    def callback(pipeline, step, timestep, tensors):
        steps.append(step)
        raise Wrong("enough")

    with pytest.raises(Wrong, match="enough"):
        some(PROMPT, generator=7, callback_on_step_end=callback, **SMALL)
    assert steps == [0]
    assert some(PROMPT, generator=7, **SMALL).frames.shape == (1, 9, 64, 64, 3)


def test_a_call_that_was_ended_is_resumed(dump, tmp_path):
    folder = str(tmp_path / "journal")
    some = zoetrope.WanPipeline.from_pretrained(TINY, keep_weights="all", **MODEL)

    def stop(pipeline, step, timestep, tensors):
        if step == 1:
            raise Wrong("enough")

    def refused(key, opened, *arguments, **keys):
        before = sorted(pathlib.Path(folder).rglob("*"))
        with pytest.raises(zoetrope.Error, match=f"call: {key}=.* is of one run, and 2 videos with batch_size=1 are"):
            opened(*arguments, generator=7, callback_on_step_end=stop, **{**SMALL, **keys})
        assert sorted(pathlib.Path(folder).rglob("*")) == before

    refused("journal", some, [PROMPT, PROMPT], journal=folder)
    assert not os.path.exists(folder)
    with pytest.raises(Wrong):
        some(PROMPT, generator=7, callback_on_step_end=stop, journal=folder, **SMALL)
    refused("resume", some, [PROMPT, PROMPT], resume=folder)
    refused("resume", some, PROMPT, num_videos_per_prompt=2, resume=folder)
    refused("resume", zoetrope.WanPipeline.from_pretrained(TINY, resume=folder, **MODEL), [PROMPT, PROMPT])
    steps = []
    out = some(PROMPT, generator=7, resume=folder, callback_on_step_end=lambda p, step, *_: steps.append(step), **SMALL)
    assert steps == [1, 2]  # the step whose callback raised was not noted
    assert (out.frames[0] == dump["frames"]).all()
    assert not os.path.exists(folder)  # the video is complete
    # Videos that are one run have one journal.
    with pytest.raises(Wrong):
        some([PROMPT, "a"], generator=7, batch_size=2, callback_on_step_end=stop, journal=folder, **SMALL)
    out = some([PROMPT, "a"], generator=7, batch_size=2, resume=folder, **SMALL)
    assert (out.frames[0] == dump["frames"]).all()
    some([PROMPT, "a"], output_type="latent", journal="none", **SMALL)


def test_the_callback_cannot_call_its_pipeline(pipe):
    """That would wait for itself."""
    def again(pipeline, step, timestep, given):
        pipeline(prompt=PROMPT, generator=7, **SMALL)

    with pytest.raises(zoetrope.Error, match="in a call, whose callback or sink this is"):
        pipe(prompt=PROMPT, generator=7, callback_on_step_end=again, **SMALL)

    between = zoetrope.WanPipeline.from_pretrained(TINY, **MODEL)

    def round_about(pipeline, step, timestep, given):
        between(prompt=PROMPT, generator=7, callback_on_step_end=again_of_the_first, **SMALL)

    def again_of_the_first(pipeline, step, timestep, given):
        pipe(prompt=PROMPT, generator=7, **SMALL)

    with pytest.raises(zoetrope.Error, match="in a call, whose callback or sink this is"):
        pipe(prompt=PROMPT, generator=7, callback_on_step_end=round_about, **SMALL)

    def another(pipeline, step, timestep, given):
        if step == 0:
            made.append(zoetrope.WanPipeline.from_pretrained(TINY, **MODEL)(prompt=PROMPT, generator=7, **SMALL))

    made = []
    made.append(pipe(prompt=PROMPT, generator=7, callback_on_step_end=another, **SMALL))
    assert (made[0].frames == made[1].frames).all()


def test_a_program_ends_while_a_daemon_thread_runs():
    script = textwrap.dedent(f"""
        import threading, zoetrope
        pipe = zoetrope.WanPipeline.from_pretrained({TINY!r}, threads=1)
        begun = threading.Event()
        def run():
            while True:  # a worker that survives errors
                try:
                    pipe("a", num_inference_steps=1000, height=32, width=32, num_frames=5,
                         callback_on_step_end=lambda *_: begun.set())
                except zoetrope.Error:
                    pass
        threading.Thread(target=run, daemon=True).start()
        begun.wait()
        print("the end")
    """)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "the end\n"), done


def test_ctrl_c_ends_a_call_that_waits_for_another():
    script = textwrap.dedent(f"""
        import _thread, threading, time, zoetrope
        pipe = zoetrope.WanPipeline.from_pretrained({TINY!r}, threads=1)
        begun = threading.Event()
        def first(pipeline, step, timestep, given):
            begun.set()
            if ended.is_set():
                raise RuntimeError("enough")
        ended = threading.Event()
        def run():
            try:
                pipe("a", num_inference_steps=1000, height=32, width=32, num_frames=5, callback_on_step_end=first)
            except RuntimeError:
                print("the other ran until then")
        other = threading.Thread(target=run)
        other.start()
        begun.wait()
        threading.Timer(0.3, _thread.interrupt_main).start()
        try:
            pipe("b", num_inference_steps=1, height=32, width=32, num_frames=5)
        except KeyboardInterrupt:
            print("interrupted", other.is_alive())
        ended.set()
        other.join()
    """)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.stdout == "interrupted True\nthe other ran until then\n", done.stdout + done.stderr


@pytest.mark.parametrize("returned", [{"prompt_embeds": 1}, [1], {"latents": numpy.zeros((1, 2), numpy.float32)},
                                      {"latents": "none"}, {"latents": numpy.zeros((1, 16, 3, 8, 8))}])
def test_what_the_callback_may_not_return(pipe, returned):
    with pytest.raises((TypeError, zoetrope.Error)) as raised:
        pipe(PROMPT, callback_on_step_end=lambda *_: returned, **SMALL)
    assert "callback" in str(raised.value)


def test_ctrl_c_ends_a_run():
    """In a process of its own, whose callback sends the signal: the run has 1000 steps, of which few are computed."""
    code = textwrap.dedent(f"""
        import os, signal, sys, zoetrope
        pipe = zoetrope.WanPipeline.from_pretrained({TINY!r}, threads=1, ranks=int(sys.argv[1]), keep_weights="all")
        steps = []
        def callback(pipeline, step, timestep, tensors):
            steps.append(step)
            if step == 1:
                os.kill(os.getpid(), signal.SIGINT)
        small = dict(height=64, width=64, num_frames=9)
        try:
            pipe("a cat", num_inference_steps=1000, callback_on_step_end=callback, **small)
        except KeyboardInterrupt:
            assert 2 <= len(steps) < 1000, len(steps)
            assert pipe("a cat", num_inference_steps=1, **small).frames.shape[0] == 1
            print("interrupted")
        """)
    for ranks in ("1", "2"):
        done = subprocess.run([sys.executable, "-c", code, ranks], capture_output=True, text=True, timeout=300)
        assert done.stdout == "interrupted\n", done.stderr


@pytest.mark.parametrize("ended", [KeyboardInterrupt, RuntimeError])
def test_finished_videos_outlive_the_end_of_a_call(pipe, dump, ended, monkeypatch):
    steps = []

    def callback(*_):
        steps.append(1)
        if len(steps) == 5:  # of the second video
            raise ended

    with pytest.raises(ended) as caught:
        pipe(prompt=PROMPT, generator=7, num_videos_per_prompt=3, callback_on_step_end=callback, **SMALL)
    output = caught.value.finished
    assert output.frames.shape == (1, 9, 64, 64, 3) and (output.frames[0] == dump["frames"]).all()
    assert output.seeds == [7] and "1 of 3 videos" in caught.value.__notes__[0]
    monkeypatch.setattr(_pipeline, "_output", lambda *_: numpy.empty(1 << 60))
    steps.clear()
    with pytest.raises(ended) as caught:
        pipe(prompt=PROMPT, generator=7, num_videos_per_prompt=3, callback_on_step_end=callback, **SMALL)
    assert "are lost: " in caught.value.__notes__[0]
    steps[:] = [1] * 4
    with pytest.raises(ended) as caught:  # in the first video
        pipe(prompt=PROMPT, callback_on_step_end=callback, **SMALL)
    assert not hasattr(caught.value, "finished")
