#!/usr/bin/env python3
"""tools/bits.py notices other bits, a run that is missing and a run that is new.

    bits_test.py PROGRAM NAME    runs one test
    bits_test.py --list          the names
"""
import json
import pathlib
import sys

sys.dont_write_bytecode = True
import harness  # noqa: E402
from harness import run, run_script  # noqa: E402

TOOL = pathlib.Path(__file__).resolve().parent.parent.parent / "tools/bits.py"
PROGRAM = None
TESTS = {}


def test(function):
    TESTS[function.__name__] = function
    return function


def use(program):
    global PROGRAM
    PROGRAM = program
    harness.use(program, None)


def bits(cwd, command, record, only):
    return run([sys.executable, TOOL, command, PROGRAM, record, "--only", only], cwd)


@test
def other_bits_are_noticed(cwd):
    record = pathlib.Path(cwd) / "record.json"
    made = bits(cwd, "record", record, "guidance/off")
    assert made.returncode == 0, made.stderr
    again = bits(cwd, "compare", record, "guidance/off")
    assert again.returncode == 0 and "1 runs compared, 0 differ" in again.stdout, again.stdout + again.stderr

    hashes = json.loads(record.read_text())
    hashes["guidance/off"]["frames"] = "0" * 64
    record.write_text(json.dumps(hashes))
    changed = bits(cwd, "compare", record, "guidance/off")
    assert changed.returncode == 1 and "guidance/off: other bits in frames\n" in changed.stdout, changed.stdout


@test
def other_weights_have_other_bits(cwd):
    record = pathlib.Path(cwd) / "record.json"
    made = bits(cwd, "record", record, "lora/")
    assert made.returncode == 0, made.stderr
    hashes = json.loads(record.read_text())
    values = [value for run_hashes in hashes.values() for value in run_hashes.values()]
    assert len(hashes) == 6 and len(set(values)) == 12, hashes


@test
def a_run_that_is_not_in_the_record_is_named(cwd):
    record = pathlib.Path(cwd) / "record.json"
    record.write_text("{}")
    compared = bits(cwd, "compare", record, "guidance/off")
    assert compared.returncode == 1 and "guidance/off: not in the record\n" in compared.stdout, compared.stdout


@test
def a_record_that_is_missing_is_named(cwd):
    compared = bits(cwd, "compare", "none.json", "guidance/off")
    assert compared.returncode == 1 and "none.json does not exist" in compared.stderr, compared.stderr
    named = bits(cwd, "record", "r.json", "no such run")
    assert named.returncode == 1 and "no run has 'no such run' in its name" in named.stderr, named.stderr


if __name__ == "__main__":
    sys.exit(run_script(TESTS, use))
