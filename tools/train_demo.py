#!/usr/bin/env python3
"""Trains the demo's checkpoint (demo/wan-tiny) from scratch and writes it in the diffusers folder layout.

What it makes: a Wan 2.1 text-to-video model of 3.7 MB that has seen one small world only: clips of 96 x 96 pixels and 17
frames in which a shape moves over a plain background, with captions such as "a red ball moves left on a white
background" (4 colours x 3 shapes x 4 ways x 2 backgrounds). It is there to show the engine at work on real (if tiny)
learned weights; it is no measure of any real model. tools/check_demo.py measures whether its clips follow their prompts.

How to run it (CPU, two cores, under three hours; needs Python 3.11 with jax, optax, numpy and safetensors):

    work=out/train
    python3 tools/train_demo.py vae     --work $work --minutes 60     # autoencoder: clip <-> latents
    python3 tools/train_demo.py latents --work $work --clips 1440     # captions and clips -> the training set
    python3 tools/train_demo.py dit     --work $work --minutes 72     # transformer: flow matching on the latents
    python3 tools/train_demo.py export  --work $work --out demo/wan-tiny

Both trainings save every minute, `export` may be called at any time, and all that is random is drawn from --seed (7).
How many steps fit into the minutes depends on the machine, so no two trainings give the same bytes.
Of the checkpoint that ships the VAE began as that of an earlier demo (2397 steps on clips of 64 pixels and 9 frames) and
went on for 2547 steps (16 minutes, --go-on --rate 2e-3); the transformer had 3525 steps in 72 minutes on a busy machine
and ended at a loss of 0.094. tools/check_demo.py found colour, shape, way and background right in 40 of 40 clips.

What is simpler than in the published models, to learn in minutes on a CPU: the text encoder is random and frozen, its
attention heads built to look at the neighbouring words; the VAE trains only the middle taps of the 3x3x3 kernels at
full and half resolution (the others stay 0) and leaves its two attention blocks switched off (proj = 0).
"""

import argparse
import functools
import json
import pathlib
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
from safetensors.numpy import load_file, save_file

SIZE, FRAMES = 96, 17  # of the clips; latents are 16 x 5 x 12 x 12
Z, ENCODER_DIM, DECODER_DIM, DIM_MULT = 16, 4, 6, (1, 2, 4, 3)
TIME_DOWN = (False, True, True)
HEADS, HEAD_DIM, LAYERS, FFN, FREQ_DIM, TEXT_DIM = 4, 32, 6, 384, 128, 32
WIDTH = HEADS * HEAD_DIM
TEXT_LENGTH = 512  # rows that cross-attention sees, padding included
FLOW_SHIFT = 3.0

# --- the clips -------------------------------------------------------------------------------------------------------

COLOURS = {"red": (0.90, 0.12, 0.12), "green": (0.12, 0.75, 0.20), "blue": (0.12, 0.25, 0.85),
           "yellow": (0.95, 0.85, 0.10)}
BACKGROUNDS = {"white": (0.95, 0.95, 0.95), "black": (0.06, 0.06, 0.06)}
SHAPES = ("ball", "square", "triangle")
WAYS = {"left": (-1, 0), "right": (1, 0), "up": (0, -1), "down": (0, 1)}  # of (x, y); y grows downwards


def captions():
    """Every scene (colour, shape, way, background) with its caption."""
    return [((colour, shape, way, ground), f"a {colour} {shape} moves {way} on a {ground} background")
            for colour in COLOURS for shape in SHAPES for way in WAYS for ground in BACKGROUNDS]


def path_of(way, random):
    """Centre (x, y) of the shape in every frame, in pixels: a straight line through the middle, at an even pace."""
    along = (2 * np.arange(FRAMES) / (FRAMES - 1) - 1) * 28 * random.uniform(0.85, 1.0)
    across = np.full(FRAMES, random.uniform(-14, 14))
    dx, dy = WAYS[way]
    return SIZE / 2 + (along * dx if dx else across), SIZE / 2 + (along * dy if dy else across)


def coverage(shape, dx, dy, radius):
    """How much of every pixel the shape covers (0..1), from the signed distance to its edge."""
    if shape == "ball":
        distance = np.hypot(dx, dy) - radius
    elif shape == "square":
        distance = np.maximum(np.abs(dx), np.abs(dy)) - 0.88 * radius
    else:  # a triangle that stands on its base
        distance = np.maximum(dy - 0.75 * radius, (2.0 * np.abs(dx) - dy - 1.25 * radius) / np.sqrt(5.0))
    return np.clip(0.5 - distance, 0.0, 1.0)


def render(scene, random, frames=slice(None), window=None):
    """A clip [3, T, H, W] in -1..1; `window` = (top, left, size) cuts a square out of it."""
    colour, shape, way, ground = scene
    xs, ys = path_of(way, random)
    top, left, size = window(xs, ys) if window else (0, 0, SIZE)
    grid = np.arange(size) + 0.5
    dx = grid[None, None, :] + left - xs[frames, None, None]
    dy = grid[None, :, None] + top - ys[frames, None, None]
    alpha = coverage(shape, dx, dy, random.uniform(15.0, 18.0))[None]
    jitter = random.uniform(-0.03, 0.03, 3)
    inside = np.array(COLOURS[colour])[:, None, None, None]
    outside = (np.array(BACKGROUNDS[ground]) + jitter)[:, None, None, None]
    return (2.0 * (outside + alpha * (inside - outside)) - 1.0).astype(np.float32)


