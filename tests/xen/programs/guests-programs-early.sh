# What the two guests of the case `guests-programs-early` do: as in `guests-programs`, but each connection is offered at its first
# call, at both ends, so that the first request may go by rings or be under way while they come. Then the server saves in a forked
# child, seven times, while 20 connections carry requests and another one values that are compared.
#
# Figures are `FIGURE plain|fordway c1|c50 SET|GET REQUESTS/S`.
export FORDWAY_OFFER_AFTER=0

serve() {
    serve_both
    echo 'guest: serves'
    looks
}

said_of() { redis-cli -h $server -p 6379 info "$1" | tr -d '\r' | sed -n "s/^$2://p"; }
has_saved() {
    [ "$(said_of persistence rdb_saves)" -ge "$1" ] && [ "$(said_of persistence rdb_bgsave_in_progress)" = 0 ] &&
        [ "$(said_of persistence rdb_last_bgsave_status)" = ok ]
}

# short: connections of one request each, one after another.
short() {
    fordway run --here -- redis-benchmark -h $server -t set,get -k 0 -c 8 -n 1000 --csv >/tmp/csv || fail "redis-benchmark -k 0 ends with status $?"
    [ "$(grep -c '^"[SG]ET"' /tmp/csv)" = 2 ] || fail "redis-benchmark -k 0: $(cat /tmp/csv)"
    echo 'guest: 2000 connections of one request each'
}

ask() {
    local fork with='fordway run --here --'
    until_so 240 redis-cli -h $server -p 6379 ping
    until_so 240 redis-cli -h $server -p 6380 ping
    figures plain 6380 1 2000
    figures fordway 6379 1 4000 $with
    figures plain 6380 50 10000
    figures fordway 6379 50 20000 $with
    stream stream $with redis-cli -h $server
    short
    $with redis-benchmark -h $server -t get,set -d 1000 -c 20 -n 100000000 -q >/dev/null &
    crowd=$!
    begin_stream
    until_so 120 is_fast 21
    look crowd
    for fork in $(seq 7); do
        redis-cli -h $server -p 6379 bgsave
        # On, while it forks and saves.
        bytes >/tmp/bytes || fail "at fork $fork: $(cat /tmp/bytes)"
        until_so 240 has_saved "$fork"
        bytes >/tmp/bytes || fail "after fork $fork: $(cat /tmp/bytes)"
        until_so 240 has_fast $crowd 20
        until_so 240 has_fast $stream 1
        lives $crowd || fail "the crowd has ended at fork $fork"
    done
    [ "$(said_of stats total_forks)" = 7 ] || fail "forks: $(said_of stats total_forks)"
    echo "guest: seven forks, stream $(cat /tmp/bytes)"
    look forked
    echo 'guest: done'
}

serve_or_ask
