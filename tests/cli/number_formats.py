"""Number formats of weight files in plain Python, after docs/spec/weights.md alone: what the codes of given values are,
and what values given codes have. For comparing with the program bit by bit. Has no test of its own.
"""
import bisect
import math
import struct


def f32(x):
    return struct.unpack("<f", struct.pack("<f", x))[0]


def f32_bytes(values):
    return struct.pack(f"<{len(values)}f", *values)


def bf16_bits(x):
    bits = struct.unpack("<I", struct.pack("<f", x))[0]
    return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16


def small_floats(exponent_bits, mantissa_bits, last):
    """Values of the codes 0 to `last`."""
    bias = 2 ** (exponent_bits - 1) - 1
    values = []
    for code in range(last + 1):
        e, m = code >> mantissa_bits, code & (2 ** mantissa_bits - 1)
        whole = m if e == 0 else m + 2 ** mantissa_bits
        values.append(math.ldexp(whole, max(e, 1) - bias - mantissa_bits))
    return values


SMALL = {"F8_E4M3": small_floats(4, 3, 0x7E), "F8_E5M2": small_floats(5, 2, 0x7B), "E2M1": small_floats(2, 1, 7)}


def small_code(kind, x):
    """The nearest, of two the even one."""
    table, magnitude = SMALL[kind], abs(x)
    if magnitude >= table[-1]:
        code = len(table) - 1
    else:
        code = bisect.bisect_right(table, magnitude) - 1
        low, high = magnitude - table[code], table[code + 1] - magnitude
        code += high < low or (high == low and code % 2 == 1)
    return code | (0x80 if math.copysign(1, x) < 0 else 0)


def small_value(kind, code):
    value = SMALL[kind][code & 0x7F]
    return -value if code & 0x80 else value


# ---- plain types ----

def plain_values(dtype, data):
    if dtype == "BF16":
        return [struct.unpack("<f", struct.pack("<I", bits << 16))[0] for bits in struct.unpack(f"<{len(data) // 2}H", data)]
    size, letter = {"F32": (4, "f"), "F16": (2, "e")}[dtype]
    return list(struct.unpack(f"<{len(data) // size}{letter}", data))


def plain_bytes(dtype, values):
    if dtype == "BF16":
        return struct.pack(f"<{len(values)}H", *map(bf16_bits, values))
    return struct.pack(f"<{len(values)}{dict(F32='f', F16='e')[dtype]}", *values)


# ---- one scale for the tensor ----

def scaled_codes(kind, values):
    """(scale, bytes of codes)"""
    largest = max(map(abs, values))
    if kind == "I8":
        scale = max(f32(largest / 127), f32(1e-30))
        return scale, struct.pack(f"{len(values)}b", *(max(-127, min(127, round(f32(x / scale)))) for x in values))
    scale = f32(largest / SMALL[kind][-1]) or 1.0
    return scale, bytes(small_code(kind, f32(x / scale)) for x in values)


def scaled_values(kind, scale, data):
    if kind == "I8":
        return [f32(code * scale) for code in struct.unpack(f"{len(data)}b", data)]
    return [f32(small_value(kind, code) * scale) for code in data]


# ---- int8 with ConvRot ----

FOUR = ((1, 1, 1, -1), (1, 1, -1, 1), (1, -1, 1, 1), (-1, 1, 1, 1))


def convrot_sign(i, j, group):
    """Of the Kronecker power of FOUR, an element."""
    sign = 1
    while group > 1:
        sign *= FOUR[i % 4][j % 4]
        i, j, group = i // 4, j // 4, group // 4
    return sign


def convrot_group(columns):
    return next(group for group in (256, 64, 16, 4) if columns % group == 0)


def convrot_sums(values, group):
    """Each group times the matrix, which is symmetric."""
    signs = [[convrot_sign(i, j, group) for j in range(group)] for i in range(group)]
    return [math.fsum(values[at + i] * signs[i][j] for i in range(group))
            for at in range(0, len(values), group) for j in range(group)]


def convrot_codes(row):
    """(scale, bytes of codes) of a row"""
    group = convrot_group(len(row))
    return scaled_codes("I8", [f32(x / math.isqrt(group)) for x in convrot_sums(row, group)])


def convrot_values(scale, data):
    group = convrot_group(len(data))
    return [f32(x / math.isqrt(group) * scale) for x in convrot_sums(struct.unpack(f"{len(data)}b", data), group)]


# ---- mxfp8 ----