def vae_batch(random, scenes, count, size=48, frames=FRAMES):
    """Windows around the moving shape: [3, B, T, H, W]."""
    clips = []
    for _ in range(count):
        start = random.integers(0, FRAMES - frames + 1)

        def window(xs, ys):
            at = random.integers(0, frames) + start
            left, top = xs[at] - size / 2 + random.uniform(-12, 12), ys[at] - size / 2 + random.uniform(-12, 12)
            return np.clip(np.round(top), -4, SIZE - size + 4), np.clip(np.round(left), -4, SIZE - size + 4), size

        clips.append(render(scenes[random.integers(len(scenes))], random, slice(start, start + frames), window))
    return np.stack(clips, 1)


# --- the VAE: activations are [C, B, T, H, W], so that every convolution is one matrix product ----------------------

FULL, FRAME, POINT = (3, 3, 3), (1, 3, 3), (1, 1, 1)


def make_conv(random, out, channels, taps, gain=1.0):
    scale = gain / np.sqrt(channels * np.prod(taps))
    return {"w": (random.standard_normal((out, channels, *taps)) * scale).astype(np.float32), "b": np.zeros(out, np.float32)}


def windows(x, taps, pads, step=1):
    """Stacks the shifted copies of x that a kernel of these taps sees: [kt*kh*kw*C, B, T', H', W']."""
    x = jnp.pad(x, ((0, 0), (0, 0), *pads))
    for axis in (4, 3, 2):  # one axis after the other: nine slices rather than 27, which compiles far faster
        taps_here, stride = taps[axis - 2], step if axis > 2 else 1
        length = x.shape[axis] - taps_here + 1
        if taps_here > 1:
            x = jnp.concatenate([jax.lax.slice_in_dim(x, i, i + length, stride, axis) for i in range(taps_here)], 0)
    return x


def product(weights, columns):
    return (weights @ columns.reshape(columns.shape[0], -1)).reshape(-1, *columns.shape[1:])


def as_matrix(w):
    return w.transpose(0, 2, 3, 4, 1).reshape(w.shape[0], -1)


