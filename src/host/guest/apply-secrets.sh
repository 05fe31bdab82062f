# apply-secrets SEQUENCE CERTIFICATE: the guest agent runs it as root, with the text of /run/berth/environment on
# stdin. With a certificate, the guest trusts that certificate, and new sessions get that environment. With an empty
# CERTIFICATE, neither holds any more. Exit code 4: a call with a higher sequence, which is printed, came first.
#
# Sessions that began earlier keep their environment, so the files on tmpfs that it names stay until the next boot. The
# copy of the certificate on the disk is written last, and removed last: it says that the guest's trust store has the
# certificate.
bb=/usr/lib/berth/busybox
run=/run/berth
kept=/etc/berth-secrets-ca.pem
sequence=$1
certificate=$2
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export PATH

# Where distributions look for certificates of the machine's owner, and the file that they make of all.
debian=/usr/local/share/ca-certificates
others='/etc/pki/ca-trust/source/anchors /etc/ca-certificates/trust-source/anchors /etc/pki/trust/anchors'
bundles='/etc/ssl/certs/ca-certificates.crt /etc/pki/tls/certs/ca-bundle.crt /etc/ssl/ca-bundle.pem /etc/ssl/cert.pem'

bundle() {
	local file
	for file in $bundles; do
		[ ! -e "$file" ] || { $bb readlink -f "$file"; return; }
	done
}

# without CERTIFICATE FILE: all of FILE but that certificate.
without() {
	$bb awk '
		FNR == NR { ours = ours $0 "\n"; next }
		/^-----BEGIN/ { block = ""; inside = 1 }
		!inside { print; next }
		{ block = block $0 "\n" }
		/^-----END/ { inside = 0; if (block != ours) printf "%s", block }
	' "$1" "$2"
}

# Not for Debian: its program reads every certificate anew, which takes half a minute under emulation.
update_store() {
	if command -v update-ca-trust > /dev/null; then
		update-ca-trust > /dev/null 9>&-
	elif command -v update-ca-certificates > /dev/null; then
		update-ca-certificates > /dev/null 9>&-
	fi
}

# As Debian's program does, which finds it done: a link to ours, and one by the hash of its name for OpenSSL.
link_for_debian() {
	local hash
	$bb ln -sf $debian/berth-secrets.crt /etc/ssl/certs/berth-secrets.pem
	hash=$(openssl x509 -noout -subject_hash -in $debian/berth-secrets.crt 2> /dev/null) || return 0
	$bb ln -sf berth-secrets.pem "/etc/ssl/certs/$hash.0"
}

trust() {
	local folder file
	if [ -d $debian ] && [ -d /etc/ssl/certs ]; then
		$bb cp "$run/secrets-ca.pem" $debian/berth-secrets.crt
		link_for_debian
	fi
	for folder in $others; do
		[ -d "$folder" ] || continue
		$bb cp "$run/secrets-ca.pem" "$folder/berth-secrets.crt"
		update_store || true
	done
	file=$(bundle)
	[ -n "$file" ] || return 0
	{ without "$run/secrets-ca.pem" "$file"; $bb cat "$run/secrets-ca.pem"; } > "$file.new"
	$bb mv -f "$file.new" "$file"
}

distrust() {
	local folder file link
	if [ -e $debian/berth-secrets.crt ]; then
		link=/etc/ssl/certs/$(openssl x509 -noout -subject_hash -in "$kept" 2> /dev/null).0
		[ "$($bb readlink "$link")" != berth-secrets.pem ] || $bb rm -f "$link"
		$bb rm -f $debian/berth-secrets.crt /etc/ssl/certs/berth-secrets.pem
	fi
	for folder in $others; do
		[ -e "$folder/berth-secrets.crt" ] || continue
		$bb rm -f "$folder/berth-secrets.crt"
		update_store || true
	done
	file=$(bundle)
	[ -n "$file" ] || return 0
	without "$kept" "$file" > "$file.new"
	$bb mv -f "$file.new" "$file"
}

umask 022
set -e
exec 9> "$run/secrets.lock"
flock 9
latest=0
# Empty if there was no room for it.
[ ! -e "$run/secrets.sequence" ] || read -r latest < "$run/secrets.sequence" || latest=0
if [ "$sequence" -le "$latest" ]; then echo "$latest"; exit 4; fi
echo "$sequence" > "$run/secrets.sequence"

if [ -z "$certificate" ]; then
	$bb rm -f "$run/environment"
	[ ! -e "$kept" ] || { distrust; $bb rm -f "$kept"; }
	exit 0
fi

echo "$certificate" > "$run/secrets-ca.pem.new"
$bb mv -f "$run/secrets-ca.pem.new" "$run/secrets-ca.pem"
file=$(bundle)
# Without one, ours is all that there is.
$bb ln -sfn "${file:-$run/secrets-ca.pem}" "$run/ca-bundle.pem"
$bb cat > "$run/environment.new"
$bb mv -f "$run/environment.new" "$run/environment"
if ! $bb cmp -s "$run/secrets-ca.pem" "$kept"; then
	[ ! -e "$kept" ] || distrust
	trust
	$bb cp "$run/secrets-ca.pem" "$kept.new"
	$bb mv -f "$kept.new" "$kept"
fi
