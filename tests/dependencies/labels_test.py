#!/usr/bin/env python3
"""Every ctest has exactly one of the labels that `./run test quick` and ctest -L choose by (cmake/ZoetropeModule.cmake).

    labels_test.py BUILD_FOLDER
"""
import collections
import json
import subprocess
import sys

LABELS = {"unit", "parity", "ranks", "cli", "server", "python", "slow"}
MAY_BE_ABSENT = {"python"}  # where nanobind is not installed

listed = subprocess.run(["ctest", "--show-only=json-v1"], cwd=sys.argv[1], check=True, stdout=subprocess.PIPE)
count = collections.Counter()
wrong = []
for test in json.loads(listed.stdout)["tests"]:
    labels = next((p["value"] for p in test.get("properties", []) if p["name"] == "LABELS"), [])
    if len(labels) == 1 and labels[0] in LABELS:
        count[labels[0]] += 1
    else:
        wrong.append(f"{test['name']}: labels {labels}")
print("\n".join(wrong) or ", ".join(f"{n} {label}" for label, n in sorted(count.items())))
sys.exit(1 if wrong or set(count) | MAY_BE_ABSENT != LABELS else 0)
