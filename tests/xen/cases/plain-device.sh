# One event channel, an event for each response, no large frames, checksums by ourselves, a fresh
# page for each buffer: what a backend that offers nothing gets.
unikernel plain httpd 10.0.0.21 64 off=split,suppression,gso,csum,batching,persistent
listens 10.0.0.21 80
fetches 10.0.0.21 index.html 1k 100k 1m
no_loss 2000 -f 10.0.0.21
stop plain
