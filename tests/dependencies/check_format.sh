#!/bin/sh
# clang-format is applied everywhere. A check for developers: exit 77 (skipped) where the program is not installed.
command -v clang-format >/dev/null 2>&1 || {
  echo "skipped: clang-format is not installed; only developers, who change the code, need this check"
  exit 77
}
cd "$1" || exit 1
find include src cli server python tests bench problems examples -name '*.h' -o -name '*.cpp' | xargs clang-format --dry-run --Werror
