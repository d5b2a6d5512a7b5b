# Small buffers: a connection's are its own.
unikernel crowd httpd 10.0.0.17 128 send=16 receive=4
listens 10.0.0.17 80
ulimit -n 20000
timeout 100 python3 /job/crowd.py 10.0.0.17 80 1000
fetches 10.0.0.17 1k
stop crowd
