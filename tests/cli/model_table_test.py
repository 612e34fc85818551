#!/usr/bin/env python3
"""The tool that makes the tables of README.md, on the smallest model.

    model_table_test.py PROGRAM NAME    runs one test
    model_table_test.py --list          the names
"""
import pathlib
import re
import sys

sys.dont_write_bytecode = True
import harness  # noqa: E402
from harness import run_script  # noqa: E402

TOOLS = pathlib.Path(__file__).resolve().parents[2] / "tools"
sys.path.insert(0, str(TOOLS))
import model_table  # noqa: E402
import sparse_model  # noqa: E402

NAME, PARAMETERS = "wan2.1_t2v_1.3b", 1418996800
TESTS = {}


def test(function):
    TESTS[function.__name__] = function
    return function


@test
def a_row_of_each_table(cwd):
    result = harness.run([sys.executable, TOOLS / "model_table.py", harness.PROGRAM, NAME], cwd)
    assert result.returncode == 0, result.stderr
    runs, memory = result.stdout.split("\n\n")
    assert re.search(r"text to video 1.3B \| 832 x 480, 81 frames \| .* \| 29 \| [0-9.]+ \| [0-9.]+ \|$", runs), runs
    formats = "bf16 2.8 GB, fp8 1.4 GB, Q8_0 1.5 GB, Q4_K_M 1.0 GB"
    assert re.search(rf"text to video 1.3B \| {formats}( \| all){{4}} \| 0\.[0-9]+ \|$", memory.rstrip()), memory


@test
def what_stays_in_less_memory(cwd):
    files = model_table.Files(harness.PROGRAM, NAME, cwd)
    peak, weights = model_table.peak_and_weights(files.inspect(*files.of("bf16"), "weights_in_memory=bf16"))
    assert abs(weights - 2.84) < 0.01, weights
    for format in sparse_model.FORMATS:
        words = files.of(format)
        # Every tensor is there; scales of fp8 do not count.
        text = files.inspect(*words, "memory_limit=0.5")
        parameters = int(re.search(r"transformer .* ([0-9]+) parameters", text)[1])
        assert parameters == PARAMETERS, text
        assert files.path.stat().st_blocks * 512 < 4e6, format  # a hole
        if format == "bf16":
            continue
        # The file, and three blocks of 30.
        as_stored = model_table.peak_and_weights(files.inspect(*words, "weights_in_memory=as_stored"))[0]
        expected = peak - weights + files.path.stat().st_size * 1e-9
        assert 0.05 * weights < as_stored - expected < 0.25 * weights, (format, as_stored, expected)
        # And as `generate` says it, where it has too little.
        said = harness.run([harness.PROGRAM, "generate", f"model={NAME}", *words, *files.words, "prompt=x", "output=none.mp4",
                            "hardware=cpu", "memory_limit=0.5", "weights_in_memory=as_stored"], cwd).stderr
        needs = re.search(r"this run needs ([0-9.]+) GB", said)
        assert needs and abs(float(needs[1]) - as_stored) < 0.03 * as_stored, (said, as_stored)
    assert files.path.name == "Q4_K_M.gguf"
    model_table.MACHINES = (2, 3.1, as_stored + 1.01, peak + 1.01)
    none, part, file, everything = files.cells("Q4_K_M")
    assert none == "—" or none.endswith(" frames"), none
    assert re.fullmatch(r"[01]\.[0-9] of 2\.8 GB", part), part
    assert (file, everything) == ("file", "all"), (file, everything)


@test
def one_file_is_inspected_without_the_others(cwd):
    """They count as published."""
    words = [word for word in model_table.Files(harness.PROGRAM, NAME, cwd).of("fp8") if word.startswith("transformer=")]
    result = harness.run([harness.PROGRAM, "inspect", NAME, *words], cwd)
    assert result.returncode in (0, 1) and "Memory for 832 x 480" in result.stdout, result.stderr
    assert re.search(r"text_encoder +242 tensors, [0-9]+ parameters, 22.724 GB in F32\n", result.stdout), result.stdout
    assert re.search(r"transformer .* tensors in \S+safetensors \(.*F8_E4M3\)", result.stdout), result.stdout


if __name__ == "__main__":
    sys.exit(run_script(TESTS, harness.use))
