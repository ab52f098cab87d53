#!/usr/bin/env bash
# Rewrites the C++ files of the working tree, or those named, as .clang-format says.
set -euo pipefail
source "$(dirname "$0")/common.sh"

cd "$root"
if (($#)); then
  clang-format-14 -i "$@"
else
  list_sources | xargs --no-run-if-empty clang-format-14 -i
fi
