#!/usr/bin/env bash
# Installs the Debian packages that a build or the gate needs, and nothing when all are there.
#
#   scripts/setup.sh build    what `make run` and `make build` need (default)
#   scripts/setup.sh test     that, and what `make test` needs
#   scripts/setup.sh list SET prints the names, one a line
#
# With everything in place it costs one dpkg-query. SLACKWATER_SKIP_SETUP=1 skips it, for systems
# that get their packages another way.
set -euo pipefail
source "$(dirname "$0")/common.sh"

# The unit test library is here because one configuration of build/release serves `make run`,
# which builds the program only, and `make build`, which builds the tests too.
build_packages=(
  ca-certificates cmake g++-12 git make ninja-build pkgconf python3
  libcli11-dev libexpected-dev libfmt-dev libgmock-dev libgtest-dev libhwy-dev libpcre2-dev
  libspdlog-dev libssl-dev liburing-dev libxxhash-dev nlohmann-json3-dev prometheus-cpp-dev
  robin-map-dev
)
test_packages=(clang-22 clang-format-14 libbenchmark-dev libclang-rt-22-dev)
# Faster with them, complete without them.
optional_packages=(ccache mold)

unknown_package='Unable to locate package|has no installation candidate'

# Prints those of the arguments that are not installed.
missing_of() {
  local installed
  installed=$(dpkg-query -W -f='${Package} ${db:Status-Status}\n' "$@" 2>/dev/null || true)
  local name
  for name in "$@"; do
    [[ $'\n'$installed$'\n' == *$'\n'"$name installed"$'\n'* ]] || printf '%s\n' "$name"
  done
}

# Runs a command as root: directly, or through sudo where that can work.
as_root() {
  if ((EUID == 0)); then
    "$@"
  else
    sudo "$@"
  fi
}

# Root, or sudo that asks for no password.
is_root_without_asking() {
  ((EUID == 0)) || sudo -n true 2>/dev/null
}

require_root() {
  is_root_without_asking && return
  if ! command -v sudo >/dev/null; then
    say "setup: not running as root, and there is no sudo."
  elif [[ -t 0 ]]; then
    return
  else
    say "setup: sudo asks for a password and there is no terminal to type it on."
  fi
  die "setup: ask an administrator to run: apt-get install $*"
}

# Counts what apt unpacks, so that a slow download does not look like a hang.
show_progress() {
  awk -v log_file="$1" -v tty="$2" '
    { print >> log_file; fflush(log_file) }
    /^Setting up / {
      ++done
      if (tty) printf "\rsetup: %d packages set up ", done > "/dev/stderr"
      else if (done % 25 == 0) printf "setup: %d packages set up\n", done > "/dev/stderr"
    }
    END { if (tty && done) printf "\n" > "/dev/stderr" }'
}

apt() {
  as_root env DEBIAN_FRONTEND=noninteractive apt-get -q -y \
    -o Acquire::Retries=3 -o DPkg::Lock::Timeout=300 "$@" </dev/null 2>&1
}

# apt_install NAME...: four tries, because mirrors have bad minutes.
apt_install() {
  local log=$logs/setup.log tty=0 pause
  [[ -t 2 ]] && tty=1
  mkdir -p "$logs"
  : >"$log"
  for pause in 3 10 30 0; do
    # A source that fails here may not be the one that is needed: the installation decides.
    apt update >>"$log" || true
    if apt install --no-install-recommends "$@" | show_progress "$log" "$tty"; then return 0; fi
    # A name that no source knows will not be known in a minute either.
    if grep -qE "$unknown_package" "$log"; then return 1; fi
    ((pause)) || return 1
    say "setup: apt failed, next try in $pause s"
    sleep "$pause"
  done
}

install_required() {
  say "setup: installing $# packages: $*"
  require_root "$@"
  apt_install "$@" && return
  tail -n 20 "$logs/setup.log" >&2
  if grep -E "$unknown_package" "$logs/setup.log" | grep -q -e '-22'; then
    say "setup: clang 22 comes from Debian's security suite (bookworm-security);" \
        "add it to the apt sources"
  fi
  die "setup: could not install $*; the log is build/logs/setup.log"
}

# One try for each checkout: a machine that cannot have them is not asked again.
install_optional() {
  local given_up=$root/build/.optional-packages-unavailable
  if [[ -e $given_up ]] || ! is_root_without_asking; then return 0; fi
  say "setup: installing optional packages: $*"
  apt_install "$@" && return
  say "setup: going on without $*: builds take longer"
  mkdir -p "${given_up%/*}"
  touch "$given_up"
}

main() {
  local set_name=${1:-build} list_only=0
  if [[ $set_name == list ]]; then
    list_only=1
    set_name=${2:-build}
  fi
  local wanted=("${build_packages[@]}")
  case $set_name in
    build) ;;
    test) wanted+=("${test_packages[@]}") ;;
    *) die "setup: unknown set '$set_name'; known: build test" ;;
  esac
  if ((list_only)); then
    printf '%s\n' "${wanted[@]}"
    return
  fi
  [[ ${SLACKWATER_SKIP_SETUP:-0} == 1 ]] && return
  command -v dpkg-query >/dev/null || die "setup: this is no Debian system." \
    "Install the equivalents of: ${wanted[*]}; then set SLACKWATER_SKIP_SETUP=1"

  local missing optional=() required=() name
  missing=$(missing_of "${wanted[@]}" "${optional_packages[@]}")
  for name in $missing; do
    if [[ " ${optional_packages[*]} " == *" $name "* ]]; then
      optional+=("$name")
    else
      required+=("$name")
    fi
  done
  if ((${#required[@]})); then install_required "${required[@]}"; fi
  if ((${#optional[@]})); then install_optional "${optional[@]}"; fi
}

main "$@"
