configure small 10.0.0.2 /job/linux/kernel 192 'console=hvc0 quiet panic=-1 fw_ip=10.0.0.2' /job/linux/small.cpio
boot linux small 1
pings linux 10.0.0.2
stop small
