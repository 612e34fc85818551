"""WanPipeline on the small model, against the program with the same keys."""
import gc
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import threading
import types

import numpy
import pytest
import zoetrope
from zoetrope import _core
from zoetrope._values import text as value_text
from conftest import MODEL, PROGRAM, PROMPT, SMALL, SOURCE, TINY, program, settings

PIPELINES = SOURCE / "tests" / "golden" / "pipelines"


def test_is_what_the_program_makes(pipe, dump):
    out = pipe(prompt=PROMPT, generator=7, **SMALL)
    assert out.frames.shape == (1, 9, 64, 64, 3) and out.frames.dtype == numpy.float32
    assert (out.frames[0] == dump["frames"]).all()
    assert ((out.frames[0] * 255).astype(numpy.uint8) == dump["frames_u8"]).all()
    assert (out.latents[0] == dump["latents.2"]).all()
    assert out.seeds == [7] and "denoise" in out.summaries[0]
    assert out[0] is out.frames and out["seeds"] == [7]
    assert pipe(prompt=PROMPT, generator=7, return_dict=False, **SMALL)[0].tobytes() == out.frames.tobytes()


def test_bytes_of_a_file(pipe, tmp_path):
    """The PNGs that the program writes, rounded as Pillow's pictures of diffusers are."""
    Image = pytest.importorskip("PIL.Image")
    program("generate", TINY, f"prompt={PROMPT}", "seed=7", *settings({**MODEL, **SMALL}),
            f"output={tmp_path / 'clip'}")
    pictures = pipe(prompt=PROMPT, generator=7, output_type="pil", **SMALL).frames[0]
    assert len(pictures) == 9
    for number, picture in enumerate(pictures):
        with Image.open(tmp_path / "clip" / f"{number:04}.png") as file:
            assert picture.tobytes() == file.tobytes()


@pytest.mark.parametrize("output_type, module", [("pil", "PIL"), ("pt", "torch")])
def test_a_missing_module_is_said_before_the_run(pipe, monkeypatch, output_type, module):
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setitem(sys.modules, f"{module}.Image", None)
    steps = []
    with pytest.raises(zoetrope.Error, match=f"output_type='{output_type}' needs"):
        pipe(PROMPT, output_type=output_type, callback_on_step_end=lambda *_: steps.append(1), **SMALL)
    assert not steps


def test_latents_alone(pipe, dump):
    latents = pipe(prompt=PROMPT, generator=7, output_type="latent", **SMALL).frames
    assert (numpy.asarray(latents) == dump["latents.2"]).all()


def test_given_noise(pipe, dump, tmp_path):
    out = pipe(prompt=PROMPT, latents=dump["latents.init"], **SMALL)
    assert (out.frames[0] == dump["frames"]).all() and out.seeds == [None]
    file = tmp_path / "noise.safetensors"
    _core.write_latents(str(file), [dump["latents.init"]])
    out = zoetrope.WanPipeline.from_pretrained(TINY, latents=file, **MODEL)(PROMPT, **SMALL)
    assert (out.frames[0] == dump["frames"]).all() and out.seeds == [None]


def test_a_generator_draws_the_noise_of_every_segment(monkeypatch, tmp_path):
    """As in diffusers; here of PyTorch only what is called."""
    class Generator:
        device = types.SimpleNamespace(type="cpu")

        def __init__(self, *seeds):
            self.draws = [numpy.random.default_rng(seed) for seed in seeds]

    def randn(shape, generator, dtype):
        drawn = generator.draws.pop(0).standard_normal(shape, numpy.float32)
        return types.SimpleNamespace(numpy=lambda: drawn)

    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(
        Generator=Generator, Tensor=type("Tensor", (), {}), randn=randn, float32=None, from_numpy=lambda array: array))
    model = PIPELINES / "wan22_animate"
    for name in ("pose", "face"):
        (tmp_path / name).mkdir()
        for file in (model / "inputs").glob(f"animate_{name}_video_*.png"):
            shutil.copy(file, tmp_path / name)
    keys = {"height": 32, "width": 32, "num_inference_steps": 1, "segment_frame_length": 5,
            "image": model / "inputs" / "image.png", "pose_video": tmp_path / "pose", "face_video": tmp_path / "face"}
    with zoetrope.WanPipeline.from_pretrained(model, **MODEL) as animate:
        one, same, other = (animate(PROMPT, generator=Generator(1, 2, last), **keys).frames[0] for last in (3, 3, 4))
    assert (one == same).all()
    changed = (one != other).any(axis=(1, 2, 3))
    assert changed[-1] and not changed[0]