def causal_conv(p, x):
    """3x3x3 causal convolution of which only the trained taps are stored."""
    kt, kh, kw = p["w"].shape[2:]
    columns = windows(x, (kt, kh, kw), ((kt - 1, 0), (kh // 2, kh // 2), (kw // 2, kw // 2)))
    return product(as_matrix(p["w"]), columns) + p["b"][:, None, None, None, None]


def rms(gamma, x):
    norm = jnp.sqrt(jnp.sum(x * x, 0, keepdims=True) + 1e-12)
    return x / norm * (x.shape[0] ** 0.5 * gamma[:, None, None, None, None])


def make_resnet(random, channels, out, taps):
    p = {"norm1": np.ones(channels, np.float32), "conv1": make_conv(random, out, channels, taps),
         "norm2": np.ones(out, np.float32), "conv2": make_conv(random, out, out, taps, 0.3)}
    if channels != out:
        p["conv_shortcut"] = make_conv(random, out, channels, POINT)
    return p


def resnet(p, x):
    h = causal_conv(p["conv_shortcut"], x) if "conv_shortcut" in p else x
    y = causal_conv(p["conv1"], jax.nn.silu(rms(p["norm1"], x)))
    return h + causal_conv(p["conv2"], jax.nn.silu(rms(p["norm2"], y)))


def halve_space(p, x):
    columns = windows(x, FRAME, ((0, 0), (0, 1), (0, 1)), 2)
    return product(as_matrix(p["w"]), columns) + p["b"][:, None, None, None, None]


def halve_time(p, x):
    if x.shape[2] == 1:
        return x
    columns = windows(x, (3, 1, 1), ((0, 0), (0, 0), (0, 0)))[:, :, ::2]
    rest = product(as_matrix(p["w"]), columns) + p["b"][:, None, None, None, None]
    return jnp.concatenate([x[:, :, :1], rest], 2)


# Nearest doubling followed by three taps is, for even and odd outputs, two taps on the small grid: rows say which.
EVEN = np.array([[1, 0, 0], [0, 1, 1], [0, 0, 0]], np.float32)
ODD = np.array([[0, 0, 0], [1, 1, 0], [0, 0, 1]], np.float32)


def double_space(p, x):
    phases = jnp.stack([EVEN, ODD])
    w = jnp.einsum("pai,qbj,ocij->pqocab", phases, phases, p["w"][:, :, 0])
    out, channels = p["w"].shape[:2]
    columns = windows(x, FRAME, ((0, 0), (1, 1), (1, 1)))
    y = w.transpose(0, 1, 2, 4, 5, 3).reshape(4 * out, 9 * channels) @ columns.reshape(9 * channels, -1)
    b, t, h, wide = x.shape[1:]
    y = y.reshape(2, 2, out, b, t, h, wide).transpose(2, 3, 4, 5, 0, 6, 1).reshape(out, b, t, 2 * h, 2 * wide)
    return y + p["b"][:, None, None, None, None]


def double_time(p, x):
    if x.shape[2] == 1:
        return x
    columns = windows(x[:, :, 1:], (3, 1, 1), ((2, 0), (0, 0), (0, 0)))
    y = product(as_matrix(p["w"]), columns) + p["b"][:, None, None, None, None]
    c, (b, t, h, w) = x.shape[0], y.shape[1:]
    y = y.reshape(2, c, b, t, h, w).transpose(1, 2, 3, 0, 4, 5).reshape(c, b, 2 * t, h, w)
    return jnp.concatenate([x[:, :, :1], y], 2)


TAPS_AT = (POINT, FRAME, FULL, FULL)  # trained taps of the residual blocks, from full resolution to 1/8


def make_encoder(random):
    p, c, index = {"encoder.conv_in": make_conv(random, ENCODER_DIM, 3, FRAME)}, ENCODER_DIM, 0
    for level, mult in enumerate(DIM_MULT):
        out = ENCODER_DIM * mult
        p[f"encoder.down_blocks.{index}"] = make_resnet(random, c, out, TAPS_AT[level])
        c, index = out, index + 1
        if level < 3:
            p[f"encoder.down_blocks.{index}.resample.1"] = make_conv(random, c, c, FRAME)
            if TIME_DOWN[level]:
                p[f"encoder.down_blocks.{index}.time_conv"] = make_conv(random, c, c, (3, 1, 1))
            index += 1
    for i in (0, 1):
        p[f"encoder.mid_block.resnets.{i}"] = make_resnet(random, c, c, FULL)
    p["encoder.norm_out"] = np.ones(c, np.float32)
    p["encoder.conv_out"] = make_conv(random, Z, c, FULL)  # the means; the file's other half, the variances, is 0
    return p


def encode(p, x):
    x, index = causal_conv(p["encoder.conv_in"], x), 0
    for level in range(4):
        x, index = resnet(p[f"encoder.down_blocks.{index}"], x), index + 1
        if level < 3:
            x = halve_space(p[f"encoder.down_blocks.{index}.resample.1"], x)
            if TIME_DOWN[level]:
                x = halve_time(p[f"encoder.down_blocks.{index}.time_conv"], x)
            index += 1
    for i in (0, 1):
        x = resnet(p[f"encoder.mid_block.resnets.{i}"], x)
    return causal_conv(p["encoder.conv_out"], jax.nn.silu(rms(p["encoder.norm_out"], x)))


def make_decoder(random):
    c = DECODER_DIM * DIM_MULT[-1]
    p = {"decoder.conv_in": make_conv(random, c, Z, FULL)}
    for i in (0, 1):
        p[f"decoder.mid_block.resnets.{i}"] = make_resnet(random, c, c, FULL)
    for block in range(4):
        level, name = 3 - block, f"decoder.up_blocks.{block}"
        out = DECODER_DIM * DIM_MULT[level]
        for i in (0, 1):
            p[f"{name}.resnets.{i}"] = make_resnet(random, c, out, TAPS_AT[level])
            c = out
        if block < 3:
            if TIME_DOWN[2 - block]:
                p[f"{name}.upsamplers.0.time_conv"] = make_conv(random, 2 * c, c, (3, 1, 1))
            p[f"{name}.upsamplers.0.resample.1"] = make_conv(random, c // 2, c, FRAME)
            c //= 2
    p["decoder.norm_out"] = np.ones(c, np.float32)
    p["decoder.conv_out"] = make_conv(random, 3, c, FRAME)
    return p


def decode(p, z):
    x = causal_conv(p["decoder.conv_in"], z)
    for i in (0, 1):
        x = resnet(p[f"decoder.mid_block.resnets.{i}"], x)
    for block in range(4):
        name = f"decoder.up_blocks.{block}"
        for i in (0, 1):
            x = resnet(p[f"{name}.resnets.{i}"], x)
        if block < 3:
            if TIME_DOWN[2 - block]:
                x = double_time(p[f"{name}.upsamplers.0.time_conv"], x)
            x = double_space(p[f"{name}.upsamplers.0.resample.1"], x)
    return causal_conv(p["decoder.conv_out"], jax.nn.silu(rms(p["decoder.norm_out"], x)))


LATENT_NOISE = 0.15  # what the decoder learns to put up with, so that it forgives the transformer's errors


def vae_loss(p, clip, key):
    mean = encode(p, clip)
    error = decode(p, mean + LATENT_NOISE * jax.random.normal(key, mean.shape)) - clip
    # sqrt(e^2 + small) is |e| with a smooth bottom; the penalty keeps latents near unit size
    return jnp.mean(jnp.sqrt(error**2 + 1e-4) + error**2) + 2e-3 * jnp.mean(mean**2), jnp.mean(error**2)


def decoder_loss(p, clip, key):
    """The same with the encoder as it is, so that the decoder can go on learning while the transformer trains."""
    fixed = {name: jax.tree.map(jax.lax.stop_gradient, value) if name.startswith("encoder.") else value for name, value in p.items()}
    return vae_loss(fixed, clip, key)


# --- the text encoder (UMT5): random, frozen ------------------------------------------------------------------------

TEXT_HEADS, TEXT_KV, TEXT_FF, TEXT_LAYERS, VOCABULARY = 4, 8, 64, 2, 128
NEIGHBOURS = (-1, 1, -2, 2)  # the word that each head looks at


def vocabulary():
    """The pieces with their scores: special tokens, the words of the captions, and letters for all others."""
    words = sorted({word for _, text in captions() for word in text.split()})
    pieces = [("<pad>", 0.0), ("</s>", 0.0), ("<s>", 0.0), ("<unk>", 0.0), ("\u2581", -8.0)]
    pieces += [("\u2581" + word, -3.0) for word in words]
    known = {piece for piece, _ in pieces}
    pieces += [(letter, -9.0) for letter in "abcdefghijklmnopqrstuvwxyz0123456789.,!?'-" if letter not in known]
    return pieces + [(f"<extra_id_{i}>", 0.0) for i in range(VOCABULARY - len(pieces))]


def token_ids(text):
    table = {piece: index for index, (piece, _) in enumerate(vocabulary())}
    return [table["\u2581" + word] for word in text.split()] + [1]


def bucket(offset):
    """The relative-position bucket of an offset between tokens: T5's, exact below 8, logarithmic to 128."""
    a = abs(offset)
    return (a if a < 8 else min(15, 8 + int(np.log(a / 8) / np.log(16) * 8))) + (16 if offset > 0 else 0)


def make_text_encoder(seed):
    random = np.random.default_rng(seed + 1)
    inner = TEXT_HEADS * TEXT_KV

    def matrix(out, channels, gain=1.0):
        return (random.standard_normal((out, channels)) * gain / np.sqrt(channels)).astype(np.float32)

    p = {"shared.weight": random.standard_normal((VOCABULARY, TEXT_DIM)).astype(np.float32)}
    for i in range(TEXT_LAYERS):
        name = f"encoder.block.{i}.layer.0."
        for proj in "qk":  # almost no say: the position bias decides
            p[f"{name}SelfAttention.{proj}.weight"] = matrix(inner, TEXT_DIM, 0.1)
        p[f"{name}SelfAttention.v.weight"] = matrix(inner, TEXT_DIM)
        p[f"{name}SelfAttention.o.weight"] = matrix(TEXT_DIM, inner, 1.0)
        bias = np.zeros((32, TEXT_HEADS), np.float32)
        for head, offset in enumerate(NEIGHBOURS):
            bias[bucket(offset), head] = 5.0
        p[f"{name}SelfAttention.relative_attention_bias.weight"] = bias
        p[f"{name}layer_norm.weight"] = np.ones(TEXT_DIM, np.float32)
        name = f"encoder.block.{i}.layer.1."
        p[f"{name}DenseReluDense.wi_0.weight"] = matrix(TEXT_FF, TEXT_DIM)
        p[f"{name}DenseReluDense.wi_1.weight"] = matrix(TEXT_FF, TEXT_DIM)
        p[f"{name}DenseReluDense.wo.weight"] = matrix(TEXT_DIM, TEXT_FF, 0.5)
        p[f"{name}layer_norm.weight"] = np.ones(TEXT_DIM, np.float32)
    p["encoder.final_layer_norm.weight"] = np.ones(TEXT_DIM, np.float32)
    return {name: bf16(value).astype(np.float32) for name, value in p.items()}


def encode_text(p, ids):
    """UMT5's forward pass: [tokens, TEXT_DIM]."""
    def norm(x):
        return x / np.sqrt(np.mean(x * x, -1, keepdims=True) + 1e-6)

    def gelu(x):
        return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))

    x, n = p["shared.weight"][ids], len(ids)
    buckets = np.array([[bucket(j - i) for j in range(n)] for i in range(n)])
    for i in range(TEXT_LAYERS):
        name = f"encoder.block.{i}.layer.0."
        h = norm(x)
        q, k, v = ((h @ p[f"{name}SelfAttention.{w}.weight"].T).reshape(n, TEXT_HEADS, TEXT_KV) for w in "qkv")
        scores = np.einsum("ihd,jhd->hij", q, k)
        scores += p[f"{name}SelfAttention.relative_attention_bias.weight"][buckets].transpose(2, 0, 1)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        x = x + np.einsum("hij,jhd->ihd", weights, v).reshape(n, -1) @ p[f"{name}SelfAttention.o.weight"].T
        name = f"encoder.block.{i}.layer.1.DenseReluDense."
        h = norm(x)
        x = x + (gelu(h @ p[f"{name}wi_0.weight"].T) * (h @ p[f"{name}wi_1.weight"].T)) @ p[f"{name}wo.weight"].T
    return norm(x)


def text_rows(p, texts):
    """Rows [n, L + 1, TEXT_DIM] and logit offsets [n, L + 1]: the last row represents all the zero rows of padding."""
    ids = [token_ids(text) for text in texts]
    length = max(map(len, ids))
    rows = np.zeros((len(texts), length + 1, TEXT_DIM), np.float32)
    offsets = np.full((len(texts), length + 1), -1e9, np.float32)
    for i, tokens in enumerate(ids):
        rows[i, :len(tokens)] = encode_text(p, tokens)
        offsets[i, :len(tokens)] = 0.0
        offsets[i, -1] = np.log(TEXT_LENGTH - len(tokens))
    return rows, offsets


# --- the transformer -------------------------------------------------------------------------------------------------


def make_dit(seed):
    random = np.random.default_rng(seed + 2)
    p = {}

    def linear(name, out, channels, gain=1.0):
        p[name + ".weight"] = (random.standard_normal((out, channels)) * gain / np.sqrt(channels)).astype(np.float32)
        p[name + ".bias"] = np.zeros(out, np.float32)

    linear("patch_embedding", WIDTH, Z * 4)
    linear("condition_embedder.time_embedder.linear_1", WIDTH, FREQ_DIM)
    linear("condition_embedder.time_embedder.linear_2", WIDTH, WIDTH)
    linear("condition_embedder.time_proj", 6 * WIDTH, WIDTH, 0.1)
    linear("condition_embedder.text_embedder.linear_1", WIDTH, TEXT_DIM, 1.5)
    linear("condition_embedder.text_embedder.linear_2", WIDTH, WIDTH, 1.5)
    for i in range(LAYERS):
        name = f"blocks.{i}."
        table = np.zeros((1, 6, WIDTH), np.float32)
        table[0, (2, 5)] = 0.3  # gates: every block begins as a small correction
        p[name + "scale_shift_table"] = table
        p[name + "norm2.weight"], p[name + "norm2.bias"] = np.ones(WIDTH, np.float32), np.zeros(WIDTH, np.float32)
        for attention in ("attn1.", "attn2."):
            for proj in ("to_q", "to_k", "to_v", "to_out.0"):
                linear(name + attention + proj, WIDTH, WIDTH, 0.5 if attention == "attn2." and proj == "to_out.0" else 1.0)
            for norm in ("norm_q", "norm_k"):  # cross-attention has ~500 rows of padding to look past
                p[f"{name}{attention}{norm}.weight"] = np.full(WIDTH, 1.7 if attention == "attn2." else 1.0, np.float32)
        linear(name + "ffn.net.0.proj", FFN, WIDTH)
        linear(name + "ffn.net.2", WIDTH, FFN)
    p["scale_shift_table"] = np.zeros((1, 2, WIDTH), np.float32)
    linear("proj_out", Z * 4, WIDTH, 0.0)
    return p


def rope_tables(frames, rows, columns):
    """cos, sin [N, HEAD_DIM / 2] of the rotary embedding over (frame, row, column)."""
    side = 2 * (HEAD_DIM // 6)
    dims = (HEAD_DIM - 2 * side, side, side)
    grid = np.meshgrid(np.arange(frames), np.arange(rows), np.arange(columns), indexing="ij")
    angles = [axis.reshape(-1, 1) * 10000.0 ** (-2.0 * np.arange(dim // 2) / dim) for axis, dim in zip(grid, dims)]
    angles = np.concatenate(angles, 1)
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


def dit(p, x, timestep, rows, offsets):
    """Velocity [B, N, 4Z] in proj_out's order (dy, dx, c) from tokens [B, N, 4Z] in the patch's order (c, dy, dx)."""
    def linear(name, value):
        return value @ p[name + ".weight"].T + p[name + ".bias"]

    def layer_norm(value):
        value = value - value.mean(-1, keepdims=True)
        return value * jax.lax.rsqrt(jnp.mean(value**2, -1, keepdims=True) + 1e-6)

    def rms_norm(name, value):
        return value * jax.lax.rsqrt(jnp.mean(value**2, -1, keepdims=True) + 1e-6) * p[name + ".weight"]

    def heads(value):
        return value.reshape(*value.shape[:2], HEADS, HEAD_DIM).transpose(0, 2, 1, 3)

    def attend(name, value, source, rotate, offset):
        q = heads(rms_norm(name + "norm_q", linear(name + "to_q", value)))
        k = heads(rms_norm(name + "norm_k", linear(name + "to_k", source)))
        v = heads(linear(name + "to_v", source))
        scores = rotate(q) @ rotate(k).transpose(0, 1, 3, 2) / np.sqrt(HEAD_DIM) + offset
        out = jax.nn.softmax(scores, -1) @ v
        return linear(name + "to_out.0", out.transpose(0, 2, 1, 3).reshape(value.shape))

    cos, sin = rope_tables(1 + (FRAMES - 1) // 4, SIZE // 16, SIZE // 16)

    def rotate(value):
        even, odd = value[..., ::2], value[..., 1::2]
        return jnp.stack([even * cos - odd * sin, even * sin + odd * cos], -1).reshape(value.shape)

    half = FREQ_DIM // 2
    angles = timestep[:, None] * np.exp(-np.log(10000.0) * np.arange(half) / half).astype(np.float32)
    sinusoid = jnp.concatenate([jnp.cos(angles), jnp.sin(angles)], -1)
    name = "condition_embedder."
    temb = linear(name + "time_embedder.linear_2", jax.nn.silu(linear(name + "time_embedder.linear_1", sinusoid)))
    modulation = linear(name + "time_proj", jax.nn.silu(temb)).reshape(-1, 6, WIDTH)
    text = linear(name + "text_embedder.linear_2", jax.nn.gelu(linear(name + "text_embedder.linear_1", rows), approximate=True))
    x = linear("patch_embedding", x)
    for i in range(LAYERS):
        block = f"blocks.{i}."
        m = (p[block + "scale_shift_table"] + modulation)[:, :, None]
        h = layer_norm(x) * (1 + m[:, 1]) + m[:, 0]
        x = x + attend(block + "attn1.", h, h, rotate, 0.0) * m[:, 2]
        h = layer_norm(x) * p[block + "norm2.weight"] + p[block + "norm2.bias"]
        x = x + attend(block + "attn2.", h, text, lambda value: value, offsets[:, None, None, :])
        h = layer_norm(x) * (1 + m[:, 4]) + m[:, 3]
        h = linear(block + "ffn.net.2", jax.nn.gelu(linear(block + "ffn.net.0.proj", h), approximate=True))
        x = x + h * m[:, 5]
    shift, scale = ((p["scale_shift_table"][:, j] + temb)[:, None] for j in (0, 1))
    return linear("proj_out", layer_norm(x) * (1 + scale) + shift)


def tokens_of(latents, channel_first):
    """[B, Z, F, H, W] -> [B, N, 4Z] with the patch as (c, dy, dx) or (dy, dx, c)."""
    b, c, f, h, w = latents.shape
    x = latents.reshape(b, c, f, h // 2, 2, w // 2, 2)
    x = x.transpose(0, 2, 3, 5, 1, 4, 6) if channel_first else x.transpose(0, 2, 3, 5, 4, 6, 1)
    return x.reshape(b, f * (h // 2) * (w // 2), 4 * c)


def dit_loss(p, latents, rows, offsets, key):
    keys = jax.random.split(key, 2)
    u = jax.random.uniform(keys[0], (latents.shape[0],), minval=0.002, maxval=1.0)
    sigma = FLOW_SHIFT * u / (1 + (FLOW_SHIFT - 1) * u)
    noise = jax.random.normal(keys[1], latents.shape)
    s = sigma[:, None, None, None, None]
    velocity = dit(p, tokens_of((1 - s) * latents + s * noise, True), 1000.0 * sigma, rows, offsets)
    return jnp.mean((velocity - tokens_of(noise - latents, False)) ** 2)


# --- training loops ---------------------------------------------------------------------------------------------------


def save(path, tree):
    flat = {"/".join(str(k.key) for k in keys): np.asarray(v) for keys, v in jax.tree_util.tree_flatten_with_path(tree)[0]}
    save_file(flat, str(path))


def load(path):
    tree = {}
    for name, value in load_file(str(path)).items():
        *parents, leaf = name.split("/")
        functools.reduce(lambda node, key: node.setdefault(key, {}), parents, tree)[leaf] = value
    return tree


class Trainer:
    """Adam, or Muon for the matrices that `is_matrix` names (https://kellerjordan.github.io/posts/muon), with updates of
    Adam's size. The rate warms up over 50 steps and falls to nothing as the minutes run out; keeps an average (EMA).
    """

    def __init__(self, params, loss, rate, decay, has_aux, is_matrix=lambda name: False):
        def dimensions(tree):
            return {name: optax.contrib.MuonDimensionNumbers() if is_matrix(name) else None for name in tree}

        self.rule = optax.chain(optax.clip_by_global_norm(1.0), optax.contrib.muon(
            1.0, adam_b2=0.99, weight_decay=1e-4, adam_weight_decay=1e-4, consistent_rms=0.2,
            muon_weight_dimension_numbers=dimensions))
        self.params, self.average, self.state = params, params, self.rule.init(params)
        self.rate, self.decay, self.steps = rate, decay, 0

        def step(params, average, state, rate, decay, *batch):
            value, gradient = jax.value_and_grad(loss, has_aux=has_aux)(params, *batch)
            update, state = self.rule.update(gradient, state, params)
            params = jax.tree.map(lambda a, b: a + rate * b, params, update)
            return params, jax.tree.map(lambda a, b: decay * a + (1 - decay) * b, average, params), state, value

        self.step = jax.jit(step, donate_argnums=(1, 2))

    def run(self, batch, fraction):
        rate = self.rate * min(1.0, (self.steps + 1) / 50) * (0.02 + 0.98 * 0.5 * (1 + np.cos(np.pi * min(1.0, fraction))))
        decay = min(self.decay, (1 + self.steps) / (10 + self.steps))
        self.params, self.average, self.state, value = self.step(self.params, self.average, self.state,
                                                                 np.float32(rate), np.float32(decay), *batch)
        self.steps += 1
        return value


def train(options, params, loss, batch, rate, decay, name, has_aux, fixed=(), is_matrix=lambda name: False):
    """`fixed` are parameters to save as they were, whatever the weight decay did to them."""
    keep = {key: params[key] for key in fixed}
    average = jax.tree.map(jnp.array, params)
    trainer = Trainer(jax.tree.map(jnp.array, params), loss, rate, decay, has_aux, is_matrix)
    trainer.average = average
    begin = saved = None
    seen = []
    while True:
        now = time.time()
        if begin is not None and now - begin > 60 * options.minutes:
            break
        value = trainer.run(batch(trainer.steps), 0.0 if begin is None else (now - begin) / (60 * options.minutes))
        seen.append(np.array(value[1] if has_aux else value))
        if begin is None:  # compiling does not count
            begin = saved = time.time()
        if trainer.steps % 50 == 0:
            print(f"{name} step {trainer.steps} {time.time() - begin:.0f} s: {np.mean(seen[-50:]):.5f}", flush=True)
        if time.time() - saved > 60:
            saved = time.time()
            save(options.work / f"{name}.safetensors", {**trainer.average, **keep})
    save(options.work / f"{name}.safetensors", {**trainer.average, **keep})
    print(f"{name}: {trainer.steps} steps, last 200: {np.mean(seen[-200:]):.5f}")


def train_vae(options):
    random = np.random.default_rng(options.seed)
    scenes = [scene for scene, _ in captions()]
    file = options.work / "vae.safetensors"
    params = load(file) if options.go_on else {**make_encoder(random), **make_decoder(random)}
    key, count = jax.random.key(options.seed), options.batch or 2
    train(options, params, decoder_loss if options.decoder_only else vae_loss,
          lambda i: (vae_batch(random, scenes, count), jax.random.fold_in(key, i)), options.rate or 4e-3, 0.99, "vae", True,
          [name for name in params if options.decoder_only and name.startswith("encoder.")])


def make_latents(options):
    random = np.random.default_rng(options.seed + 3)
    params, everything = load(options.work / "vae.safetensors"), captions()
    run = jax.jit(lambda p, clip: encode(p, clip).transpose(1, 0, 2, 3, 4))
    latents, which, begin = [], [], time.time()
    while time.time() - begin < 60 * options.minutes and len(which) < options.clips:
        chosen = [(len(which) + i) * 7 % len(everything) for i in range(8)]  # 7: all captions come round
        clips = np.stack([render(everything[i][0], random) for i in chosen], 1)
        latents.append(np.asarray(run(params, clips)))
        which += chosen
    latents = np.concatenate(latents)
    mean, std = latents.mean((0, 2, 3, 4)), latents.std((0, 2, 3, 4))
    print(f"{len(which)} clips; std of the channels {np.round(std, 3)}")
    std = np.maximum(std, 0.4 * std.max())  # channels that say little stay small
    latents = (latents - mean[:, None, None, None]) / std[:, None, None, None]
    save(options.work / "latents.safetensors",
         {"latents": latents, "caption": np.array(which, np.int32), "mean": mean, "std": std})


def train_dit(options):
    data, everything = load(options.work / "latents.safetensors"), captions()
    rows, offsets = text_rows(make_text_encoder(options.seed), [text for _, text in everything] + [""])
    random, key = np.random.default_rng(options.seed + 4), jax.random.key(options.seed + 4)
    empty, count = len(everything), len(data["caption"])

    def batch(step):
        chosen = random.integers(0, count, options.batch or 24)
        caption = np.where(random.random(len(chosen)) < 0.12, empty, data["caption"][chosen])  # for guidance
        return data["latents"][chosen], rows[caption], offsets[caption], jax.random.fold_in(key, step)

    file = options.work / "dit.safetensors"
    params = load(file) if options.go_on else make_dit(options.seed)
    train(options, params, dit_loss, batch, options.rate or 3e-3, 0.998, "dit", False,
          is_matrix=lambda name: name.startswith("blocks.") and params[name].ndim == 2)


# --- the checkpoint ----------------------------------------------------------------------------------------------------


def bf16(value):
    return np.asarray(jnp.asarray(value, jnp.bfloat16))


def vae_tensors(params):
    tensors = {}

    def conv(name, p):
        w = p["w"]
        is_plane, is_time = ".resample.1" in name, ".time_conv" in name
        if is_plane:
            w = w[:, :, 0]
        elif not is_time and not name.endswith("conv_shortcut"):
            kt, kh, kw = w.shape[2:]
            whole = np.zeros((*w.shape[:2], 3, 3, 3), np.float32)
            rows, columns = (slice(None) if k == 3 else slice(1, 2) for k in (kh, kw))
            whole[:, :, 3 - kt:, rows, columns] = w
            w = whole
        tensors[name + ".weight"], tensors[name + ".bias"] = w, p["b"]

    def norm(name, gamma):
        tensors[name + ".gamma"] = gamma.reshape(-1, 1, 1, 1)

    for name, p in params.items():
        if not isinstance(p, dict):
            norm(name, p)
        elif "w" in p:
            conv(name, p)
        else:
            for part, value in p.items():
                (conv if isinstance(value, dict) else norm)(f"{name}.{part}", value)
    # The half of conv_out that would be log-variances, the point convolutions (identity) and the attention (off).
    for part in ("weight", "bias"):
        means = tensors[f"encoder.conv_out.{part}"]
        tensors[f"encoder.conv_out.{part}"] = np.concatenate([means, np.zeros_like(means)])
    for name, size in (("quant_conv", 2 * Z), ("post_quant_conv", Z)):
        tensors[name + ".weight"] = np.eye(size, dtype=np.float32).reshape(size, size, 1, 1, 1)
        tensors[name + ".bias"] = np.zeros(size, np.float32)
    for coder, dim in (("encoder", ENCODER_DIM), ("decoder", DECODER_DIM)):
        c, name = dim * DIM_MULT[-1], f"{coder}.mid_block.attentions.0"
        tensors[name + ".norm.gamma"] = np.ones((c, 1, 1), np.float32)
        for part, out in (("to_qkv", 3 * c), ("proj", c)):
            tensors[f"{name}.{part}.weight"] = np.zeros((out, c, 1, 1), np.float32)
            tensors[f"{name}.{part}.bias"] = np.zeros(out, np.float32)
    return tensors


def tokenizer_files():
    pieces = vocabulary()
    special = [name for name, _ in pieces[:4]] + [name for name, _ in pieces if name.startswith("<extra_id")]
    number = {name: index for index, (name, _) in enumerate(pieces)}
    token = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    metaspace = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always", "split": True}
    ending = [{"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "</s>", "type_id": 0}}]
    yield "tokenizer.json", {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [{"id": number[name], "content": name, **token} for name in special],
        "normalizer": {"type": "Sequence", "normalizers": [{"type": "NFKC"}, {"type": "Lowercase"}]},
        "pre_tokenizer": metaspace,
        "post_processor": {"type": "TemplateProcessing", "single": ending,
                           "pair": ending + [{"Sequence": {"id": "B", "type_id": 0}}, ending[1]],
                           "special_tokens": {"</s>": {"id": "</s>", "ids": [1], "tokens": ["</s>"]}}},
        "decoder": metaspace,
        "model": {"type": "Unigram", "unk_id": 3, "byte_fallback": False, "vocab": [list(piece) for piece in pieces]}}
    names = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
    yield "tokenizer_config.json", {"tokenizer_class": "T5Tokenizer", "model_max_length": 512, **names}
    yield "special_tokens_map.json", names


def export(options):
    out, seed = options.out, options.seed
    vae, latents = load(options.work / "vae.safetensors"), load(options.work / "latents.safetensors")

    def write_json(path, content):
        path = out / path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content, ensure_ascii=False, indent=1 if path.parent.name != "tokenizer" else None) + "\n")

    def write_tensors(path, tensors):
        save_file({name: np.ascontiguousarray(bf16(value)) for name, value in tensors.items()}, str(out / path), {"format": "pt"})
        (out / path).chmod(0o644)

    write_json("model_index.json", {
        "_class_name": "WanPipeline", "_diffusers_version": "0.42.1",
        "scheduler": ["diffusers", "UniPCMultistepScheduler"], "text_encoder": ["transformers", "UMT5EncoderModel"],
        "tokenizer": ["transformers", "T5TokenizerFast"], "transformer": ["diffusers", "WanTransformer3DModel"],
        "vae": ["diffusers", "AutoencoderKLWan"]})
    write_json("scheduler/scheduler_config.json", {
        "_class_name": "UniPCMultistepScheduler", "_diffusers_version": "0.42.1", "flow_shift": FLOW_SHIFT,
        "num_train_timesteps": 1000, "prediction_type": "flow_prediction", "predict_x0": True, "solver_order": 2,
        "solver_type": "bh2", "lower_order_final": True, "final_sigmas_type": "zero", "use_flow_sigmas": True,
        "beta_start": 0.0001, "beta_end": 0.02, "beta_schedule": "linear", "timestep_spacing": "linspace",
        "disable_corrector": []})
    for name, content in tokenizer_files():
        write_json(f"tokenizer/{name}", content)
    write_json("text_encoder/config.json", {
        "architectures": ["UMT5EncoderModel"], "model_type": "umt5", "vocab_size": VOCABULARY, "d_model": TEXT_DIM,
        "d_kv": TEXT_KV, "d_ff": TEXT_FF, "num_layers": TEXT_LAYERS, "num_heads": TEXT_HEADS,
        "relative_attention_num_buckets": 32, "relative_attention_max_distance": 128, "feed_forward_proj": "gated-gelu",
        "is_gated_act": True, "dense_act_fn": "gelu_new", "layer_norm_epsilon": 1e-6, "dropout_rate": 0.1,
        "pad_token_id": 0, "eos_token_id": 1, "dtype": "bfloat16"})
    write_tensors("text_encoder/model.safetensors", make_text_encoder(seed))
    write_json("transformer/config.json", {
        "_class_name": "WanTransformer3DModel", "_diffusers_version": "0.42.1", "patch_size": [1, 2, 2],
        "num_attention_heads": HEADS, "attention_head_dim": HEAD_DIM, "in_channels": Z, "out_channels": Z,
        "text_dim": TEXT_DIM, "freq_dim": FREQ_DIM, "ffn_dim": FFN, "num_layers": LAYERS, "cross_attn_norm": True,
        "qk_norm": "rms_norm_across_heads", "eps": 1e-6, "image_dim": None, "added_kv_proj_dim": None,
        "rope_max_seq_len": 1024, "pos_embed_seq_len": None})
    transformer = load(options.work / "dit.safetensors") if (options.work / "dit.safetensors").exists() else make_dit(seed)
    transformer["patch_embedding.weight"] = transformer["patch_embedding.weight"].reshape(WIDTH, Z, 1, 2, 2)
    write_tensors("transformer/diffusion_pytorch_model.safetensors", transformer)
    write_json("vae/config.json", {
        "_class_name": "AutoencoderKLWan", "_diffusers_version": "0.42.1", "base_dim": ENCODER_DIM,
        "decoder_base_dim": DECODER_DIM, "z_dim": Z, "dim_mult": DIM_MULT, "num_res_blocks": 1, "attn_scales": [],
        "temperal_downsample": TIME_DOWN, "dropout": 0.0, "is_residual": False, "in_channels": 3, "out_channels": 3,
        "patch_size": None, "scale_factor_spatial": 8, "scale_factor_temporal": 4,
        "latents_mean": [round(float(v), 5) for v in latents["mean"]], "latents_std": [round(float(v), 5) for v in latents["std"]]})
    write_tensors("vae/diffusion_pytorch_model.safetensors", vae_tensors(vae))
    print(sum(file.stat().st_size for file in out.rglob("*") if file.is_file()), "bytes in", out)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("part", choices=("vae", "latents", "dit", "export"))
    parser.add_argument("--work", type=pathlib.Path, required=True, help="folder for what one part leaves for the next")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("demo/wan-tiny"))
    parser.add_argument("--minutes", type=float, default=12.0)
    parser.add_argument("--clips", type=int, default=2000, help="latents: size of the training set")
    parser.add_argument("--batch", type=int, help="clips a step (vae: 2, dit: 24)")
    parser.add_argument("--decoder-only", action="store_true", help="vae: keep the encoder as it is")
    parser.add_argument("--rate", type=float, default=None, help="learning rate at the start")
    parser.add_argument("--go-on", action="store_true", help="start from what is saved")
    parser.add_argument("--seed", type=int, default=7)
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    {"vae": train_vae, "latents": make_latents, "dit": train_dit, "export": export}[options.part](options)


if __name__ == "__main__":
    main()
