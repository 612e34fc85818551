#!/usr/bin/env python3
"""Runs tests of the Python package with pytest: run_tests.py [--needs MODULE]… FILE…

Exits 77, which ctest shows as skipped, where a module that the tests need is not installed, and says which.
"""
import importlib.util
import sys

SKIPPED = 77


def main(words):
    needed = ["pytest"]
    while words[:1] == ["--needs"]:
        needed.append(words[1])
        words = words[2:]
    for name in needed:
        if importlib.util.find_spec(name) is None:
            print(f"skipped: {name} is not installed for {sys.executable}; docs/python.md says how to run these tests")
            return SKIPPED
    import pytest

    return pytest.main(["-q", "-p", "no:cacheprovider", "--durations=5", *words])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
