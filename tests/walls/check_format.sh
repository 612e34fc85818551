#!/bin/sh
# clang-format is applied everywhere. Exit 77 (skipped) where the program is not installed.
command -v clang-format >/dev/null 2>&1 || { echo "clang-format is not installed"; exit 77; }
cd "$1" || exit 1
find include src cli tests bench examples -name '*.h' -o -name '*.cpp' | xargs clang-format --dry-run --Werror
