httpd
url=http://10.0.0.3
configure client 10.0.0.7 /job/linux/kernel 192 "console=hvc0 quiet panic=-1 fw_ip=10.0.0.7 fw_get=$url/1k,$url/100k,$url/1m,$url/16m" /job/linux/small.cpio
start client
for file in 1k 100k 1m 16m; do
    says client "$(hash_of <"/job/www/$file")" 60
done
stop client
