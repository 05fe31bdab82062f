#!/bin/sh
# Asked by Debian's package scripts before they start or stop a service. init runs these two, so a package
# upgrade must not start second ones beside them; everything else is allowed.
case "$1" in
ssh | sshd | qemu-guest-agent) exit 101 ;;
esac
exit 0
