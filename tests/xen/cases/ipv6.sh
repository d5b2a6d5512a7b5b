archive
configure six 10.0.0.19 /job/httpd 64 'ip=fd00::19/64' /tmp/www.tar
create six
xl unpause six
answers fd00::19
no_loss 200 -i 0.002 fd00::19
fetches '[fd00::19]' index.html 1k 100k 16m
stop six
