httpd
echo hello >"$(xenstore-read "/local/domain/$(xl domid httpd)/console/tty")"
says httpd 'pages free'
