# What the two guests of the case `guests-brokers` do:
#
#   server: a broker, redis with the library (port 6379) and without (6380); its broker is killed when the client says so
#   client: a broker, which is killed; one connection whose bytes are compared after each death
#
# A broker is killed with SIGKILL: as it begins, when it has heard of the other guest, when it has met the other one, and while
# bytes go by rings.

log=/run/fordway/broker.log

# begin_anew: the broker is killed, and another one started. What was in its log is gone.
begin_anew() {
    kill -9 $(pidof fordway)
    : >$log
    fordway up --detach || fail "fordway up: $(tail -n 3 $log)"
}

# dies STEP: it begins anew, is killed at that step of its life, and begins anew.
dies() {
    [ "$1" = fast ] || begin_anew
    case $1 in
        hears) until_so 120 grep -q 'may be met' $log ;;
        meets) until_so 120 grep -q 'is met' $log ;;
    esac
    begin_anew
}

serve() {
    serve_both
    while step=$(redis-cli -p 6380 blpop die 0 | tail -n 1) && [ -n "$step" ]; do
        case $step in
            look) shown end ;;
            *) dies "$step" ;;
        esac
        redis-cli -p 6380 lpush died "$step" >/dev/null
    done
    fail 'the redis without the library has ended'
}

there() {
    redis-cli -h $server -p 6380 lpush die "$1" >/dev/null
    [ "$(redis-cli -h $server -p 6380 blpop died 300 | tail -n 1)" = "$1" ] || fail "the server does not do: $1"
}

# A connection gets rings by calls.
until_fast() {
    local left=100
    until is_fast 1; do
        left=$((left - 1))
        [ $left -gt 0 ] || fail "no rings: $(fordway ss | tail -n 2)"
        bytes || fail 'on the way to rings'
    done
}

# What was begun beside the connection has ended.
wait_all() {
    local job
    for job in $(jobs -p); do
        [ "$job" = "$stream" ] || wait "$job" || fail "a broker"
    done
}

ask() {
    until_so 240 redis-cli -h $server -p 6379 ping
    until_so 240 redis-cli -h $server -p 6380 ping
    begin_stream
    bytes || fail 'at first'
    for step in begins hears meets fast; do
        for who in here there both; do
            [ $step != fast ] || until_fast
            case $who in
                here) dies $step & ;;
                there) there $step & ;;
                both) (there $step) & dies $step & ;;
            esac
            # While that goes on.
            bytes || fail "at the death of $who, which $step"
            wait_all
            bytes || fail "behind the death of $who, which $step"
            echo "guest: right after: $who $step, $carried bytes"
        done
    done
    until_fast
    bytes || fail 'by rings'
    shown end
    there look
    echo 'guest: done'
}

serve_or_ask
