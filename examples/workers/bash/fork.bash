#!/usr/bin/env bash
# Runs one job: payload on standard input, result on standard output. Needs jq.
set -euo pipefail
# shellcheck source=files.bash
source "$(dirname "${BASH_SOURCE[0]}")/files.bash"

progress() { # DONE TOTAL
    echo "progress $1/$2" >&3
}

# An error that no function expected: retry.
trap 'exit 75' ERR
set -E

declare -F -- "job_$GEARTRAIN_JOB_KLASS" >/dev/null || give_up "there is no klass $GEARTRAIN_JOB_KLASS here"
"job_$GEARTRAIN_JOB_KLASS"
