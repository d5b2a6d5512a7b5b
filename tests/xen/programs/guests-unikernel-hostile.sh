# What the guests of the case `guests-unikernel-hostile` do with the unikernel's kv, which was started after them:
#
#   upper    a hostile guest (xen/xen-user/examples/hostile.rs), one trial after the other; after each, kv answers it by TCP
#   client   an honest guest with a broker: values by a connection that stays are compared, until the other one is done

ask_hostile() {
    until_so 240 redis-cli -h $server ping
    while read -r words; do
        timeout 200 hostile $words >/tmp/said 2>&1 </dev/null || echo "hostile: $words ends with status $?"
        echo "guest: $(cut -d . -f 1 /proc/uptime) s: $(tail -n 1 /tmp/said)"
        [ "$(timeout 20 redis-cli -h $server ping </dev/null)" = PONG ] || fail "kv does not answer after $words"
    done <<TRIALS
silence
garbage
lies
grants
region 300
head
taken
repeats 1000
nodes 200
flood 10000
storm 5000
links 12
meets 10
keeps 10
links-kept 9
TRIALS
    redis-cli -h $server set end 1
    echo 'guest: done'
}

# One connection, which stays: values each time, and what they are then.
ask_honest() {
    local value left turn=0
    start_broker
    until_so 240 grep -q 'the broker of guest .* is met' /run/fordway/broker.log
    mkfifo /tmp/ask
    fordway run --here -- redis-cli -h $server </tmp/ask >/tmp/answers &
    exec 3>/tmp/ask
    : >/tmp/wanted
    until [ "$(redis-cli -h $server get end)" = 1 ]; do
        turn=$((turn + 1))
        for i in 1 2 3 4; do
            value=$(head -c 12000 /dev/urandom | base64 -w 0)
            printf 'set key%d %s\nget key%d\n' $turn "$value" $turn >&3
            printf 'OK\n%s\n' "$value" >>/tmp/wanted
        done
        until_so 60 cmp -s /tmp/wanted /tmp/answers
        # Emulated time that nobody uses costs nothing.
        sleep 3
    done
    echo "guest: $turn turns, $(wc -c </tmp/answers) bytes, all of them right"
    look last
    are_fast 1 || fail 'the connection is not on rings'
    echo 'guest: done'
}
look() { shown "$1"; }

case $role in
    upper) ask_hostile ;;
    *) ask_honest ;;
esac
