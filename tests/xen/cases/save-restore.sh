unikernel saved httpd 10.0.0.13 32
listens 10.0.0.13 80
fetches 10.0.0.13 1k
if xl save saved /tmp/saved; then
    wait_gone saved
    xl restore /tmp/saved
    rm /tmp/saved
    echo 'it was saved and restored'
else
    echo 'it does not suspend'
fi
answers 10.0.0.13
fetches 10.0.0.13 1k 100k
stop saved
