"""zoetrope.attention() over arrays of every kind, against the definition in float64."""
import math
import sys
import tracemalloc

import numpy
import pytest
import zoetrope

F32 = numpy.float32
# batch, query tokens, key tokens, heads, head_dim
SHAPES = [(1, 1, 1, 1, 1), (2, 7, 7, 3, 5), (1, 65, 65, 2, 64), (1, 33, 129, 2, 128), (2, 130, 17, 4, 72),
          (1, 50, 50, 1, 256)]


def reference(q, k, v, scale=None, valid=None):
    """[B, S, H, D] in float64; valid [B, keys]."""
    q, k, v = (x.astype(numpy.float64) for x in (q, k, v))
    scores = numpy.einsum("bqhd,bkhd->bhqk", q, k) * (scale or 1 / math.sqrt(q.shape[-1]))
    if valid is not None:
        scores = numpy.where(valid[:, None, None, :], scores, -numpy.inf)
    largest = scores.max(-1, keepdims=True)
    weights = numpy.exp(scores - numpy.where(numpy.isfinite(largest), largest, 0))
    total = weights.sum(-1, keepdims=True)
    logs = numpy.log(total, where=total > 0, out=numpy.full_like(total, -numpy.inf)) + largest
    weights = weights / numpy.where(total > 0, total, 1)
    return numpy.einsum("bhqk,bkhd->bqhd", weights, v), logs[..., 0].transpose(0, 2, 1)


def draw(shape, seed=0):
    b, s, keys, h, d = shape
    rng = numpy.random.default_rng(seed)
    return tuple(rng.standard_normal((b, n, h, d), F32) for n in (s, keys, keys))


def close(got, wanted, rounding=2.0**-24):
    # A sum of weights that add up to one: some hundred roundings of values of a few units.
    assert numpy.abs(got.astype(numpy.float64) - wanted).max() < 400 * rounding


@pytest.mark.parametrize("shape", SHAPES)
def test_is_the_definition(shape):
    q, k, v = draw(shape)
    o = zoetrope.attention(q, k, v, threads=2)
    assert type(o) is numpy.ndarray and o.dtype == F32 and o.shape == q.shape
    close(o, reference(q, k, v)[0])


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("strategy", ["ulysses", "ring", "gather", "ulysses_ring_custom_bidir"])
def test_ranks_and_strategies(ranks, strategy):
    q, k, v = draw((2, 37, 37, 4, 32))
    if strategy.startswith("ulysses_ring"):
        ranks *= 2
    o = zoetrope.attention(q, k, v, ranks=ranks, strategy=strategy, threads=2, scale=0.3)
    close(o, reference(q, k, v, 0.3)[0])


def test_masks():
    q, k, v = draw((3, 20, 40, 2, 16))
    lengths = [40, 13, 1]
    valid = numpy.arange(40)[None] < numpy.array(lengths)[:, None]
    close(zoetrope.attention(q, k, v, key_lengths=lengths), reference(q, k, v, valid=valid)[0])
    holes = numpy.random.default_rng(1).random((3, 40)) < 0.5
    holes[1] = False
    o = zoetrope.attention(q, k, v, key_mask=holes)
    close(o, reference(q, k, v, valid=holes)[0])
    assert not o[1].any()
    assert (zoetrope.attention(q, k, v, key_mask=holes.astype(numpy.uint8)) == o).all()
    assert (zoetrope.attention(q, k, v, key_mask=numpy.asfortranarray(holes)) == o).all()
    assert (zoetrope.attention(q, k, v, key_mask=numpy.repeat(holes, 3, 1)[:, ::3]) == o).all()


def test_log_sum_exp():
    q, k, v = draw((2, 19, 19, 3, 24))
    for ranks in (1, 2):
        o, logs = zoetrope.attention(q, k, v, return_log_sum_exp=True, ranks=ranks, strategy="ring", threads=2)
        wanted = reference(q, k, v)
        close(o, wanted[0])
        close(logs, wanted[1])


def test_layouts():
    q, k, v = draw((2, 9, 11, 3, 8))
    o = zoetrope.attention(*(x.transpose(0, 2, 1, 3).copy() for x in (q, k, v)), layout="BHSD")
    assert o.shape == (2, 3, 9, 8) and o.flags.c_contiguous
    close(o.transpose(0, 2, 1, 3), reference(q, k, v)[0])


def strided(x, seed):
    """The same values with strides of every axis but the last that no contiguous array has."""
    b, s, h, d = x.shape
    memory = numpy.random.default_rng(seed).standard_normal((h, s, 2, b, d + 3), F32)
    view = memory[:, :, 1, :, :d].transpose(2, 1, 0, 3)
    view[...] = x
    return view


def test_strided_views_are_read_where_they_are():
    shape = (2, 700, 700, 4, 64)
    q, k, v = draw(shape)
    views = [strided(x, i) for i, x in enumerate((q, k, v))]
    zoetrope.attention(*views)
    tracemalloc.start()  # which NumPy tells of all memory of arrays
    o = zoetrope.attention(*views)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert o.nbytes <= peak < o.nbytes + q.nbytes / 4
    close(o, reference(q, k, v)[0])


