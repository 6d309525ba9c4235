# Jobs about files: a function job_KLASS for each klass. The payload is its standard input, its standard output
# the result. `give_up` fails the job for good; any other error, such as a missing file, retries it.
give_up() {
    echo "$*" >&2
    exit 64
}

# Counts the lines of the files in {"paths": [...]}.
job_count() {
    local payload path paths count done=0 lines=0
    payload=$(cat)
    jq -e '.paths | arrays | all(type == "string")' <<<"$payload" >/dev/null || give_up "'paths' must be a list"
    mapfile -d '' paths < <(jq -j '.paths[] + "\u0000"' <<<"$payload")
    for path in "${paths[@]}"; do
        count=$(wc -l <"$path")
        lines=$((lines + count))
        progress $((++done)) "${#paths[@]}"
    done
    printf '{"lines":%d}' "$lines"
}

job_checksum() {
    printf '"%s"' "$(sha256sum | cut -d ' ' -f 1)"
}
