linux servers 10.0.0.5 nginx,lighttpd,redis
pages nginx 10.0.0.5
pages lighttpd 10.0.0.5:81
file nginx 10.0.0.5
file lighttpd 10.0.0.5:81
gets redis 10.0.0.5
stop servers
