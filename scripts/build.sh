#!/usr/bin/env bash
# Configures a preset where that is needed and builds targets of it, with few words.
#
#   scripts/build.sh PRESET [TARGET...]         all targets by default
#   scripts/build.sh --configure-only PRESET
#
# BUILD_DIR and CONFIGURE_ARGS change the folder (build/PRESET) and the cache variables.
# The compiler's output goes to build/logs/build-NAME.log and is shown when something fails.
set -euo pipefail
source "$(dirname "$0")/common.sh"

configure_only=0
if [[ ${1:-} == --configure-only ]]; then
  configure_only=1
  shift
fi
(($#)) || die "usage: scripts/build.sh [--configure-only] PRESET [TARGET...]"
preset=$1
shift
folder=${BUILD_DIR:-$root/build/$preset}
name=${folder##*/}
log=$logs/build-$name.log
mkdir -p "$logs"
cd "$root"

# Ninja follows every CMakeLists.txt by itself; presets and arguments it does not know of.
configure() {
  local stamp=$folder/.configured wanted
  wanted="preset $preset: ${CONFIGURE_ARGS:-}"
  if [[ -e $folder/build.ninja && $stamp -nt CMakePresets.json && $(<"$stamp") == "$wanted" ]]; then
    return
  fi
  say "$name: configuring"
  # shellcheck disable=SC2086  # a list of arguments
  if ! cmake --preset "$preset" -B "$folder" ${CONFIGURE_ARGS:-} >"$log" 2>&1; then
    tail -n 40 "$log" >&2
    die "$name: configuring failed; the log is ${log#"$root"/}"
  fi
  printf '%s\n' "$wanted" >"$stamp"
}

# Turns ninja's line per step into about ten lines per build.
show_progress() {
  awk -v name="$name" '
    match($0, /^\[[0-9]+\/[0-9]+\]/) {
      split(substr($0, 2, RLENGTH - 2), step, "/")
      if (step[2] - step[1] >= 0 && step[1] * 10 >= shown * step[2] && step[2] > 4) {
        printf "%s: %d of %d steps\n", name, step[1], step[2] > "/dev/stderr"
        shown = int(step[1] * 10 / step[2]) + 1
      }
    }
    { print }' shown=1
}

build() {
  local command=(cmake --build "$folder" -j "$jobs" ${1:+--target "$@"})
  if [[ ${KEEP_GOING:-0} == 1 ]]; then command+=(-- -k 0); fi
  if [[ -t 2 ]]; then
    # A terminal gets ninja's own line, which it rewrites in place.
    "${command[@]}" >&2 && return
    die "$name: the build failed"
  fi
  # `dumb` keeps ninja from rewriting lines in a log.
  if TERM=dumb "${command[@]}" 2>&1 | show_progress >"$log"; then return; fi
  # The first failure matters; later ones often follow from it.
  if grep -qE '^FAILED:|error:' "$log"; then
    grep -nE -A 10 '^FAILED:|error:' "$log" | cut -c 1-200 | head -n 40 >&2 || true
  else
    tail -n 40 "$log" >&2
  fi
  die "$name: the build failed; the log is ${log#"$root"/}"
}

configure
if ((!configure_only)); then build "$@"; fi