def test_ranks_and_strategies(dump):
    keys = {"ranks": 4, "attention": "ulysses_ring", "ulysses_shards": 2}
    with zoetrope.WanPipeline.from_pretrained(TINY, **keys, **MODEL) as four:
        out = four(prompt=PROMPT, generator=7, **SMALL)
        assert "Ulysses 2" in four.describe(PROMPT, **SMALL)
    assert numpy.abs(out.frames[0] - dump["frames"]).max() < 1e-3


def test_several_videos(pipe, dump):
    prompts = [PROMPT, "a red ball bounces on a black background"]
    out = pipe(prompt=prompts, negative_prompt=["", "blue"], generator=7, num_videos_per_prompt=numpy.int64(2),
               **SMALL)
    assert out.frames.shape == (4, 9, 64, 64, 3) and out.seeds == [7, 8, 9, 10]
    assert (out.frames[0] == dump["frames"]).all()
    alone = pipe(prompt=prompts[1], negative_prompt="blue", generator=10, **SMALL)
    assert (out.frames[3] == alone.frames[0]).all()
    together = pipe(prompt=prompts, generator=[7, 7], batch_size=2, **SMALL)
    assert (together.frames[0] == dump["frames"]).all() and together.seeds == [7, 7]
    assert not (together.frames[1] == dump["frames"]).all()


def test_seeds(dump):
    again = zoetrope.WanPipeline.from_pretrained(TINY, seed=7, **MODEL, **SMALL)
    assert (again(PROMPT).frames[0] == dump["frames"]).all()
    assert again(PROMPT, seed=9, num_videos_per_prompt=2).seeds == [9, 10]
    drawn = zoetrope.WanPipeline.from_pretrained(TINY, **MODEL, **SMALL)
    first, second = drawn(PROMPT).seeds + drawn(PROMPT).seeds
    assert first != second and first >= 0
    assert drawn(PROMPT, seed=7).seeds == [7]


def test_a_prompt_may_be_the_word_default(pipe, dump):
    out = pipe(prompt="default", negative_prompt="default", generator=7, **SMALL)
    assert out.frames.shape == pipe(prompt=PROMPT, generator=7, **SMALL).frames.shape


def test_keys_of_a_video(pipe, dump):
    out = pipe(prompt=PROMPT, generator=7, flow_shift=1.0, scheduler="flow_match_euler", **SMALL)
    assert not (out.frames[0] == dump["frames"]).all()
    assert "cache" not in out.summaries[0].lower()
    cached = pipe(prompt=PROMPT, generator=7, cache="mag", cache_ratios="wan2.1_t2v_14b", **SMALL)
    assert "MagCache" in cached.summaries[0]
    listed = pipe(prompt=PROMPT, generator=7, sigmas=[1.0, 0.75, 0.5], flow_shift=2.0, **SMALL).frames
    arrays = {"sigmas": numpy.linspace(1, 0.5, 3), "flow_shift": numpy.array(2, numpy.float32)}
    assert (pipe(prompt=PROMPT, generator=7, **arrays, **SMALL).frames == listed).all()


def test_tensors_of_pytorch_are_values(monkeypatch):
    """Here of PyTorch only what is asked of a tensor."""
    class Tensor:
        def __init__(self, values):
            self.values = numpy.array(values)

        ndim = property(lambda self: self.values.ndim)
        shape = property(lambda self: self.values.shape)

        def tolist(self):
            return self.values.tolist()

    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(Tensor=Tensor))
    assert value_text("sigmas", Tensor([1.0, 0.75])) == "1.0,0.75" and value_text("flow_shift", Tensor(3)) == "3"
    assert value_text("conditioning_scale", [Tensor(0.5), Tensor(2.0)]) == "0.5,2.0"
    with pytest.raises(TypeError, match=r"sigmas: has the shape \[1, 1\]"):
        value_text("sigmas", Tensor([[1]]))


def test_other_threads_run_meanwhile(pipe):
    """The lock of the interpreter is free while the engine computes: the callback waits for another thread."""
    turn, answered = threading.Event(), threading.Event()

    def other():
        turn.wait(60)
        answered.set()

    thread = threading.Thread(target=other)
    thread.start()
    pipe(PROMPT, callback_on_step_end=lambda *_: turn.set(), **SMALL)
    thread.join(60)
    assert answered.is_set()


