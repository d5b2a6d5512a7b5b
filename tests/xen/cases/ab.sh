httpd
for options in '-c 1 -n 200' '-c 4 -n 500' '-k -c 4 -n 2000' '-k -c 50 -n 2000'; do
    # shellcheck disable=SC2086 # one word for each option
    said=$(ab -q $options http://10.0.0.3/index.html)
    echo "ab $options: $(echo "$said" | grep 'Requests per second')"
    echo "$said" | grep -qE 'Failed requests: +0$' || fail "ab $options: $said"
    ! echo "$said" | grep -q 'Non-2xx' || fail "ab $options: $said"
done
