"""The attention backend of diffusers, and its WanPipeline against this one with the same arguments."""
import subprocess
import sys
import warnings

import diffusers
import numpy
import pytest
import torch
import zoetrope
import zoetrope.diffusers
import zoetrope.torch
from conftest import PROMPT, SMALL, SOURCE, TINY
from diffusers.models.attention_dispatch import AttentionBackendName, _AttentionBackendRegistry, attention_backend
from diffusers.models.attention_dispatch import dispatch_attention_fn

# Of relative L2 to diffusers' own run in float32, as the recorded runs have it for latents and frames.
BOUND = 1e-3


@pytest.fixture(autouse=True)
def native():
    zoetrope.torch.reset_reasons()
    yield
    zoetrope.diffusers.disable()
    _AttentionBackendRegistry.set_active_backend(AttentionBackendName.NATIVE)


def relative_l2(got, wanted):
    got, wanted = numpy.asarray(got, numpy.float64), numpy.asarray(wanted, numpy.float64)
    return numpy.linalg.norm(got - wanted) / numpy.linalg.norm(wanted)


def theirs():
    pipe = diffusers.WanPipeline.from_pretrained(TINY, torch_dtype=torch.float32)
    pipe.set_progress_bar_config(disable=True)
    return pipe


def transformer():
    return diffusers.WanTransformer3DModel.from_pretrained(TINY, subfolder="transformer", torch_dtype=torch.float32)


def inputs():
    generator = torch.Generator().manual_seed(1)
    return {"hidden_states": torch.randn(1, 16, 3, 8, 8, generator=generator), "timestep": torch.tensor([500]),
            "encoder_hidden_states": torch.randn(1, 20, 32, generator=generator), "return_dict": False}


def attentions(model):
    """Self- and cross-attention of every layer."""
    return 2 * model.config.num_layers


def calls_of_the_engine(monkeypatch):
    calls = []
    original = zoetrope.torch._core.attention

    class Core:
        Error = zoetrope.Error

        @staticmethod
        def attention(*arguments):
            calls.append(tuple(arguments[0].shape))
            return original(*arguments)

    monkeypatch.setattr(zoetrope.torch, "_core", Core)
    return calls


def test_the_pipelines_agree():
    arguments = {"prompt": PROMPT, "negative_prompt": "red", **SMALL}
    ours = zoetrope.WanPipeline.from_pretrained(TINY, torch_dtype=torch.float32, threads=2)
    pipe = theirs()
    for output_type in ("latent", "np", "pt"):
        wanted = pipe(generator=torch.Generator().manual_seed(5), output_type=output_type, **arguments).frames
        got = ours(generator=torch.Generator().manual_seed(5), output_type=output_type, **arguments).frames
        assert type(got) is type(wanted) and got.shape == wanted.shape and got.dtype == wanted.dtype
        assert relative_l2(got, wanted) < BOUND, output_type
    pictures = pipe(generator=torch.Generator().manual_seed(5), output_type="pil", **arguments).frames
    mine = ours(generator=torch.Generator().manual_seed(5), output_type="pil", **arguments).frames
    assert len(pictures) == len(mine) == 1 and len(pictures[0]) == len(mine[0])
    for picture, other in zip(pictures[0], mine[0]):
        assert numpy.abs(numpy.asarray(picture, int) - numpy.asarray(other, int)).max() <= 2


def test_callbacks_agree():
    """The same function changes the latents of both after the first step."""
    def callback(pipe, step, timestep, tensors):
        seen.append((step, float(timestep), tensors["latents"].clone()))
        return {"latents": tensors["latents"] * 0.5} if step == 0 else {}

    runs = []
    for pipe in (theirs(), zoetrope.WanPipeline.from_pretrained(TINY, torch_dtype=torch.float32, threads=2)):
        seen = []
        runs.append(seen)
        frames = pipe(PROMPT, generator=torch.Generator().manual_seed(5), callback_on_step_end=callback,
                      callback_on_step_end_tensor_inputs=["latents"], output_type="latent", **SMALL).frames
        seen.append((3, 0.0, frames))
    for wanted, got in zip(*runs):
        assert wanted[0] == got[0] and abs(wanted[1] - got[1]) < 1
        assert relative_l2(got[2], wanted[2]) < BOUND, wanted[0]


def test_several_videos_agree():
    arguments = {"prompt": [PROMPT, "a red ball"], "num_videos_per_prompt": 2, "output_type": "latent", **SMALL}
    wanted = theirs()(generator=torch.Generator().manual_seed(5), **arguments).frames
    ours = zoetrope.WanPipeline.from_pretrained(TINY, torch_dtype=torch.float32, threads=2)
    for batch_size in (1, 4):
        got = ours(generator=torch.Generator().manual_seed(5), batch_size=batch_size, **arguments).frames
        assert got.shape == wanted.shape and relative_l2(got, wanted) < BOUND


