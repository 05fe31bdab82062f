# launch-supervisor: run in the guest by its agent, as root, with the supervisor's text as its input. Where one runs, another ends
# at once. It has the perl of the image of debian-12, which every image gets, and no module of perl. Under systemd it is a unit, so
# that an upgrade of the agent does not end execs.
bb=/usr/lib/berth/busybox
file=/run/berth/exec-supervisor
perl=/usr/lib/berth/perl
umask 077
"$bb" cat > "$file.$$" && "$bb" mv "$file.$$" "$file" || exit 1
if [ -x "$perl/perl" ]; then
	set -- "$perl/ld-linux-x86-64.so.2" --library-path "$perl" "$perl/perl" "$file"
else
	set -- perl "$file"
fi
cd /
if [ -d /run/systemd/system ]; then
	exec systemd-run --quiet --collect --unit=berth-execs --property=TasksMax=infinity "$@"
fi
"$bb" setsid "$@" < /dev/null > /dev/null 2>&1 &
