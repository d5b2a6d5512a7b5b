httpd
fetches 10.0.0.3 index.html empty 1k 100k 1m 16m
