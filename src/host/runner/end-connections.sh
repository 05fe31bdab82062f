# Run in the guest by its agent, as root. Ends every SSH connection whose key is not among the fingerprints on stdin,
# and tells how many it ended. Exit code 3: some that should end have no process to be found.
#
# Which key a connection came with is in sshd's log alone; which process has it, in /proc. A connection that the log
# does not know at all is ended too: someone may have emptied the log. One that has not authenticated yet is left: the
# keys it will be measured against have been replaced before.
bb=/usr/lib/berth/busybox
folders=/proc/1/fd
for process in /proc/[0-9]*; do
	read -r name 2> /dev/null < "$process/comm" || continue
	case "$name" in sshd*) folders="$folders $process/fd" ;; esac
done

{
	echo @keys
	$bb cat
	echo @sockets
	$bb cat /proc/net/tcp
	echo @processes
	# shellcheck disable=SC2086
	$bb ls -l $folders 2> /dev/null
	# Last: nothing in it can be taken for the beginning of another part.
	echo @log
	$bb cat /run/berth/sshd.log.1 /run/berth/sshd.log 2> /dev/null
} | $bb awk '
	function peer(address, port,    part) {
		split(address, part, ".")
		return sprintf("%02X%02X%02X%02X:%04X", part[4], part[3], part[2], part[1], port)
	}
	part != "@log" && /^@/ { part = $1; next }
	part == "@keys" { allowed[$1] = 1 }
	# Established (01), local port 22: the remote end in hexadecimal, the inode (0: not accepted yet).
	part == "@sockets" && $4 == "01" && $2 ~ /:0016$/ && $10 != "0" { inode_of[$3] = $10 }
	part == "@processes" && /^\/proc\// { split($1, path, "/"); pid = path[3] }
	part == "@processes" && /socket:\[/ { inode = $NF; gsub(/[^0-9]/, "", inode); pids[inode] = pids[inode] " " pid }
	part == "@log" { sub(/\r$/, "") }
	part == "@log" && /^Connection from / { key_of[peer($3, $5)] = "none yet" }
	part == "@log" && /^Accepted / { key_of[peer($(NF - 5), $(NF - 3))] = $NF }
	END {
		for (remote in inode_of) {
			key = key_of[remote]
			if (key == "none yet" || key in allowed) continue
			if (pids[inode_of[remote]] == "") { lost++; continue }
			print pids[inode_of[remote]]
		}
		exit lost ? 3 : 0
	}
' > /run/berth/to-end || status=$?
ended=0
while read -r pids; do
	# shellcheck disable=SC2086
	kill -KILL $pids && ended=$((ended + 1))
done < /run/berth/to-end
$bb rm -f /run/berth/to-end
echo "$ended"
exit "${status-0}"
