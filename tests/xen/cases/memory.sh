for memory in 8 16 64 512; do
    unikernel sized httpd 10.0.0.11 $memory
    listens 10.0.0.11 80
    fetches 10.0.0.11 index.html 1k 100k
    no_loss 200 -f 10.0.0.11
    ab -q -c 10 -n 300 http://10.0.0.11/index.html | grep -E 'Failed requests: +0$'
    xl list | grep sized
    stop sized
done
