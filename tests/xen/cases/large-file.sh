mkdir -p /tmp/large
head -c 104857600 /dev/urandom >/tmp/large/100m
tar --format=ustar -cf /tmp/large.tar -C /tmp/large .
configure large 10.0.0.12 /job/httpd 192 'ip=10.0.0.12/24 gw=10.0.0.1' /tmp/large.tar
start large
listens 10.0.0.12 80
expect '100 MB by curl' "$(curl -sS -m 100 http://10.0.0.12/100m | hash_of)" = "$(hash_of </tmp/large/100m)"
stop large
rm -r /tmp/large /tmp/large.tar
