httpd
for file in 1k 100k 1m 16m; do
    configure client 10.0.0.7 /job/linux/kernel 192 "console=hvc0 quiet panic=-1 fw_ip=10.0.0.7 fw_get=http://10.0.0.3/$file" /job/linux/small.cpio
    start client
    says client "$(hash_of <"/job/www/$file")" 60
    stop client
done
