#!/usr/bin/env bash
# Run the Dockerfile's steps in a Debian root of its own where there is no Docker, then its entry point with the arguments:
#   tests/dockerfile.sh FOLDER doctor
# FOLDER is made by debootstrap if it is not there. Needs root, debootstrap and unshare. BINDS names
# files and folders of this machine that the root sees, too, such as a package index's certificates. FOLDER/work is the image's /work.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
root=$1
shift
release=$(sed -n 's/^FROM debian:\(.*\)-slim$/\1/p' Dockerfile)
[ -e "$root/bin/sh" ] || debootstrap --variant=minbase --include=ca-certificates "$release" "$root"
cp /etc/resolv.conf "$root/etc/resolv.conf"
mkdir -p "$root/work"

inside() { # USER COMMAND...: in the root, with its own /proc and what BINDS names
  unshare --mount --pid --fork bash -c '
    root=$1; shift
    mount -t proc proc "$root/proc"
    mount --rbind /dev "$root/dev" && mount --rbind /sys "$root/sys"
    for each in ${BINDS-}; do
      if [ -d "$each" ]; then mkdir -p "$root$each"; else mkdir -p "$(dirname "$root$each")"; touch "$root$each"; fi
      mount --bind "$each" "$root$each"
    done
    exec chroot --userspec="$1" "$root" env HOME=/tmp PATH="$PATH" bash -c "cd \"\${WHERE:-/}\" && exec \"\$@\"" - "${@:2}"' - "$root" "$@"
}

user=root
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
while read -r step rest; do
  echo "$step $rest" >&2
  case $step in
    RUN) inside "$user" bash -euc "$rest" ;;
    COPY) mkdir -p "$root${rest#. }" && git ls-files -z | tar --null -T - -c | tar -x -C "$root${rest#. }" ;;
    ENV) eval "export $rest" ;;
    USER) user=$rest ;;
    WORKDIR) export WHERE=$rest ;;
    ENTRYPOINT) entry=$(tr -d '[],"' <<<"$rest") ;;
    FROM | CMD | "#" | "") ;;
    *) echo "tests/dockerfile.sh: $step isn't known to it" >&2 && exit 2 ;;
  esac
done <Dockerfile
inside "$user" "$entry" "$@"