def test_the_engine_sees_the_memory_of_the_array():
    """Values that NumPy shows through another array over the same memory, changed between two calls."""
    q, k, v = draw((1, 16, 16, 1, 8))
    memory = numpy.zeros(v.size + 1, F32)
    view = memory[1:].reshape(v.shape)
    assert not zoetrope.attention(q, k, view).any()
    memory[1:] = 2
    assert (numpy.abs(zoetrope.attention(q, k, view) - 2) < 1e-5).all()


def test_read_only_arrays():
    q, k, v = draw((1, 8, 8, 2, 4))
    o = zoetrope.attention(q, k, v)
    for x in (q, k, v):
        x.flags.writeable = False
    assert (zoetrope.attention(q, k, v) == o).all()


class OnlyDLPack:
    """An object of another library."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **keys):
        return self.array.__dlpack__(**keys)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()

    @property
    def shape(self):
        return self.array.shape


class WithNamespace(OnlyDLPack):
    def __array_namespace__(self):
        return sys.modules[__name__]


def from_dlpack(array):
    return WithNamespace(numpy.from_dlpack(array))


def test_objects_of_other_libraries():
    q, k, v = draw((1, 12, 12, 2, 8))
    wanted = zoetrope.attention(q, k, v)
    o = zoetrope.attention(*(OnlyDLPack(x) for x in (q, k, v)))
    assert type(o) is numpy.ndarray and (o == wanted).all()
    o = zoetrope.attention(*(WithNamespace(x) for x in (q, k, v)))
    assert type(o) is WithNamespace and (o.array == wanted).all()


def bfloat16():
    return numpy.dtype(pytest.importorskip("ml_dtypes").bfloat16)


def test_bfloat16_of_numpy():
    dtype = bfloat16()
    q, k, v = (x.astype(dtype) for x in draw((1, 70, 70, 2, 64)))
    o = zoetrope.attention(q, k, v)
    assert o.dtype == dtype
    close(o, reference(q, k, v)[0], rounding=2.0**-14)


def refused(error, words, *arrays, **keys):
    with pytest.raises(error) as raised:
        zoetrope.attention(*arrays, **keys)
    assert words in str(raised.value), str(raised.value)


def test_refusals():
    q, k, v = draw((2, 6, 8, 2, 4))
    value = zoetrope.Error
    refused(TypeError, "q is of type list", [[1.0]], k, v)
    refused(TypeError, "k is of type str", q, "k", v)
    refused(TypeError, "q is F64", q.astype(numpy.float64), k, v)
    refused(TypeError, "v is F16", q, k, v.astype(numpy.float16))
    refused(TypeError, "k is of type", q, k.astype(numpy.complex64).astype(object), v)
    refused(TypeError, "code", q, k, v.astype(numpy.complex64))
    refused(value, "q has 3 axes", q[0], k, v)
    refused(value, "batch, heads and head_dim", q, k[:1], v[:1])
    refused(value, "batch, heads and head_dim", q, k[:, :, :1], v[:, :, :1])
    refused(value, "k has 8 tokens and v 7", q, k, v[:, :7])
    refused(value, "no key", q, k[:, :0], v[:, :0])
    refused(value, "contiguous", q[..., ::2], k[..., ::2], v[..., ::2])
    refused(value, "3 key lengths", q, k, v, key_lengths=[1, 2, 3])
    refused(value, "key_lengths is empty", q, k, v, key_lengths=[])
    refused(value, "both given", q, k, v, key_lengths=[1, 2], key_mask=numpy.ones((2, 8), bool))
    refused(value, "key_mask is [2, 6]", q, k, v, key_mask=numpy.ones((2, 6), bool))
    refused(value, "F32, but must be U8 or BOOL", q, k, v, key_mask=numpy.ones((2, 8), F32))
    refused(value, "key length", q, k, v, key_lengths=[1, 9])
    refused(value, "layout", q, k, v, layout="SBHD")
    refused(value, "key_lengths has -1", q, k, v, key_lengths=[-1, 2])
    assert not zoetrope.attention(q, k, v, key_lengths=[0, 2])[0].any(), "a row without a key is zero"
    for lengths in ([1.7, 2], ["3", 4], [None, 2]):
        refused(TypeError, "whole number", q, k, v, key_lengths=lengths)
    refused(value, "key_lengths has", q, k, v, key_lengths=[2 ** 70, 1])
    for scale in (0, -1.0, math.nan, 1e-60, 1e39):
        refused(value, "scale", q, k, v, scale=scale)
    refused(value, "ranks", q, k, v, ranks=0)
    refused(value, "threads", q, k, v, threads=0)
    refused(value, "did you mean 'ulysses_ring'", q, k, v, strategy="ulyses_ring")
    refused(value, "did you mean 'softmax'", q, k, v, softmaxx="online")
    refused(value, "ulysses_shards=3", q, q, q, ranks=4, ulysses_shards=3)
    refused(value, "no_kernel", q, k, v, implementation="no_kernel")
    refused(value, "1024", *draw((1, 4, 4, 1, 1025)))
    assert issubclass(zoetrope.Error, ValueError)
