kv
for depth in 1 16; do
    redis-benchmark -h 10.0.0.4 -t ping,set,get,incr,mset -n 5000 -c 50 -P $depth -r 1000 -q | tr '\r' '\n' | grep -E 'requests per second'
done
redis-benchmark -h 10.0.0.4 -t set,get -d 4000 -n 1000 -c 10 -q | tr '\r' '\n' | grep -E 'requests per second'
