#!/bin/sh
# Serves this folder. Yours may be `npm run dev -- --host --port "$PORT"`.
exec /usr/lib/berth/busybox httpd -f -p "$PORT" -h .
