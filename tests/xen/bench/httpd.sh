archive
configure httpd 10.0.0.3 /job/httpd 64 'ip=10.0.0.3/24 gw=10.0.0.1' /tmp/www.tar
boot httpd httpd 3
pings httpd 10.0.0.3
listens 10.0.0.3 80
pages httpd 10.0.0.3
file httpd 10.0.0.3
stop httpd
