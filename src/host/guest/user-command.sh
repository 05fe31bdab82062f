# user-command BUSYBOX NAME INLINE_BYTES REST_BYTES PROGRAM ARGUMENT…, run in the guest by its agent, as root. Becomes the program, in
# a session of its own, so that its exit code, or its signal, is what the agent sees. What the program prints goes through two
# pipes: the first INLINE_BYTES of each to the agent, the next REST_BYTES into the files NAME.1 and NAME.2, all else is drained:
# the program neither waits for room nor is ended by a closed pipe. Who reads the pipes has the agent's own ends, so for the agent
# it is over when the program has ended and both are drained.
# "begun" before all else tells that it got so far.
bb=$1 name=$2 inline=$3 rest=$4
shift 4
"$bb" mkfifo -m 600 "$name.out" "$name.err" || exit 1
# drain FD FILE: stdin, by way of the agent's FD. Without room for the rest there is no FILE.
drain() {
	# dd says "0+1 records in" where it came to the end.
	case "$("$bb" dd bs="$inline" count=1 iflag=fullblock 2>&1 >&"$1")" in
	0+*) return ;;
	1+*) (umask 077 && "$bb" dd bs="$rest" count=1 iflag=fullblock of="$2" 2> /dev/null) || "$bb" rm -f "$2" ;;
	esac
	"$bb" cat > /dev/null
}
echo begun
(
	exec 3>&1 4>&2
	{
		drain 3 "$name.1" < "$name.out"
		# The program has both open by now, and needs their names no more.
		"$bb" rm -f "$name.out" "$name.err" > /dev/null 2>&1 3>&- 4>&- &
	} &
	drain 4 "$name.2" < "$name.err" &
)
# A shell's own.
unset PWD OLDPWD SHLVL
exec /usr/bin/setsid "$@" > "$name.out" 2> "$name.err"
