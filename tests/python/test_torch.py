"""The operator for PyTorch, and zoetrope.attention() over tensors."""
import itertools
import random
import warnings

import pytest
import torch
import zoetrope
import zoetrope.torch
from torch.nn.functional import scaled_dot_product_attention as of_torch
from zoetrope.torch import reasons, reset_reasons, scaled_dot_product_attention


@pytest.fixture(autouse=True)
def no_reasons():
    reset_reasons()


def draw(*shape, dtype=torch.float32, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def close(got, wanted, dtype=torch.float32):
    """Both round sums of weights that add up to one; of bf16 the result is one rounding more."""
    assert got.dtype == dtype and got.shape == wanted.shape
    bound = 1e-5 if dtype == torch.float32 else 2**-6
    assert (got.double() - wanted.double()).abs().max() <= bound * max(1, wanted.abs().max())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_tensors_in_place(dtype):
    """Through views with strides of their own; the output is a tensor."""
    q, k, v = (draw(3, 2, 40, 2, 32, dtype=dtype, seed=i)[1].transpose(1, 2).transpose(0, 1) for i in range(3))
    before = [x.data_ptr() for x in (q, k, v)]
    o = zoetrope.attention(q, k, v)
    assert isinstance(o, torch.Tensor) and [x.data_ptr() for x in (q, k, v)] == before
    wanted = of_torch(*(x.double().transpose(1, 2) for x in (q, k, v))).transpose(1, 2)
    close(o, wanted, dtype)
    o = zoetrope.attention(*(x.transpose(1, 2) for x in (q, k, v)), layout="BHSD")
    close(o, wanted.transpose(1, 2), dtype)


def test_strided_tensors_are_not_copied():
    """The allocator of PyTorch is asked for the output and nothing else."""
    q, k, v = (draw(2, 600, 2, 4, 64, seed=i)[:, :, 1] for i in range(3))
    with torch.profiler.profile(profile_memory=True, activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        zoetrope.attention(q, k, v)
    allocated = sum(max(event.cpu_memory_usage, 0) for event in profile.events())
    assert allocated == q.numel() * 4


def test_tensors_that_are_refused():
    q = draw(1, 4, 1, 8)
    with pytest.raises(ValueError, match="q requires gradients"):
        zoetrope.attention(q.clone().requires_grad_(), q, q)
    with torch.no_grad():
        close(zoetrope.attention(q.clone().requires_grad_(), q, q), zoetrope.attention(q, q, q))
    with pytest.raises(TypeError, match="F16"):
        zoetrope.attention(q.half(), q.half(), q.half())
    with pytest.raises(TypeError):
        zoetrope.attention(q.to("meta"), q, q)


def shapes():
    """Random shapes, the same in each run."""
    rng = random.Random(5)
    for number in range(40):
        kv_heads = rng.choice([1, 2, 3])
        group = rng.choice([1, 1, 2, 4])
        yield pytest.param(number, rng.randint(1, 3), kv_heads, group, rng.randint(1, 130), rng.randint(1, 130),
                           rng.choice([1, 5, 16, 40, 64, 80, 128, 200, 256]),
                           rng.choice([torch.float32, torch.bfloat16]), rng.choice([None, "keys", "one", "four"]),
                           rng.choice([None, 0.2]), id=str(number))


@pytest.mark.parametrize("seed, batch, kv_heads, group, tokens, keys, dim, dtype, mask, scale", list(shapes()))
def test_is_what_torch_computes(seed, batch, kv_heads, group, tokens, keys, dim, dtype, mask, scale):
    q = draw(batch, kv_heads * group, tokens, dim, dtype=dtype, seed=seed)
    k, v = (draw(batch, kv_heads, keys, dim, dtype=dtype, seed=seed + i) for i in (100, 200))
    given = {}
    if mask is not None:
        rows = torch.rand(batch, keys, generator=torch.Generator().manual_seed(seed)) < 0.6
        rows[:, 0] = True
        given["attn_mask"] = {"keys": rows[:, None, None, :], "one": rows[:1, None, None, :],
                              "four": rows[:1].reshape(1, keys)}[mask]
    if scale is not None:
        given["scale"] = scale
    if group > 1:
        given["enable_gqa"] = True
    got = scaled_dot_product_attention(q, k, v, **given)
    wanted = of_torch(q.double(), k.double(), v.double(), **given)
    assert reasons() == {}
    close(got, wanted, dtype)


def test_a_query_without_a_key():
    q = draw(1, 2, 3, 8)
    mask = torch.zeros(1, 1, 1, 3, dtype=torch.bool)
    assert not scaled_dot_product_attention(q, q, q, attn_mask=mask).any()
    assert not of_torch(q, q, q, attn_mask=mask).any()


def test_a_mask_without_dimensions_is_torchs_to_take_or_to_refuse():
    def outcome(attend):
        q = draw(1, 2, 6, 8)
        try:
            return attend(q, q, q, attn_mask=torch.tensor(True))
        except (IndexError, RuntimeError) as error:
            return type(error)

    with pytest.warns(UserWarning, match="masks that are not boolean"):
        got = outcome(scaled_dot_product_attention)
    wanted = outcome(of_torch)
    assert torch.equal(got, wanted) if isinstance(wanted, torch.Tensor) else got is wanted


@pytest.mark.parametrize("reason, change", [
    ("causal attention", {"is_causal": True}),
    ("dropout", {"dropout_p": 0.5}),
    ("masks that are not boolean", {"attn_mask": torch.zeros(6, 6)}),
    ("masks that are not boolean", {"attn_mask": torch.ones(6, 6, dtype=torch.bool).tril()}),
    ("masks that are not boolean", {"attn_mask": torch.ones(1, 2, 1, 6, dtype=torch.bool)}),
    ("scales that are not above 0", {"scale": -0.3}),
    ("dtypes other", {"dtype": torch.float64}),
    ("head dimensions above 256", {"dim": 257}),
    ("gradients", {"grad": True}),
    ("not \\[batch, heads", {"flat": True}),
    ("another than that of the keys", {"value_dim": 7})])
def test_what_is_handed_back(reason, change):
    change = dict(change)
    q, k, v = (draw(1, 2, 6, change.get("dim", 8), dtype=change.get("dtype", torch.float32), seed=i) for i in range(3))
    if "value_dim" in change:
        v = draw(1, 2, 6, change["value_dim"])
    if "flat" in change:
        q, k, v = q[0], k[0], v[0]
    if "grad" in change:
        q.requires_grad_()
    given = {key: value for key, value in change.items() if key in ("is_causal", "dropout_p", "attn_mask", "scale")}
    torch.manual_seed(0)
    with pytest.warns(UserWarning, match=reason):
        got = scaled_dot_product_attention(q, k, v, **given)
    torch.manual_seed(0)
    assert torch.equal(got, of_torch(q, k, v, **given))
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # it is said once
        scaled_dot_product_attention(q, k, v, **given)
    (said, count), = reasons().items()
    assert count == 2
    if "grad" in change:
        got.sum().backward()
        assert q.grad is not None


def test_wrong_calls_raise_as_in_torch():
    q, k = draw(1, 4, 6, 8), draw(1, 2, 6, 8)
    with pytest.raises(RuntimeError), pytest.warns(UserWarning):
        scaled_dot_product_attention(q, k, k)  # grouped heads that are not enabled
    with pytest.raises(zoetrope.Error, match="no multiple"):
        torch.ops.zoetrope.attention(draw(1, 6, 4, 8), draw(1, 6, 3, 8), draw(1, 6, 3, 8))


def test_the_operator_is_as_the_dispatcher_wants_it():
    q, k = draw(2, 7, 4, 16), draw(2, 9, 2, 16)
    mask = torch.ones(2, 9, dtype=torch.bool)
    for arguments in ((q, q, q), (q, k, k), (q, k, k, mask), (q, k, k, None, 0.5)):
        torch.library.opcheck(torch.ops.zoetrope.attention.default, arguments)


def test_it_is_traced():
    """Whole graphs, without a break; with changing sizes too."""
    def model(q, k, v):
        return scaled_dot_product_attention(q * 2, k, v).relu()

    for dynamic in (False, True):
        torch._dynamo.reset()
        compiled = torch.compile(model, backend="aot_eager", fullgraph=True, dynamic=dynamic)
        for tokens in (5, 11):
            q = draw(1, 2, tokens, 16)
            k = draw(1, 2, 7, 16, seed=1)
            close(compiled(q, k, k), model(q, k, k))
    graphs = []
    torch._dynamo.reset()
    torch.compile(model, backend=lambda graph, _: graphs.append(graph) or graph, fullgraph=True)(q, k, k)
    assert "zoetrope.attention" in str(graphs[0].graph)


def test_seeds_of_generators():
    from conftest import MODEL, PROMPT, SMALL, TINY

    pipe = zoetrope.WanPipeline.from_pretrained(TINY, keep_weights="all", torch_dtype=torch.float32, threads=2,
                                                deterministic=True)
    assert MODEL["dtype"] == "float32"
    seeded = torch.as_tensor(pipe(PROMPT, generator=7, output_type="pt", **SMALL).frames)
    assert seeded.shape == (1, 9, 3, 64, 64) and seeded.is_contiguous()
    generator = torch.Generator().manual_seed(7)
    out = pipe(PROMPT, generator=generator, output_type="pt", **SMALL)
    # PyTorch rounds the logarithms and cosines behind its noise otherwise on other processors.
    assert torch.allclose(out.frames, seeded, atol=1e-3) and out.seeds == [None]
    # Used once more it gives other noise, as in diffusers.
    again = pipe(PROMPT, generator=generator, output_type="pt", **SMALL).frames
    assert not torch.allclose(again, seeded, atol=1e-1)
    # One generator for several videos draws all at once; a list has one each.
    both = pipe([PROMPT, PROMPT], generator=torch.Generator().manual_seed(7), output_type="latent", **SMALL).frames
    each = pipe([PROMPT, PROMPT], generator=[torch.Generator().manual_seed(7), torch.Generator().manual_seed(8)],
                output_type="latent", **SMALL).frames
    assert torch.equal(both[0], each[0]) and not torch.equal(both[1], each[1])
    eight = pipe(PROMPT, generator=8, output_type="latent", **SMALL).frames
    assert isinstance(eight, torch.Tensor) and torch.allclose(each[1], eight[0], atol=1e-3)
    with pytest.raises(ValueError, match="2 entries for 1"):
        pipe(PROMPT, generator=[torch.Generator(), torch.Generator()], **SMALL)
    with pytest.raises(zoetrope.Error, match="F16|float16"):
        zoetrope.WanPipeline.from_pretrained(TINY, torch_dtype=torch.float16)
    noise = torch.randn(1, 16, 3, 8, 8, generator=torch.Generator().manual_seed(7))
    assert torch.equal(pipe(PROMPT, latents=noise, output_type="pt", **SMALL).frames, out.frames)
    seen = []
    pipe(PROMPT, callback_on_step_end=lambda p, s, t, tensors: seen.append(tensors["latents"]), **SMALL)
    assert all(isinstance(latents, torch.Tensor) for latents in seen)


def test_every_combination_keeps_its_layout():
    for heads_first, dtype in itertools.product((False, True), (torch.float32, torch.bfloat16)):
        q = draw(1, 2, 6, 8, dtype=dtype) if heads_first else draw(1, 6, 2, 8, dtype=dtype).transpose(1, 2)
        close(scaled_dot_product_attention(q, q, q), of_torch(q.double(), q.double(), q.double()), dtype)
