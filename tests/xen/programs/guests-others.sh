# What the two guests of the case `guests-others` do:
#
#   server: nginx and iperf3 twice, with the library (ports 8001, 5201) and without (8002, 5202)
#   client: ab(1) over kept connections for 1 KB and 1 MB, and iperf3 either way, against either
#
# Figures are `FIGURE plain|fordway 1k-c1|1k-c50|1m-c4 nginx REQUESTS/S`, and the same of iperf3 in Mbit/s.

# nginx_on PORT COMMAND...: with one worker.
nginx_on() {
    local port=$1
    shift
    cat >"/tmp/nginx-$port.conf" <<END
user root;
worker_processes 1;
daemon off;
pid /tmp/nginx-$port.pid;
error_log /tmp/nginx-$port.log;
events { worker_connections 1024; }
http {
    access_log off;
    sendfile on;
    tcp_nopush on;
    keepalive_requests 100000000;
    server {
        listen $port;
        root /tmp/www;
    }
}
END
    "$@" nginx -c "/tmp/nginx-$port.conf" &
}

serve() {
    local with='fordway run --here --'
    mkdir -p /tmp/www /var/log/nginx /var/lib/nginx
    head -c 1024 /dev/urandom >/tmp/www/1k
    head -c 1048576 /dev/urandom >/tmp/www/1m
    nginx_on 8001 $with
    nginx_on 8002
    $with iperf3 -s -p 5201 >/tmp/iperf3.log &
    iperf3 -s -p 5202 >/tmp/iperf3-plain.log &
    redis-server --bind 0.0.0.0 --port 6380 --protected-mode no --save '' --dir /tmp >/tmp/plain.log &
    until_so 120 redis-cli -p 6380 ping
    for port in 8001 8002; do
        until_so 120 wget -q -O /tmp/got "http://127.0.0.1:$port/1m"
        cmp /tmp/www/1m /tmp/got || fail "nginx on port $port"
    done
    echo 'guest: serves'
    looks
}

# of_ab PATH PORT FILE CONNECTIONS REQUESTS [COMMAND...]
of_ab() {
    local path=$1 port=$2 file=$3 connections=$4 requests=$5
    shift 5
    "$@" ab -q -k -c "$connections" -n "$requests" "http://$server:$port/$file" >/tmp/ab 2>&1 ||
        fail "ab on port $port: $(tail -n 3 /tmp/ab)"
    grep -q '^Failed requests: *0$' /tmp/ab || fail "ab on port $port: $(grep Failed /tmp/ab)"
    grep -q "^Keep-Alive requests: *$requests\$" /tmp/ab || fail "ab on port $port: $(grep Keep-Alive /tmp/ab)"
    awk -v key="$path $file-c$connections nginx" '/^Requests per second/ { print "FIGURE", key, $4 }' /tmp/ab
}

# of_iperf3 PATH PORT WORD BYTES OPTIONS [COMMAND...]
of_iperf3() {
    local path=$1 port=$2 word=$3 bytes=$4 options=$5
    shift 5
    "$@" iperf3 -c $server -p "$port" -n "$bytes" -f m $options >/tmp/iperf3 2>&1 ||
        fail "iperf3 on port $port: $(tail -n 3 /tmp/iperf3)"
    awk -v key="$path $word iperf3" '/receiver$/ { print "FIGURE", key, $7 }' /tmp/iperf3
}

ask() {
    local with='fordway run --here --' port
    until_so 300 redis-cli -h $server -p 6380 ping
    for port in 8001 8002; do
        until_so 240 wget -q -O /dev/null "http://$server:$port/1k"
    done
    of_ab plain 8002 1k 1 1000
    of_ab fordway 8001 1k 1 2000 $with
    of_ab plain 8002 1k 50 4000
    of_ab fordway 8001 1k 50 8000 $with
    of_ab plain 8002 1m 4 100
    of_ab fordway 8001 1m 4 200 $with
    $with ab -q -k -c 10 -n 500000 "http://$server:8001/1k" >/dev/null &
    until_so 240 are_fast 10
    look nginx
    kill $!
    wait $!
    until_so 240 are_fast 0
    of_iperf3 plain 5202 out 200M ''
    of_iperf3 fordway 5201 out 400M '' $with
    of_iperf3 plain 5202 back 200M -R
    of_iperf3 fordway 5201 back 400M -R $with
    # Both ways at once.
    $with iperf3 -c $server -p 5201 --bidir -t 10000 >/dev/null &
    until_so 240 are_fast 3
    look iperf3
    echo 'guest: done'
}

serve_or_ask
