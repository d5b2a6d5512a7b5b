httpd
for turn in 1 2 3; do
    curl -sS -m 60 --limit-rate 8M http://10.0.0.3/16m >/tmp/got &
    curl=$!
    sleep 0.3
    xl pause httpd
    sleep 1
    xl unpause httpd
    wait $curl
    expect 'the transfer goes on' "$(hash_of </tmp/got)" = "$(hash_of </job/www/16m)"
done
