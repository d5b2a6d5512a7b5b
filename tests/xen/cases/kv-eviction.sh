# 30 MB of values for a domain of 16 MB.
unikernel crammed kv 10.0.0.23 16
listens 10.0.0.23 6379
cli() { timeout 20 redis-cli -h 10.0.0.23 "$@"; }
redis-benchmark -h 10.0.0.23 -t set -d 10000 -r 100000 -n 3000 -c 4 -q | tr '\r' '\n' | grep -E 'requests per second'
expect 'the last one' "$(cli SET last here)" = OK
expect 'the last one' "$(cli GET last)" = here
cli INFO | tr -d '\r' | grep -E '^(used_memory|evicted_keys|maxmemory):' | tee /tmp/info
expect 'what went' "$(sed -n 's/^evicted_keys://p' /tmp/info)" -gt 1000
stop crammed
