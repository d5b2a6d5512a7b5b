linux servers 10.0.0.5 nginx,redis
fetches 10.0.0.5 index.html empty 1k 100k 1m 16m
ab -q -c 4 -n 200 http://10.0.0.5/index.html | grep -E 'Failed requests: +0$'
redis-benchmark -h 10.0.0.5 -t get,set -n 1000 -q
stop servers