def mx_place(row, run, runs):
    tiles = -(-runs // 4)
    return (row // 128 * tiles + run // 4) * 512 + row % 32 * 16 + row % 128 // 32 * 4 + run % 4


def mx_codes(values, rows, columns):
    """(bytes of scales, bytes of codes)"""
    runs = columns // 32
    scales, codes = bytearray(-(-rows // 128) * 128 * -(-runs // 4) * 4), bytearray()
    for block in range(rows * runs):
        run = values[32 * block:32 * block + 32]
        largest, exponent = max(map(abs, run)), 0
        if largest > 0:
            exponent = 1
            while math.ldexp(1, exponent - 127) < f32(largest / 448):
                exponent += 1
        scales[mx_place(block // runs, block % runs, runs)] = exponent
        codes += bytes(small_code("F8_E4M3", x / math.ldexp(1, exponent - 127)) if exponent else 0 for x in run)
    return bytes(scales), bytes(codes)


def mx_values(scales, codes, columns):
    runs, values = columns // 32, []
    for i, code in enumerate(codes):
        exponent = scales[mx_place(i // columns, i % columns // 32, runs)]
        values.append(small_value("F8_E4M3", code) * (math.ldexp(1, exponent - 127) if exponent else 0.0))
    return values


# ---- nvfp4 ----

def nv_codes(values, rows, columns):
    """(scale of scales, bytes of scales, bytes of codes)"""
    runs, second = columns // 16, f32(max(map(abs, values)) / 2688)
    scales, codes = bytearray(-(-rows // 128) * 128 * -(-runs // 4) * 4), bytearray()
    for block in range(rows * runs):
        run = values[16 * block:16 * block + 16]
        stored = small_code("F8_E4M3", f32(f32(max(map(abs, run)) / 6) / second))
        scales[mx_place(block // runs, block % runs, runs)] = stored
        scale = f32(small_value("F8_E4M3", stored) * second)
        halves = [small_code("E2M1", f32(x / scale)) if scale else 0 for x in run]
        halves = [half & 7 | half >> 4 & 8 for half in halves]
        codes += bytes(high << 4 | low for high, low in zip(halves[::2], halves[1::2]))
    return second, bytes(scales), bytes(codes)


def nv_values(second, scales, codes, columns):
    runs, values = columns // 16, []
    for i, code in enumerate(codes):
        row, column = 2 * i // columns, 2 * i % columns
        scale = f32(small_value("F8_E4M3", scales[mx_place(row, column // 16, runs)]) * second)
        for half in (code >> 4, code & 15):
            values.append(f32(SMALL["E2M1"][half & 7] * (-1.0 if half & 8 else 1.0) * scale))
    return values


# ---- ggml's blocks of 32 ----

BLOCK_BYTES = {"Q4_0": 18, "Q4_1": 20, "Q5_0": 22, "Q5_1": 24, "Q8_0": 34}


def inverse_of(d):
    """Zero where it is no finite float32."""
    return f32(1 / d) if abs(d) > 2.0 ** -128 else 0.0


def nibbles(codes):
    return bytes(codes[i] & 15 | (codes[i + 16] & 15) << 4 for i in range(16))


def fifth_bits(codes):
    return struct.pack("<I", sum((code >> 4 & 1) << i for i, code in enumerate(codes)))


def block(kind, x):
    if kind == "Q8_0":
        d = f32(max(map(abs, x)) / 127)
        inverse = inverse_of(d)
        codes = [math.floor(abs(f32(v * inverse)) + 0.5) * (-1 if v < 0 else 1) for v in x]
        return struct.pack("<e32b", d, *codes)
    bits = int(kind[1])
    if kind.endswith("_0"):
        largest = next(v for v in x if abs(v) == max(map(abs, x)))
        d = f32(largest / -(2 ** (bits - 1)))
        inverse = inverse_of(d)
        codes = [min(int(f32(f32(v * inverse) + 2 ** (bits - 1) + 0.5)), 2 ** bits - 1) for v in x]
        head = struct.pack("<e", d)
    else:
        least = min(x)
        d = f32(f32(max(x) - least) / (2 ** bits - 1))
        inverse = inverse_of(d)
        codes = [min(int(f32(f32(f32(v - least) * inverse) + 0.5)), 2 ** bits - 1) for v in x]
        head = struct.pack("<ee", d, least)
    return head + (fifth_bits(codes) if bits == 5 else b"") + nibbles(codes)


def block_codes(kind, values):
    return b"".join(block(kind, values[i:i + 32]) for i in range(0, len(values), 32))


def block_values(kind, data):
    values, size = [], BLOCK_BYTES[kind]
    for at in range(0, len(data), size):
        part = data[at:at + size]
        d = struct.unpack("<e", part[:2])[0]
        if kind == "Q8_0":
            values += [f32(d * q) for q in struct.unpack("32b", part[2:])]
            continue
        offset = 4 if kind.endswith("_1") else 2
        least = struct.unpack("<e", part[2:4])[0] if offset == 4 else None
        high = 0
        if kind[1] == "5":
            high = struct.unpack("<I", part[offset:offset + 4])[0]
            offset += 4
        for e in range(32):
            q = (part[offset + e % 16] >> (4 if e >= 16 else 0) & 15) + 16 * (high >> e & 1)
            centre = 2 ** (int(kind[1]) - 1)
            values.append(f32(d * q + least) if least is not None else f32(d * (q - centre)))
    return values


# ---- files ----

GGUF_TYPES = {0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0", 14: "Q6_K", 30: "BF16"}
ELEMENT_BYTES = {"F32": 4, "F16": 2, "BF16": 2}


def read_gguf(path):
    """(metadata without lists, {name: (type, shape, bytes)})"""
    data, at = path.read_bytes(), 4
    assert data[:4] == b"GGUF"

    def take(letter):
        nonlocal at
        value = struct.unpack_from("<" + letter, data, at)[0]
        at += struct.calcsize("<" + letter)
        return value

    def text():
        nonlocal at
        length = take("Q")
        at += length
        return data[at - length:at].decode()

    letters = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
    assert take("I") == 3
    count, entries = take("Q"), take("Q")
    metadata, infos = {}, []
    for _ in range(entries):
        key, kind = text(), take("I")
        if kind == 9:
            element, length = take("I"), take("Q")
            for _ in range(length):
                text() if element == 8 else take(letters[element])
            continue
        metadata[key] = text() if kind == 8 else take(letters[kind])
    for _ in range(count):
        name = text()
        shape = [take("Q") for _ in range(take("I"))][::-1]
        infos.append((name, shape, GGUF_TYPES[take("I")], take("Q")))
    start, tensors = -(-at // 32) * 32, {}
    for name, shape, kind, offset in infos:
        elements = math.prod(shape)
        size = elements * ELEMENT_BYTES[kind] if kind in ELEMENT_BYTES else elements // 32 * BLOCK_BYTES[kind]
        assert offset % 32 == 0
        tensors[name] = (kind, shape, data[start + offset:start + offset + size])
    return metadata, tensors
