kv
gets kv 10.0.0.4
stop kv
