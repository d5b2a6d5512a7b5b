unikernel saved httpd 10.0.0.13 32
fetches 10.0.0.13 1k
xl save saved /tmp/saved
wait_gone saved
xl restore /tmp/saved
rm /tmp/saved
answers 10.0.0.13
fetches 10.0.0.13 1k 100k
stop saved
