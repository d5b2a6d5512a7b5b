# What the two guests of the case `guests-programs` do:
#
#   server: redis twice, with the library (port 6379) and without (6380)
#           and once to be asked to execute itself (port 6381)
#   client: redis-benchmark against the first two, a stream whose bytes are compared, 50 connections that stay
#
# Figures are `FIGURE plain|fordway c1|c50 SET|GET REQUESTS/S`.

serve() {
    local options='--bind 0.0.0.0 --protected-mode no --appendonly no --dir /tmp'
    fordway run --here -- redis-server --port 6379 --save '' $options >/tmp/redis.log &
    redis-server --port 6380 --save '' $options >/tmp/plain.log &
    fordway run --here -- /usr/bin/redis-server --port 6381 --save '' --enable-debug-command yes $options >/tmp/lives.log &
    until_so 120 redis-cli -p 6379 ping
    until_so 120 redis-cli -p 6380 ping
    echo 'guest: serves'
    looks
}

has_met_again() { [ "$(grep -c 'the broker of guest .* is met' /run/fordway/broker.log)" = 2 ]; }

is_saved() {
    redis-cli -h $server -p 6379 info persistence | tr -d '\r' >/tmp/saving
    grep -q '^rdb_bgsave_in_progress:0' /tmp/saving && grep -q '^rdb_last_bgsave_status:ok' /tmp/saving &&
        grep -q '^rdb_saves:[1-9]' /tmp/saving
}

ask() {
    until_so 240 redis-cli -h $server -p 6379 ping
    until_so 240 redis-cli -h $server -p 6380 ping
    figures plain 6380 1 2000
    figures fordway 6379 1 4000 fordway run --here --
    figures plain 6380 50 10000
    figures fordway 6379 50 20000 fordway run --here --
    stream stream fordway run --here -- redis-cli -h $server
    # Each has a link of its own, which is over with it. It is there before the last of so many answers.
    seq 400 | sed 's/.*/ping/' >/tmp/pings
    for turn in $(seq 34); do
        [ "$(fordway run --here -- redis-cli -h $server </tmp/pings | grep -c PONG)" = 400 ] || fail "program $turn"
    done
    ! grep 'no memory for rings' /run/fordway/broker.log || fail 'grants are missing'
    echo 'guest: 34 programs have come and gone'
    # The same for a process of the server's that executes itself with its links.
    for turn in $(seq 12); do
        until_so 120 redis-cli -h $server -p 6381 ping
        [ "$(fordway run --here -- redis-cli -h $server -p 6381 </tmp/pings | grep -c PONG)" = 400 ] || fail "life $turn"
        redis-cli -h $server -p 6381 debug restart
    done
    until_so 120 redis-cli -h $server -p 6381 ping
    look lives
    echo 'guest: 12 lives of one process'
    fordway run --here -- redis-benchmark -h $server -t get -c 50 -n 100000000 -q >/dev/null &
    until_so 120 are_fast 50
    look crowd
    # A fork of the server, which has no peer's memory.
    redis-cli -h $server -p 6379 bgsave
    until_so 120 is_saved
    echo "guest: saved"
    until_so 120 are_fast 50
    shown forked
    # dom0 says now that the two may not meet any more.
    until_so 240 are_fast 0
    kill -0 $! || fail 'the crowd has ended'
    echo 'guest: parted'
    kill $!
    wait $!
    # And that they may again.
    until_so 240 has_met_again
    fordway run --here -- redis-benchmark -h $server -t get -c 50 -n 100000000 -q >/dev/null &
    until_so 240 are_fast 50
    echo 'guest: met again'
    kill $!
    wait $!
    echo 'guest: done'
}

serve_or_ask
