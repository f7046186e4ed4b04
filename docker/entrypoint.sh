#!/bin/sh
# Print the banner, then become the command. What prints is in entrypoint.d, in the order of the names: a .txt is shown,
# a .sh is read by this shell and may set variables for the command. The banner goes to the standard error, so that a
# command's own output can be piped. AMP_TF_BANNER=0 leaves the banner out.
folder=$(dirname "$0")/entrypoint.d

if [ "${AMP_TF_BANNER:-1}" != 0 ]; then
    for part in "$folder"/*; do
        case $part in
            *.txt) cat "$part" ;;
            *.sh)
                # shellcheck source=/dev/null
                . "$part"
                ;;
        esac
    done >&2
fi

[ $# -gt 0 ] || set -- bash
exec "$@"
