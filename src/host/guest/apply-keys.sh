# apply-keys replace|end|look SEQUENCE FINGERPRINT…: the guest agent runs it as root, with authorized keys on stdin.
# `replace` and `end` set the keys that sshd accepts; `end` and `look` end every connection of another key. It prints
# how many connections it ended, and how many it could not judge yet: run it again for those. Exit code 3: a connection
# that must end has no process; 4: a call with a higher sequence, which is printed, came first. A hung agent may
# execute many old calls at once.
#
# sshd's log says which key a connection used, and /proc which process has it. A connection that has not authenticated
# yet stays: it is judged by the new keys. A connection that the log does not know is ended, because somebody may have
# emptied the log, unless its process is young and may not have logged yet. If the log says that a connection has not
# authenticated long after sshd would have ended it, it is ended too: its line was lost when the log was cut.
bb=/usr/lib/berth/busybox
run=/run/berth
young_seconds=10
# LoginGraceTime is 60.
grace_seconds=90
what=$1
sequence=$2
shift 2

umask 077
set -e
exec 9> "$run/keys.lock"
flock 9
if [ "$what" != look ]; then
	latest=0
	# Empty if there was no room for it.
	[ ! -e "$run/keys.sequence" ] || read -r latest < "$run/keys.sequence" || latest=0
	if [ "$sequence" -le "$latest" ]; then echo "$latest 0"; exit 4; fi
	echo "$sequence" > "$run/keys.sequence"
	$bb cat > "$run/authorized_keys.new"
	$bb mv -f "$run/authorized_keys.new" "$run/authorized_keys"
fi
set +e
[ "$what" != replace ] || { echo 0 0; exit 0; }

folders=/proc/1/fd
for process in /proc/[0-9]*; do
	read -r name 2> /dev/null < "$process/comm" || continue
	case "$name" in sshd*) folders="$folders $process/fd" ;; esac
done
read -r uptime _ < /proc/uptime

status=0
{
	echo @keys
	printf '%s\n' "$@"
	echo @sockets
	$bb cat /proc/net/tcp
	echo @processes
	# shellcheck disable=SC2086
	$bb ls -l $folders 2> /dev/null
	# The log comes last: nothing in it can start another part.
	echo @log
	$bb cat "$run/sshd.log.1" "$run/sshd.log" 2> /dev/null
} | $bb awk -v now="$uptime" -v young="$young_seconds" -v grace="$grace_seconds" '
	function peer(address, port,    number) {
		split(address, number, ".")
		return sprintf("%02X%02X%02X%02X:%04X", number[4], number[3], number[2], number[1], port)
	}
	# Seconds, of the oldest. proc(5): starttime is field 22, in hundredths of a second; no name of sshd has a space.
	function age(list,    pid, i, file, line, field, oldest) {
		oldest = 0
		for (i = split(list, pid, " "); i > 0; i--) {
			# An init that listens for sshd has the connection too, and is as old as the guest.
			if (pid[i] == 1) continue
			file = "/proc/" pid[i] "/stat"
			if ((getline line < file) > 0) {
				split(line, field, " ")
				if (now - field[22] / 100 > oldest) oldest = now - field[22] / 100
			}
			close(file)
		}
		return oldest
	}
	part != "@log" && /^@/ { part = $1; next }
	part == "@keys" && $1 != "" { allowed[$1] = 1 }
	# Established (01), local port 22: the remote end in hexadecimal, the inode (0: not accepted yet).
	part == "@sockets" && $4 == "01" && $2 ~ /:0016$/ && $10 != "0" { inode_of[$3] = $10 }
	part == "@processes" && /^\/proc\// { split($1, path, "/"); process = path[3] }
	part == "@processes" && /socket:\[/ {
		inode = $NF
		gsub(/[^0-9]/, "", inode)
		processes[inode] = processes[inode] " " process
	}
	part == "@log" { sub(/\r$/, "") }
	part == "@log" && /^Connection from / { key_of[peer($3, $5)] = "none yet" }
	part == "@log" && /^Accepted publickey / { key_of[peer($(NF - 5), $(NF - 3))] = $NF }
	END {
		for (remote in inode_of) {
			key = key_of[remote]
			list = processes[inode_of[remote]]
			seconds = age(list)
			if (key in allowed || key == "none yet" && seconds < grace) continue
			if (list == "") lost++
			else if (key == "" && seconds < young) too_young++
			else print list
		}
		print "young", too_young + 0
		exit lost ? 3 : 0
	}
' > "$run/to-end" || status=$?

ended=0
while read -r processes; do
	case "$processes" in
	young*) young=${processes#young } ;;
	# shellcheck disable=SC2086
	*) kill -KILL $processes && ended=$((ended + 1)) ;;
	esac
done < "$run/to-end"
$bb rm -f "$run/to-end"
echo "$ended $young"
exit "$status"
