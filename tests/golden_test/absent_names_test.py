#!/usr/bin/env python3
"""A data set whose cases recorded less than ours: what is there is checked, what is not there is named.

    absent_names_test.py GOLDEN_TEST DATA_SET
"""
import json
import pathlib
import shutil
import struct
import subprocess
import sys
import tempfile


def change(path, edit):
    """`edit(entries)` of a safetensors file, whose data stays as it is."""
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + size])
    body = bytearray(data[8 + size:])
    edit(header, body)
    # Offsets without gaps, as the format wants them.
    packed, at = b"", 0
    for name in sorted((n for n in header if n != "__metadata__"), key=lambda n: header[n]["data_offsets"]):
        begin, end = header[name]["data_offsets"]
        header[name]["data_offsets"] = [at, at + end - begin]
        packed, at = packed + bytes(body[begin:end]), at + end - begin
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + packed)


def run(program, folder):
    result = subprocess.run([program, folder], text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    return result.returncode, result.stdout


def main():
    program, data_set = sys.argv[1], pathlib.Path(sys.argv[2])
    absent = ["encode.conv_in", "decode.conv_in", "in.normalized_latents"]
    with tempfile.TemporaryDirectory(prefix="zoetrope_golden_") as cwd:
        case = pathlib.Path(cwd) / "vae21"
        shutil.copytree(data_set / "vae21", case)
        checkpoint = json.loads((case / "case.json").read_text())["checkpoint"]
        shutil.copytree(data_set / checkpoint, pathlib.Path(cwd) / checkpoint)
        code, whole = run(program, cwd)
        assert code == 0, whole
        checked = whole.count("PASS")

        change(case / "activations.safetensors", lambda header, _: [header.pop(name) for name in absent])
        code, output = run(program, cwd)
        assert code == 0, output
        for name in absent:
            assert f"SKIP vae21 {name} 0 0 not recorded" in output, f"{name} is not named:\n{output}"
        # Those three, and in.z, which is made from the latents.
        assert checked - output.count("PASS") == 3, (checked, output)

        def damage(header, body):
            begin, end = header["encode.mid_block"]["data_offsets"]
            body[begin:end] = bytes(end - begin)
        change(case / "activations.safetensors", damage)
        code, output = run(program, cwd)
        assert code == 1 and "FAIL vae21 encode." in output, output
    print("passed")


if __name__ == "__main__":
    main()
