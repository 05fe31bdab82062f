# A UTF-8 locale for login shells whose client sent none; C.UTF-8 is the one that needs no locale package.
: "${LANG:=C.UTF-8}"
export LANG
# Placeholders of secrets; absent without any.
[ ! -r /run/berth/environment ] || . /run/berth/environment
