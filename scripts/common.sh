# Shared by the scripts beside it; sourced, never run.
# shellcheck shell=bash disable=SC2034

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
logs=$root/build/logs
jobs=${JOBS:-$(nproc)}

# Objects compiled in one checkout serve another: paths under the checkout are hashed as relative.
export CCACHE_BASEDIR=${CCACHE_BASEDIR:-$root}
export CCACHE_NOHASHDIR=${CCACHE_NOHASHDIR:-1}

# Progress goes to standard error, so that the output of a program can be piped on.
say() { printf '%s\n' "$*" >&2; }

die() {
  say "$*"
  exit 1
}

# C++ files of the working tree, those not yet added to git included.
list_sources() {
  local file
  git ls-files --cached --others --exclude-standard -- '*.h' '*.cc' | while read -r file; do
    [[ ! -e $file ]] || printf '%s\n' "$file"
  done
}
