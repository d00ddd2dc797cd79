#!/bin/bash
# A program that is hard to end: every member ignores SIGTERM and writes the time (µs) to a file of its own every few ms.
#   family.sh all DIR    the program, a child in its group, and one that has left group, session and parent
#   family.sh one FILE   one member
#   family.sh once FILE  writes the time once and ends

stamp() {
    trap '' TERM
    exec 9<> <(:)
    while :; do
        echo "${EPOCHREALTIME/./}"
        read -rt 0.003 -u 9
    done >>"$1"
}

export LC_ALL=C
# A reader of the command's output to its end is not to wait for us.
exec >/dev/null 2>&1
case $1 in
once) echo "${EPOCHREALTIME/./}" >>"$2" ;;
one)
    echo $BASHPID >"$2.pid"
    stamp "$2"
    ;;
all)
    trap '' TERM
    base=$2/$LEASEHOLD_FENCING_TOKEN
    bash "$0" one "$base.child" &
    (setsid bash "$0" one "$base.daemon" &)
    echo $BASHPID >"$base.leader.pid"
    stamp "$base.leader"
    ;;
esac
