# The same image without rules and with 100, each of which looks at every packet and none
# of which is met.
unikernel filtered httpd-filter 10.0.0.16
listens 10.0.0.16 80
pages filter0 10.0.0.16
rules filtered /job/hundred.fwnf
pages filter100 10.0.0.16
stop filtered
