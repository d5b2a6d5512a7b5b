httpd
url=http://10.0.0.3
code() { curl -s -o /dev/null -m 10 -w '%{http_code}' "$@"; }
expect 'a missing file' "$(code $url/nothing)" = 404
expect 'a directory' "$(code $url/)" = 200
expect 'HEAD' "$(code -I $url/16m)" = 200
expect 'a method that is not had' "$(code -X DELETE $url/1k)" = 405
expect 'out of the tree' "$(code --path-as-is $url/../../etc/passwd)" != 200
expect 'a range' "$(curl -s -r 1000-1999 $url/100k | hash_of)" = "$(tail -c +1001 /job/www/100k | head -c 1000 | hash_of)"
expect 'the last bytes' "$(curl -s -r -500 $url/100k | hash_of)" = "$(tail -c 500 /job/www/100k | hash_of)"
expect 'no such range' "$(code -r 200000- $url/100k)" = 416
# The wall clock, as dom0 has it.
told=$(curl -sI $url/1k | tr -d '\r' | sed -n 's/^Date: //p')
apart=$(($(date +%s) - $(date -d "$told" +%s)))
expect "the date ($told)" "${apart#-}" -le 2
# Two on one connection.
expect 'connections' "$(curl -s -o /dev/null -o /dev/null -w '%{num_connects}' $url/1k $url/1k)" = 10
python3 /job/clients.py 10.0.0.3
