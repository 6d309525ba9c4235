#!/usr/bin/env bash
# Runs job after job: a JSON line for each. Needs jq.
set -uo pipefail
# shellcheck source=files.bash
source "$(dirname "${BASH_SOURCE[0]}")/files.bash"
exec 4>&1 1>&2 # the protocol is descriptor 4; what job code prints is no line of it

progress() { # DONE TOTAL
    jq -nc --arg jid "$jid" --argjson progress "[$1,$2]" '{$jid, $progress}' >&4
}

run() { # KLASS
    declare -F -- "job_$1" >/dev/null || give_up "there is no klass $1 here"
    "job_$1"
}

payload() { # ENCODING, and the line on standard input
    case $1 in
        bytes) jq -r '.payload["$bytes"]' | base64 -d ;;
        text) jq -j .payload ;;
        *) jq -c .payload ;;
    esac
}

echo '{"ready":true}' >&4
while IFS= read -r line; do
    mapfile -d '' fields < <(jq -j '.jid, .queue, .klass, .encoding | . + "\u0000"' <<<"$line")
    jid=${fields[0]} queue=${fields[1]}
    payload "${fields[3]}" <<<"$line" >payload
    (set -e; run "${fields[2]}") <payload >result 2>stderr # not within `if`, which would turn off `set -e`
    case $? in
        0) base64 -w 0 result | jq -Rsc --arg jid "$jid" '{$jid, complete: {"$bytes": .}}' ;;
        64) jq -Rsc --arg jid "$jid" --arg group "$queue-gave-up" '{$jid, fail: {$group, message: .}}' stderr ;;
        *) jq -Rsc --arg jid "$jid" --arg group "$queue-error" '{$jid, retry: {$group, message: .}}' stderr ;;
    esac >&4
done