def test_pictures_agree():
    pixels = numpy.random.default_rng(3).integers(0, 256, (40, 56, 3), numpy.uint8)
    from PIL import Image

    picture = Image.fromarray(pixels)
    model = SOURCE / "tests" / "golden" / "pipelines" / "wan21_flf2v"
    pipe = diffusers.WanImageToVideoPipeline.from_pretrained(model, torch_dtype=torch.float32)
    pipe.set_progress_bar_config(disable=True)
    ours = zoetrope.WanImageToVideoPipeline.from_pretrained(model, torch_dtype=torch.float32, threads=2)
    arguments = {"last_image": picture, "height": 48, "width": 64, "num_frames": 5, "num_inference_steps": 2}
    wanted, got = (p(picture, "a cat", generator=torch.Generator().manual_seed(2), **arguments).frames
                   for p in (pipe, ours))
    assert relative_l2(got, wanted) < BOUND


def test_one_line_turns_it_on(monkeypatch):
    model, given = transformer(), inputs()
    with torch.no_grad():
        wanted = model(**given)[0]
        calls = calls_of_the_engine(monkeypatch)
        zoetrope.diffusers.enable()
        zoetrope.diffusers.enable()
        got = model(**given)[0]
        assert calls == [(1, 48, model.config.num_attention_heads, model.config.attention_head_dim)] * attentions(model)
        assert relative_l2(got, wanted) < 1e-5
        zoetrope.diffusers.disable()
        model(**given)
        assert len(calls) == attentions(model)
    assert zoetrope.torch.reasons() == {}


def test_it_is_a_backend_by_name(monkeypatch):
    zoetrope.diffusers.register()
    zoetrope.diffusers.register()
    calls = calls_of_the_engine(monkeypatch)
    model, given = transformer(), inputs()
    with torch.no_grad():
        model.set_attention_backend("zoetrope")
        model(**given)
        assert len(calls) == attentions(model)
        model.reset_attention_backend()
        _AttentionBackendRegistry.set_active_backend(AttentionBackendName.NATIVE)  # which the line above leaves
        with attention_backend("zoetrope"):
            model(**given)
        assert len(calls) == 2 * attentions(model)
        model(**given)
    assert len(calls) == 2 * attentions(model)
    assert [name.value for name in AttentionBackendName].count("zoetrope") == 1
    assert AttentionBackendName("zoetrope") is AttentionBackendName.ZOETROPE
    assert _AttentionBackendRegistry.get_active_backend()[0] == AttentionBackendName.NATIVE


def test_a_model_is_compiled():
    zoetrope.diffusers.enable()
    model, given = transformer(), inputs()
    with torch.no_grad():
        wanted = model(**given)[0]
        got = torch.compile(model, backend="aot_eager", fullgraph=True)(**given)[0]
    assert relative_l2(got, wanted) < 1e-6


@pytest.mark.parametrize("mask", [None, "pairs", "four", "additive"])
def test_masks_of_the_native_backend(mask):
    zoetrope.diffusers.register()
    q, k, v = (torch.randn(2, n, 3, 16, generator=torch.Generator().manual_seed(n)) for n in (5, 7, 7))
    rows = torch.arange(7)[None] < torch.tensor([[7], [3]])
    given = {None: None, "pairs": rows, "four": rows[:, None, None], "additive": torch.zeros(2, 3, 5, 7)}[mask]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        got, wanted = (dispatch_attention_fn(q, k, v, attn_mask=given, backend=AttentionBackendName(name))
                       for name in ("zoetrope", "native"))
    assert relative_l2(got, wanted) < 1e-6
    assert bool(zoetrope.torch.reasons()) == (mask == "additive")


def test_training_goes_on():
    zoetrope.diffusers.enable()
    model = transformer()
    with pytest.warns(UserWarning, match="gradients"):
        model(**inputs())[0].sum().backward()
    assert zoetrope.torch.reasons() == {"gradients": attentions(model)}
    assert all(p.grad is not None for p in model.blocks.parameters())


@pytest.mark.parametrize("line", ["del dispatch._AttentionBackendRegistry.set_active_backend",
                                  "del dispatch._AttentionBackendRegistry"])
def test_a_diffusers_that_is_too_old(line):
    code = f"import diffusers.models.attention_dispatch as dispatch\n{line}\nimport zoetrope.diffusers"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1 and "ImportError: zoetrope.diffusers needs diffusers 0.37" in done.stderr, done.stderr