def test_calls_from_several_threads(pipe, dump):
    results = [None] * 3

    def run(i):
        results[i] = pipe(prompt=PROMPT, generator=7, **SMALL).frames[0]

    threads = [threading.Thread(target=run, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for result in results:
        assert (result == dump["frames"]).all()


def test_after_close(dump):
    some = zoetrope.WanPipeline.from_pretrained(TINY, **MODEL)
    frames = some(PROMPT, generator=7, **SMALL).frames
    some.close()
    some.close()
    for use in (lambda: some(PROMPT, **SMALL), lambda: some.describe(PROMPT), some.release_weights):
        with pytest.raises(zoetrope.Error, match="closed"):
            use()
    del some
    gc.collect()
    assert (frames[0] == dump["frames"]).all()


def test_close_while_it_runs(dump):
    some = zoetrope.WanPipeline.from_pretrained(TINY, **MODEL)
    frames = some(PROMPT, generator=7, callback_on_step_end=lambda pipeline, *_: pipeline.close(), **SMALL).frames
    assert (frames[0] == dump["frames"]).all()


def opened(error, words, folder=TINY, **options):
    with pytest.raises(error) as raised:
        zoetrope.WanPipeline.from_pretrained(folder, **options)
    assert words in str(raised.value), str(raised.value)


def test_what_a_lora_file_loses_is_a_warning(tmp_path):
    module = "transformer.blocks.0.attn1.to_q"
    shapes = {f"{module}.lora_A.weight": [2, 128], f"{module}.lora_B.weight": [128, 2],
              f"{module}.lora_magnitude_vector": [128]}
    header, begin = {}, 0
    for name, shape in shapes.items():
        end = begin + 4 * int(numpy.prod(shape))
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [begin, end]}
        begin = end
    text = json.dumps(header).encode()
    (tmp_path / "dora.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + bytes(begin))
    pipe = zoetrope.WanPipeline.from_pretrained(TINY, lora=str(tmp_path / "dora.safetensors"), **MODEL)
    with pytest.warns(UserWarning, match="DoRA") as warned:
        pipe(PROMPT, generator=7, **SMALL)
    assert warned[0].filename == __file__


def test_refusals_when_opened():
    error = zoetrope.Error
    opened(error, "no/such/folder", "no/such/folder")
    opened(error, "name a checkpoint folder", None)
    opened(TypeError, "", 3)
    opened(TypeError, "model: a value of type bytes", b"x")
    opened(error, r"model: 'caf\udce9' is not UTF-8", "caf\udce9")
    opened(error, r"lora: 'caf\udce9' is not UTF-8", lora=[pathlib.Path("caf\udce9")])
    opened(error, "did you mean 'ranks'", rank=2)
    opened(error, "from_pretrained: unknown key 'qqqq'; docs/configuration.md lists the keys", qqqq=2)
    opened(error, "pickles", use_safetensors=False)
    assert zoetrope.WanPipeline.from_pretrained(TINY, use_safetensors=True).describe(PROMPT)
    opened(error, "ranks", ranks=0)
    opened(error, "dtype", torch_dtype="float16")
    opened(error, "say the same", torch_dtype="bf16", dtype={"default": "bf16"})
    opened(error, "torch_dtype has 'unet'", torch_dtype={"unet": "bf16"})
    opened(error, "is a key of the program alone; frames", output="x.mp4")
    opened(error, "call with num_videos_per_prompt", num_videos_per_prompt=2)
    opened(TypeError, "lora: a value of type set", lora={1, 2})
    opened(zoetrope.Error, "has a comma", lora={"a,b.safetensors": 1})
    opened(error, "a.safetensors", lora={"a.safetensors": 0.5})
    opened(error, "vae is an object of type object", vae=object())
    for name in ("device_map", "revision", "variant", "quantization_config", "cache_dir", "low_cpu_mem_usage"):
        opened(error, f"{name} is not possible", **{name: "x"})


def test_a_strategy_that_is_none(dump):
    with pytest.raises(zoetrope.Error, match="attention.*did you mean"):
        zoetrope.WanPipeline.from_pretrained(TINY, attention="rings", **MODEL)(PROMPT, **SMALL)


def test_names_that_change_nothing_are_said():
    with pytest.warns(UserWarning, match="remat_policy"):
        pipe = zoetrope.WanPipeline.from_pretrained(TINY, remat_policy="NONE")
    with pytest.warns(UserWarning, match="call: .*remat_policy") as warned:
        pipe(PROMPT, remat_policy="NONE", **SMALL)
    assert warned[0].filename == __file__


def test_a_recipe_is_changed_by_what_is_named_with_it(pipe):
    small = {key: SMALL[key] for key in ("height", "width", "num_frames")} | {"generator": 7, "output_type": "latent"}
    guided, unguided = (pipe(PROMPT, recipe="lightning_4", **keys, **small).frames[0]
                        for keys in ({"guidance_scale": 3.0}, {}))
    assert not (guided == unguided).all()
    assert "guidance 3" in pipe.describe(PROMPT, guidance_scale=3, recipe="lightning_4")
    with zoetrope.WanPipeline.from_pretrained(TINY, guidance_scale=3, recipe="lightning_4", **MODEL) as opened:
        assert (opened(PROMPT, **small).frames[0] == guided).all()


def test_refusals_when_called(pipe):
    def refused(error, words, *arguments, **keys):
        with pytest.raises(error) as raised:
            pipe(*arguments, **{**SMALL, **keys})
        assert words in str(raised.value), str(raised.value)

    error = zoetrope.Error
    refused(error, "prompt is missing")
    refused(error, "empty list", [])
    refused(error, "prompt", "")
    refused(error, r"prompt: '\udce9' is not UTF-8", "\udce9")
    refused(TypeError, "int is not text", [1])
    refused(TypeError, "", 1)
    refused(error, "negative_prompt has 2 entries for 1", "a", negative_prompt=["b", "c"])
    refused(TypeError, "negative_prompt", "a", negative_prompt=object())
    refused(error, "height=50", "a", height=50)
    refused(error, "seed=7.0", "a", seed=7.0)
    refused(error, "seed=x", "a", seed="x")
    refused(error, "width", "a", width=0)
    refused(error, "num_frames=8", "a", num_frames=8)
    refused(error, "num_inference_steps", "a", num_inference_steps=0)
    refused(error, "guidance_scale", "a", guidance_scale=float("nan"))
    refused(error, "guidance_scale_2", "a", guidance_scale_2=-1)
    refused(error, "num_videos_per_prompt", "a", num_videos_per_prompt=0)
    refused(error, "batch_size", "a", batch_size=0)
    refused(error, "batch_size", "a", batch_size=1.5)
    refused(error, "max_sequence_length", "a", max_sequence_length=513)
    refused(error, "output_type", "a", output_type="mp4")
    refused(TypeError, "generator: is of type str", "a", generator="7")
    refused(TypeError, "generator: is of type bool", "a", generator=True)
    refused(error, "generator=-1", "a", generator=-1)
    refused(error, "generator has 2 entries for 1", "a", generator=[1, 2])
    refused(error, "generator and seed", "a", generator=1, seed=2)
    refused(error, "generator and latents", "a", generator=1, latents=numpy.zeros((1, 16, 3, 8, 8), numpy.float32))
    refused(error, "(1, 16, 3, 8, 8)", "a", latents=numpy.zeros((1, 16, 3, 8, 9), numpy.float32))
    refused(TypeError, "float64", "a", latents=numpy.zeros((1, 16, 3, 8, 8)))
    refused(TypeError, "list", "a", latents=[1])
    refused(error, "latents", "a", latents=numpy.full((1, 16, 3, 8, 8), numpy.nan, numpy.float32))
    refused(error, "image (call): this model", "a", image=str(SOURCE / "no.png"))
    refused(TypeError, "callback_on_step_end", "a", callback_on_step_end=3)
    refused(error, "'prompt_embeds'", "a", callback_on_step_end=print,
            callback_on_step_end_tensor_inputs=["prompt_embeds"])
    refused(error, "did you mean 'flow_shift'", "a", flow_shif=3)
    refused(TypeError, "sigmas: has the shape [1, 3]", "a", sigmas=numpy.ones((1, 3)))
    refused(error, "is fixed when the model is opened", "a", ranks=2)
    refused(error, "is fixed when the model", "a", model="other")
    refused(error, "is a key of the program alone; frames", "a", output="x.mp4")
    refused(error, "crf: is a key of the program alone; frames", "a", crf=20)
    refused(error, "per_device_batch_size: is a key of the program alone; call with num", "a", per_device_batch_size=4)
    for name in ("prompt_embeds", "negative_prompt_embeds", "image_embeds", "attention_kwargs"):
        refused(error, f"{name} is not possible", "a", **{name: object()})

    class Callback:
        tensor_inputs = ["latents"]

        def __call__(self, *_):
            return {}

    refused(error, "diffusers' own classes", "a", callback_on_step_end=Callback())


def test_a_budget_is_spent_for_the_guidance_of_the_pipeline(tmp_path):
    file = tmp_path / "int8.json"
    words = ["int8", TINY, "num_timesteps=1", f"int8_calibration={file}", "guidance_scale=1"]
    probe = subprocess.run([PROGRAM, *words], capture_output=True, text=True, timeout=300)
    assert probe.returncode == 0, probe.stderr
    budget, fit = next(line.split("  ")[-2:] for line in probe.stdout.splitlines() if "6 of 6" in line and "unset" not in line)
    keys = {"dtype": "int8", "int8_layers": "auto", "int8_calibration": str(file), "budget": float(budget), "threads": 2}
    size = {**SMALL, "guidance_scale": 1.0}
    pipe = zoetrope.WanPipeline.from_pretrained(TINY, guidance_scale=1.0, **keys)
    assert f"{fit.split(':')[0].strip()} blocks multiply in int8" in pipe.describe(prompt=PROMPT, **size)
    assert pipe(prompt=PROMPT, generator=7, **size).frames.shape[0] == 1
    with pytest.raises(zoetrope.Error, match="guidance_scale=8.*open the model for this one"):
        pipe(prompt=PROMPT, generator=7, **{**size, "guidance_scale": 8.0})
    with pytest.raises(zoetrope.Error, match="with guidance 5"):
        zoetrope.WanPipeline.from_pretrained(TINY, **keys)


def test_what_diffusers_has_and_this_has_not(pipe):
    for name, words in (("enable_model_cpu_offload", "weight_memory"), ("load_lora_weights", "lora="),
                        ("unet", "no unet")):
        with pytest.raises(AttributeError, match=words):
            getattr(pipe, name)
    assert pipe.to("cpu") is pipe
    with pytest.raises(zoetrope.Error, match="cuda"):
        pipe.to("cuda")


def test_weights_from_a_name_of_configs():
    some = zoetrope.WanPipeline.from_pretrained("wan2.1_t2v_1.3b", weights="random", layers=1)
    assert "30" in some.describe("a cat") or "1 of" in some.describe("a cat")


def test_frames_are_planned(pipe):
    """As floats, as a call returns them; the program hands them to files, here without a video's encoder."""
    size = {"height": 720, "width": 1280, "num_frames": 81}
    held = re.search(r"Memory ([\d.]+) GB planned, the most of it in 'VAE decode'", pipe.describe(PROMPT, **size))
    without = re.search(r"VAE decode +([\d.]+) GB", program("inspect", TINY, "output=frames",
                                                                      *settings({**MODEL, **size})))
    assert float(held[1]) - float(without[1]) > 0.99e-9 * 81 * 720 * 1280 * 3 * 4


def test_what_the_caller_holds_is_planned():
    """Not what the model keeps, which is planned anyway."""
    some = zoetrope.WanPipeline.from_pretrained("wan2.1_t2v_1.3b", weights="random", layers=5, keep_weights="all",
                                                threads=2)

    def planned():
        return float(re.search(r"Memory ([\d.]+) GB planned", some.describe(PROMPT, **SMALL))[1])

    before = planned()
    some(PROMPT, **{**SMALL, "num_inference_steps": 1})
    kept = planned()
    held = numpy.ones(100_000_000, numpy.float32)
    assert planned() - kept > 0.9e-9 * held.nbytes
    del held
    assert abs(kept - before) < 0.1 and abs(planned() - kept) < 0.02


def test_no_file_is_left(pipe, monkeypatch, tmp_path):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    import tempfile
    monkeypatch.setattr(tempfile, "tempdir", None)
    with pytest.raises(zoetrope.Error):
        pipe(PROMPT, latents=numpy.full((1, 16, 3, 8, 8), numpy.inf, numpy.float32), **SMALL)
    assert os.listdir(tmp_path) == []


def test_the_example(tmp_path):
    pytest.importorskip("PIL")
    example = SOURCE / "examples" / "generate_clip.py"
    done = subprocess.run([sys.executable, example, TINY, PROMPT, tmp_path / "clip"], capture_output=True, text=True)
    assert done.returncode == 0 and "step 20" in done.stdout, done.stderr
    assert len(list((tmp_path / "clip").glob("*.png"))) == 9
    done = subprocess.run([sys.executable, example, "no/model", PROMPT, tmp_path], capture_output=True, text=True)
    assert done.returncode == 1 and "generate_clip: " in done.stderr and "no/model" in done.stderr
