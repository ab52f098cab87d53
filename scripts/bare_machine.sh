#!/usr/bin/env bash
# Does the first command of the README work on a machine that has nothing? By hand, as root.
#
#   scripts/bare_machine.sh [COMMAND]     `make run` by default
#
# Makes a minimal Debian (debootstrap's minbase, git and make) in a temporary folder, clones the
# last commit into it and runs the command there twice, in a chroot with a mount namespace of its
# own; the second time tells what a warm start costs. WORKING_TREE=1 copies the working tree
# instead of cloning; KEEP=1 leaves the folder. The mirrors are those of the host's apt.
set -euo pipefail
source "$(dirname "$0")/common.sh"

((EUID == 0)) || die "bare_machine: needs root, for chroot and debootstrap"
command -v debootstrap >/dev/null || die "bare_machine: apt-get install debootstrap first"
# shellcheck disable=SC1091
codename=$(. /etc/os-release && printf '%s' "$VERSION_CODENAME")
command=${*:-make run}
machine=$(mktemp -d --tmpdir slackwater-bare.XXXXXX)

cleanup() {
  if [[ ${KEEP:-0} == 1 ]]; then
    say "bare_machine: kept $machine"
  else
    rm -rf --one-file-system "$machine"
  fi
}
trap cleanup EXIT

# The host's Debian sources, one `URI SUITE COMPONENT` a line; other vendors' are left out.
list_sources_of_apt() {
  # shellcheck disable=SC2016  # apt's own placeholders
  apt-get indextargets --format '$(REPO_URI) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' |
    awk -v codename="$codename" 'index($2, codename) == 1 && !seen[$0]++'
}

make_machine() {
  local sources mirror
  sources=$(list_sources_of_apt)
  mirror=$(awk -v codename="$codename" '$2 == codename { print $1; exit }' <<<"$sources")
  [[ -n $mirror ]] || die "bare_machine: the host's apt has no source for $codename"
  say "bare_machine: making a minimal $codename in $machine"
  debootstrap --variant=minbase --include=ca-certificates,git,make "$codename" "$machine/root" \
    "$mirror" >"$machine/debootstrap.log" 2>&1 || {
    tail -n 20 "$machine/debootstrap.log" >&2
    die "bare_machine: debootstrap failed"
  }
  awk '{ print "deb", $0 }' <<<"$sources" >"$machine/root/etc/apt/sources.list"
  apt-config dump Acquire | { grep -E 'Proxy|Check-(Valid-Until|Date)' || true; } \
    >"$machine/root/etc/apt/apt.conf.d/99host"
  cp --remove-destination /etc/resolv.conf /etc/hosts "$machine/root/etc/"
}

copy_repository() {
  local target=$machine/root/slackwater
  if [[ ${WORKING_TREE:-0} == 1 ]]; then
    mkdir "$target"
    git -C "$root" ls-files --cached --others --exclude-standard | while read -r file; do
      [[ ! -e $root/$file ]] || (cd "$root" && cp --parents --target-directory="$target" "$file")
    done
    git -C "$target" init --quiet
  else
    git clone --quiet "$root" "$target"
  fi
}

# Mounts live and die with the namespace: nothing is left mounted, whatever happens.
run_inside() {
  # shellcheck disable=SC2016  # expanded by the inner shell
  unshare --mount --propagation private bash -euc '
    mount -t proc proc "$1/proc"
    mount --rbind /dev "$1/dev"
    exec chroot "$1" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 \
      bash -c "cd /slackwater && $2"' bash "$machine/root" "$1"
}

make_machine
copy_repository
for attempt in first second; do
  start=$EPOCHREALTIME
  run_inside "$command" </dev/null || die "bare_machine: '$command' failed the $attempt time"
  awk -v a="$start" -v b="$EPOCHREALTIME" -v what="$attempt" \
    'BEGIN { printf "bare_machine: the %s run took %.1f s\n", what, b - a }' >&2
done
