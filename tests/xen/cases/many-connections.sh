httpd
ulimit -n 20000
timeout 100 python3 /job/crowd.py 10.0.0.3 80 1000
fetches 10.0.0.3 1k
