# A victim (broker, redis), an honest guest with a connection by rings, and two hostile guests that speak the
# brokers' protocol: one above the victim by its domain id, which is the senior, and one below. After each trial the
# victim's broker answers, is no larger, and the honest guest's connection goes on, right byte by byte and by rings.
program_guests guests-hostile upper:7 server:8 client:9 lower:10
# Each pair of them, but not the hostile ones with the honest client.
/job/fordway guests meet server=10.0.0.8 client=10.0.0.9
/job/fordway guests meet server=10.0.0.8 upper=10.0.0.7
/job/fordway guests meet server=10.0.0.8 lower=10.0.0.10
for guest in $guests; do xl unpause "$guest"; done

# What guests said, when the case fails.
all_said() {
    local name
    for name in $guests; do
        console "$name" | tr -d '\r' | tail -n 25 | sed "s/^/$name| /"
    done
}
plain() { redis-cli -h 10.0.0.8 -p 6380 "$@"; }
for i in $(seq 600); do
    [ "$(plain ping 2>/dev/null)" != PONG ] || break
    sleep 0.1
done

# asks GUEST WORDS...: what it says at the end.
asks() {
    local guest=$1 said
    shift
    plain lpush "$guest" "$*" >/dev/null
    said=$(plain blpop "$guest-done" ${seconds:-120} | tail -n 1)
    echo "${said:-no answer}"
}

# well WHAT: the victim and the honest guest are; how large the victim's broker is.
well() {
    local said
    said=$(asks server look)
    case $said in well\ *) ;; *) all_said; fail "$1: server: $said" ;; esac
    set -- "$1" $said
    rss=$3 descriptors=$4 redis=$5 log=$6 free=$7
    said=$(asks client look)
    case $said in well\ *) ;; *) all_said; fail "$1: client: $said" ;; esac
    fast=${said##* }
    echo "    $1: $rss kB, $descriptors descriptors, redis $redis, log $log bytes, $free kB available; client $said"
}

# What is not as it should be does not keep the other trials from being made.
faults=
fault() {
    echo "NOT SO: $*"
    faults="$faults; $*"
}

# trial GUEST WORDS...
trial() {
    local guest=$1 said left=10 log_before=$log free_before=$free
    shift
    said=$(asks "$guest" "$@")
    echo "$said"
    case $said in hostile:*FAILED* | 'no answer') fault "$guest $said" ;; esac
    well "$guest $*"
    # What was the conversation's goes with it, not at once.
    until [ "$descriptors" -le $((descriptors_before + 4)) ] && [ "$redis" -le $((redis_before + 4)) ] &&
        [ "$rss" -le $((rss_before + 6000)) ]; do
        left=$((left - 1))
        if [ $left = 0 ]; then
            fault "the victim grows, after $guest $*: $rss_before to $rss kB, $descriptors_before to $descriptors descriptors, redis $redis_before to $redis"
            rss_before=$rss descriptors_before=$descriptors redis_before=$redis
            break
        fi
        sleep 0.5
        well "$guest $*, later"
    done
    # What it keeps mapped of links stays the victim's cost (docs/guests.md), and nothing else.
    case $1 in
        links*) echo "    $((free_before - free)) kB are not there" ;;
        # 40 regions are 11 MB.
        keeps*) [ "$free" -ge $((free_before - 8000)) ] || fault "$((free_before - free)) kB are gone, after $guest $*" ;;
        *) [ "$free" -ge $((free_before - 16000)) ] || fault "$((free_before - free)) kB are gone, after $guest $*" ;;
    esac
    [ "$fast" = 1 ] || fault "the honest connection is not on rings, after $guest $*"
    [ $((log - log_before)) -lt 100000 ] || fault "$((log - log_before)) bytes of log, after $guest $*"
}

for i in 1 2 3; do well "the beginning $i"; sleep 1; done
expect 'the honest connection is on rings' "$fast" = 1
rss_before=$rss descriptors_before=$descriptors redis_before=$redis
while read -r guest words; do
    [ -n "$guest" ] || continue
    trial $guest $words </dev/null
done <<TRIALS
lower silence
upper silence
lower garbage
upper garbage
lower lies
upper lies
lower grants
upper grants
lower region 1000
upper region 1000
lower head
upper head
lower taken
upper taken
lower repeats 4000
upper repeats 4000
lower nodes 1000
upper nodes 1000
lower flood 60000
upper flood 60000
lower storm 30000
upper storm 30000
lower offers 64 1024
lower links 30
upper links 30
lower meets 40
upper meets 40
lower keeps 40
upper keeps 40
upper links-kept 9
lower links-kept 9
TRIALS
all_said
[ -z "$faults" ] || fail "${faults#; }"
for guest in server client upper lower; do stop "$guest"; done
